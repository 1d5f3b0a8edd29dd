"""Lines from workers, and what the table makes of their events."""

import io
import os

import pytest
from rich.console import Console

from tfdist.launch.output import MAX_LINE_BYTES, LogFile, OutputPipe, prefixed
from tfdist.launch.store_status import StoreStatus, read_news
from tfdist.launch.supervise import TaskState
from tfdist.launch.table import RunView, WorkerView, fold, render, summary
from tfdist.membership import keys
from tfdist.membership.roster import Member, Roster, dump
from tfdist.membership.status import StatusBoard
from tfdist.membership.stores import MemoryStore
from tfdist.tf_config import Task


def passed_on(*writes):
    lines: list[str] = []
    pipe = OutputPipe([lines.append])
    other = os.dup(pipe.write_end)
    pipe.started()
    for data in writes:
        os.write(other, data)
    os.close(other)
    assert pipe.finish(10)
    return lines


def test_lines_are_put_together_and_the_last_needs_no_line_end():
    assert passed_on(b"one\ntw", b"o\n\nthree") == ["one", "two", "", "three"]


def test_of_a_progress_bar_the_last_state_is_shown():
    assert passed_on(b"\r 1/3\r 2/3\r 3/3\r\n") == [" 3/3"]


def test_bytes_that_are_no_text_and_endless_lines_do_no_harm():
    lines = passed_on(b"\xff\n", *[b"x" * 40_000] * 3)
    assert lines[0] == "\N{REPLACEMENT CHARACTER}"
    assert "".join(lines[1:]) == "x" * 120_000
    assert max(map(len, lines)) <= 2 * MAX_LINE_BYTES


def test_a_log_file_and_a_prefix(tmp_path):
    written: list[str] = []
    for receive in (LogFile(tmp_path / "log"), prefixed("[worker 1] ", written.append)):
        receive("a line")
    assert (tmp_path / "log").read_text() == "a line\n"
    assert written == ["[worker 1] a line"]


def event(kind, message="", task="worker/0", **numbers):
    return {"kind": kind, "message": message, "task": task, "numbers": numbers}


def test_events_update_the_view():
    view = RunView()
    for each in [
        event("formed", "generation 3", generation=3, members=[0, 2]),
        event("progress", task="worker/2", step=40, epoch=1, samples_per_second=1234.5, phase="fit"),
        event("progress", task="worker/2", step=41),
        event("late", "from the past", generation=2, members=[0, 1, 2]),
    ]:
        view = fold(view, each)
    assert summary(view) == "generation 3, members 0, 2, step 41"
    assert view.incident == "from the past"
    assert view.workers["worker/2"].samples_per_second == 1234.5


def test_the_store_tells_the_roster_and_what_each_worker_does():
    store = MemoryStore()
    members = tuple(Member(Task("worker", index), f"{index:08x}", "127.0.0.1", 2000 + index, 1) for index in (0, 2))
    store.put(keys.ROSTER, dump(Roster(4, members, "a test").to_json()))
    board = StatusBoard(members[1], lambda: 0.0)
    board.announce("fit")
    board.publish({"epoch": 1, "step": 40, "generation": 3})
    board.write(store, None, 0.0)
    view = RunView()
    for each in read_news(store):
        view = fold(view, each)
    assert summary(view) == "generation 4, members 0, 2, step 40"
    assert view.workers == {"worker/2": WorkerView(step=40, epoch=1, phase="fit")}


@pytest.mark.parametrize("url", ["etcd://nowhere:1", "nonsense", "sqlite:////no/such/folder/store.sqlite"])
def test_a_store_that_can_not_be_read_tells_nothing(url):
    status = StoreStatus(url, "run")
    assert status.read(0.0) == status.read(10.0) == []
    status.close()


def test_the_table_shows_members_states_and_the_last_incident():
    view = fold(RunView(), event("formed", "all are in [again]", generation=3, members=[0, 1], step=7, phase="fit"))
    tasks = [TaskState(0, "running"), TaskState(1, "waiting", restarts=2, exit_code=-9)]
    out = io.StringIO()
    Console(file=out, width=100).print(render(view, tasks))
    for text in (
        "generation 3",
        "members 0, 1",
        "running",
        "waiting (was killed by SIGKILL)",
        "fit",
        "all are in [again]",
    ):
        assert text in out.getvalue()
