"""Whatever happens to the files: never a wrong value. Another checkpoint is used, or it is said which file is wrong."""

import os
import random
from pathlib import Path

import pytest

from tests.checkpoint.making import arrays_of, same, save, write
from tfdist.checkpoint.files import open_files
from tfdist.checkpoint.layout import MANIFEST, step_name
from tfdist.checkpoint.quarantine import KEEP
from tfdist.checkpoint.retention import RetentionPolicy
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import DamagedCheckpointError, exit_code
from tfdist.observe import events

NEWEST = step_name(20)


@pytest.fixture
def told(monkeypatch):
    """The events that were told, as (kind, message)."""
    seen: list[tuple[str, str]] = []
    for module in ("quarantine", "removal"):
        monkeypatch.setattr(f"tfdist.checkpoint.{module}.emit", lambda kind, message, **_: seen.append((kind, message)))
    return seen


@pytest.fixture
def two(tmp_path):
    """A directory with the checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save(tmp_path, step, parts=2, history={"loss": [0.5] * step})
    return tmp_path


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def damages(data: bytes, chance: random.Random, count: int):
    """Yields (what, bytes) of some ways in which a file can be damaged."""
    for index in sorted(chance.sample(range(len(data)), min(count, len(data)))):
        bit = 1 << chance.randrange(8)
        yield f"bit flipped at {index}", data[:index] + bytes([data[index] ^ bit]) + data[index + 1 :]
        yield f"cut at {index}", data[:index]
    yield "a byte more", data + b"\0"
    yield "zeros", bytes(len(data))


def test_a_flipped_or_missing_byte_anywhere_is_never_believed(two, told):
    store, chance = CheckpointStore(two), random.Random(0)
    values = {10: arrays_of(10), 20: arrays_of(20)}
    fallbacks = 0
    paths = files_of(two / NEWEST)
    assert {path.name for path in paths} >= {MANIFEST, ".zarray", "_METADATA", "0.0", "0"}
    for path in paths:
        data = path.read_bytes()
        for what, damaged in damages(data, chance, 25 if path.name == MANIFEST else 4):
            if damaged == data:
                continue  # the zeros of a bias, say
            path.write_bytes(damaged)
            restored = store.restore_newest()
            assert restored is not None
            manifest, arrays = restored
            assert same(arrays, values[manifest.step]), f"{path}: {what}"
            assert manifest.facts["history"]["loss"] == [0.5] * manifest.step
            fallbacks += manifest.step == 10
            problems = store.verify()
            assert len(problems) == 1 and str(path) in problems[0], f"{path}: {what}: {problems}"
        path.write_bytes(data)
    assert fallbacks > 40
    assert store.verify() == []


def test_a_missing_file_anywhere_is_found(two, told):
    store = CheckpointStore(two)
    for path in files_of(two / NEWEST):
        data = path.read_bytes()
        path.unlink()
        restored = store.restore_newest()
        assert restored is not None and same(restored[1], arrays_of(restored[0].step)), path
        if path.name != MANIFEST:  # without it there is no such checkpoint
            assert str(path) in store.verify()[0]
        path.write_bytes(data)


def test_reading_a_damaged_file_names_it_with_both_checksums(two):
    store = CheckpointStore(two)
    found = store.newest()
    assert found is not None
    path = two / NEWEST / "part-0000" / "dense" / "kernel" / "0.0"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(
        DamagedCheckpointError, match=rf"{path} is damaged: checksum [0-9a-f]{{32}} .*[0-9a-f]{{32}} is"
    ):
        store.read(*found)


def test_without_the_claim_nothing_is_moved(two, told):
    (two / NEWEST / MANIFEST).write_bytes(b"nonsense")
    (two / step_name(30)).mkdir()  # somebody is writing it
    before = files_of(two)
    store = CheckpointStore(two)
    restored = store.restore_newest()
    assert restored is not None and restored[0].step == 10
    assert [manifest.step for manifest in store.list()] == [10]
    assert files_of(two) == before and (two / step_name(30)).is_dir()
    assert [kind for kind, _ in told] == ["checkpoint_damaged"]
    assert "manifest.json is damaged" in told[0][1]


def test_with_the_claim_damaged_and_partial_ones_are_moved_and_reported(two, told):
    path = two / NEWEST / "part-0001"
    victim = next(file for file in files_of(path) if file.name == "0.0")
    victim.write_bytes(bytes(victim.stat().st_size))
    write(open_files(two), 30, arrays_of(30))
    store = CheckpointStore(two)
    restored = store.restore_newest(mine=True)
    assert restored is not None and restored[0].step == 10
    assert sorted(os.listdir(two)) == ["quarantine", step_name(10)]
    assert os.listdir(two / "quarantine") and sorted(os.listdir(two / "quarantine")) == [
        f"000001-{step_name(30)}",
        f"000002-{NEWEST}",
    ]
    assert "its save did not end" in told[0][1] and str(victim) in told[1][1]
    assert "it is now quarantine/000002" in told[1][1]


def test_quarantine_keeps_the_newest_three(two, told):
    for step in range(30, 36):
        write(open_files(two), step, arrays_of(step))
        CheckpointStore(two).newest(mine=True)
    names = sorted(os.listdir(two / "quarantine"))
    assert names == [f"{number:06d}-{step_name(29 + number)}" for number in (4, 5, 6)] and len(names) == KEEP


@pytest.mark.parametrize("mine", [True, False])
def test_when_all_are_damaged_the_run_does_not_start_anew(two, told, mine):
    for path in two.glob("*/manifest.json"):
        path.write_bytes(b"{}")
    store = CheckpointStore(two)
    for _ in range(2):  # the second time all lie in quarantine
        for call in (store.newest, store.restore_newest):
            with pytest.raises(DamagedCheckpointError, match="none of its checkpoints can be used") as caught:
                call(mine=mine)
            assert exit_code(caught.value) == 79
            assert step_name(10) in str(caught.value) and NEWEST in str(caught.value)


def test_what_is_left_of_saves_alone_is_no_checkpoint(tmp_path, told):
    write(open_files(tmp_path), 5, arrays_of(5))
    store = CheckpointStore(tmp_path)
    assert store.newest() is None
    assert (tmp_path / step_name(5)).exists()
    assert store.restore_newest(mine=True) is None
    assert os.listdir(tmp_path / "quarantine") == [f"000001-{step_name(5)}"]
    assert store.restore_newest(mine=True) is None


def test_one_that_cannot_be_moved_is_passed_over(two, told):
    (two / NEWEST / MANIFEST).write_bytes(b"{}")
    (two / "quarantine").write_text("in the way")
    restored = CheckpointStore(two).restore_newest(mine=True)
    assert restored is not None and restored[0].step == 10
    assert "it stays where it is" in told[0][1] and (two / NEWEST).exists()


def test_one_that_is_removed_while_it_is_read_is_passed_over(two, monkeypatch, told):
    store, other = CheckpointStore(two), CheckpointStore(two)
    check = store._check_sizes

    def check_and_lose(manifest, step_dir):
        check(manifest, step_dir)
        if manifest.step == 20:
            save(two, 30)
            assert other.prune(RetentionPolicy(max_to_keep=1), protected=[10]) == [20]

    monkeypatch.setattr(store, "_check_sizes", check_and_lose)
    restored = store.restore_newest()
    assert restored is not None and restored[0].step == 10
    assert not any(kind == "checkpoint_damaged" for kind, _ in told)


def test_a_checkpoint_of_another_step_is_damaged(two, told):
    (two / NEWEST).rename(two / step_name(21))
    assert "it is that of step 20" in CheckpointStore(two).verify()[0]


def test_pruning_removes_old_ones_and_rubbish_but_nothing_that_is_being_written(two, told):
    for step in (5, 15, 25):
        write(open_files(two), step, arrays_of(step))
    (two / "notes.txt").write_text("of somebody else")
    store = CheckpointStore(two)
    assert store.prune(RetentionPolicy(max_to_keep=1)) == [10]
    assert sorted(os.listdir(two)) == ["notes.txt", NEWEST, step_name(25)]
    assert told == [
        ("checkpoint_prune", "removed the checkpoints of steps [10]: 2 checkpoints, of which the newest 1 stay")
    ]
    assert store.prune(RetentionPolicy(max_to_keep=1)) == []


def test_a_removal_that_did_not_end_leaves_nothing_half_valid(two, told):
    (two / step_name(10) / MANIFEST).rename(two / step_name(10) / "manifest.removed.json")
    (two / step_name(5) / "part-0000").mkdir(parents=True)  # its manifest went before the rest
    store = CheckpointStore(two)
    assert [manifest.step for manifest in store.list()] == [20]
    found = store.newest(mine=True)
    assert found is not None and found[0].step == 20
    assert os.listdir(two) == [NEWEST]


def test_what_cannot_be_removed_is_told(two, told, monkeypatch):
    from tfdist.checkpoint.files.local import LocalFiles
    from tfdist.errors import CheckpointWriteError

    def refuse(self, path):
        raise CheckpointWriteError(f"{path} could not be removed: Read-only file system.")

    monkeypatch.setattr(LocalFiles, "remove_tree", refuse)
    store = CheckpointStore(two)
    assert store.prune(RetentionPolicy(max_to_keep=1)) == [10]  # it is valid no longer
    assert any("Read-only" in message for _, message in told)
    assert [manifest.step for manifest in store.list()] == [20]


def test_damage_reaches_the_events_file(two, tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("events") / "events"
    monkeypatch.setenv(events.EVENTS_VARIABLE, str(path))
    (two / NEWEST / MANIFEST).write_bytes(b"{}")
    CheckpointStore(two).newest()
    (event,) = events.read_events(path)[0]
    assert event["kind"] == "checkpoint_damaged" and event["numbers"]["checkpoint"] == NEWEST
