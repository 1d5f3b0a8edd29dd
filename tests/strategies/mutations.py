"""Ways to break the code in a worker, each of which the equality and the witness must show."""

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


MUTATIONS: dict[str, Callable[[int], None]] = {
    "drop a sample": _other_parts(lambda part: Part(part.start + 1, part.stop, part.rows)),
    "repeat a sample": _other_parts(lambda part: Part(part.start - 1, part.stop, part.rows)),
    "apply a step twice": _apply_twice,
}
