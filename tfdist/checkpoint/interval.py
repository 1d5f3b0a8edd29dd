"""Decides when the next save is due, for ``save_freq="auto"``. Pure: no clock.

A save costs training some seconds, and a failure costs what was computed since the last save. With C seconds for a
save and M seconds between failures on average, the interval sqrt(2 C M) loses the least in all.

Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974; with the
correction for saves that are not short against M of J. T. Daly, A higher order estimate of the optimum checkpoint
interval for restart dumps, Future Generation Computer Systems 22(3), 2006, equation 37.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tfdist.errors import ConfigError

# One failure that did not happen, in a day that was not observed: what a single preemptible machine shows at least
# about once a day (cloud providers reclaim them after 24 hours at the latest). It fades as the job is observed.
PRIOR_FAILURES = 1
PRIOR_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class IntervalPolicy:
    """Bounds of the interval, checked when built.

    Attributes:
        shortest: seconds; saves are never closer.
        longest: seconds; saves are never further apart, however reliable the machines seem.
        prior_cost: seconds that a save costs, before one was measured.
    """

    shortest: float = 30.0
    longest: float = 3600.0
    prior_cost: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ConfigError(name, value, "must be seconds above 0")
        if self.longest < self.shortest:
            raise ConfigError("longest", self.longest, f"must be at least shortest ({self.shortest})")


@dataclass(frozen=True)
class Measured:
    """What was seen so far; kept in the facts of checkpoints, so that it survives the job.

    Attributes:
        saves: how many were measured.
        cost_seconds: seconds of training lost by all of them together.
        failures: losses of the whole job or of a worker that made it go back to a checkpoint.
        observed_seconds: for which the job was observed.
    """

    saves: int = 0
    cost_seconds: float = 0.0
    failures: int = 0
    observed_seconds: float = 0.0

    def saved(self, cost: float) -> Measured:
        """Returns the state after a save that cost training so many seconds."""
        return replace(self, saves=self.saves + 1, cost_seconds=self.cost_seconds + max(0.0, cost))

    def failed(self) -> Measured:
        """Returns the state after one more failure."""
        return replace(self, failures=self.failures + 1)

    def observed(self, seconds: float) -> Measured:
        """Returns the state after so many more seconds of the job."""
        return replace(self, observed_seconds=self.observed_seconds + max(0.0, seconds))


@dataclass(frozen=True)
class IntervalState:
    """Attributes: measured; last_save: when the last save began, or the job, on the clock of `now`."""

    measured: Measured
    last_save: float


def cost_of_save(measured: Measured, policy: IntervalPolicy) -> float:
    """Returns the seconds that a save costs training: the mean, or a guess before the first."""
    return measured.cost_seconds / measured.saves if measured.saves else policy.prior_cost


def time_between_failures(measured: Measured) -> tuple[float, str]:
    """Returns (mean seconds between failures, where that comes from)."""
    seconds = (measured.observed_seconds + PRIOR_SECONDS) / (measured.failures + PRIOR_FAILURES)
    if not measured.failures:
        why = f"no failure in {measured.observed_seconds:.0f} s, one in another {PRIOR_SECONDS:.0f} s assumed"
    else:
        why = f"{measured.failures} failures in {measured.observed_seconds:.0f} s, and one a day assumed before"
    return seconds, why


def interval(measured: Measured, policy: IntervalPolicy) -> tuple[float, str]:
    """Returns (seconds from one save to the next, the reason)."""
    cost = cost_of_save(measured, policy)
    between, why = time_between_failures(measured)
    seconds = daly(cost, between)
    bounded = min(max(seconds, policy.shortest), policy.longest)
    bound = "" if bounded == seconds else f", bounded to {bounded:.0f} s"
    return bounded, f"a save costs {cost:.3g} s and {why}: every {seconds:.0f} s is best{bound}"


def daly(cost: float, between: float) -> float:
    """Returns the best interval for saves of `cost` seconds and `between` seconds between failures, in seconds."""
    if cost >= 2 * between:
        return between
    ratio = math.sqrt(cost / (2 * between))
    return max(math.sqrt(2 * cost * between) * (1 + ratio / 3 + ratio * ratio / 9) - cost, 0.0)


def due(now: float, state: IntervalState, policy: IntervalPolicy) -> tuple[bool, str]:
    """Returns (whether to save, the reason).

    Args:
        now: seconds on a monotonic clock.
        state: what was measured, and when the last save began.
        policy: bounds of the interval.
    """
    seconds, why = interval(state.measured, policy)
    passed = now - state.last_save
    return passed >= seconds, f"{passed:.0f} of {seconds:.0f} s since the last save; {why}"
