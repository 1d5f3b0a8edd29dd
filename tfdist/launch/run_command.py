"""Runs a training script on several worker processes of this machine, and replaces those that die.

Each process gets TF_CONFIG (all workers, its own task), TFDIST_STORE and TFDIST_RUN_ID. Its output is shown with a
prefix such as "[worker 1] " and kept in a file per worker. The exit code is 0 if the training completed, else that of
the worker that failed.

Several machines form one cluster when each runs the same command with its own --index-from. On the second of two:

    tfdist run --workers 2 --cluster a:2222,a:2223,b:2222,b:2223 --index-from 2 \\
        --store etcd://a:2379 --run-id r1 train.py
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tfdist import errors
from tfdist.launch.fork_server import PRELOAD
from tfdist.launch.run import RunOptions, run
from tfdist.launch.supervise import RestartPolicy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--workers", type=int, default=2, metavar="N", help="worker processes on this machine (default: 2)")
    add("--min-workers", type=int, default=1, metavar="N", help="fewer workers than this can't go on (default: 1)")
    add("--max-workers", type=int, metavar="N", help="more workers than this are not admitted (default: no limit)")
    add("--restarts", type=int, default=10, metavar="N", help="how often each worker is replaced (default: 10)")
    add("--store", metavar="URL", help="where the workers agree (default: a SQLite file of this run)")
    add(
        "--run-id",
        metavar="ID",
        help="scope of this run in the store; must be the same on all machines (default: a new one)",
    )
    add(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="keep output, events and the default store here (default: a temporary one)",
    )
    add("--no-table", action="store_true", help="no live table, also on a terminal")
    add("--heartbeat-timeout", type=float, metavar="SECONDS", help="silence after which a worker counts as lost")
    add(
        "--cluster",
        default="",
        metavar="HOST:PORT,...",
        help="all workers of all machines, in the order of their index",
    )
    add(
        "--index-from",
        type=int,
        default=0,
        metavar="K",
        help="with --cluster: the index of this machine's first worker",
    )
    add(
        "--preload",
        default=",".join(PRELOAD),
        metavar="MODULES",
        help="imported once for all workers (default: %(default)s)",
    )
    add("script", type=Path, help="the training script")
    add("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")


def main(namespace: argparse.Namespace) -> int:
    """Returns the exit code."""
    if not namespace.script.is_file():
        return _refuse(f"script = {namespace.script}: there is no such file")
    if namespace.cluster and not namespace.run_id:
        return _refuse("--cluster without --run-id: name the run, the same on all machines")
    keep = namespace.log_dir is not None
    directory = namespace.log_dir if keep else Path(tempfile.mkdtemp(prefix="tfdist-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        options = RunOptions(
            script=namespace.script,
            arguments=namespace.arguments,
            directory=directory,
            workers=namespace.workers,
            policy=RestartPolicy(restarts=namespace.restarts, min_workers=namespace.min_workers),
            max_workers=namespace.max_workers,
            store=namespace.store,
            run_id=namespace.run_id,
            cluster=tuple(filter(None, namespace.cluster.split(","))),
            index_from=namespace.index_from,
            heartbeat_timeout=namespace.heartbeat_timeout,
            table=not namespace.no_table,
            preload=tuple(filter(None, namespace.preload.split(","))),
        )
    except errors.ConfigError as error:
        return _refuse(str(error))
    code = run(options)
    if code == 0 and not keep:
        shutil.rmtree(directory, ignore_errors=True)
    elif code != 0:
        sys.stderr.write(f"tfdist: the output of all workers is in {directory}\n")
    return code


def _refuse(reason: str) -> int:
    sys.stderr.write(f"tfdist run: {reason}\n")
    return errors.EXIT_CONFIG
