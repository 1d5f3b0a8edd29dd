"""Reads the fields of a manifest: strict types and bounds, whatever the JSON is. Pure."""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

from tfdist.checkpoint.dtypes import NAMES
from tfdist.checkpoint.layout import MAX_STEP, Spec, part_name
from tfdist.checkpoint.records import Leaf, Manifest, Piece, uncovered
from tfdist.errors import DamagedCheckpointError, IncompatibleCheckpointError

FORMAT = 1
MAX_PARTS = 10_000
MAX_LEAVES = 1_000_000
MAX_RANK = 32
MAX_ELEMENTS = 1 << 53
MAX_TEXT = 4096

_CHECKSUM = re.compile(r"[0-9a-f]{32}")


def manifest_from(value: dict[str, Any], where: str) -> Manifest:
    """Returns the manifest in a JSON object.

    Args:
        value: the object.
        where: the file, for the text of errors.

    Raises:
        DamagedCheckpointError: a field is missing or breaks its bounds, or the pieces of a leaf are not each row
            exactly once. The file and the field are named.
        IncompatibleCheckpointError: another format.
    """
    read = _Fields(value, where)
    form = read.integer("format", 1, 1 << 31)
    if form != FORMAT:
        raise IncompatibleCheckpointError(
            f"{where} has format {form}, and this version of tfdist reads format {FORMAT}. "
            "Use the version that wrote it."
        )
    parts = read.integer("parts", 1, MAX_PARTS)
    leaves = read.value("leaves", list)
    if len(leaves) > MAX_LEAVES:
        read.refuse("leaves", f"{len(leaves)} of them")
    parsed = tuple(_leaf(leaf, f"leaves[{index}]", parts, where) for index, leaf in enumerate(leaves))
    if len({leaf.name for leaf in parsed}) != len(parsed):
        read.refuse("leaves", "a name that comes twice")
    versions = read.value("versions", dict)
    if not all(isinstance(version, str) for version in versions.values()):
        read.refuse("versions", versions)
    return Manifest(
        step=read.integer("step", 0, MAX_STEP - 1),
        run_id=read.text("run_id"),
        generation=read.integer("generation", 0, 1 << 53),
        parts=parts,
        leaves=parsed,
        facts=read.value("facts", dict),
        metric=read.metric(),
        versions=versions,
        saved_at=read.text("saved_at"),
    )


def _leaf(value: Any, field: str, parts: int, where: str) -> Leaf:
    if not isinstance(value, dict):
        _refuse(where, field, value)
    read = _Fields(value, where, field + ".")
    name, dtype = read.text("name"), read.text("dtype")
    shape, pieces = read.value("shape", list), read.value("pieces", list)
    if not name or dtype not in NAMES:
        read.refuse("dtype" if name else "name", dtype if name else name)
    if len(shape) > MAX_RANK or not all(_is_integer(size, 0, MAX_ELEMENTS) for size in shape):
        read.refuse("shape", shape)
    if math.prod(shape) > MAX_ELEMENTS:
        read.refuse("shape", shape)
    spec = Spec(name, tuple(shape), dtype)
    parsed = tuple(_piece(piece, f"{field}.pieces[{index}]", parts, where) for index, piece in enumerate(pieces))
    problem = uncovered(spec, parsed)
    if problem:
        raise DamagedCheckpointError(where, f"{field}.pieces of {name[:200]!r}: {problem}")
    return Leaf(spec.name, spec.shape, spec.dtype, parsed)


def _piece(value: Any, field: str, parts: int, where: str) -> Piece:
    if not isinstance(value, list) or len(value) != 6:
        _refuse(where, field, value)
    part, start, stop, path, nbytes, checksum = value
    if not _is_integer(part, 0, parts - 1):
        _refuse(where, f"{field} part", part)
    for name, number in (("start", start), ("stop", stop), ("nbytes", nbytes)):
        if not _is_integer(number, 0, MAX_ELEMENTS * 16):
            _refuse(where, f"{field} {name}", number)
    if not isinstance(path, str) or not _is_inside(path, part_name(part)):
        _refuse(where, f"{field} path", path)
    if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
        _refuse(where, f"{field} checksum", checksum)
    return Piece(part, start, stop, path, nbytes, checksum)


class _Fields:
    """The fields of a JSON object."""

    def __init__(self, value: dict[str, Any], where: str, prefix: str = ""):
        self._value = value
        self._where = where
        self._prefix = prefix

    def refuse(self, name: str, value: Any) -> NoReturn:
        _refuse(self._where, self._prefix + name, value)

    def value(self, name: str, kind: type) -> Any:
        value = self._value.get(name)
        if not isinstance(value, kind):
            self.refuse(name, value)
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._value.get(name)
        if not _is_integer(value, low, high):
            self.refuse(name, value)
        return int(value)  # type: ignore[arg-type]

    def text(self, name: str) -> str:
        value = self.value(name, str)
        if len(value) > MAX_TEXT:
            self.refuse(name, value)
        return str(value)

    def metric(self) -> float | None:
        value = self._value.get("metric")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse("metric", value)
        try:
            return float(value)
        except OverflowError:
            self.refuse("metric", "an integer beyond any float")


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_inside(path: str, folder: str) -> bool:
    """Says whether a relative path stays in `folder`: a manifest must not be able to name any file of the machine."""
    pieces = path.split("/")
    return (
        len(path) <= 2 * MAX_TEXT
        and len(pieces) > 1
        and pieces[0] == folder
        and not any(piece in ("", ".", "..") or "\0" in piece or "\\" in piece for piece in pieces)
    )


def _refuse(where: str, field: str, value: Any) -> NoReturn:
    shown = repr(value)
    raise DamagedCheckpointError(where, f"field {field} = {shown[:200]}")
