"""Runs the benchmarks: `python benchmarks/run.py [names] [--events N]`. See README.md beside it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import checkpoint
import join
import loss
import machine
import memory
import steady
from figures import table

from tfdist.testing import shared_fork_server

BENCHMARKS = {
    "loss": loss.run,
    "join": join.run,
    "steady": steady.run,
    "memory": memory.run,
    "checkpoint": checkpoint.run,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures tfdist on this machine.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(BENCHMARKS)}; none: all")
    parser.add_argument("--events", type=int, help="kills, joins, turns or cycles, instead of the usual number")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    if options.events is not None and options.events < 1:
        parser.error("--events must be at least 1")
    results: dict[str, Any] = {"machine": machine.describe()}
    bounds = []
    shared_fork_server().wait_ready()
    for name in options.names or BENCHMARKS:
        began = time.monotonic()
        print(f"{name} ...", file=sys.stderr, flush=True)
        found = BENCHMARKS[name](options.events)
        bounds += found.pop("bounds")
        results[name] = {**found, "duration": round(time.monotonic() - began, 1)}
        print(f"{name} took {results[name]['duration']} s", file=sys.stderr, flush=True)
        results["bounds"] = bounds
        options.output.write_text(json.dumps(results, indent=2) + "\n")  # after each: a later one may fail
    print(json.dumps(_without_samples(results), indent=2))
    print(table(bounds), file=sys.stderr)
    return 0


def _without_samples(value: Any) -> Any:
    """The long lists are in the file only."""
    if isinstance(value, dict):
        return {name: _without_samples(entry) for name, entry in value.items() if name != "samples"}
    return value


if __name__ == "__main__":
    sys.exit(main())
