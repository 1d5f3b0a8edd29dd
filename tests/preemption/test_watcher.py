"""The watch: when it looks, what it says, and that nothing is left of it."""

import queue
import threading
import time
from typing import Any

import pytest

from tests.membership.conftest import eventually
from tests.preemption import servers
from tfdist.errors import ConfigError
from tfdist.preemption import Azure, Clock, File, GoogleCloud, Notice, SourceUnavailable, Watcher
from tfdist.preemption.pace import Pace

GO = Notice("test", "the test wants it", 30.0)
AWAY = SourceUnavailable("test: nobody there")
LONG = 10.0  # no wait of a test is longer


class Scripted:
    """Does one thing of its script at each look, the last one for ever: a function is called."""

    def __init__(self, *script, name="scripted", interval=1.0):
        self.name, self.interval = name, interval
        self._script = list(script)

    def look(self):
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        step = step() if callable(step) else step
        if isinstance(step, Exception):
            raise step
        return step


class Steps(Clock):
    """A clock that stands still but for waits: each is told to the test, which lets it pass."""

    def __init__(self):
        self.time = 100.0
        self.waits: queue.Queue[float] = queue.Queue()
        self._go = threading.Semaphore(0)

    def now(self):
        return self.time

    def wait(self, event, seconds):
        self.waits.put(seconds)
        assert self._go.acquire(timeout=LONG)
        self.time += seconds
        return event.is_set()

    def next_waits(self, count):
        """Returns the next waits, and lets them pass but for the last one."""
        found = []
        for number in range(count):
            found.append(self.waits.get(timeout=LONG))
            if number < count - 1:
                self._go.release()
        return found

    def release(self):
        self._go.release(1000)


@pytest.fixture
def notices():
    return queue.Queue()


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("tfdist-preemption")] == []


def test_a_source_is_looked_at_in_its_interval(notices):
    clock = Steps()

    def slow():
        clock.time += 0.7

    with Watcher([Scripted(None, slow, None, GO, interval=1.0)], notices.put, clock):
        assert clock.next_waits(3) == pytest.approx([1.0, 0.3, 1.0])  # from the beginning of one look to the next
        clock.release()
        assert notices.get(timeout=LONG) == GO


def test_a_source_that_is_away_is_said_once_and_asked_ever_more_rarely(notices, told):
    clock = Steps()
    with Watcher([Scripted(AWAY, interval=1.0)], notices.put, clock):
        assert clock.next_waits(9) == [2, 4, 8, 16, 32, 60, 60, 60, 60]
        clock.release()
    (event,) = told("preemption_source_unavailable")
    assert event["message"] == "test: nobody there; it is asked again from time to time"
    assert event["numbers"] == {"source": "scripted"}
    assert notices.empty()


def test_a_source_that_has_answered_is_asked_at_least_every_five_seconds(notices, told):
    clock = Steps()
    with Watcher([Scripted(AWAY, None, AWAY, AWAY, AWAY, AWAY, None, GO)], notices.put, clock):
        assert clock.next_waits(7) == [2, 1, 2, 4, 5, 5, 1]
        clock.release()
        assert notices.get(timeout=LONG) == GO
    assert len(told("preemption_source_unavailable")) == 1


def test_the_back_off_of_a_slow_interval_is_that_interval():
    pace, _ = Pace(120.0).failed()
    assert pace.wait(0.0) == 120.0 and pace.wait(200.0) == 0.0
    for _ in range(2000):
        pace, say = pace.failed()
    assert pace.wait(0.0) == 120.0 and not say


@pytest.mark.parametrize("defect", [ZeroDivisionError("own"), "a string"])
def test_a_source_with_a_defect_is_one_that_is_away(notices, told, defect):
    clock = Steps()
    with Watcher([Scripted(defect, GO)], notices.put, clock):
        clock.next_waits(1)
        clock.release()
        assert notices.get(timeout=LONG) == GO
    (event,) = told("preemption_source_unavailable")
    assert event["message"].startswith("scripted: ")


def test_the_first_notice_is_told_once_though_all_sources_have_one(notices, told):
    together = threading.Barrier(4, timeout=LONG)

    def at_once():
        together.wait()
        return GO

    with Watcher([Scripted(at_once, name=str(n)) for n in range(4)], notices.put) as watcher:
        assert notices.get(timeout=LONG) == GO == watcher.notice
    assert notices.empty()
    (event,) = told("preemption_notice")
    assert event["message"] == GO.reason and event["numbers"] == {"source": "test", "seconds": 30.0}


