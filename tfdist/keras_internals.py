"""The only file that touches `keras.src`: the places of Keras 3 at which a distributed step must be entered.

`install()` puts thin wrappers around them once per process. A wrapper does nothing but call the original unless a
tfdist
step is being traced or executed in its thread (`current_step`), or the model was built under a tfdist strategy.
`tests/test_keras_internals.py` fails clearly on a Keras where one of them changed. Measured on Keras 3.15.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
from keras.src import ops
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import core as tf_core
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.losses import loss as loss_module
from keras.src.optimizers import base_optimizer, loss_scale_optimizer
from keras.src.random import seed_generator
from keras.src.trainers import trainer as keras_trainer
from keras.src.trainers.data_adapters import array_data_adapter
from keras.src.utils import rng_utils

from tfdist.errors import ConfigError

Trainer = tf_trainer.TensorFlowTrainer
CallbackList = keras.callbacks.CallbackList


class Step(Protocol):
    """What the wrappers tell the step that runs in this thread."""

    applying: bool  # what is written now is the same on all members
    weighs: bool  # what replicas compute is averaged, weighted by their rows (else summed)

    def apply(self, original: Callable[..., Any], optimizer: Any, grads: Any, variables: Any) -> None: ...
    def fraction(self) -> Any: ...
    def scale(self, value: Any) -> Any: ...
    def unscale(self, value: Any) -> Any: ...
    def total(self, value: Any) -> Any: ...
    def denominator(self, value: Any) -> Any: ...
    def will_assign(self, variable: Any) -> None: ...
    def will_draw(self, state: Any) -> None: ...
    def seed(self, seed: Any) -> Any: ...
    def record_result(self, metric: Any, result: Any) -> None: ...


class Calls(Protocol):
    """What a tfdist strategy does for the calls of a model that was built under it."""

    def keras_call(self, name: str, model: Any, original: Callable[..., Any], args: tuple, kwargs: dict) -> Any: ...
    def wrap_function(self, kind: str, model: Any, function: Callable[..., Any]) -> Callable[..., Any]: ...
    def batches(self, epoch_iterator: Any, executions: Iterator[Any]) -> Iterator[Any]: ...
    def array_dataset(self, arrays: Any, batch_size: int, shuffle: Any) -> Any | None: ...
    def made(self, epoch_iterator: Any) -> None: ...
    def logs_before(self) -> dict[str, Any]: ...
    @property
    def stopping(self) -> bool: ...
    def get_stop(self, model: Any) -> bool: ...
    def set_stop(self, model: Any, value: bool) -> None: ...


_local = threading.local()
_installed = False


def current_step() -> Step | None:
    stack = getattr(_local, "steps", None)
    return stack[-1] if stack else None


@contextlib.contextmanager
def entered(step: Step | None) -> Iterator[None]:
    """Makes `step` the one that the wrappers speak to in this thread (None: they do nothing)."""
    if not hasattr(_local, "steps"):
        _local.steps = []
    _local.steps.append(step)
    try:
        yield
    finally:
        _local.steps.pop()


def global_seed() -> int | None:
    """What `keras.utils.set_random_seed` was given, or None."""
    return global_state.get_global_attribute(rng_utils.GLOBAL_RANDOM_SEED)


def global_seed_state() -> Any | None:
    """The variable of Keras's global seed generator, from which layers without a seed draw; None: nobody has yet."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state


def make_global_seed_state() -> Any:
    """The same; makes the generator if need be."""
    return seed_generator.global_seed_generator().state


def calls_of(strategy: Any) -> Calls | None:
    """Who takes part in the calls of a model: its tfdist strategy, or a callback of the `fit` that goes on."""
    return getattr(strategy, "keras_calls", None) or getattr(_local, "guest", None)


@contextlib.contextmanager
def guest(calls: Calls) -> Iterator[None]:
    """While it lasts, `calls` takes part in the calls of models without a tfdist strategy, in this thread."""
    before, _local.guest = getattr(_local, "guest", None), calls
    try:
        yield
    finally:
        _local.guest = before


