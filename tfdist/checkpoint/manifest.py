"""manifest.json: written last, it makes a checkpoint valid. Pure.

The file is JSON with a checksum of itself as its last member, so that no flipped bit in it can be believed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import xxhash

from tfdist.checkpoint.layout import MAX_STEP
from tfdist.checkpoint.parsing import FORMAT, manifest_from
from tfdist.checkpoint.records import Leaf, Manifest, Piece, assemble
from tfdist.errors import CheckpointError, DamagedCheckpointError

__all__ = ["FORMAT", "MAX_BYTES", "Leaf", "Manifest", "Piece", "assemble", "from_json", "to_json"]

MAX_BYTES = 64 << 20

_TAIL = re.compile(rb',\n"checksum": "([0-9a-f]{32})"\n}\n')
_TAIL_BYTES = len(b',\n"checksum": ""\n}\n') + 32


def to_json(manifest: Manifest) -> bytes:
    """Returns the text of manifest.json.

    Raises:
        CheckpointError: it has more than 64 MiB, or facts that JSON cannot hold.
        ValueError: a step out of bounds.
    """
    if not 0 <= manifest.step < MAX_STEP:
        raise ValueError(f"step must be in [0, {MAX_STEP}), got {manifest.step}")
    value = {
        "format": FORMAT,
        "step": manifest.step,
        "run_id": manifest.run_id,
        "generation": manifest.generation,
        "parts": manifest.parts,
        "saved_at": manifest.saved_at,
        "metric": manifest.metric,
        "versions": manifest.versions,
        "facts": manifest.facts,
    }
    try:
        members = [f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items()]
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the facts of step {manifest.step} are no JSON ({error}): only text, numbers, True, False, None, "
            "lists and dictionaries of text can be stored beside the arrays."
        ) from None
    leaves = ",\n".join(json.dumps(_leaf(leaf)) for leaf in manifest.leaves)
    body = ("{\n" + ",\n".join([*members, f'"leaves": [\n{leaves}\n]'])).encode()
    text = body + b',\n"checksum": "' + xxhash.xxh3_128_hexdigest(body).encode() + b'"\n}\n'
    if len(text) > MAX_BYTES:
        raise CheckpointError(
            f"the manifest of step {manifest.step} has {len(text)} bytes, more than {MAX_BYTES}: the facts (progress, "
            "callbacks, history) are too large. Keep arrays out of them."
        )
    return text


def from_json(text: bytes, where: str = "manifest.json") -> Manifest:
    """Returns the manifest written by `to_json`.

    Args:
        text: the bytes of the file.
        where: the file, for the text of errors.

    Raises:
        DamagedCheckpointError: its checksum is wrong, a field is missing or breaks its bounds, or the pieces of a leaf
            are not each row exactly once. The file and the field are named.
        IncompatibleCheckpointError: a good manifest of another format.
    """
    problem = _problem(text)
    if problem:
        raise DamagedCheckpointError(where, problem)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(where, f"it is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise DamagedCheckpointError(where, "it is no JSON object")
    return manifest_from(value, where)


def _problem(text: bytes) -> str:
    """Says why `text` is not what was written (its checksum is part of it); nothing if it is."""
    if len(text) > MAX_BYTES:
        return f"it has {len(text)} bytes, more than {MAX_BYTES}"
    match = _TAIL.fullmatch(text, max(0, len(text) - _TAIL_BYTES))
    if not match:
        return "its end is missing: it was cut, or is no manifest"
    expected, found = match[1].decode(), xxhash.xxh3_128_hexdigest(memoryview(text)[: match.start()])
    return "" if expected == found else f"checksum {expected} was expected, and {found} is found"


def _leaf(leaf: Leaf) -> Mapping[str, Any]:
    pieces = [[p.part, p.start, p.stop, p.path, p.nbytes, p.checksum] for p in leaf.pieces]
    return {"name": leaf.name, "shape": list(leaf.shape), "dtype": leaf.dtype, "pieces": pieces}
