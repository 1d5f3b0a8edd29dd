"""Files of checkpoints: the same contract in a directory and at a URL, and errors that say what to do."""

import errno
import os
import resource
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfdist.checkpoint.files import direct, open_files
from tfdist.checkpoint.files.local import LocalFiles
from tfdist.errors import CheckpointError, CheckpointWriteError, ConfigError, DamagedCheckpointError


@pytest.fixture(params=["local", "memory"])
def files(request, tmp_path):
    url = tmp_path / "ckpt" if request.param == "local" else f"memory://{secrets.token_hex(4)}/ckpt"
    opened = open_files(url)
    opened.make_root()
    opened.make_root()
    return opened


def test_what_is_written_is_read(files):
    data = np.arange(1000, dtype=np.uint8)
    seen: list[bytes] = []
    files.write("a/b/c", [data[:300].data, data[300:].data], seen=lambda run: seen.append(bytes(run)))
    assert files.read("a/b/c", 1000) == data.tobytes() == b"".join(seen)
    buffer = bytearray(10)
    files.read_into("a/b/c", 995 - 10, memoryview(buffer))
    assert buffer == data.tobytes()[985:995]
    files.write("a/b/empty", [], durable=False)
    files.sync("a")
    assert files.sizes("a") == {"b/c": 1000, "b/empty": 0}
    assert files.sizes("nothing") == {} and files.list("nothing") == []
    assert files.list("") == ["a"] and files.list("a/b") == ["c", "empty"]
    assert files.exists("a/b/c") and files.exists("a/b") and not files.exists("a/x")


def test_a_file_is_created_once_and_replaced_as_often_as_wanted(files):
    assert files.create("one", b"1")
    assert not files.create("one", b"2")
    assert files.read("one", 10) == b"1"
    files.replace("one", b"3")
    files.replace("other", b"4")
    assert files.read("one", 10) == b"3" and files.list("") == ["one", "other"]


def test_folders_move_and_go(files):
    files.write("a/b/c", [memoryview(b"1")])
    files.write("a/d", [memoryview(b"2")])
    files.move("a", "quarantine/x")
    assert not files.exists("a")
    assert files.sizes("quarantine/x") == {"b/c": 1, "d": 1}
    files.move("quarantine/x/d", "quarantine/x/e")
    files.remove_tree("quarantine/x/b")
    assert files.sizes("quarantine") == {"x/e": 1}
    files.remove_tree("quarantine/x/e")
    files.remove_tree("quarantine")
    files.remove_tree("quarantine")
    assert not files.exists("quarantine/x")


def test_a_missing_or_short_or_long_file_is_damaged(files):
    files.write("a", [memoryview(b"12345")])
    with pytest.raises(DamagedCheckpointError, match="/none is damaged: it is missing"):
        files.read("none", 10)
    with pytest.raises(DamagedCheckpointError, match="/none is damaged: it is missing"):
        files.read_into("none", 0, memoryview(bytearray(1)))
    with pytest.raises(DamagedCheckpointError, match="/a is damaged: it ends at byte 5, 2 bytes too early"):
        files.read_into("a", 2, memoryview(bytearray(5)))
    with pytest.raises(DamagedCheckpointError, match="more than 4"):
        files.read("a", 4)


