"""The reader: only the rows asked for, ahead of time where hinted, errors where they are asked for."""

import gc
import threading
import weakref

import numpy as np
import pytest

from tfdist.data.errors import DataError
from tfdist.data.plan import Plan
from tfdist.data.reader import Reader, Share, still_useful
from tfdist.errors import ConfigError, WaitTimeoutError

PLAN = Plan(40, 8, shuffle=False)


class Work:
    """Records what is read and by whom; reading can be held up and can fail."""

    def __init__(self):
        self.lock = threading.RLock()
        self.read = []
        self.readers = []
        self.fails_at = None
        self.started = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def compute(self, positions):
        self.started.release()
        if not self.gate.wait(20):
            raise TimeoutError("the test did not open the gate")
        self.read.append(positions.tolist())
        self.readers.append(threading.current_thread())
        self.ended.release()
        if self.fails_at in positions:
            raise DataError(f"position {self.fails_at} is broken")
        return positions * 10

    def empty(self):
        return np.empty(0, np.int64)

    def wait_for(self, shares):
        for _ in range(shares):
            assert self.ended.acquire(timeout=20), "the thread did not read"


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def reader(work):
    with Reader(PLAN, work, read_timeout=20) as reader:
        yield reader


def test_only_the_rows_asked_for_are_read(reader, work):
    assert reader.get(0, 1, 2, 5).tolist() == [100, 110, 120]
    assert work.read == [[10, 11, 12]]


def test_a_hinted_share_is_read_once_and_by_the_thread(reader, work):
    assert reader.hint(0, 1, 0, 3)
    work.wait_for(1)
    assert reader.get(0, 1, 0, 3).tolist() == [80, 90, 100]
    assert len(work.read) == 1 and work.readers[0] is not threading.current_thread()


def test_a_share_being_read_is_waited_for(reader, work):
    work.gate.clear()
    reader.hint(0, 1, 0, 3)
    assert work.started.acquire(timeout=20)
    threading.Timer(0.01, work.gate.set).start()
    assert reader.get(0, 1, 0, 3).tolist() == [80, 90, 100]
    assert len(work.read) == 1


def test_no_more_shares_are_held_than_allowed(reader, work):
    assert [reader.hint(0, step, 0, 2) for step in range(4)] == [True, True, False, False]
    assert reader.hint(0, 0, 0, 2), "this one is held already"
    work.wait_for(2)
    reader.get(0, 0, 0, 2)
    assert reader.hint(0, 2, 0, 2), "there is room again"


def test_a_hint_that_turned_out_wrong_is_dropped_and_the_right_rows_come(reader, work):
    reader.hint(0, 1, 0, 3)
    work.wait_for(1)
    assert reader.get(0, 1, 3, 8).tolist() == [110, 120, 130, 140, 150]
    assert reader.hint(0, 2, 0, 1) and reader.hint(0, 3, 0, 1), "the wrong share takes no room"


def test_a_newer_hint_for_a_step_replaces_the_older(reader, work):
    reader.hint(0, 1, 0, 3)
    work.wait_for(1)
    reader.hint(0, 1, 0, 4)
    work.wait_for(1)
    assert reader.get(0, 1, 0, 4).tolist() == [80, 90, 100, 110]
    assert work.read == [[8, 9, 10], [8, 9, 10, 11]]


def test_a_step_can_be_read_again_and_the_next_stays_ready(reader, work):
    first = reader.get(0, 1, 0, 3)
    reader.hint(0, 2, 0, 3)
    work.wait_for(2)
    assert np.array_equal(reader.get(0, 1, 0, 3), first)
    reader.get(0, 2, 0, 3)
    assert work.read.count([16, 17, 18]) == 1


