"""The contract of a store: small values by key, with versions and compare-and-set.

A store holds what the members of a run must agree on (a few kilobytes); tensors never go through it.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from tfdist.errors import StoreError

MAX_VALUE_BYTES = 1 << 20
MAX_KEY_CHARACTERS = 512


class Entry(NamedTuple):
    """A value and its version: a positive integer that a later write of the same key always exceeds."""

    value: bytes
    version: int


@runtime_checkable
class Store(Protocol):
    """Every method may be called from any thread, and raises StoreUnavailableError while the store is away."""

    def get(self, key: str) -> Entry | None:
        """Returns the entry of `key`, or None."""

    def put(self, key: str, value: bytes) -> int:
        """Writes unconditionally; returns the new version."""

    def compare_and_set(self, key: str, expected_version: int, value: bytes) -> int | None:
        """Writes only if the version is still `expected_version` (0: the key must not exist).

        Returns:
            The new version, or None if another write came first.
        """

    def list(self, prefix: str) -> dict[str, Entry]:
        """Returns the entries whose key begins with `prefix`, sorted by key."""

    def delete(self, key: str, expected_version: int | None = None) -> bool:
        """Deletes `key`, if its version is `expected_version` where one is given; returns whether it did."""

    def close(self) -> None:
        """Frees connections; closing twice is allowed."""


def check(key: str, value: bytes | None = None) -> None:
    """Refuses keys and values that not every store can hold.

    Raises:
        StoreError: an empty, too long or odd key; a value that is not bytes, or above 1 MiB. The key is named.
    """
    if not isinstance(key, str) or not key or len(key) > MAX_KEY_CHARACTERS or not key.isprintable():
        shown = key[:80] if isinstance(key, str) else key
        raise StoreError(f"store key {shown!r} must be 1 to {MAX_KEY_CHARACTERS} printable characters")
    if value is not None:
        if not isinstance(value, bytes):
            raise StoreError(f"store key {key!r}: the value must be bytes, not {type(value).__name__}")
        if len(value) > MAX_VALUE_BYTES:
            raise StoreError(f"store key {key!r}: the value has {len(value)} bytes, more than {MAX_VALUE_BYTES}")


class ScopedStore:
    """A part of another store: each key gets `prefix` in front. Closing it closes the other."""

    def __init__(self, store: Store, prefix: str):
        self._store = store
        self._prefix = prefix

    def get(self, key: str) -> Entry | None:
        """See Store."""
        return self._store.get(self._prefix + key)

    def put(self, key: str, value: bytes) -> int:
        """See Store."""
        return self._store.put(self._prefix + key, value)

    def compare_and_set(self, key: str, expected_version: int, value: bytes) -> int | None:
        """See Store."""
        return self._store.compare_and_set(self._prefix + key, expected_version, value)

    def list(self, prefix: str) -> dict[str, Entry]:
        """See Store."""
        cut = len(self._prefix)
        return {key[cut:]: entry for key, entry in self._store.list(self._prefix + prefix).items()}

    def delete(self, key: str, expected_version: int | None = None) -> bool:
        """See Store."""
        return self._store.delete(self._prefix + key, expected_version)

    def close(self) -> None:
        """See Store."""
        self._store.close()
