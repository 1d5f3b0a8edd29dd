"""Checkpoints in a directory of this machine, or of a network file system that is mounted here."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tfdist.checkpoint.files.base import Seen, read_error, write_error
from tfdist.checkpoint.files.direct import write_file
from tfdist.errors import DamagedCheckpointError

_SYNC_THREADS = 8  # they only wait: the file system commits what several of them ask for at once


class LocalFiles:
    """See Files."""

    def __init__(self, root: str):
        self.root = os.path.abspath(root)
        self.local: str | None = self.root
        self.chunk = 1 << 20  # stays in the CPU's cache between reading and checksum
        self.writers = 2  # one waits for the device while the other computes a checksum

    def name(self, path: str) -> str:
        """See Files."""
        return os.path.join(self.root, path) if path else self.root

    def make_root(self) -> None:
        """See Files."""
        with self._writing("created", ""):
            os.makedirs(self.root, exist_ok=True)
            _sync_one(os.path.dirname(self.root))

    def exists(self, path: str) -> bool:
        """See Files."""
        return os.path.lexists(self.name(path))

    def list(self, path: str) -> list[str]:
        """See Files."""
        try:
            return sorted(os.listdir(self.name(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise read_error(error, self.name(path)) from error

    def sizes(self, path: str) -> dict[str, int]:
        """See Files."""
        top = self.name(path)
        found = {}
        for folder, _, names in os.walk(top):
            for name in names:
                full = os.path.join(folder, name)
                with suppress(FileNotFoundError):  # removed since
                    found[os.path.relpath(full, top).replace(os.sep, "/")] = os.stat(full).st_size
        return found

    def read(self, path: str, limit: int) -> bytes:
        """See Files."""
        try:
            with open(self.name(path), "rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise read_error(error, self.name(path)) from error
        if len(data) > limit:
            raise DamagedCheckpointError(self.name(path), f"it has more than {limit} bytes")
        return data

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """See Files."""
        try:
            descriptor = os.open(self.name(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                while buffer.nbytes:
                    done = os.preadv(descriptor, [buffer], offset)
                    if not done:
                        raise DamagedCheckpointError(
                            self.name(path), f"it ends at byte {offset}, {buffer.nbytes} bytes too early"
                        )
                    buffer, offset = buffer[done:], offset + done
            finally:
                os.close(descriptor)
        except OSError as error:
            raise read_error(error, self.name(path)) from error

    def write(
        self, path: str, buffers: Sequence[memoryview], *, seen: Seen | None = None, durable: bool = True
    ) -> None:
        """See Files."""
        with self._writing("written", path):
            self._make_parents(path)
            with _new_file(self.name(path)) as descriptor:
                write_file(descriptor, buffers, seen)
                if not durable and hasattr(os, "posix_fadvise"):
                    # Has the kernel begin to write what is in its cache, so that there is less to wait for in `sync`.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if durable:
            self.sync(path)

    def create(self, path: str, data: bytes) -> bool:
        """See Files."""
        with self._writing("written", path), self._temporary(path, data) as temporary:
            try:
                os.link(temporary, self.name(path))  # unlike a rename it refuses to replace a file
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                    raise
                # No links there (FAT, some FUSE). Between the two lines another could come: its file is replaced.
                if self.exists(path):
                    return False
                os.rename(temporary, self.name(path))
            self._sync_parent(path)
            return True

    def replace(self, path: str, data: bytes) -> None:
        """See Files."""
        with self._writing("written", path), self._temporary(path, data) as temporary:
            os.replace(temporary, self.name(path))
            self._sync_parent(path)

    def move(self, path: str, to: str) -> None:
        """See Files."""
        with self._writing(f"moved to {to}", path):
            self._make_parents(to)
            os.rename(self.name(path), self.name(to))
            self._sync_parent(to)
            if os.path.dirname(to) != os.path.dirname(path):
                self._sync_parent(path)

    def remove_tree(self, path: str) -> None:
        """See Files."""
        with self._writing("removed", path):
            try:
                shutil.rmtree(self.name(path))
            except NotADirectoryError:
                os.unlink(self.name(path))
            except FileNotFoundError:
                if self.exists(path):  # another process removes it, too; both go on until nothing is left
                    shutil.rmtree(self.name(path), ignore_errors=True)

    def sync(self, path: str) -> None:
        """See Files."""
        with self._writing("made durable", path), ThreadPoolExecutor(_SYNC_THREADS, "tfdist-sync") as pool:
            top, files, folders = self.name(path), [], []
            for folder, _, names in os.walk(top):
                folders.append(folder)
                files += [os.path.join(folder, name) for name in names]
            if not folders:
                files.append(top)
            list(pool.map(_sync_one, files))
            list(pool.map(_sync_one, folders))
            while top != self.root:
                top = os.path.dirname(top)
                _sync_one(top)

    def _make_parents(self, path: str) -> None:
        """Makes the folders above a file, but not the root."""
        parts = path.split("/")[:-1]
        if not parts:
            return
        try:
            Path(self.root, *parts).mkdir(exist_ok=True)
        except FileNotFoundError:
            for count in range(1, len(parts) + 1):
                Path(self.root, *parts[:count]).mkdir(exist_ok=True)

    def _sync_parent(self, path: str) -> None:
        _sync_one(os.path.dirname(self.name(path)))

    @contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        """Gives the path of a durable file with `data` beside `path`; what is left of it is removed."""
        folder, name = os.path.split(self.name(path))
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        try:
            with _new_file(temporary) as descriptor:
                write_file(descriptor, [memoryview(data)], None)
                os.fsync(descriptor)
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    @contextmanager
    def _writing(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(error, doing, self.name(path)) from error


@contextmanager
def _new_file(path: str) -> Iterator[int]:
    """Opens a file that must not exist; removes it if it cannot be written, so that a full disk gets its bytes back."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _sync_one(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
