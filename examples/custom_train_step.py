"""Two optimizers and metrics of one's own in a custom `train_step`: a small GAN whose generator learns a circle.

    tfdist run --workers 3 examples/custom_train_step.py

Nothing in the model knows of workers. The step updates twice, and the second update sees the first one's weights. A
step during which a worker is lost is put back as a whole and done again, so the metrics count it once.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tfdist

NOISE = 4


class Gan(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        layers = keras.layers
        self.generator = keras.Sequential([keras.Input((NOISE,)), layers.Dense(32, "relu"), layers.Dense(2)])
        self.critic = keras.Sequential([keras.Input((2,)), layers.Dense(32, "relu"), layers.Dense(1)])
        self.critic_optimizer, self.generator_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.seed = keras.random.SeedGenerator(11)
        self.critic_loss, self.generator_loss = keras.metrics.Mean("critic_loss"), keras.metrics.Mean("generator_loss")
        self.radius = keras.metrics.Mean("radius")
        self.built = True

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.critic_loss, self.generator_loss, self.radius]

    def train_step(self, real: tf.Tensor) -> dict[str, tf.Tensor]:
        noise = keras.random.normal((tf.shape(real)[0], NOISE), seed=self.seed)
        with tf.GradientTape() as tape:
            says_real, says_fake = self.critic(real), self.critic(self.generator(noise))
            loss = self.loss_of(tf.ones_like(says_real), says_real) + self.loss_of(tf.zeros_like(says_fake), says_fake)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(loss, weights), weights)
        self.critic_loss.update_state(loss)

        with tf.GradientTape() as tape:
            points = self.generator(noise)
            says = self.critic(points)
            loss = self.loss_of(tf.ones_like(says), says)
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(loss, weights), weights)
        self.generator_loss.update_state(loss)
        self.radius.update_state(tf.norm(points, axis=-1))
        return {metric.name: metric.result() for metric in self.metrics}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(1)
    angle = np.random.RandomState(0).uniform(0, 2 * np.pi, 3000)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype("float32")
    strategy = tfdist.ElasticMultiWorkerMirroredStrategy()  # before anything else that TensorFlow does
    dataset = tfdist.data.elastic_dataset(circle, global_batch_size=60)
    with strategy.scope():
        model = Gan()
        model.compile()
    model.fit(dataset, epochs=epochs, callbacks=[tfdist.callbacks.ElasticTraining()], verbose=2)


if __name__ == "__main__":
    main()
