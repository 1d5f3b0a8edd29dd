"""One contract, kept by every store."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from tfdist.errors import ConfigError, StoreError, StoreUnavailableError
from tfdist.membership.stores import MemoryStore, ScopedStore, SqliteStore, Store, open_store
from tfdist.membership.stores.mounts import network_file_system

ADD_100 = """
import sys
from tfdist.membership.stores import open_store
store = open_store(sys.argv[1])
for _ in range(100):
    while True:
        entry = store.get("n")
        if store.compare_and_set("n", entry.version, str(int(entry.value) + 1).encode()):
            break
"""


def value_of(store, key):
    """The value of a key that must be there."""
    entry = store.get(key)
    if entry is None:
        pytest.fail(f"{key} is not there")
    return entry.value


@pytest.fixture(params=["memory", "sqlite", "scoped"])
def store(request, tmp_path):
    makers: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(str(tmp_path / "store.db"), busy_timeout=10),
        "scoped": lambda: ScopedStore(MemoryStore(), "run/a/"),
    }
    made = makers[request.param]()
    yield made
    made.close()


def test_what_is_put_is_got_with_growing_versions(store):
    assert store.get("a") is None
    first = store.put("a", b"1")
    second = store.put("a", b"2")
    assert 0 < first < second and store.get("a") == (b"2", second)


def test_compare_and_set_writes_only_over_the_expected_version(store):
    version = store.compare_and_set("a", 0, b"1")
    assert version and store.compare_and_set("a", 0, b"2") is None
    assert store.compare_and_set("a", version + 1, b"2") is None and value_of(store, "a") == b"1"
    assert store.compare_and_set("a", version, b"2") > version


def test_a_deleted_key_that_is_made_again_has_a_new_version(store):
    version = store.put("a", b"1")
    assert not store.delete("a", version + 1) and store.delete("a", version) and not store.delete("a")
    assert store.compare_and_set("a", 0, b"1") > version


def test_list_gives_the_keys_with_the_prefix_sorted(store):
    for key in ("b/2", "b/1", "a/1", "b", "b%/x"):
        store.put(key, key.encode())
    assert list(store.list("b/")) == ["b/1", "b/2"] and len(store.list("")) == 5


def test_large_values_and_odd_keys_are_refused_by_name(store):
    with pytest.raises(StoreError, match="big"):
        store.put("big", b"x" * ((1 << 20) + 1))
    store.put("big", b"x" * (1 << 20))
    for key in ("a\n", "k" * 600):
        with pytest.raises(StoreError, match="key"):
            store.put(key, b"")


def test_of_many_threads_that_count_no_count_is_lost(store):
    store.put("n", b"0")

    def add():
        for _ in range(25):
            while True:
                entry = store.get("n")
                if store.compare_and_set("n", entry.version, str(int(entry.value) + 1).encode()):
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert value_of(store, "n") == b"100"


def test_of_many_processes_that_count_no_count_is_lost(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    store = open_store(url)
    store.put("n", b"0")
    running = [subprocess.Popen([sys.executable, "-c", ADD_100, url], cwd=os.getcwd()) for _ in range(2)]
    assert [process.wait(30) for process in running] == [0, 0]
    assert value_of(store, "n") == b"200"


def test_sqlite_works_on_both_sides_of_a_fork(tmp_path):
    store = SqliteStore(str(tmp_path / "s.db"))
    store.put("a", b"parent")
    child = os.fork()
    if child == 0:
        good = value_of(store, "a") == b"parent" and store.put("b", b"child") > 0
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    store.put("c", b"parent")
    assert value_of(store, "b") == b"child"


def test_a_locked_sqlite_file_is_unavailable_and_comes_back(tmp_path):
    store = SqliteStore(str(tmp_path / "s.db"), busy_timeout=0.05)
    other = SqliteStore(str(tmp_path / "s.db"))._connection()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match=r"s\.db"):
        store.put("a", b"1")
    other.execute("ROLLBACK")
    assert store.put("a", b"1")


def test_a_sqlite_file_that_was_removed_is_not_made_anew_by_those_who_knew_it(tmp_path):
    path = tmp_path / "s.db"
    store = SqliteStore(str(path))
    store.put("k", b"v")
    path.unlink()
    with pytest.raises(StoreUnavailableError, match="the file is gone"):
        store.get("k")
    SqliteStore(str(path)).put("k", b"of another run")
    with pytest.raises(StoreUnavailableError, match="another file lies in its place"):
        store.compare_and_set("k", 1, b"mine")


def test_a_sqlite_folder_that_is_away_is_unavailable_and_comes_back(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    store = SqliteStore(str(folder / "s.db"))
    store.put("a", b"1")
    folder.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError):
        store.get("a")
    (tmp_path / "away").rename(folder)
    assert value_of(store, "a") == b"1"


MOUNTS = """21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
23 22 0:41 / /home/local\\040disk rw - xfs /dev/sdb rw
24 21 0:42 / /ssh rw - fuse.sshfs u@h: rw
"""


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/tmp/x.db", None),
        ("/home/u/x.db", "nfs4"),
        ("/home/local disk/x.db", None),  # a local mount inside the network one
        ("/homework/x.db", None),  # the name only begins alike
        ("/ssh/x.db", "fuse.sshfs"),
    ],
)
def test_network_file_systems_are_recognised(path, kind):
    assert network_file_system(path, MOUNTS) == kind


def test_a_store_on_a_network_file_system_is_refused(tmp_path, monkeypatch):
    table = f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path} rw - nfs s:/ rw\n"
    monkeypatch.setattr("tfdist.membership.stores.mounts.read_mountinfo", lambda: table)
    with pytest.raises(ConfigError, match=r"network file system \(nfs\)"):
        SqliteStore(str(tmp_path / "s.db"))


@pytest.mark.parametrize(
    "url, part",
    [
        ("redis://x", "sqlite:///"),
        ("nonsense", "URL"),
        ("etcd://host:2379", "not built in yet"),
        ("k8s://ns/name", "not built in yet"),
        ("sqlite://host/x", "absolute"),
        ("sqlite:////no/such/folder/x.db", "does not exist"),
        ("memory://", "name"),
    ],
)
def test_a_store_url_that_cannot_work_is_refused(url, part):
    with pytest.raises(ConfigError, match=part):
        open_store(url)


def test_memory_stores_are_shared_by_name():
    open_store("memory://stores-test").put("a", b"1")
    assert value_of(open_store("memory://stores-test"), "a") == b"1"
    assert open_store("memory://stores-test-2").get("a") is None
