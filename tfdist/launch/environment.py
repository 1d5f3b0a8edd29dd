"""The environment variables of worker processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

PORTS = (10240, 32768)
INCARNATION_VARIABLE = "TFDIST_INCARNATION_NUMBER"  # 0 for a task's first process, 1 for its first replacement


def shared_environment(
    directory: Path,
    *,
    store: str | None = None,
    run_id: str | None = None,
    min_workers: int = 1,
    max_workers: int | None = None,
    heartbeat_timeout: float | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What all workers of a run have in common.

    Args:
        directory: Where the events file goes, and the SQLite store if none is named.
        store: URL of the store.
        run_id: Scope of the store's entries; None draws one.
        min_workers: Of the whole cluster, as is max_workers; None sets no limit.
        max_workers: See min_workers.
        heartbeat_timeout: Seconds; None leaves it to the script.
        base: The environment to add to; None is this process's.
    """
    told = {
        "TFDIST_STORE": store or f"sqlite:///{directory.resolve() / 'store.sqlite'}",
        "TFDIST_RUN_ID": run_id or uuid.uuid4().hex[:12],
        "TFDIST_EVENTS": str(directory.resolve() / "events.jsonl"),
        "TFDIST_MIN_WORKERS": str(min_workers),
        "TFDIST_MAX_WORKERS": None if max_workers is None else str(max_workers),
        "TFDIST_HEARTBEAT_TIMEOUT": None if heartbeat_timeout is None else str(heartbeat_timeout),
    }
    defaults = {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # the workers share this machine's GPUs
        "TF_CPP_MIN_LOG_LEVEL": "3",  # a lost worker makes TensorFlow's core write pages; errors come as exceptions
    }
    inherited = os.environ if base is None else base
    return {**defaults, **inherited, **{name: value for name, value in told.items() if value is not None}}


def task_environment(
    shared: Mapping[str, str], addresses: Sequence[str], index: int, incarnation: int = 0
) -> dict[str, str]:
    """The environment of one worker process: the shared one, TF_CONFIG, and which process of its task it is.

    Args:
        shared: What all workers have in common.
        addresses: "host:port" of all workers, by index.
        index: Of this worker.
        incarnation: How many processes the task had before.
    """
    config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
    return {**shared, "TF_CONFIG": json.dumps(config), INCARNATION_VARIABLE: str(incarnation)}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on at the moment, all different.

    Below the range from which the system takes ports for outgoing connections: a worker that binds its port seconds
    later must not find that somebody's connection has it.
    """
    draw = random.SystemRandom()
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            one = stack.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", draw.randrange(*PORTS)))
            except OSError:
                continue  # taken: draw another one
            ports.append(one.getsockname()[1])
        return ports
