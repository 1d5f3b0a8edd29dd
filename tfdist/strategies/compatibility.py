"""What all members of a `fit` must have in common: the facts that are compared when one joins."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.errors import UnsupportedError

if TYPE_CHECKING:
    from tfdist.strategies.group import ElasticGroup


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _config(thing: Any) -> Any:
    """A configuration as JSON; what can't be said in JSON by its type's name (an address would differ)."""
    try:
        return json.loads(json.dumps(thing, default=lambda o: type(o).__name__, sort_keys=True))
    except (TypeError, ValueError):
        return type(thing).__name__


def _of(getter: Any) -> Any:
    try:
        return _config(getter())
    except Exception as error:  # noqa: BLE001 - a user's object without a configuration is compared by nothing
        return f"unknown ({type(error).__name__})"


def _optimizer(model: Any) -> Any:
    if model.optimizer is None:
        return None
    config = dict(model.optimizer.get_config())
    if not isinstance(config.get("learning_rate"), dict):
        config.pop("learning_rate", None)  # callbacks change it; its present value comes with the state
    return {"class": type(model.optimizer).__name__, **config}


def _loss(model: Any) -> Any:
    compile_loss = getattr(model, "_compile_loss", None)
    return _config(getattr(compile_loss, "_user_loss", None))


def _data(x: Any) -> list[list[Any]]:
    if hasattr(x, "plan"):
        plan = x.plan
        return [
            ["number of samples", plan.num_samples],
            ["global batch size", plan.global_batch_size],
            ["data shuffle", plan.shuffle],
            ["data seed", plan.seed],
            ["drop_remainder", plan.drop_remainder],
        ]
    if isinstance(x, tf.data.Dataset):
        length = [] if own_data(x) else [["batches of the dataset", int(x.cardinality())]]
        return [*length, ["element of the dataset", str(x.element_spec)]]
    first = next((a for a in tf.nest.flatten(x) if hasattr(a, "shape")), None)
    return [["number of samples", int(first.shape[0])]] if first is not None and first.shape else []


def check_compiled(model: Any) -> None:
    """Raises UnsupportedError for what can't be done exactly."""
    if getattr(model, "jit_compile", False) is True:
        raise UnsupportedError(
            "jit_compile=True: the reduction is inside the compiled step, and XLA on CPU has no collectives. "
            "Remove it from compile(), or set jit_compile='auto'"
        )


def check_data(arguments: dict[str, Any], group: ElasticGroup) -> None:
    """Raises UnsupportedError for data that other code has divided already."""
    data = [arguments.get("x"), arguments.get("validation_data")]
    if group.session is not None and any(isinstance(d, tf.distribute.DistributedDataset) for d in data):
        raise UnsupportedError(
            "fit and evaluate take the data set itself, and divide its batches among the members; what "
            "experimental_distribute_dataset and distribute_datasets_from_function give is for training loops of "
            "one's own. Pass the tf.data.Dataset (with AutoShardPolicy.OFF where each worker has its own data)"
        )


def own_data(dataset: tf.data.Dataset) -> bool:
    """Whether the user says that each worker has its own data, of whatever length."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == tf.data.experimental.AutoShardPolicy.OFF


def facts_of_fit(model: Any, arguments: dict[str, Any], group: ElasticGroup) -> list[list[Any]]:
    """[name, value] pairs, the ones most telling first."""
    facts: list[list[Any]] = [
        ["tfdist version", _version("tfdist")],
        ["TensorFlow version", tf.__version__],
        ["Keras version", _version("keras")],
        ["local devices", group.devices],
        [
            "model variables",
            [[v.path, list(v.shape), v.dtype] for v in model.variables] if model.built else "not built",
        ],
        ["loss", _of(lambda: _loss(model))],
        ["optimizer", _of(lambda: _optimizer(model))],
        *_data(arguments.get("x")),
        ["batch_size", arguments.get("batch_size")],
        ["shuffle", str(arguments.get("shuffle", True))],
        ["epochs", arguments.get("epochs", 1)],
        ["steps_per_epoch", arguments.get("steps_per_epoch")],
        ["steps_per_execution", model.steps_per_execution],
        ["validation", arguments.get("validation_data") is not None or bool(arguments.get("validation_split"))],
    ]
    return facts
