"""Options of membership: how members are found, watched and waited for."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfdist.errors import ConfigError
from tfdist.membership.stores.base import Store

DEFAULT_RUN_ID = "default"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class MembershipOptions:
    """Checked when built. An argument goes before the environment, and that before the default.

    Args:
        store: URL of the store (``sqlite:///path``, ``memory://name``) or a Store; None: TFDIST_STORE.
        heartbeat_interval: seconds between the heartbeats to each member.
        heartbeat_timeout: seconds without a heartbeat after which a member is lost.
        lease_duration: seconds after which a store lease that is not renewed is over; None: 2 x heartbeat_timeout.
        start_timeout: seconds for which the first roster waits for all expected workers.
        join_timeout: seconds that survivors wait below ``min_workers``.
        run_id: names this run in the store; None: TFDIST_RUN_ID, else "default".
        bind_host: address on which to listen for the other members; None: all interfaces.

    Raises:
        ConfigError: a value breaks its rule.
    """

    store: str | Store | None = None
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 5.0
    lease_duration: float | None = None
    start_timeout: float = 300.0
    join_timeout: float = 600.0
    run_id: str | None = None
    bind_host: str | None = None

    def __post_init__(self) -> None:
        _seconds("heartbeat_interval", self.heartbeat_interval, low=0.01)
        _seconds("heartbeat_timeout", self.heartbeat_timeout, low=0.05)
        if self.heartbeat_timeout < 3 * self.heartbeat_interval:
            raise ConfigError(
                "MembershipOptions.heartbeat_timeout",
                self.heartbeat_timeout,
                f"must be at least 3 x heartbeat_interval ({self.heartbeat_interval} s)",
                "Otherwise one late heartbeat removes a living member.",
            )
        if self.lease_duration is not None:
            _seconds("lease_duration", self.lease_duration, low=0.05)
            if self.lease_duration < self.heartbeat_timeout:
                raise ConfigError(
                    "MembershipOptions.lease_duration",
                    self.lease_duration,
                    f"must be at least heartbeat_timeout ({self.heartbeat_timeout} s)",
                    "Otherwise a roster is given up before its members count as lost.",
                )
        _seconds("start_timeout", self.start_timeout, low=0.0)
        _seconds("join_timeout", self.join_timeout, low=0.0)
        if self.run_id is not None and not (isinstance(self.run_id, str) and _RUN_ID.fullmatch(self.run_id)):
            raise ConfigError(
                "MembershipOptions.run_id", self.run_id, "must be 1 to 128 letters, digits, dots, dashes or underscores"
            )
        if self.bind_host is not None and not (isinstance(self.bind_host, str) and self.bind_host):
            raise ConfigError("MembershipOptions.bind_host", self.bind_host, "must be a host name or address")
        if self.store is not None and not isinstance(self.store, str) and not hasattr(self.store, "compare_and_set"):
            raise ConfigError("MembershipOptions.store", self.store, "must be a URL such as sqlite:///path, or a Store")

    @property
    def lease_seconds(self) -> float:
        """Seconds of a lease: lease_duration, or twice heartbeat_timeout."""
        return self.lease_duration if self.lease_duration is not None else 2 * self.heartbeat_timeout


def resolve(options: MembershipOptions, environ: Mapping[str, str]) -> MembershipOptions:
    """Returns `options` with what the environment adds: TFDIST_STORE, TFDIST_RUN_ID, TFDIST_HEARTBEAT_TIMEOUT.

    The store stays None where neither names one: then there is no shared store. A timeout from the environment
    counts where the options leave both times at their defaults; it sets the interval to a fifth of itself.
    """
    resolved = replace(
        options,
        store=options.store if options.store is not None else (environ.get("TFDIST_STORE") or None),
        run_id=options.run_id or environ.get("TFDIST_RUN_ID") or DEFAULT_RUN_ID,
    )
    text = environ.get("TFDIST_HEARTBEAT_TIMEOUT", "")
    defaults = MembershipOptions()
    untouched = (options.heartbeat_interval, options.heartbeat_timeout) == (
        defaults.heartbeat_interval,
        defaults.heartbeat_timeout,
    )
    if text and untouched:
        try:
            timeout = float(text)
        except ValueError:
            raise ConfigError("TFDIST_HEARTBEAT_TIMEOUT", text, "must be a number of seconds") from None
        resolved = replace(resolved, heartbeat_timeout=timeout, heartbeat_interval=timeout / 5)
    return resolved


def _seconds(name: str, value: Any, low: float) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= low
    if not good:
        raise ConfigError(f"MembershipOptions.{name}", value, f"must be seconds, a finite number of at least {low}")
