"""Checkpoints at a URL, through fsspec: object stores such as gs:// and s3://, and memory:// for tests.

What this relies upon: an object appears as a whole when its writing ends, and is seen at once by those who look then.
There are no folders to make durable, and no locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfdist.checkpoint.files.base import Seen, read_error, write_error
from tfdist.errors import CheckpointError, ConfigError, DamagedCheckpointError

_WRITE_CHUNK = 16 << 20


class RemoteFiles:
    """See Files."""

    def __init__(self, url: str):
        if set("*?[]") & set(url):
            raise ConfigError(
                "checkpoint directory", url, "must not contain any of *?[], which fsspec takes for patterns"
            )
        self.root = url.rstrip("/")
        self.local: str | None = None
        self.chunk = 32 << 20  # a request each
        self.writers = 8
        self._fs, top = _file_system(url)
        self._top = top.rstrip("/")

    def name(self, path: str) -> str:
        """See Files."""
        return f"{self.root}/{path}" if path else self.root

    def make_root(self) -> None:
        """See Files."""
        with self._writing("created", ""):
            self._fs.makedirs(self._top, exist_ok=True)

    def exists(self, path: str) -> bool:
        """See Files."""
        with self._reading(path):
            return bool(self._fresh().exists(self._full(path)))

    def list(self, path: str) -> list[str]:
        """See Files."""
        with self._reading(path):
            try:
                found = self._fresh().ls(self._full(path), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        own = self._full(path).strip("/")
        return sorted({name.rstrip("/").rpartition("/")[2] for name in found if name.strip("/") != own})

    def sizes(self, path: str) -> dict[str, int]:
        """See Files."""
        with self._reading(path):
            found = self._fresh().find(self._full(path), detail=True)
        cut = len(self._full(path).strip("/")) + 1
        return {name.strip("/")[cut:]: int(info["size"]) for name, info in found.items()}

    def read(self, path: str, limit: int) -> bytes:
        """See Files."""
        with self._reading(path):
            size = self._fresh().size(self._full(path))
            if size is not None and size > limit:
                raise DamagedCheckpointError(self.name(path), f"it has {size} bytes, more than {limit}")
            return bytes(self._fs.cat_file(self._full(path)))

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """See Files."""
        with self._reading(path):
            data = self._fs.cat_file(self._full(path), start=offset, end=offset + buffer.nbytes)
        if len(data) != buffer.nbytes:
            missing = buffer.nbytes - len(data)
            raise DamagedCheckpointError(
                self.name(path), f"it ends at byte {offset + len(data)}, {missing} bytes too early"
            )
        buffer[:] = data

    def write(
        self, path: str, buffers: Sequence[memoryview], *, seen: Seen | None = None, durable: bool = True
    ) -> None:
        """See Files. An object that exists is replaced; what is written is durable at once."""
        with self._writing("written", path):
            self._make_parent(path)
            with self._fs.open(self._full(path), "wb") as file:
                for buffer in buffers:
                    for start in range(0, buffer.nbytes, _WRITE_CHUNK):
                        run = buffer[start : start + _WRITE_CHUNK]
                        if seen:
                            seen(run)
                        file.write(run)

    def create(self, path: str, data: bytes) -> bool:
        """See Files. As exclusive as the file system at the URL can be."""
        with self._writing("written", path):
            self._make_parent(path)
            if self._fresh().exists(self._full(path)):
                return False
            try:
                self._fs.pipe_file(self._full(path), data, mode="create")
            except FileExistsError:
                return False
            except (TypeError, ValueError, NotImplementedError):  # an older one, without that mode
                self._fs.pipe_file(self._full(path), data)
            return True

    def replace(self, path: str, data: bytes) -> None:
        """See Files."""
        with self._writing("written", path):
            self._make_parent(path)
            self._fs.pipe_file(self._full(path), data)

    def move(self, path: str, to: str) -> None:
        """See Files. Not at once: all is copied before anything is removed."""
        with self._writing(f"moved to {to}", path):
            self._make_parent(to)
            folder = bool(self._fresh().isdir(self._full(path)))
            self._fs.copy(self._full(path), self._full(to), recursive=folder)
            self._fs.rm(self._full(path), recursive=folder)

    def remove_tree(self, path: str) -> None:
        """See Files."""
        with self._writing("removed", path):
            try:
                self._fresh().rm(self._full(path), recursive=True)
            except FileNotFoundError:
                pass

    def sync(self, path: str) -> None:
        """See Files."""

    def _full(self, path: str) -> str:
        return f"{self._top}/{path}" if path else self._top

    def _fresh(self) -> Any:
        """The file system, without what it remembers of listings: others write there, too."""
        self._fs.invalidate_cache()
        return self._fs

    def _make_parent(self, path: str) -> None:
        # Object stores have no folders and ignore this; others (sftp, hdfs) need them.
        self._fs.makedirs(self._full(path).rpartition("/")[0], exist_ok=True)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            # Each of these libraries has errors of its own, many without a base but Exception.
            raise read_error(error, self.name(path)) from error

    @contextmanager
    def _writing(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise write_error(error, doing, self.name(path)) from error


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise ConfigError(
            "checkpoint directory", url, "a URL needs the package fsspec", "pip install 'tfdist[checkpoint]'"
        ) from None
    try:
        return fsspec.core.url_to_fs(url)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        # It says which package knows the scheme, such as gcsfs for gs://.
        raise ConfigError("checkpoint directory", url, f"cannot be opened: {error}", "Install what it names.") from None
