"""When a source is looked at again. Pure."""

from dataclasses import dataclass, replace

LONGEST_WAIT = 60.0
LONGEST_WAIT_IF_KNOWN = 5.0


@dataclass(frozen=True)
class Pace:
    """The state of one source.

    A source that has never answered probably isn't here, and is asked more and more rarely, up to once in 60 s. One
    that has answered is here: metadata servers fail just when a machine is moved or in trouble, so it is asked at least
    every 5 s.

    Attributes:
        interval: seconds between two looks at a source that answers.
        failures: looks in a row that failed.
        known: it has answered.
        said: that it is unavailable was said.
    """

    interval: float
    failures: int = 0
    known: bool = False
    said: bool = False

    def answered(self) -> "Pace":
        """Returns the state after a look that succeeded."""
        return replace(self, failures=0, known=True)

    def failed(self) -> tuple["Pace", bool]:
        """Returns (the state after a look that failed, whether to say it): once is enough."""
        return replace(self, failures=self.failures + 1, said=True), not self.said

    def wait(self, took: float) -> float:
        """Returns the seconds until the next look, if the last one took `took` seconds."""
        longest = max(LONGEST_WAIT_IF_KNOWN if self.known else LONGEST_WAIT, self.interval)
        apart = min(self.interval * 2.0 ** min(self.failures, 30), longest)
        return max(0.0, apart - took)
