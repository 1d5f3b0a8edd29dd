"""A store in the memory of one process, for threads; also the test double of every other store."""

import itertools
import threading

from tfdist.membership.stores.base import Entry, check


class MemoryStore:
    """A dictionary under a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._versions = itertools.count(1)

    def get(self, key: str) -> Entry | None:
        """See Store."""
        check(key)
        with self._lock:
            return self._entries.get(key)

    def put(self, key: str, value: bytes) -> int:
        """See Store."""
        check(key, value)
        with self._lock:
            return self._write(key, value)

    def compare_and_set(self, key: str, expected_version: int, value: bytes) -> int | None:
        """See Store."""
        check(key, value)
        with self._lock:
            present = self._entries.get(key)
            if (present.version if present else 0) != expected_version:
                return None
            return self._write(key, value)

    def list(self, prefix: str) -> dict[str, Entry]:
        """See Store."""
        with self._lock:
            return {key: entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix)}

    def delete(self, key: str, expected_version: int | None = None) -> bool:
        """See Store."""
        check(key)
        with self._lock:
            present = self._entries.get(key)
            if present is None or expected_version not in (None, present.version):
                return False
            del self._entries[key]
            return True

    def close(self) -> None:
        """Keeps the entries: other threads may still use this store."""

    def _write(self, key: str, value: bytes) -> int:
        version = next(self._versions)
        self._entries[key] = Entry(value, version)
        return version


_shared: dict[str, MemoryStore] = {}
_shared_lock = threading.Lock()


def shared_memory_store(name: str) -> MemoryStore:
    """Returns the one store of this process with that name (``memory://name``)."""
    with _shared_lock:
        return _shared.setdefault(name, MemoryStore())