def test_a_source_that_hangs_delays_neither_the_others_nor_the_end(notices, told):
    over = threading.Event()
    hanging = Scripted(lambda: over.wait(LONG) and GO, name="hanging")
    watcher = Watcher([hanging, Scripted(GO)], notices.put)
    try:
        assert notices.get(timeout=1.0) == GO
        began = time.monotonic()
        watcher.close()
        assert time.monotonic() - began < 2.0
        (event,) = told("debug")
        assert event["message"].startswith("tfdist-preemption-hanging hangs")
    finally:
        over.set()
    eventually(lambda: threading.active_count() == 1 or not _threads(), "the thread that hung ends")
    assert notices.empty()  # what it found after the end is nobody's


def _threads():
    return [t for t in threading.enumerate() if t.name.startswith("tfdist-preemption")]


def test_nothing_is_told_after_the_end(notices):
    looking, go = threading.Event(), threading.Event()

    def look():
        looking.set()
        assert go.wait(LONG)
        return GO

    watcher = Watcher([Scripted(look)], notices.put)
    assert looking.wait(LONG)
    closing = threading.Thread(target=watcher.close)
    closing.start()
    eventually(watcher._stop.is_set, "the end has begun")
    go.set()
    closing.join(LONG)
    assert not closing.is_alive() and notices.empty() and watcher.notice is None
    watcher.close()  # a second time is nothing


def test_the_one_who_is_told_may_end_the_watch_or_fail(notices):
    def on_notice(notice):
        watcher.close()
        notices.put(notice)
        raise ZeroDivisionError

    ready = threading.Event()
    watcher = Watcher([Scripted(lambda: ready.wait(LONG) and GO)], on_notice)
    ready.set()
    assert notices.get(timeout=LONG) == GO
    watcher.close()


def test_no_sources_are_no_threads(notices):
    before = threading.active_count()
    with Watcher([], notices.put) as watcher:
        assert threading.active_count() == before and watcher.notice is None


def test_what_is_no_source_is_refused(notices):
    names: list[Any] = ["gce"]
    with pytest.raises(ConfigError, match="sources of the Watcher"):
        Watcher(names, notices.put)


def test_a_file_is_noticed_within_a_second(tmp_path, notices):
    path = tmp_path / "leave"
    with Watcher([File(path)], notices.put):
        began = time.monotonic()
        path.write_text("")
        notices.get(timeout=LONG)
        assert time.monotonic() - began < 1.0


def test_a_cloud_is_noticed_beside_one_that_does_not_answer(google, azure, notices):
    azure.fault = servers.silent
    with Watcher([Azure(azure.url), GoogleCloud(google.url)], notices.put):
        eventually(lambda: azure.requests and google.requests, "both are asked")
        google.values["preempted"] = "TRUE"
        began = time.monotonic()
        assert notices.get(timeout=LONG).source == "gce"
        assert time.monotonic() - began < 1.5  # 0.8 s, and what a loaded machine adds


def test_the_end_does_not_wait_for_a_server_that_does_not_answer(azure, notices):
    azure.fault = servers.silent
    watcher = Watcher([Azure(azure.url)], notices.put)
    eventually(lambda: azure.requests, "it is asked")
    began = time.monotonic()
    watcher.close()
    assert time.monotonic() - began < 2.0 and not _threads()


def test_the_source_of_the_notice_is_told_that_the_machine_may_go(azure, notices, told):
    event = {"EventId": "e1", "EventType": "Preempt", "Resources": ["trainer_1"], "EventStatus": "Scheduled"}
    with Watcher([Azure(azure.url, acknowledge=True)], notices.put) as watcher:
        assert watcher.acknowledge() is False
        azure.events = [event]
        notices.get(timeout=LONG)
    assert watcher.acknowledge() is True and azure.approved == ["e1"]
    azure.fault = servers.status(500)
    assert watcher.acknowledge() is False
    assert "could not be told" in told("debug")[0]["message"]


def test_a_source_that_needs_no_telling_is_not_told(notices):
    with Watcher([Scripted(GO)], notices.put) as watcher:
        notices.get(timeout=LONG)
        assert watcher.acknowledge() is False
