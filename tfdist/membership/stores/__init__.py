"""Stores: where the members of a run agree. Chosen by URL."""

from tfdist.errors import ConfigError
from tfdist.membership.stores.base import Entry, ScopedStore, Store
from tfdist.membership.stores.memory import MemoryStore, shared_memory_store
from tfdist.membership.stores.sqlite import SqliteStore

__all__ = ["Entry", "MemoryStore", "ScopedStore", "SqliteStore", "Store", "open_store"]

_KNOWN = "known are sqlite:///path (one machine) and memory://name (threads of one process)"
_TO_COME = {"etcd": "etcd://host:2379", "k8s": "k8s://namespace/name"}


def open_store(url: str, *, must_exist: bool = False) -> Store:
    """Opens the store named by `url`: ``sqlite:////abs/path.db``, ``sqlite:///relative.db`` or ``memory://name``.

    Args:
        url: of the store.
        must_exist: it is not made anew where it is gone (of kinds that can be made at all).

    Raises:
        StoreUnavailableError: with `must_exist`, it is gone.
        ConfigError: an unknown scheme, or a path that this kind of store refuses.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator:
        raise ConfigError("store", url, f"must be a URL; {_KNOWN}")
    if scheme == "memory":
        if not rest:
            raise ConfigError("store", url, "must name the store, such as memory://run")
        return shared_memory_store(rest)
    if scheme == "sqlite":
        if not rest.startswith("/") or len(rest) < 2:
            raise ConfigError("store", url, "must be sqlite:///relative.db or sqlite:////absolute/path.db")
        return SqliteStore(rest[1:], must_exist=must_exist)
    if scheme in _TO_COME:
        raise ConfigError("store", url, f"{_TO_COME[scheme]} is to come, but not built in yet; {_KNOWN}")
    raise ConfigError("store", url, f"unknown scheme {scheme!r}; {_KNOWN}")
