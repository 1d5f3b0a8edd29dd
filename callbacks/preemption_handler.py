"""`PreemptionHandler`: a machine that is about to go is left in order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import keras

from tfdist import keras_hooks, keras_internals
from tfdist.errors import ConfigError
from tfdist.preemption.notice import Source
from tfdist.preemption.parse import parse
from tfdist.strategies.preempted import Preempted


class PreemptionHandler(keras.callbacks.Callback):
    """Watches for SIGTERM and for the notices of cloud providers; at the next step boundary this process leaves.

    Under an elastic strategy it hands over to the others. Where none would be left (or fewer than `min_workers`), and
    in a `fit` without a tfdist strategy, the state of the last step is saved first, if there is an `AsyncCheckpoint`.
    The process exits with code 75, which `tfdist run` and Kubernetes jobs answer by starting it again. Handlers that
    the script has set for SIGTERM are called as before; a second SIGTERM ends the process at once.

    Args:
        grace_period: seconds from the notice to the end of the process at the latest, if the source names no other: a
            step or a save that takes longer is given up then, and the last complete checkpoint is what is left.
        sources: besides SIGTERM: "gce", "aws", "azure", "file:/path", objects with `look()`
            (tfdist.preemption.Source); None: those that TFDIST_PREEMPTION names.

    Raises:
        ConfigError: an argument breaks its rule.

    Example:
        >>> # callbacks=[AsyncCheckpoint("/ckpt"), PreemptionHandler(sources=["aws"])]
    """

    def __init__(
        self, grace_period: float = 30.0, sources: str | Source | Iterable[str | Source] | None = None
    ) -> None:
        super().__init__()
        good = isinstance(grace_period, (int, float)) and not isinstance(grace_period, bool)
        if not good or not math.isfinite(grace_period) or grace_period <= 0:
            raise ConfigError("PreemptionHandler.grace_period", grace_period, "must be seconds above 0")
        self.grace_period = float(grace_period)
        self.sources = parse(sources)
        self._leaving: Preempted | None = None
        keras_internals.install()
        keras_hooks.install()

    @property
    def told(self) -> bool:
        """Whether this process has been told to go."""
        return self._leaving is not None and self._leaving.told

    comes_last = True  # of those whom `keras_hooks` tells: the checkpoint has taken note of the step

    def after_all(self, hook: str, *args: Any) -> None:
        """Called by `keras_hooks`, after all callbacks have had their turn."""
        if hook == "on_train_begin":
            self._leaving = Preempted(self.model, self.grace_period, self.sources)
        elif self._leaving is not None and hook == "on_train_end":
            self._leaving.close()
            self._leaving = None
        elif self._leaving is not None:
            self._leaving.at_boundary(hook)
