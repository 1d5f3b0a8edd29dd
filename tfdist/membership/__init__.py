"""Membership: who takes part in a run, who is lost, and what the members agree on. Without TensorFlow."""

from tfdist.membership.keys import JobError
from tfdist.membership.options import MembershipOptions, resolve
from tfdist.membership.policy import RosterPolicy, View, decide_next
from tfdist.membership.roster import Member, Roster
from tfdist.membership.run_state import Requests
from tfdist.membership.session import Session
from tfdist.membership.stores import Store, open_store

__all__ = [
    "JobError",
    "Member",
    "MembershipOptions",
    "Requests",
    "Roster",
    "RosterPolicy",
    "Session",
    "Store",
    "View",
    "decide_next",
    "open_store",
    "resolve",
]
