"""Keras 3's insides: the places that tfdist/keras_internals.py wraps exist, and have the form that it relies on."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow import core as tf_core
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.losses import loss as loss_module
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator
from keras.src.trainers import compile_utils, epoch_iterator
from keras.src.trainers import trainer as keras_trainer

from tfdist import keras_hooks, keras_internals

PLACES = [
    (base_optimizer.BaseOptimizer, "apply", ["self", "grads", "trainable_variables"]),
    (loss_scale_optimizer.LossScaleOptimizer, "apply", ["self", "grads", "trainable_variables"]),
    (loss_module, "scale_loss_for_distribution", ["value"]),
    (loss_module, "unscale_loss_for_distribution", ["value"]),
    (loss_module, "reduce_values", ["values", "sample_weight", "reduction"]),
    (loss_module, "apply_mask", ["sample_weight", "mask", "dtype", "reduction"]),
    (tf_core.Variable, "_direct_assign", ["self", "value"]),
    (seed_generator.SeedGenerator, "next", ["self", "ordered"]),
    (tf_trainer.TensorFlowTrainer, "make_train_function", ["self", "force"]),
    (tf_trainer.TFEpochIterator, "_interrupted_warning", ["self"]),
    (epoch_iterator.EpochIterator, "_enumerate_iterator", ["self"]),
    (keras_trainer.Trainer, "_get_metrics_result_or_logs", ["self", "logs"]),
    (keras_trainer.Trainer, "_symbolic_build", ["self", "iterator", "data_batch"]),
]


@pytest.mark.parametrize(("owner", "name", "parameters"), PLACES, ids=[name for _, name, _ in PLACES])
def test_what_is_wrapped_has_the_expected_parameters(owner: object, name: str, parameters: list[str]) -> None:
    function = inspect.unwrap(getattr(owner, name))
    assert list(inspect.signature(function).parameters) == parameters


def test_fit_starts_at_the_epoch_that_a_callback_sets_when_training_begins() -> None:
    source = inspect.getsource(inspect.unwrap(tf_trainer.TensorFlowTrainer.fit))
    assert "self._initial_epoch or initial_epoch" in source
    assert source.index("callbacks.on_train_begin()") < source.index("self._initial_epoch or")


def test_an_epoch_iterator_counts_its_batches_under_the_names_that_are_used() -> None:
    one = tf_trainer.TFEpochIterator(
        x=np.zeros((6, 2)), batch_size=2, distribute_strategy=tf.distribute.get_strategy(), steps_per_execution=1
    )
    dataset, batches = keras_internals.data_of(one)
    assert batches == 3 and isinstance(dataset, tf.data.Dataset)
    for begin, _, _ in one._enumerate_iterator():
        assert one._steps_seen == begin + 1
        if begin == 0:
            keras_internals.add_steps_seen(one, 0)


def test_the_global_seed_is_a_variable_that_is_made_once() -> None:
    state = keras_internals.make_global_seed_state()
    assert keras_internals.global_seed_state() is state


def test_hooks_are_told_after_all_callbacks_whatever_their_order() -> None:
    keras_hooks.install()
    told: list[str] = []

    class Told(keras.callbacks.Callback):
        def __init__(self, name: str, comes_last: bool = False) -> None:
            super().__init__()
            self._name, self.comes_last = name, comes_last

        def after_all(self, hook: str, *args: object) -> None:
            told.append(f"{self._name} {hook}")

    class Last(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            told.append("a callback's own")

    hooks = keras.callbacks.CallbackList([Told("behind", comes_last=True), Told("one"), Last()])
    hooks.on_epoch_end(0, {})
    assert told == ["a callback's own", "one on_epoch_end", "behind on_epoch_end"]


def test_metrics_are_reset_after_evaluation_has_begun() -> None:
    source = inspect.getsource(inspect.unwrap(tf_trainer.TensorFlowTrainer.evaluate))
    assert source.index("callbacks.on_test_begin()") < source.index("self.reset_metrics()")


def test_losses_of_outputs_are_tracked_with_the_size_of_the_batch_or_nothing_as_weight() -> None:
    assert "sample_weight=tree.flatten(y_p)[0].shape[0]" in inspect.getsource(compile_utils.CompileLoss.call)


def test_every_assignment_of_a_keras_variable_is_announced() -> None:
    keras_internals.install()
    announced = []

    class Step:
        def will_assign(self, variable: object) -> None:
            announced.append(variable)

    variable = keras.Variable(np.zeros(2))
    with keras_internals.entered(Step()):  # type: ignore[arg-type]
        variable.assign(np.ones(2))
        variable.assign_add(np.ones(2))
    variable.assign(np.ones(2))
    assert announced == [variable, variable]


def test_without_a_step_keras_computes_as_before() -> None:
    keras_internals.install()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, epochs=2, verbose=0)
    assert history.epoch == [0, 1]
    assert model.stop_training is False


def test_the_seed_that_a_script_has_set_is_known() -> None:
    keras.utils.set_random_seed(17)
    assert keras_internals.global_seed() == 17


def test_the_compiled_step_is_found_inside_of_the_train_function() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.make_train_function()
    assert keras_internals.compiled_step(model.train_function) is not None
    model.compile("sgd", "mse", run_eagerly=True)
    model.make_train_function(force=True)
    assert keras_internals.compiled_step(model.train_function) is None
