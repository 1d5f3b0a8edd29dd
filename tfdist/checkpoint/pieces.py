"""What the writers of one checkpoint tell the one that commits it: a file beside each part."""

from __future__ import annotations

import json

from tfdist.checkpoint.files import Files
from tfdist.checkpoint.layout import part_name
from tfdist.checkpoint.records import Piece
from tfdist.errors import CheckpointError

MAX_BYTES = 16 << 20


def _path(step_dir: str, part: int, generation: int) -> str:
    """One that another generation has left behind is not mistaken for one of this."""
    return f"{step_dir}/{part_name(part)}/pieces-{generation}.json"


def tell(files: Files, step_dir: str, part: int, generation: int, written: list[tuple[str, Piece]]) -> None:
    """Says that a part is written, durably."""
    rows = [[name, p.start, p.stop, p.path, p.nbytes, p.checksum] for name, p in written]
    files.replace(_path(step_dir, part, generation), json.dumps(rows).encode())


def told(files: Files, step_dir: str, part: int, generation: int) -> list[tuple[str, Piece]] | None:
    """What another writer has told, or None: not yet.

    Raises:
        CheckpointError: it is malformed. Whether the pieces make up the leaves is for `records.assemble` to say.
    """
    path = _path(step_dir, part, generation)
    if not files.exists(path):
        return None
    try:
        rows = json.loads(files.read(path, MAX_BYTES))
        return [
            (str(name), Piece(part, int(start), int(stop), str(where), int(nbytes), str(checksum)))
            for name, start, stop, where, nbytes, checksum in rows
        ]
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{files.name(path)} is no list of pieces ({error}): the part is written again") from None
