"""A store in one SQLite file: the default for processes of one machine.

Versions come from one counter in the file, so that a key which is deleted and made again never repeats a version.
"""

import ctypes
import os
import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

from tfdist.errors import ConfigError, StoreUnavailableError
from tfdist.membership.stores import mounts
from tfdist.membership.stores.base import Entry, check

_Result = TypeVar("_Result")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), value TEXT NOT NULL);
INSERT OR IGNORE INTO identity VALUES (1, lower(hex(randomblob(16))));
CREATE TABLE IF NOT EXISTS counter (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""


class SqliteStore:
    """Safe across threads, processes and os.fork: each (process, thread) opens its own connection when first used.

    Args:
        path: the file; made if absent, its folder must exist and be writable.
        busy_timeout: seconds to wait for another writer before StoreUnavailableError.
        must_exist: this process comes to a run that has a store: an empty new one would be another run.

    Raises:
        StoreUnavailableError: with `must_exist`, the file is gone.
        ConfigError: the path is on a network file system, or cannot be written.
    """

    def __init__(self, path: str, *, busy_timeout: float = 2.0, must_exist: bool = False):
        self.path = mounts.resolved(path)
        self._busy_timeout = busy_timeout
        self._connections: dict[tuple[int, int], sqlite3.Connection] = {}
        self._lock = threading.Lock()
        self._identity: str | None = None  # of the file that this store has opened first
        self._check_path()
        if must_exist and not os.path.exists(self.path):
            raise StoreUnavailableError(
                f"store sqlite:///{self.path} is gone, and with it the run that this process was started for. Start "
                "the run anew, with a checkpoint if there is one"
            )
        self._run(lambda connection: None)

    def get(self, key: str) -> Entry | None:
        """See Store."""
        check(key)
        sql = "SELECT value, version FROM entries WHERE key = ?"
        row = self._run(lambda connection: connection.execute(sql, (key,)).fetchone())
        return Entry(bytes(row[0]), row[1]) if row else None

    def put(self, key: str, value: bytes) -> int:
        """See Store."""
        check(key, value)
        return self._change(lambda connection: _write(connection, key, value))

    def compare_and_set(self, key: str, expected_version: int, value: bytes) -> int | None:
        """See Store."""
        check(key, value)

        def change(connection: sqlite3.Connection) -> int | None:
            return _write(connection, key, value) if _version(connection, key) == expected_version else None

        return self._change(change)

    def list(self, prefix: str) -> dict[str, Entry]:
        """See Store."""
        sql = "SELECT key, value, version FROM entries WHERE key >= ? AND substr(key, 1, ?) = ? ORDER BY key"
        rows = self._run(lambda connection: connection.execute(sql, (prefix, len(prefix), prefix)).fetchall())
        return {key: Entry(bytes(value), version) for key, value, version in rows}

    def delete(self, key: str, expected_version: int | None = None) -> bool:
        """See Store."""
        check(key)

        def change(connection: sqlite3.Connection) -> bool:
            present = _version(connection, key)
            if not present or expected_version not in (None, present):
                return False
            connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            return True

        return self._change(change)

    def close(self) -> None:
        """Closes this process's connections; a connection that a fork brought along is left alone."""
        with self._lock:
            self._leave_inherited()
            mine = {name: c for name, c in self._connections.items() if name[0] == os.getpid()}
            for name in mine:
                del self._connections[name]
        for connection in mine.values():
            connection.close()

    def _change(self, change: Callable[[sqlite3.Connection], _Result]) -> _Result:
        def transaction(connection: sqlite3.Connection) -> _Result:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

        return self._run(transaction)

    def _run(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        try:
            return work(self._connection())
        except sqlite3.Error as error:
            self._forget()
            remedy = ". Give another path, or remove that file" if "not a database" in str(error) else ""
            raise StoreUnavailableError(f"store sqlite:///{self.path} is not available: {error}{remedy}") from error

    def _connection(self) -> sqlite3.Connection:
        name = (os.getpid(), threading.get_ident())
        connection = self._connections.get(name)
        if connection is not None:
            if os.path.exists(self.path):
                return connection
            self._forget()  # the file was taken away: an open connection would write to a file that nobody sees
        if self._identity is not None and not os.path.exists(self.path):
            raise sqlite3.OperationalError("the file is gone")  # an empty new one would be another run
        connection = sqlite3.connect(
            self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'counter'").fetchone():
                connection.executescript("BEGIN IMMEDIATE;" + _SCHEMA + "COMMIT;")
            (identity,) = connection.execute("SELECT value FROM identity").fetchone()
            if self._identity not in (None, identity):
                raise sqlite3.OperationalError("another file lies in its place")
            self._identity = identity
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._leave_inherited()
            self._drop_dead_threads()
            self._connections[name] = connection
        return connection

    def _forget(self) -> None:
        with self._lock:
            connection = self._connections.pop((os.getpid(), threading.get_ident()), None)
        if connection is not None:
            connection.close()

    def _leave_inherited(self) -> None:
        """Makes sure that a connection of a parent process is never closed here, which could end its write-ahead log.

        The extra reference keeps it from the garbage collector, also while the interpreter shuts down.
        """
        for name in [n for n in self._connections if n[0] != os.getpid()]:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connections.pop(name)))

    def _drop_dead_threads(self) -> None:
        """Closes what ended threads left behind."""
        living = {thread.ident for thread in threading.enumerate()}
        for name in [n for n in self._connections if n[0] == os.getpid() and n[1] not in living]:
            self._connections.pop(name).close()

    def _check_path(self) -> None:
        folder = os.path.dirname(self.path)
        field = "store"
        kind = mounts.network_file_system(self.path, mounts.read_mountinfo())
        if kind:
            raise ConfigError(
                field,
                f"sqlite:///{self.path}",
                f"lies on a network file system ({kind}), where SQLite's locks cannot be trusted",
                "Use a local path for one machine, or etcd:// or k8s:// for several.",
            )
        if not os.path.isdir(folder):
            raise ConfigError(field, f"sqlite:///{self.path}", f"folder {folder} does not exist", "Make it first.")
        if os.path.isdir(self.path):
            raise ConfigError(field, f"sqlite:///{self.path}", "is a folder, not a file")
        writable = os.access(folder, os.W_OK) and (not os.path.exists(self.path) or os.access(self.path, os.W_OK))
        if not writable:
            raise ConfigError(field, f"sqlite:///{self.path}", "cannot be written by this process")


def _version(connection: sqlite3.Connection, key: str) -> int:
    row = connection.execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
    return row[0] if row else 0


def _write(connection: sqlite3.Connection, key: str, value: bytes) -> int:
    connection.execute("UPDATE counter SET value = value + 1")
    version = connection.execute("SELECT value FROM counter").fetchone()[0]
    connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, version))
    return version