def callbacks_in(given: Any) -> list[Any]:
    """The callbacks that `fit` was given, as a list."""
    if isinstance(given, CallbackList):
        return list(given.callbacks)
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def the_one_that_saves(callbacks: list[Any]) -> Any | None:
    """The `AsyncCheckpoint` among them, if there is one.

    Raises:
        ConfigError: there are several.
    """
    found = [c for c in callbacks if hasattr(c, "guest_calls")]
    if len(found) > 1:
        raise ConfigError("callbacks", f"{len(found)} x AsyncCheckpoint", "must have one at most", "Remove the others.")
    return found[0] if found else None


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    for cls in (base_optimizer.BaseOptimizer, loss_scale_optimizer.LossScaleOptimizer):
        _wrap(cls, "apply", _reduce_first)
    _wrap(loss_module, "scale_loss_for_distribution", lambda f: lambda v: s.scale(v) if (s := current_step()) else f(v))
    _wrap(
        loss_module,
        "unscale_loss_for_distribution",
        lambda f: lambda v: s.unscale(v) if (s := current_step()) else f(v),
    )
    _wrap(loss_module, "reduce_values", _exact_reduce_values)
    _wrap(loss_module, "apply_mask", _exact_apply_mask)
    _wrap(tf_core.Variable, "_direct_assign", _announced_assign)
    _wrap(keras.metrics.Mean, "update_state", _mean_of_scalars)
    _wrap(seed_generator.SeedGenerator, "next", _own_seed)
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        _wrap(Trainer, name, functools.partial(_call, name))
    for kind in ("train", "test", "predict"):
        _wrap(Trainer, f"make_{kind}_function", functools.partial(_function, kind))
    _wrap(keras_trainer.Trainer, "_get_metrics_result_or_logs", _logs_of_epoch)
    Trainer.stop_training = property(_get_stop, _set_stop)
    _wrap(tf_trainer.TFEpochIterator, "__init__", _remember_strategy)
    tf_trainer.TFEpochIterator._interrupted_warning = _quiet_when_stopping(
        tf_trainer.TFEpochIterator._interrupted_warning
    )
    tf_trainer.TFEpochIterator._enumerate_iterator = _enumerate(tf_trainer.TFEpochIterator._enumerate_iterator)
    _wrap(array_data_adapter.ArrayDataAdapter, "get_tf_dataset", _array_dataset)


def _reduce_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        step = current_step()
        if step is None:
            return original(self, grads, trainable_variables)
        return step.apply(original, self, grads, trainable_variables)

    return apply


def _exact_reduce_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """A sum, or a mean by the sum of weights, is made to fit the weighing of replicas by their numbers of rows."""

    def reduce_values(values: Any, sample_weight: Any = None, reduction: str = "sum_over_batch_size") -> Any:
        step = current_step()
        if step is None:
            return original(values, sample_weight, reduction)
        if tuple(values.shape) in ((), (0,)):
            return original(values, sample_weight, reduction)
        if reduction == "sum":
            return step.total(original(values, sample_weight, reduction))
        if reduction != "mean_with_sample_weight" or sample_weight is None:
            return original(values, sample_weight, reduction)
        loss = ops.sum(values)
        divisor = step.denominator(ops.cast(ops.sum(sample_weight), loss.dtype))
        return step.scale(ops.divide_no_nan(loss, divisor))

    return reduce_values


def _exact_apply_mask(original: Callable[..., Any]) -> Callable[..., Any]:
    """As Keras, with the number of valid entries of the global batch."""

    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: str) -> Any:
        step = current_step()
        if step is None or mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return original(sample_weight, mask, dtype, reduction)
        total = ops.cast(ops.prod(ops.convert_to_tensor(ops.shape(mask), dtype="int32")), dtype)
        valid = step.denominator(ops.sum(ops.cast(mask, dtype=dtype)))
        float_mask = ops.where(ops.cast(mask, "bool"), ops.divide_no_nan(total, valid), 0)
        if sample_weight is None:
            return float_mask
        sample_weight = ops.cast(sample_weight, dtype=dtype)
        float_mask, sample_weight = loss_module.squeeze_or_expand_to_same_rank(float_mask, sample_weight)
        return sample_weight * float_mask

    return apply_mask


def _announced_assign(original: Callable[..., Any]) -> Callable[..., Any]:
    def _direct_assign(self: Any, value: Any) -> None:
        step = current_step()
        if step is not None:
            step.will_assign(self)
        original(self, value)

    return _direct_assign


