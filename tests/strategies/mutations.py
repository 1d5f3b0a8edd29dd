"""What is done to the code in a worker: it is broken, which the checks must show; or a step fails late in some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.strategies.function import ElasticFunction
from tfdist.strategies.group import ElasticGroup
from tfdist.strategies.inputs import Part

STEP = 5  # the step at which they do it


def _other_parts(change: Callable[[Part], Part]) -> Callable[[int], None]:
    def install(worker: int) -> None:
        original = ElasticGroup.parts

        def parts(self: ElasticGroup, rows: int) -> list[Part]:
            found = original(self, rows)
            wrong = worker == 1 and self.progress.committed == STEP and self.roster is not None
            return [change(part) for part in found] if wrong else found

        ElasticGroup.parts = parts  # type: ignore[method-assign]

    return install


def _apply_twice(_: int) -> None:
    original = ElasticFunction.run

    def run(self: ElasticFunction, batch: Any, parts: list[Part]) -> Any:
        if self.kind == "train" and self.calls.group.progress.committed == STEP:
            original(self, batch, parts)
        return original(self, batch, parts)

    ElasticFunction.run = run  # type: ignore[method-assign]


def _only_worker_1_commits(worker: int) -> None:
    """In all other workers the step fails when it is done, as if a message had been lost on its last way."""
    import tensorflow as tf

    original = ElasticFunction.run
    failed: list[bool] = []

    def run(self: ElasticFunction, batch: Any, parts: list[Part]) -> Any:
        group = self.calls.group
        state: Any = self.calls.state
        late = self.kind == "train" and group.roster is not None and group.progress.committed == STEP
        if worker == 1 or failed or not late:
            return original(self, batch, parts)
        failed.append(True)
        before = state.handles(state.variables())
        original(self, batch, parts)
        state.put_back(before)
        raise tf.errors.UnavailableError(None, None, "Connection reset by peer (as the test has it)")

    ElasticFunction.run = run  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[int], None]] = {
    "drop a sample": _other_parts(lambda part: Part(part.start + 1, part.stop, part.rows)),
    "repeat a sample": _other_parts(lambda part: Part(part.start - 1, part.stop, part.rows)),
    "apply a step twice": _apply_twice,
    "only worker 1 commits": _only_worker_1_commits,
}