# Around the sizes at which the way of writing changes.
SIZES = [
    0, 1, direct.ALIGNMENT, direct.LARGE - 1, direct.LARGE, direct.LARGE + 1, direct.CHUNK, direct.CHUNK + 4097,
    2 * direct.CHUNK + 4096,
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("refusal", ["", "the flag", "the write"])
def test_large_files_are_written_whatever_the_file_system_can(tmp_path, monkeypatch, size, refusal):
    if refusal == "the flag":
        monkeypatch.setattr(direct, "set_direct", lambda descriptor, on: False)
    if refusal == "the write":
        write, flag = os.write, direct._O_DIRECT

        def refusing(descriptor, run):
            import fcntl

            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & flag:
                raise OSError(errno.EINVAL, "Invalid argument")
            return write(descriptor, run)

        monkeypatch.setattr(os, "write", refusing)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    files = LocalFiles(str(tmp_path))
    seen: list[bytes] = []
    buffers = [data[: size // 3].data, data[size // 3 :].data]
    files.write("x", buffers, seen=lambda run: seen.append(bytes(run)))
    assert files.read("x", size) == data.tobytes() == b"".join(seen)


def test_short_writes_go_on(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, run: write(descriptor, run[: max(1, len(run) // 2 - 7)]))
    data = np.random.default_rng(0).integers(0, 256, direct.LARGE + 5, np.uint8)
    files = LocalFiles(str(tmp_path))
    files.write("x", [data.data])
    assert files.read("x", data.size) == data.tobytes()


def test_a_removed_directory_is_named_and_not_made_again(tmp_path):
    files = LocalFiles(str(tmp_path / "gone"))
    for call in (
        lambda: files.write("a/b", [memoryview(b"1")]),
        lambda: files.create("b", b"1"),
        lambda: files.replace("b", b"1"),
        lambda: files.move("b", "c"),
    ):
        with pytest.raises(CheckpointWriteError, match=r"gone.* could not be .*: No such file.*directory removed\?"):
            call()
    assert not (tmp_path / "gone").exists()


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointWriteError, match=r"file could not be created: File exists\. Something on the way"):
        open_files(tmp_path / "file").make_root()
    with pytest.raises(CheckpointWriteError, match=r"could not be written: .*Something on the way is no folder"):
        open_files(tmp_path / "file").write("a", [memoryview(b"1")])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "No space left on device. Free space there, or keep fewer"),
        (errno.EDQUOT, "Disk quota exceeded. Free space"),
        (errno.EROFS, "Read-only file system. Give this user the right"),
        (errno.EACCES, "Permission denied. Give this user the right"),
        (errno.EIO, "Input/output error. The device"),
    ],
)
def test_what_the_system_refuses_is_said_and_leaves_nothing(tmp_path, monkeypatch, number, text):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    files = LocalFiles(str(tmp_path))
    calls = (
        lambda: files.write("x", [memoryview(b"1")]),
        lambda: files.create("x", b"1"),
        lambda: files.replace("x", b"1"),
    )
    for call in calls:
        with pytest.raises(CheckpointWriteError, match=f"/x could not be written: {text}") as caught:
            call()
        assert isinstance(caught.value.__cause__, OSError)
    assert files.list("") == []


def test_a_right_that_is_missing_for_reading_is_no_damage(tmp_path, monkeypatch):
    files = LocalFiles(str(tmp_path))
    files.write("x", [memoryview(b"1")])

    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match="could not be read: Permission denied") as caught:
        files.read_into("x", 0, memoryview(bytearray(1)))
    assert not isinstance(caught.value, DamagedCheckpointError)


LIMITED = """
import resource, sys
from tfdist.checkpoint.files import open_files
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
files = open_files(sys.argv[1])
try:
    files.write("a/x", [memoryview(bytes(8 << 20))])
except Exception as error:
    print(type(error).__name__, error, files.sizes(""))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs limits of file sizes")
def test_a_full_disk_is_named_and_gets_its_bytes_back(tmp_path):
    # A limit of the file size stands for the full disk: the system refuses in the middle of a file.
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"CheckpointWriteError {tmp_path}/a/x could not be written: File too large. ")
    assert done.stdout.endswith("{}\n")


@pytest.mark.parametrize(
    ("directory", "text"),
    [
        ("", "must be a path or a URL"),
        (3, "must be a path or a URL"),
        ("a\0b", "must be a path or a URL"),
        ("memory://a[0]", "fsspec takes for patterns"),
        ("nonsense://x", "cannot be opened: Protocol not known: nonsense"),
    ],
)
def test_other_directories_are_refused(directory, text):
    with pytest.raises(ConfigError, match=text):
        open_files(directory)


def test_a_url_without_fsspec_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"tfdist\[checkpoint\]"):
        open_files("memory://x")


def test_a_file_url_is_a_path(tmp_path):
    assert open_files(f"file://{tmp_path}").local == str(tmp_path)
    assert open_files("memory://x").local is None
