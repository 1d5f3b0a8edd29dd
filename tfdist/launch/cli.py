"""The command line `tfdist`. Each subcommand lives in a module of its own, imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from tfdist.versions import __version__

# Subcommand -> (module with add_arguments(parser) and main(namespace) -> exit code, one line about it).
COMMANDS = {
    "run": (
        "tfdist.launch.run_command",
        "run a training script on several worker processes, and replace those that die",
    ),
    "drain": ("tfdist.launch.drain_command", "take a worker out of a run for good"),
    "checkpoint": ("tfdist.launch.checkpoint_command", "look at checkpoints, and remove old ones"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tfdist", description="Training over many workers that survives their loss.")
    parser.add_argument("--version", action="version", version=f"tfdist {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (module, about) in COMMANDS.items():
        command = importlib.import_module(module)
        subparser = subparsers.add_parser(
            name, help=about, description=command.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_arguments(subparser)
        subparser.set_defaults(handler=command.main)
    namespace = parser.parse_args(arguments)
    return int(namespace.handler(namespace))
