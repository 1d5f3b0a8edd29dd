"""`Collectives`: all that tfdist asks of a data plane. Nothing above it knows which implementation is in use."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorflow as tf

    from tfdist.membership.roster import Roster


class Collectives(Protocol):
    """Collective operations among all replicas (local devices of all members) of the formed roster.

    The tensor operations may be called while a step is traced: the compiled step must then follow later calls of
    `form` without retracing. All replicas call the same operations in the same order. An operation whose group lost
    a member, or that is aborted, raises `tf.errors.UnavailableError` (or another code of `is_loss`).
    """

    def form(self, roster: Roster) -> None:
        """Makes the members of `roster` the group. Every member calls it; no member is waited for."""

    def all_reduce(self, pieces: Sequence[tf.Tensor], layout: str, replica: int) -> list[tf.Tensor]:
        """Sums of `pieces` over all replicas, same shapes and dtypes, for the local replica number `replica`.

        Args:
            pieces: dense tensors of static shape, equal on all replicas.
            layout: names the operation: the same in all members for the same call, different for concurrent calls.
            replica: index of the local device whose tensors these are.
        """

    def all_gather(self, value: tf.Tensor, axis: int, replica: int) -> tf.Tensor:
        """`value` of all replicas, concatenated along `axis` (sizes along it may differ)."""

    def broadcast(self, value: tf.Tensor, is_source: bool, replica: int) -> tf.Tensor:
        """`value` of the one replica that passes `is_source`."""

    def abort(self, reason: str) -> None:
        """Makes operations that wait in this process raise, from any thread, until the next `form`."""

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """A compiled function that uses these operations is called inside of it."""

    def is_loss(self, error: BaseException) -> bool:
        """Whether `error` of an operation may come from a lost or aborted peer (else it is the caller's own)."""
