"""Stock callbacks that write files do so on the chief only, and go on when another worker becomes the chief."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from tfdist.strategies.group import ElasticGroup

_WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard, keras.callbacks.BackupAndRestore)
_OPEN_FILES = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
_SAVES = ("save", "save_weights", "export")


def chief_only(callback: Any, group: ElasticGroup) -> Any:
    """`callback` itself, or what stands in for a stock one that writes files."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return _with_quiet_model(callback, group)
    if isinstance(callback, _WRITERS):
        return ChiefOnly(callback, group)
    return callback


class _QuietModel:
    """A model whose `save` methods do something on the chief only (ModelCheckpoint must know the best everywhere)."""

    def __init__(self, model: Any, group: ElasticGroup):
        self.__dict__.update(_model=model, _group=group)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if name in _SAVES and not self._group.is_chief:
            return lambda *args, **kwargs: None
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)


def _with_quiet_model(callback: Any, group: ElasticGroup) -> Any:
    original = type(callback).set_model

    def set_model(model: Any) -> None:
        original(callback, _QuietModel(model, group))

    callback.set_model = set_model
    return callback


class ChiefOnly(keras.callbacks.Callback):
    """Passes the hooks on while this worker is the chief; one that becomes the chief appends."""

    def __init__(self, callback: Any, group: ElasticGroup):
        super().__init__()
        self._inner, self._group = callback, group
        self._begun_as = ""  # incarnation as which the files were opened

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._inner.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self._group.is_chief:
            self._inner.set_model(model)

    def _pass_on(self, hook: str, *args: Any) -> None:
        me = self._group.incarnation
        if not self._group.is_chief:
            return
        if hook == "on_train_begin":
            self._begun_as = me
        elif self._begun_as != me and hook.startswith(("on_train", "on_epoch", "on_batch")):
            if self._begun_as and isinstance(self._inner, _OPEN_FILES):  # another chief has written meanwhile
                self._inner.on_train_end()
            self._begun_as = me
            self._inner.set_model(self.model)
            if hasattr(self._inner, "append"):  # CSVLogger: the file of the chief before
                self._inner.append = True
            self._inner.on_train_begin()
        getattr(self._inner, hook)(*args)


def _hook(name: str) -> Any:
    def hook(self: ChiefOnly, *args: Any, **kwargs: Any) -> None:
        self._pass_on(name, *args, *kwargs.values())

    return hook


for _name in [n for n in dir(keras.callbacks.Callback) if n.startswith("on_")]:
    setattr(ChiefOnly, _name, _hook(_name))
