"""claim.json: who writes to a directory of checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from tfdist.checkpoint.files import Files
from tfdist.errors import CheckpointError, DamagedCheckpointError

FILE = "claim.json"
MAX_BYTES = 64 << 10
MAX_INTERVAL = 3600.0  # seconds; what a file says is not trusted beyond that


@dataclass(frozen=True)
class Holder:
    """A process that holds, or held, the claim.

    Attributes:
        run_id, owner: of the job, and of the process within it.
        host, pid: where it runs; for people.
        token: random, of this process alone.
        counter: renewed where there are no locks.
        interval: seconds between two renewals.
        released: it was given back.
    """

    run_id: str
    owner: str
    host: str = "unknown"
    pid: int = 0
    token: str = ""
    counter: int = 0
    interval: float = 0.0
    released: bool = False


def this_process(run_id: str, owner: str) -> Holder:
    """Returns this process as a holder."""
    return Holder(run_id, owner, socket.gethostname(), os.getpid(), secrets.token_hex(8))


def write_holder(files: Files, holder: Holder) -> None:
    """Writes claim.json, whatever it holds."""
    files.replace(FILE, to_json(holder))


def to_json(holder: Holder) -> bytes:
    """Returns the text of claim.json."""
    return json.dumps(dataclasses.asdict(holder)).encode()


def read_holder(files: Files) -> Holder | None:
    """Returns who is named by claim.json; None if there is no such file. One that is damaged names nobody we know.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        value = json.loads(files.read(FILE, MAX_BYTES))
    except DamagedCheckpointError:
        return None if not files.exists(FILE) else Holder("unknown", "unknown")
    except CheckpointError:
        raise
    except (ValueError, RecursionError):
        return Holder("unknown", "unknown")
    fields = {field.name: field.default for field in dataclasses.fields(Holder)}
    known: dict[str, Any] = {"run_id": "unknown", "owner": "unknown"}
    if isinstance(value, dict):
        for name, default in fields.items():
            wanted = str if default is dataclasses.MISSING else type(default)
            got = value.get(name)
            number = wanted is float and isinstance(got, int) and not isinstance(got, bool)
            if type(got) is wanted or number:
                known[name] = got
    holder = Holder(**known)
    return dataclasses.replace(holder, interval=min(max(holder.interval, 0.0), MAX_INTERVAL))
