"""Events in the log and in the file; points and their handlers."""

import json
import logging
import threading

import pytest

from tfdist.observe import emit, on_reach, reach, read_events
from tfdist.observe.events import MAX_LINE_BYTES


@pytest.fixture
def events_file(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDIST_EVENTS", str(tmp_path / "events"))
    monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 2}}))
    return tmp_path / "events"


def test_an_event_is_a_log_line_and_a_line_of_the_file(events_file, caplog):
    with caplog.at_level(logging.INFO, "tfdist"):
        emit("member_lost", "worker/1 is lost", level=logging.WARNING, generation=4, members=[0, 2])
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", "worker/1 is lost")]
    [event], _ = read_events(events_file)
    assert (event["kind"], event["message"], event["task"]) == ("member_lost", "worker/1 is lost", "worker/2")
    assert event["numbers"] == {"generation": 4, "members": [0, 2]}


def test_steps_are_not_logged(events_file, caplog):
    with caplog.at_level(logging.INFO, "tfdist"):
        emit("step", "step 1", step=1)
    assert not caplog.records
    assert len(read_events(events_file)[0]) == 1


def test_a_file_that_can_not_be_written_does_not_stop_a_training(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TFDIST_EVENTS", str(tmp_path / "no" / "such" / "directory"))
    emit("formed", "formed")
    assert "could not write the event 'formed'" in caplog.text


def test_an_event_that_is_too_long_is_cut(events_file):
    emit("formed", "m" * 10_000, list=list(range(5000)))
    [event], _ = read_events(events_file)
    assert len(events_file.read_bytes()) <= MAX_LINE_BYTES
    assert event["message"] == "m" * 500
    assert "left_out" in event["numbers"]


def test_what_json_can_not_hold_is_written_as_text(events_file):
    emit("formed", "formed", path=events_file)
    assert read_events(events_file)[0][0]["numbers"]["path"] == str(events_file)


def test_reading_goes_on_where_it_stopped_and_leaves_a_half_line_for_later(events_file):
    emit("a", "a")
    _, offset = read_events(events_file)
    with events_file.open("ab") as file:
        file.write(b'no event\n[1]\n{"v": 1, "kind": "b"')
    assert read_events(events_file, offset)[0] == []
    with events_file.open("ab") as file:
        file.write(b"}\n")
    assert [e["kind"] for e in read_events(events_file, offset)[0]] == ["b"]


def test_many_threads_write_whole_lines(events_file):
    def write():
        for _ in range(50):
            emit("step", "s" * 1000)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(read_events(events_file)[0]) == 200


def test_a_handler_is_called_at_each_point_until_it_is_removed():
    seen = []
    remove = on_reach(lambda point, **facts: seen.append((point, facts)))
    reach("step_begin", step=1)
    remove()
    remove()
    reach("step_begin", step=2)
    assert seen == [("step_begin", {"step": 1})]


def test_what_a_handler_raises_goes_on():
    def handler(point, **facts):
        raise KeyError(point)

    remove = on_reach(handler)
    with pytest.raises(KeyError, match="settle"):
        reach("settle")
    remove()
