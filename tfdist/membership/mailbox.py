"""Letters of the barriers: kept when they come early, dropped when they are of an older generation."""

from typing import Any, NamedTuple

from tfdist.tf_config import Task

MOST_KEPT = 20_000


class Occasion(NamedTuple):
    """One barrier: the `turn`-th of that name in that generation."""

    generation: int
    name: str
    turn: int


class Mailbox:
    """Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._letters: dict[Occasion, dict[Task, dict[str, Any]]] = {}
        self._turns: dict[tuple[int, str], int] = {}
        self._kept = 0
        self.sent: dict[Occasion, dict[str, Any]] = {}

    def occasion(self, generation: int, name: str) -> Occasion:
        """Returns the barrier that this process takes part in next under that name."""
        return Occasion(generation, name, self._turns.get((generation, name), 0))

    def put(self, occasion: Occasion, task: Task, payload: dict[str, Any]) -> bool:
        """Keeps a letter; returns False if the box is full. One that came before is replaced by the same."""
        if occasion.turn < self._turns.get((occasion.generation, occasion.name), 0):
            return True  # passed long ago, sent again after a broken link
        letters = self._letters.setdefault(occasion, {})
        if task not in letters:
            if self._kept >= MOST_KEPT:
                return False
            self._kept += 1
        letters[task] = payload
        return True

    def letters(self, occasion: Occasion) -> dict[Task, dict[str, Any]]:
        """Returns the letters that have come."""
        return dict(self._letters.get(occasion, {}))

    def done(self, occasion: Occasion) -> None:
        """The barrier is passed here; the own letter stays, as another member may need it again after a broken link."""
        self._kept -= len(self._letters.pop(occasion, {}))
        self._turns[occasion.generation, occasion.name] = occasion.turn + 1
        previous = occasion._replace(turn=occasion.turn - 1)
        self.sent.pop(previous, None)  # all are at this one, so all have passed the previous

    def drop_before(self, generation: int) -> None:
        """Forgets older generations."""
        for occasion in [o for o in self._letters if o.generation < generation]:
            self._kept -= len(self._letters.pop(occasion))
        self.sent = {o: letter for o, letter in self.sent.items() if o.generation >= generation}
        self._turns = {key: turn for key, turn in self._turns.items() if key[0] >= generation}