def _mean_of_scalars(original: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar without a weight (a loss) counts once per step: a replica's part of that is its fraction of the rows."""

    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        if step is not None and sample_weight is None and step.weighs and len(ops.shape(values)) == 0:
            sample_weight = step.fraction()
        return original(self, values, sample_weight=sample_weight)

    return update_state


def _own_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    def next(self: Any, ordered: bool = True) -> Any:
        step = current_step()
        if step is None:
            return original(self, ordered)
        step.will_draw(self.state)
        return step.seed(original(self, ordered))

    return next


def _call(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls = calls_of(self._distribute_strategy)
        if calls is None and name == "fit":
            given = inspect.signature(original).bind(self, *args, **kwargs).arguments.get("callbacks")
            saver = the_one_that_saves(callbacks_in(given))
            calls = saver.guest_calls() if saver is not None else None
        if calls is None:
            return original(self, *args, **kwargs)
        return calls.keras_call(name, self, functools.partial(original, self), args, kwargs)

    return call


def _function(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """`make_train_function` and the like: what they make is wrapped once, wherever a subclass put it."""

    def make(self: Any, force: bool = False) -> Any:
        result = original(self, force)
        calls = calls_of(self._distribute_strategy)
        if calls is not None:
            name = f"{kind}_function"
            setattr(self, name, calls.wrap_function(kind, self, getattr(self, name)))
        return result

    return make


def _get_stop(self: Any) -> bool:
    calls = calls_of(getattr(self, "_distribute_strategy", None))
    own = self.__dict__.get("_tfdist_stop_training", False)
    return own if calls is None else calls.get_stop(self)


def _set_stop(self: Any, value: bool) -> None:
    calls = calls_of(getattr(self, "_distribute_strategy", None))
    object.__setattr__(self, "_tfdist_stop_training", bool(value))
    if calls is not None:
        calls.set_stop(self, bool(value))


def _logs_of_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """An epoch that is entered behind its last batch has the logs of that batch."""

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        calls = calls_of(getattr(self, "_distribute_strategy", None))
        before = calls.logs_before() if calls is not None and not logs else {}
        return before or original(self, logs)

    return _get_metrics_result_or_logs


def _remember_strategy(original: Callable[..., Any]) -> Callable[..., Any]:
    """The array adapter makes its dataset inside the constructor and does not know the strategy."""

    def __init__(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        calls = _local.building_for = calls_of(distribute_strategy)
        try:
            original(self, distribute_strategy, *args, **kwargs)
        finally:
            _local.building_for = None
        if calls is not None:
            calls.made(self)

    return __init__


def _enumerate(original: Callable[..., Any]) -> Callable[..., Any]:
    """An epoch may begin in its middle; batches that were done before are not counted again."""

    @functools.wraps(original)
    def _enumerate_iterator(self: Any) -> Iterator[Any]:
        calls = calls_of(self._distribute_strategy)
        yield from original(self) if calls is None else calls.batches(self, original(self))

    return _enumerate_iterator


def _quiet_when_stopping(original: Callable[..., Any]) -> Callable[..., Any]:
    """An epoch that ends early because all agreed to stop has not run out of data."""

    @functools.wraps(original)
    def _interrupted_warning(self: Any) -> None:
        calls = calls_of(self._distribute_strategy)
        if calls is None or not calls.stopping:
            original(self)

    return _interrupted_warning


def _array_dataset(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_tf_dataset(self: Any) -> Any:
        calls = getattr(_local, "building_for", None)
        dataset = calls.array_dataset(self._inputs, self._batch_size, self._shuffle) if calls is not None else None
        return original(self) if dataset is None else dataset

    return get_tf_dataset


def data_of(epoch_iterator: Any) -> tuple[Any, int | None]:
    """(the data set of an epoch iterator of Keras, how many batches a pass over it has if that is known)."""
    return epoch_iterator._distributed_dataset, epoch_iterator._num_batches


def create_variables(model: Any, batch: Any) -> None:
    """What the first step would create otherwise: of layers, metrics and the optimizer. Nothing is computed."""
    model._symbolic_build(data_batch=batch)


def add_steps_seen(epoch_iterator: Any, steps: int) -> None:
    """Tells it that so many batches of its present pass were used before (it begins a new pass when all were)."""
    epoch_iterator._steps_seen += steps


def compiled_step(function: Callable[..., Any]) -> Any | None:
    """The `tf.function` of one step inside of what `make_train_function` made; None where there is none (run eagerly).

    Relies on `_make_function` closing over it, wrapped by `_autoconvert_optionals` with `functools.wraps`.
    """
    for cell in getattr(function, "__closure__", None) or ():
        found = getattr(cell.cell_contents, "__wrapped__", None)
        if hasattr(found, "get_concrete_function"):
            return found
    return None


def watch_results(metrics: list[Any]) -> None:
    """From now on the step that runs in a thread hears of each result that one of `metrics` is asked for."""
    for metric in metrics:
        if "result" not in metric.__dict__:
            object.__setattr__(metric, "result", _watched_result(metric, metric.result))


def watch_loss_trackers(model: Any) -> None:
    """Keras weighs each batch alike in the trackers of the outputs' losses; a replica's part is its fraction."""
    for metric in getattr(getattr(model, "_compile_loss", None), "metrics", ()):
        if "update_state" not in metric.__dict__:
            object.__setattr__(metric, "update_state", _fraction_of_a_batch(metric.update_state))


def _fraction_of_a_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_state(values: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        return original(values, sample_weight=sample_weight if step is None else step.fraction())

    return update_state


def _watched_result(metric: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        step = current_step()
        if step is not None:
            step.record_result(metric, value)
        return value

    return result
