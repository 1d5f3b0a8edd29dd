"""Models with code of their own in `train_step` and `call`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import Sequential, layers


class Gan(keras.Model):
    """Two networks and two optimizers: the second update reads what the first one has written."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = Sequential([layers.Dense(8, activation="tanh"), layers.Dense(6)])
        self.critic = Sequential([layers.Dense(8, activation="tanh"), layers.Dense(1)])
        self.bce = keras.losses.BinaryCrossentropy(from_logits=True)

    def build(self, shape: Any) -> None:
        self.generator.build((None, 6))
        self.critic.build((None, 6))
        self.built = True

    def compile(self, of_generator: Any, of_critic: Any) -> None:
        super().compile()
        self.of_generator, self.of_critic = of_generator, of_critic

    def call(self, x: Any) -> Any:
        return self.critic(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0] if isinstance(data, tuple) else data
        ones, zeros = tf.ones((tf.shape(x)[0], 1)), tf.zeros((tf.shape(x)[0], 1))
        with tf.GradientTape() as tape:
            critic_loss = self.bce(ones, self.critic(x)) + self.bce(zeros, self.critic(self.generator(x)))
        weights = self.critic.trainable_weights
        self.of_critic.apply_gradients(zip(tape.gradient(critic_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            generator_loss = self.bce(ones, self.critic(self.generator(x)))
        weights = self.generator.trainable_weights
        self.of_generator.apply_gradients(zip(tape.gradient(generator_loss, weights), weights, strict=True))
        return {"critic_loss": critic_loss, "generator_loss": generator_loss}


class OwnStep(keras.Model):
    """A mean over the samples that Keras knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(8, activation="tanh"), layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.hidden.build((None, 6))
        self.out.build((None, 8))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Assigning(layers.Layer):
    """Keeps a moving mean of its input and counts its calls, as it passes the input on."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="mean")
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x))
        self.calls.assign_add(1)
        return x
