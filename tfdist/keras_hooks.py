"""Events of `fit` after all of its callbacks, so that the order in which they are given does not matter.

A callback with a method `after_all(hook, *args)` is told of the hooks named below when the last one has had its turn,
Keras's own History and progress bar included; with `comes_last` after the others that are told.
Only the public class `keras.callbacks.CallbackList` is touched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

AFTER = ("on_train_begin", "on_train_batch_end", "on_test_batch_end", "on_epoch_end", "on_train_end")

_installed = False


def install() -> None:
    """Once per process."""
    global _installed
    if _installed:
        return
    _installed = True
    for name in AFTER:
        original = getattr(keras.callbacks.CallbackList, name)
        setattr(keras.callbacks.CallbackList, name, functools.wraps(original)(_told(name, original)))


def _told(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def hook(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        listeners = [c for c in self.callbacks if hasattr(c, "after_all")]
        for listener in sorted(listeners, key=lambda c: getattr(c, "comes_last", False)):
            listener.after_all(name, *args, *kwargs.values())

    return hook
