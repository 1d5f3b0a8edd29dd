"""A member that does what it is told by JSON lines on its input: [name, arguments...]; one line of answer each."""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tfdist.errors import TfdistError
from tfdist.membership import MembershipOptions, Session, open_store
from tfdist.tf_config import Task

url, index, expected, options = sys.argv[1:]
session = Session(
    Task("worker", int(index)),
    ("127.0.0.1", 2000 + int(index)),
    [Task("worker", int(i)) for i in expected.split(",")],
    open_store(url),
    MembershipOptions(**json.loads(options)),
)


def next_roster(after):
    roster = session.next_roster(after, timeout=8.0)
    session.watch_members(roster)
    return [roster.generation, *(str(task) for task in roster.tasks)]


def meet(name):
    roster = session.roster
    if roster is None:
        raise TfdistError("no roster yet")
    met = session.meet(roster, name, {"from": str(session.me.task)}, 8.0)
    return [str(task) for task in met]


def hold_gil(seconds):
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def serve(size):
    """Serves state and dies after half of it."""

    def die(sent):
        if sent >= size // 2:
            os._exit(9)

    session.serve_state(lambda generation: ({"generation": generation}, [bytes(size)]), die)


calls: dict[str, Callable[..., Any]] = {
    "start": session.start,
    "ready": session.ready,
    "next_roster": next_roster,
    "meet": meet,
    "hold_gil": hold_gil,
    "serve": serve,
    "report_error": session.report_error,
    "helper_pid": lambda: session._network.heartbeats.helper_pid,
    "lost": lambda: {str(task): reason for task, reason in session.lost.items()},
    "close": session.close,
}

for line in sys.stdin:
    name, *args = json.loads(line)
    try:
        answer = calls[name](*args)
    except TfdistError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(answer), flush=True)
