"""The contract of the files that hold checkpoints: a local directory, or one at a URL."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from tfdist.errors import CheckpointError, CheckpointWriteError, DamagedCheckpointError

Seen = Callable[[memoryview], None]

_FULL = "Free space there, or keep fewer checkpoints (max_to_keep)."
_RIGHTS = "Give this user the right to write there, or choose another directory."
_GONE = "A folder on the way is missing: was the directory removed? Create it again, or start the job anew."
_NO_FOLDER = "Something on the way is no folder. Choose another directory."
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "The file system, or a limit (ulimit -f), allows no file of that size.",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.ESTALE: _GONE,
    errno.EIO: "The device reports that it cannot be relied upon.",
    errno.EMFILE: "This process has too many files open (ulimit -n).",
}


class Files(Protocol):
    """Files below a root, by path relative to it, with "/" between folders.

    Every method may be called from any thread. What the system refuses is raised as `CheckpointWriteError`, and for
    reading as `CheckpointError`, with the path, the reason and a remedy.

    Attributes:
        root: path or URL of the root, for messages.
        local: path of the root where it is local, so that locks of the system hold; None at a URL.
        chunk: bytes that are read at a time.
        writers: files that are best written or read at a time.
    """

    root: str
    local: str | None
    chunk: int
    writers: int

    def name(self, path: str) -> str:
        """Returns the full path or URL, for messages."""

    def make_root(self) -> None:
        """Creates the root. Nothing else does: a directory that was removed is not silently made again."""

    def exists(self, path: str) -> bool:
        """Says whether there is a file or folder."""

    def list(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted; none if there is no such folder."""

    def sizes(self, path: str) -> dict[str, int]:
        """Returns bytes by path (relative to `path`) of all files below a folder."""

    def read(self, path: str, limit: int) -> bytes:
        """Returns a file's bytes.

        Raises:
            DamagedCheckpointError: it has more than `limit` bytes, or is missing.
        """

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` with a file's bytes from `offset` on.

        Raises:
            DamagedCheckpointError: there are fewer, or the file is missing.
        """

    def write(
        self, path: str, buffers: Sequence[memoryview], *, seen: Seen | None = None, durable: bool = True
    ) -> None:
        """Writes a new file, and the folders above it, but not the root.

        Args:
            path: of the file, which must not exist.
            buffers: its bytes, one after the other: contiguous, of format "B".
            seen: called with each run of bytes in order, just before it is written; for checksums.
            durable: False leaves it to `sync`, which is much faster for many files.
        """

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file as a whole or not at all, durably; returns False, and does nothing, if it exists."""

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file as a whole or not at all, durably, in place of one that may exist."""

    def move(self, path: str, to: str) -> None:
        """Renames a file or folder, durably; `to` must not exist."""

    def remove_tree(self, path: str) -> None:
        """Removes a file, or a folder and all below it; what is not there is no error."""

    def sync(self, path: str) -> None:
        """Makes a folder durable: all below it, and its name in the folders above it up to the root."""


def write_error(error: Exception, doing: str, path: str) -> CheckpointWriteError:
    """Returns the error to raise when `doing` ("written", "moved", ...) was refused for `path`."""
    return CheckpointWriteError(_text(error, doing, path))


def read_error(error: Exception, path: str) -> CheckpointError:
    """Returns the error to raise when `path` could not be read; a damaged one where the data are gone."""
    if isinstance(error, FileNotFoundError):
        return DamagedCheckpointError(path, "it is missing")
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return DamagedCheckpointError(path, "it is not a file")
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return DamagedCheckpointError(path, f"it cannot be read ({os.strerror(errno.EIO)})")
    return CheckpointError(_text(error, "read", path))


def _text(error: Exception, doing: str, path: str) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number else f"{type(error).__name__}: {error}"
    return f"{path} could not be {doing}: {reason}. {_REMEDIES.get(number or 0, '')}".rstrip()
