"""Options are checked when built, and an argument goes before the environment."""

import pytest

from tfdist.errors import ConfigError
from tfdist.membership.options import MembershipOptions, resolve
from tfdist.membership.stores import MemoryStore


@pytest.mark.parametrize(
    "change, field",
    [
        ({"heartbeat_interval": 0}, "heartbeat_interval"),
        ({"heartbeat_timeout": 2.0}, "heartbeat_timeout"),
        ({"heartbeat_timeout": "5"}, "heartbeat_timeout"),
        ({"lease_duration": float("inf")}, "lease_duration"),
        ({"start_timeout": -1}, "start_timeout"),
        ({"join_timeout": None}, "join_timeout"),
        ({"run_id": "a b"}, "run_id"),
        ({"run_id": ""}, "run_id"),
        ({"bind_host": ""}, "bind_host"),
        ({"store": 3}, "store"),
    ],
)
def test_a_wrong_option_is_refused_by_name(change, field):
    with pytest.raises(ConfigError, match=rf"MembershipOptions\.{field}"):
        MembershipOptions(**change)


def test_an_argument_goes_before_the_environment_and_that_before_the_default():
    environ = {"TFDIST_STORE": "memory://env", "TFDIST_RUN_ID": "seven"}
    assert resolve(MembershipOptions(), {}).run_id == "default" and resolve(MembershipOptions(), {}).store is None
    got = resolve(MembershipOptions(), environ)
    assert (got.store, got.run_id) == ("memory://env", "seven")
    store = MemoryStore()
    got = resolve(MembershipOptions(store=store, run_id="mine"), environ)
    assert got.store is store and got.run_id == "mine"


def test_the_lease_is_twice_the_heartbeat_timeout_unless_given():
    assert MembershipOptions().lease_seconds == 10 and MembershipOptions(lease_duration=30).lease_seconds == 30
