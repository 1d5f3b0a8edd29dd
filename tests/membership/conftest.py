"""Sessions in this process, and members in processes of their own that can be killed and frozen."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tfdist.membership import MembershipOptions, Session
from tfdist.membership.stores import MemoryStore, SqliteStore
from tfdist.tf_config import Task

QUICK = {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.6, "start_timeout": 8.0, "join_timeout": 8.0}
MEMBER_PROCESS = pathlib.Path(__file__).with_name("member_process.py")


def worker(index):
    return Task("worker", index)


def eventually(condition, what, seconds=8.0):
    """Waits until `condition()` is true and returns its value; fails, naming what was waited for."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        threading.Event().wait(0.005)
    return value


class Cluster:
    """A store and the sessions on it."""

    def __init__(self, store, executor):
        self.store = store
        self.executor = executor
        self.sessions = []
        self.told = {}

    def start(self, index, expected=(0, 1), store=None, host="127.0.0.1", low=1, high=None, **options):
        session = Session(
            worker(index),
            (host, 2000 + index),
            tuple(worker(i) for i in expected),
            store or self.store,
            MembershipOptions(**{**QUICK, **options}),
            low,
            high,
        )
        self.sessions.append(session)
        told = self.told[id(session)] = []
        session.on_lost(told.append)
        session.start()
        return session

    def told_to(self, session):
        return self.told[id(session)]

    def call(self, function, *args, **kwargs) -> Future:
        return self.executor.submit(function, *args, **kwargs)

    def next_roster(self, sessions, after, **kwargs):
        """All sessions ask; returns the one roster that they got, watched by all."""
        futures = [self.call(s.next_roster, after, timeout=8.0, **kwargs) for s in sessions]
        rosters = [f.result(10) for f in futures]
        assert len(set(rosters)) == 1
        for session in sessions:
            session.watch_members(rosters[0])
        return rosters[0]

    def form(self, count, **options):
        """Starts `count` sessions; returns (sessions, first roster)."""
        sessions = [self.start(i, range(count), **options) for i in range(count)]
        for session in sessions:
            session.ready()
        return sessions, self.next_roster(sessions, 0)

    def close(self):
        closing = [self.call(s.close) for s in self.sessions]
        for future in closing:
            future.result(10)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def cluster(executor):
    made = Cluster(MemoryStore(), executor)
    yield made
    made.close()


@pytest.fixture
def sqlite_cluster(executor, tmp_path):
    """For members in other processes."""
    made = Cluster(SqliteStore(str(tmp_path / "run.db")), executor)
    yield made
    made.close()


class MemberProcess:
    """A member in a process of its own; `ask` calls a method there and returns the JSON of the result."""

    def __init__(self, path, index, expected):
        root = str(MEMBER_PROCESS.parents[2])
        arguments = [f"sqlite:///{path}", str(index), ",".join(str(i) for i in expected), json.dumps(QUICK)]
        self.process = subprocess.Popen(
            [sys.executable, str(MEMBER_PROCESS), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )

        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def tell(self, name, *args):
        self.stdin.write(json.dumps([name, *args]) + "\n")
        self.stdin.flush()

    def answer(self):
        return json.loads(self.stdout.readline() or '"gone"')

    def ask(self, name, *args):
        self.tell(name, *args)
        return self.answer()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(5)
        self.stdin.close()
        self.stdout.close()


@pytest.fixture
def member_process(sqlite_cluster):
    """Starts a member in a process of its own."""
    running = []

    def start(index, expected=(0, 1)):
        running.append(MemberProcess(sqlite_cluster.store.path, index, expected))
        return running[-1]

    yield start
    for process in running:
        process.end()
