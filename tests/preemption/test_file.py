"""A file as a source: its existence counts, its content is the reason."""

import os
import pathlib

import pytest

from tests.preemption.conftest import noticed
from tfdist.errors import ConfigError
from tfdist.preemption import File


def test_a_file_that_exists_is_a_notice(tmp_path):
    path = tmp_path / "leave"
    source = File(path)
    assert source.look() is None
    path.write_text("  rack 7 is\nswitched off\x1b[31m ")
    notice = noticed(source)
    assert (notice.source, notice.seconds) == (f"file:{path}", None)
    assert notice.reason == "rack 7 is switched off [31m"


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", None),
        (b" \n", None),
        (b"x" * 3000, "x" * 500),
        ("\U0001f6d1".encode() * 600, "\U0001f6d1" * 500),  # four bytes each
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_reason_is_the_beginning_of_the_content(tmp_path, content, reason):
    path = tmp_path / "leave"
    path.write_bytes(content)
    assert noticed(File(path)).reason == (reason or f"the file {path} exists")


def test_whatever_exists_counts_and_nothing_blocks(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("pipe", "directory"):
        assert noticed(File(tmp_path / name)).reason == f"the file {tmp_path / name} exists"


def test_a_directory_that_is_missing_or_a_file_is_no_notice(tmp_path):
    (tmp_path / "file").write_text("")
    assert File(tmp_path / "missing" / "leave").look() is None
    assert File(tmp_path / "file" / "leave").look() is None


def test_a_relative_path_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = File("leave")
    monkeypatch.chdir("/")
    pathlib.Path(tmp_path, "leave").write_text("go")
    assert noticed(source).reason == "go"


@pytest.mark.parametrize("path", ["", None, 3, b"x", "a\0b"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(ConfigError, match="path of the preemption source file"):
        File(path)
