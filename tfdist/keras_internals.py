"""The only file that touches `keras.src`: the places of Keras 3 at which a distributed step must be entered.

`install()` puts thin wrappers around them once per process. A wrapper does nothing but call the original unless a
tfdist
step is being traced or executed in its thread (`current_step`), or the model was built under a tfdist strategy.
`tests/test_keras_internals.py` fails clearly on a Keras where one of them changed. Measured on Keras 3.15.
"""

from __future__ import annotations

import contextlib
import functools
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
from keras.src.trainers.data_adapters import array_data_adapter
from keras.src.utils import rng_utils

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
    def first_step(self, iterator: Any) -> int: ...
    def array_dataset(self, arrays: Any, batch_size: int, shuffle: Any) -> Any | None: ...
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


def calls_of(strategy: Any) -> Calls | None:
    return getattr(strategy, "keras_calls", None)


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


def _remember_strategy(original: Callable[..., Any]) -> Callable[..., Any]:
    """The array adapter makes its dataset inside the constructor and does not know the strategy."""

    def __init__(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        _local.building_for = calls_of(distribute_strategy)
        try:
            original(self, distribute_strategy, *args, **kwargs)
        finally:
            _local.building_for = None

    return __init__


def _enumerate(original: Callable[..., Any]) -> Callable[..., Any]:
    """Starts an epoch in its middle where the others are there; batches that were done before are not counted again."""

    @functools.wraps(original)
    def _enumerate_iterator(self: Any) -> Iterator[Any]:
        calls = calls_of(self._distribute_strategy)
        first = calls.first_step(self) if calls is not None else 0
        for begin, end, iterator in original(self):
            if begin >= first:
                yield begin, end, iterator

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
