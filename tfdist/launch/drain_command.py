"""Takes a worker out of a run for good: it finishes its step, hands over, and exits with 0, so nobody replaces it.

The store and the run id are those of the run, such as TFDIST_STORE and TFDIST_RUN_ID say to its workers:

    tfdist drain --store sqlite:////tmp/run.db --run-id r1 worker/2
"""

from __future__ import annotations

import argparse
import os
import sys

from tfdist import errors
from tfdist.membership import keys, records
from tfdist.membership.options import DEFAULT_RUN_ID
from tfdist.membership.stores import ScopedStore, open_store
from tfdist.tf_config import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--store", metavar="URL", default=os.environ.get("TFDIST_STORE"), help="default: TFDIST_STORE")
    run_id = os.environ.get("TFDIST_RUN_ID", DEFAULT_RUN_ID)
    add("--run-id", metavar="ID", default=run_id, help="default: TFDIST_RUN_ID, else %(default)s")
    add("task", nargs="+", help="the worker, such as worker/2")


def main(namespace: argparse.Namespace) -> int:
    """Returns the exit code."""
    try:
        if not namespace.store:
            raise errors.ConfigError("--store", None, "names no store", "Give the run's, or set TFDIST_STORE.")
        store = ScopedStore(open_store(namespace.store), keys.run_prefix(namespace.run_id))
        for text in namespace.task:
            records.ask_to_drain(store, Task.parse(text))
            sys.stdout.write(f"{text} is asked to leave at its next step boundary\n")
    except errors.TfdistError as error:
        sys.stderr.write(f"tfdist drain: {error}\n")
        return errors.exit_code(error)
    return 0