def test_an_error_is_raised_by_the_get_of_its_share_and_by_no_other(reader, work):
    work.fails_at = 9
    reader.hint(0, 1, 0, 3)
    reader.hint(0, 2, 0, 1)
    work.wait_for(2)
    with pytest.raises(DataError, match="position 9 is broken"):
        reader.get(0, 1, 0, 3)
    assert reader.get(0, 2, 0, 1).tolist() == [160]
    work.fails_at = None
    assert reader.get(0, 1, 0, 3).tolist() == [80, 90, 100]


def test_a_member_without_rows_gets_an_empty_share_and_reads_nothing(reader, work):
    assert not reader.hint(0, 1, 3, 3)
    assert reader.get(0, 1, 3, 3).shape == (0,)
    assert work.read == []


def test_without_prefetch_there_is_no_thread(work):
    reader = Reader(PLAN, work, prefetch=0)
    assert not reader.hint(0, 1, 0, 3)
    assert reader.get(0, 1, 0, 3).tolist() == [80, 90, 100]
    assert work.readers == [threading.current_thread()] and reader._thread is None


def test_while_paused_nothing_is_read_and_afterwards_it_is(reader, work):
    with reader.paused():
        reader.hint(0, 1, 0, 3)
        assert not work.ended.acquire(timeout=0.05)
        assert reader.get(0, 1, 0, 3).tolist() == [80, 90, 100], "who paused may read"
        reader.hint(0, 2, 0, 3)
    work.wait_for(2)
    assert work.read == [[8, 9, 10], [16, 17, 18]]


def test_waiting_for_a_slow_source_ends_and_says_what_for(work):
    work.gate.clear()
    reader = Reader(PLAN, work, read_timeout=0.05)
    reader.hint(0, 1, 0, 3)
    assert work.started.acquire(timeout=20)
    with pytest.raises(WaitTimeoutError, match=r"waited 0.05 s for rows \[0, 3\) of epoch 0 step 1"):
        reader.get(0, 1, 0, 3)
    with pytest.raises(WaitTimeoutError, match="to pause reading"), reader.paused():
        pass
    work.gate.set()
    assert reader.close()


def test_closing_ends_the_thread_and_later_use_is_refused(reader, work):
    reader.hint(0, 1, 0, 3)
    thread = reader._thread
    assert thread is not None
    assert reader.close() and not thread.is_alive()
    assert reader.close()
    assert not reader.hint(0, 2, 0, 3)
    with pytest.raises(DataError, match="was closed"):
        reader.get(0, 1, 0, 3)


def test_a_forgotten_reader_goes_away_with_its_thread(work):
    reader = Reader(PLAN, work)
    reader.hint(0, 1, 0, 3)
    work.wait_for(1)
    thread, ref = reader._thread, weakref.ref(reader)
    assert thread is not None
    del reader
    thread.join(20)
    gc.collect()
    assert not thread.is_alive() and ref() is None


ASKED = Share(1, 2, 0, 4)


@pytest.mark.parametrize(
    ("held", "kept"),
    [
        (Share(1, 2, 0, 4), True),
        (Share(1, 2, 0, 5), False),  # the roster changed
        (Share(1, 3, 0, 4), True),
        (Share(1, 4, 4, 8), True),
        (Share(2, 0, 0, 4), False),  # three steps ahead, two may be held
        (Share(1, 1, 0, 4), False),
        (Share(0, 3, 0, 4), False),
    ],
)
def test_what_is_kept_when_a_share_is_asked_for(held, kept):
    assert still_useful(held, ASKED, steps_per_epoch=5, prefetch=2) is kept


def test_the_next_epoch_is_ahead_too():
    assert still_useful(Share(2, 0, 0, 4), Share(1, 4, 0, 4), steps_per_epoch=5, prefetch=2)


@pytest.mark.parametrize("arguments", [{"prefetch": -1}, {"read_timeout": 0}])
def test_options_that_make_no_sense_are_refused(work, arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        Reader(PLAN, work, **arguments)


def test_rows_that_do_not_exist_are_refused(reader):
    with pytest.raises(ValueError, match="not within the 8 rows"):
        reader.get(0, 1, 0, 9)
