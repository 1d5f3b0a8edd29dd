"""`ElasticTraining`: the callback that makes `fit` survive."""

from __future__ import annotations

from typing import Any

import keras


class ElasticTraining(keras.callbacks.Callback):
    """Makes `model.fit` go on when workers are lost, frozen, join or leave.

    The model must have been built under `tfdist.ElasticMultiWorkerMirroredStrategy`; in a plain one-process `fit` it
    does
    nothing. The order of callbacks does not matter. Without it the strategy is one of fixed size: losing a worker
    raises `tfdist.errors.MemberLostError`.

    Example:
        >>> # model.fit(dataset, epochs=10, callbacks=[tfdist.callbacks.ElasticTraining()])
    """

    makes_fit_elastic = True

    def __init__(self) -> None:
        super().__init__()

    def get_config(self) -> dict[str, Any]:
        return {}
