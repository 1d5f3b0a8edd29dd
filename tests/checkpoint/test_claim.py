"""One job at a time writes to a directory, and the next one never waits for a dead one."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.checkpoint import lock_claim
from tfdist.checkpoint.claim import Claim
from tfdist.checkpoint.counter_claim import CounterClaim
from tfdist.checkpoint.files import open_files
from tfdist.checkpoint.holder import FILE, Holder, read_holder, this_process
from tfdist.errors import CheckpointClaimedError, CheckpointWriteError, ConfigError, exit_code

ROOT = Path(__file__).resolve().parents[2]


class Claimant:
    """A process with a claim."""

    def __init__(self, directory, run, owner="worker/0", patience=0.3):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.checkpoint.claimant", str(directory), run, owner, str(patience)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start():
    started: list[Claimant] = []

    def make(*arguments, **options):
        started.append(Claimant(*arguments, **options))
        return started[-1]

    yield make
    for one in started:
        one.end()


def claim_of(directory, run, **options):
    return Claim(open_files(directory), run, "worker/9", **{"patience": 0.1, **options})


def test_another_run_is_refused_while_one_process_of_the_first_lives(start, tmp_path):
    directory = tmp_path / "ckpt"
    first, second = start(directory, "one", "worker/0"), start(directory, "one", "worker/1")
    assert (first.line(), second.line()) == ("taken", "taken")
    named = json.loads((directory / FILE).read_text())
    assert named["run_id"] == "one" and named["pid"] in (first.process.pid, second.process.pid)
    with pytest.raises(
        CheckpointClaimedError, match=rf"run 'one' \(host .*, pid {named['pid']}\) .* this is run 'two'"
    ):
        claim_of(directory, "two").take()
    first.end()
    with pytest.raises(CheckpointClaimedError, match="run 'one'") as caught:
        claim_of(directory, "two").take()
    assert exit_code(caught.value) == 78
    second.process.send_signal(signal.SIGSTOP)  # a frozen holder still holds
    with pytest.raises(CheckpointClaimedError, match="run 'one'"):
        claim_of(directory, "two").take()
    with claim_of(directory, "one"):  # and does not keep its own run away
        pass
    second.end()  # kill -9
    begin = time.monotonic()
    with claim_of(directory, "two", patience=30.0):
        assert time.monotonic() - begin < 10, "the next run must not wait for a dead one"
        assert json.loads((directory / FILE).read_text())["run_id"] == "two"


def test_a_child_that_was_forked_does_not_hold_the_claim_of_its_parent(start, tmp_path):
    parent = start(tmp_path, "one")
    assert parent.line() == "taken"
    child = int(parent.tell("fork"))
    try:
        with pytest.raises(CheckpointClaimedError):
            claim_of(tmp_path, "two").take()
        parent.end()
        with claim_of(tmp_path, "two", patience=10.0):
            pass
        os.kill(child, 0)  # it was there all the time
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_claim_that_is_released_can_be_taken_by_another_run(start, tmp_path):
    first = start(tmp_path, "one")
    assert first.line() == "taken"
    assert first.tell("release") == "released"
    claim = claim_of(tmp_path, "two")
    claim.take()
    claim.take()
    other = start(tmp_path, "three")
    assert other.line().startswith(f"refused: {tmp_path} is written to by another job: run 'two'")
    claim.release()
    claim.release()


def test_many_at_once_agree_on_one_run(start, tmp_path):
    several = [start(tmp_path, run, f"worker/{index}", patience=1.0) for index in range(2) for run in ("a", "b")]
    lines = [one.line() for one in several]
    taken = [number % 2 for number, line in enumerate(lines) if line == "taken"]
    assert len(taken) == 2 and len(set(taken)) == 1, lines


def test_what_a_process_that_was_killed_while_it_took_the_claim_has_left_is_removed(tmp_path):
    (tmp_path / f".{FILE}.12345678.tmp").write_text("{")
    with claim_of(tmp_path, "one"):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", FILE]


def test_a_lock_in_a_directory_that_was_removed_counts_no_longer(tmp_path):
    directory = tmp_path / "ckpt"
    first = claim_of(directory, "one")
    first.take()
    shutil.rmtree(directory)
    with claim_of(directory, "two"):
        pass
    first.release()


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(tmp_path, monkeypatch):
    lock = lock_claim._lock
    removed: list[None] = []

    def lock_too_late(descriptor, kind):
        if not removed:
            removed.append((tmp_path / lock_claim.FILE).unlink())
        return lock(descriptor, kind)

    monkeypatch.setattr(lock_claim, "_lock", lock_too_late)
    with claim_of(tmp_path, "one"), pytest.raises(CheckpointClaimedError):
        claim_of(tmp_path, "two").take()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match="file/ckpt could not be created"):
        claim_of(tmp_path / "file" / "ckpt", "one").take()


@pytest.mark.parametrize("text", ["", "[]", '{"run_id": 3, "pid": "x", "interval": true}', "x" * 100_000])
def test_a_damaged_claim_file_is_no_obstacle(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    found = read_holder(open_files(tmp_path))
    assert found is not None and found.run_id == "unknown"
    with claim_of(tmp_path, "one"):
        pass


@pytest.fixture
def url():
    return f"memory://{secrets.token_hex(4)}/ckpt"


def counting(url, run, interval=0.05):
    return CounterClaim(open_files(url), this_process(run, "worker/0"), interval)


def test_at_a_url_a_living_run_is_not_replaced(url):
    with claim_of(url, "one", interval=0.05) as claim:
        with pytest.raises(CheckpointClaimedError, match=r"run 'one' .* has just renewed its claim"):
            claim_of(url, "two", interval=0.05).take()
        with claim_of(url, "one", interval=0.05):
            pass
        assert not claim.lost


def test_at_a_url_the_same_run_takes_over_at_once_and_another_one_after_three_intervals(url):
    dead = counting(url, "one")
    dead._write(None)  # a process that was killed
    waits: list[float] = []

    def wait(seconds):
        waits.append(seconds)
        time.sleep(seconds)

    files = open_files(url)
    again = Claim(files, "one", "worker/0", interval=0.05, wait=wait)
    again.take()
    assert not waits
    again._way._stop.set()  # type: ignore[attr-defined]  # killed, too
    again._way._thread.join()  # type: ignore[attr-defined]
    other = Claim(files, "two", "worker/0", interval=0.05, wait=wait)
    begin = time.monotonic()
    other.take()
    assert time.monotonic() - begin >= 0.15
    other.release()
    waits.clear()
    with Claim(files, "three", "worker/0", interval=0.05, wait=wait):  # given back: one interval is enough
        assert sum(waits) < 0.15
    # The one that was silent for too long finds out.
    dead.renew()
    assert "run 'three'" in dead.lost


def test_at_a_url_the_later_one_of_two_at_the_same_time_wins(url):
    files = open_files(url)
    files.make_root()

    def wait(seconds):
        counting(url, "two")._write(None)

    with pytest.raises(CheckpointClaimedError, match="came at the same time"):
        Claim(files, "one", "worker/0", wait=wait).take()


def test_the_interval_of_the_holder_counts(url):
    holder = Holder("one", "worker/0", interval=1e9)
    files = open_files(url)
    files.replace(FILE, json.dumps(vars(holder)).encode())
    found = read_holder(files)
    assert found is not None and found.interval == 3600
    with pytest.raises(ConfigError, match="interval"):
        counting(url, "one", 0)
