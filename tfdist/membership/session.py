"""One process's part in a run: who is in, who is lost, and small agreements. No tensors, no TensorFlow."""

import contextlib
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.errors import MemberLostError, RunEndedError, StoreError, TfdistError, TransferError
from tfdist.membership import claims, keys, records, transfer
from tfdist.membership.admission import Admission
from tfdist.membership.dispatch import Dispatcher
from tfdist.membership.keys import JobError
from tfdist.membership.meeting import Meetings
from tfdist.membership.notices import Notices
from tfdist.membership.options import DEFAULT_RUN_ID, MembershipOptions
from tfdist.membership.peers import PeerNetwork, listen
from tfdist.membership.policy import RosterPolicy
from tfdist.membership.roster import Member, Roster
from tfdist.membership.run_state import Requests, RunState
from tfdist.membership.status import StatusBoard, describe_phase, read_statuses
from tfdist.membership.stores.base import ScopedStore, Store
from tfdist.membership.transfer import Provider, StateServer
from tfdist.membership.watch import Watch
from tfdist.tf_config import Task

_GOODBYE_SECONDS = 0.05
_CALLBACK_SECONDS = 5.0  # a callback that takes longer is not waited for


class Session:
    """Membership of one process. Used from any thread of the process that started it.

    Args:
        task: this process's task.
        address: (host, port) under which the others reach its TensorFlow server; the host serves the links, too.
        expected: tasks that the first roster waits for.
        store: where the run agrees; the session scopes it by the run id.
        options: see MembershipOptions.
        min_workers: a roster with fewer members is never made.
        max_workers: a roster with more is never made; None: no bound.
        devices: number of local devices.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        task: Task,
        address: tuple[str, int],
        expected: Sequence[Task],
        store: Store,
        options: MembershipOptions,
        min_workers: int = 1,
        max_workers: int | None = None,
        devices: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._options = options
        self._clock = clock
        self.run_id = options.run_id or DEFAULT_RUN_ID
        self.store: Store = ScopedStore(store, keys.run_prefix(self.run_id))
        policy = RosterPolicy(min_workers, max_workers, options.start_timeout, settle=options.heartbeat_timeout)
        self._listener = listen(options.bind_host)
        self.me = Member(task, secrets.token_hex(8), *address, self._listener.getsockname()[1], devices)
        self.token = ""
        self._notices = Notices()
        self._server = StateServer()
        self._dispatch = Dispatcher(self._notices, self._server)
        self._on_lost: list[Callable[[str], None]] = []
        self._state = RunState(self.me, tuple(sorted(expected)), policy, lambda m: self._network.verdict(m), self._tell)
        self._board = StatusBoard(self.me, clock)
        lease = options.lease_seconds
        self._watch = Watch(self.store, self._state, self._board, lease, clock, self._after_poll)
        self._dispatch.state = self._state
        self._dispatch.wake_watch = self._watch.wake
        self._telling = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Claims the task and starts the threads.

        Raises:
            ClaimedError: a living process holds the task.
            RunEndedError: the run is over.
            StoreUnavailableError: the store is away.
        """
        if self.store.get(keys.END) is not None:
            self._listener.close()
            raise RunEndedError("the run is over; there is nothing left to do")
        self.token = records.run_token(self.store)
        timing = (self._options.heartbeat_interval, self._options.heartbeat_timeout)
        self._network = PeerNetwork(
            self.me, self._listener, self.token, *timing, self._clock, self._dispatch, self._options.join_timeout
        )
        self._meetings = Meetings(self._state, self._network, self._clock, self._describe)
        self._dispatch.meetings = self._meetings
        self._network.start()  # before the claim: from then on others may ask whether this process lives
        try:
            claims.claim(self.store, self.me, self.token, 2 * self._options.heartbeat_timeout)
            records.forget_error_of(self.store, self.me.task)
            claims.renew_lease(self.store, self.me, 0)
            keys.delete_of_others(self.store, self.me)
        except BaseException:
            self._network.close()
            raise
        self._notices.start()
        self._watch.start()

    @property
    def roster(self) -> Roster | None:
        """The newest roster that this process takes part in."""
        return self._state.roster

    @property
    def expected(self) -> tuple[Task, ...]:
        """Tasks that the first roster waits for, sorted."""
        return self._state.expected

    @property
    def join_timeout(self) -> float:
        """Seconds that are waited for what others, or the store, must do."""
        return self._options.join_timeout

    @property
    def newest_generation(self) -> int:
        """Generation of the newest roster that this process has heard of. Cheap."""
        newest = self._state.store.roster
        return newest.generation if newest is not None else 0

    @property
    def newest_roster(self) -> Roster | None:
        """The newest roster that this process has heard of, whether it is in it or not."""
        return self._state.store.roster

    def raise_if_ended(self) -> None:
        """Raises RunEndedError if the run is over."""
        if self.store.get(keys.END) is not None:
            raise RunEndedError("the run is over; there is nothing left to do")

    @property
    def run_seed(self) -> int:
        """A number that is the same for all members of a run, and different for another run."""
        return zlib.crc32(self.token.encode())

    @property
    def lost(self) -> dict[Task, str]:
        """Lost members of the roster last given to `watch_members`, and why."""
        return dict(self._state.lost)

    @property
    def fenced(self) -> bool:
        """True for a roster of one whose lease could not be renewed: others may have founded a new one by now."""
        alone = self.roster is not None and len(self.roster.members) == 1
        return alone and self._clock() - self._watch.renewed_at > self._options.lease_seconds

    @property
    def min_workers(self) -> int:
        """How many members a training step needs."""
        return self._state.policy.min_workers

    @property
    def store_away(self) -> bool:
        """Says whether the store did not answer when last asked."""
        return self._watch.away

    def ready(self) -> None:
        """Asks for admission: this member can take part as soon as a roster has it."""
        keys.write_member(self.store, keys.READY, self.me)
        self._watch.wake()

    def withdraw(self) -> None:
        """Takes `ready` back."""
        keys.delete_of(self.store, keys.READY, self.me)

    def next_roster(
        self,
        after: int,
        *,
        leaving: bool = False,
        timeout: float | None = None,
        found_anew: bool = False,
        give_up: Callable[[], BaseException | None] | None = None,
        admit: bool = True,
    ) -> Roster:
        """Blocks until the store has a roster of a later generation than `after` with this process in it and none of
        its members lost; proposes one if need be. If nothing changes, the same members get a new generation.

        Args:
            after: generation to be exceeded; 0 at first.
            leaving: return the roster that no longer contains this process. Also the case if `request_leave` was
                called and the others acted on it: see whether `me` is in the result.
            timeout: seconds; None: start_timeout and join_timeout bound the wait.
            found_anew: if all members of an older roster are gone for a lease, found a new one: the caller holds the
                state, from a checkpoint.
            give_up: called now and then while waiting; what it returns, if anything, is raised.
            admit: whether joiners may be taken in now; without it min_workers does not count, either.

        Raises:
            RemovedError: a newer roster excludes this process, or another process claims its task.
            PeerFailedError: an error was reported.
            StartTimeoutError, TooFewWorkersError: below min_workers for too long, or nobody stays.
            StateLostError: all members of the roster are gone, and this process was none of them.
            RunEndedError: the run is over.
            WaitTimeoutError: `timeout` is over.
        """
        if leaving:
            self.request_leave("leaves")
        self._state.take_asking(self.me, after)
        self._network.send_all({"k": "asking", "after": after})
        admission = Admission(
            self._state,
            self.store,
            lambda generation: self._network.send_all({"k": "roster", "generation": generation}),
            self._describe,
            self._clock,
            after=after,
            leaving=leaving,
            found_anew=found_anew,
            lease=self._options.lease_seconds,
            join_timeout=self._options.join_timeout,
            give_up=give_up,
            admit=admit,
        )
        roster = admission.wait(timeout)
        self._after_poll()
        with contextlib.suppress(StoreError):
            self._watch.write_step()
        return roster

    def watch_members(self, roster: Roster) -> None:
        """From now on `lost` and `on_lost` are about the members of `roster`.

        A callback about the former roster never runs after this returns: it could abort the new group.
        """
        held = self._telling.acquire(timeout=_CALLBACK_SECONDS)
        try:
            self._state.watch(roster)
        finally:
            if held:
                self._telling.release()
        self._after_poll()

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Calls `callback(sentence)` when the present step may hang: once per lost member, newer roster or job error.

        Called in a thread of the session's own.
        """
        self._on_lost.append(callback)

    def meet(self, roster: Roster, name: str, payload: dict[str, Any], timeout: float) -> dict[Task, dict[str, Any]]:
        """A barrier of `roster`: returns the payload of each member, in the order of the tasks.

        Raises:
            MemberLostError: a member that is waited for is lost, or a newer roster exists.
            RemovedError: a newer roster excludes this process.
            PeerFailedError: an error was reported.
            WaitTimeoutError: `timeout` seconds are over.
        """
        return self._meetings.meet(roster, name, payload, timeout)

    def send_all(self, kind: str, payload: dict[str, Any]) -> None:
        """Sends a small notice to all peers; it may get lost if a link breaks."""
        self._network.send_all({"k": "user", "name": kind, "payload": payload})

    def on_message(self, kind: str, callback: Callable[[Task, dict[str, Any]], None]) -> None:
        """Calls `callback(sender, payload)` for each notice of that kind, in a thread of the session's own."""
        self._dispatch.user_callbacks.setdefault(kind, []).append(callback)

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` once if this process is asked to leave for good (records.ask_to_drain), in a thread."""
        self._watch.on_drain = callback

    @property
    def leaving_requested(self) -> bool:
        """Says whether `request_leave` was called."""
        return self._state.leave_reason is not None

    def request_leave(self, why: str) -> None:
        """Tells all that this process wants to leave; the next roster is made without it."""
        if self._state.leave_reason is None:
            self._state.leave_reason = why
            self._network.send_all({"k": "leave", "why": why[:500]})
            self._watch.wake()

    def requests(self) -> Requests:
        """Who waits to join, and who wants to leave. Cheap: no input or output."""
        return self._state.requests

    def announce(self, phase: str) -> None:
        """Says what this process is doing now. Cheap."""
        self._board.announce(phase)

    def publish(self, **facts: Any) -> None:
        """Adds small facts to this process's status (epoch, step, samples_per_second ...). Cheap."""
        self._board.publish(facts)

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Returns the status of every task, by its name."""
        return read_statuses(self.store)

    def report_error(self, traceback_text: str) -> None:
        """Stops the job everywhere by an error of this process; the first report stands. At most 16 KiB are kept."""
        error = JobError(self.me.task, traceback_text[-keys.MAX_TRACEBACK_CHARACTERS :])
        self._network.send_all({"k": "error", **error.to_json()})
        self._state.take_error(error)
        with contextlib.suppress(StoreError):  # the peers know already
            records.report_error(self.store, error)

    @property
    def job_error(self) -> JobError | None:
        """The error that stops the job, or None."""
        return self._state.job_error

    def agree(self, key: str, facts: Sequence[Sequence[Any]]) -> None:
        """Compares [name, value] pairs with the run's: see records.agree. Raises IncompatibleError."""
        records.agree(self.store, key, facts)

    def record(self, key: str, value: dict[str, Any]) -> bool:
        """Records `value` under `key` once; returns False if another value stands."""
        return records.record(self.store, key, value)

    def recorded(self, key: str) -> dict[str, Any] | None:
        """Returns what was recorded under `key`, or None."""
        return records.recorded(self.store, key)

    def mark_committed(self, step: int) -> None:
        """Notes a committed step; it is written soon. Cheap."""
        self._watch.step = max(self._watch.step, step)

    def highest_committed(self) -> int:
        """Returns the highest committed step of the run, as far as the store and this process know."""
        return max(records.highest_committed(self.store), self._watch.step)

    def may_commit_checkpoint(self, generation: int, step: int) -> str:
        """Why this process may not commit the checkpoint of a step; empty if it may: see records."""
        return records.may_commit_checkpoint(self.store, self.me, generation, step)

    def finish(self) -> None:
        """This member's script is complete. When all of the roster are, a process that arrives later exits with 0."""
        records.finish(self.store, self.me)

    def serve_state(self, provider: Provider | None, on_chunk: Callable[[int], None] | None = None) -> None:
        """Answers `fetch_state` of others by `provider(generation) -> (header, buffers)`; None: refuses them."""
        self._server.provider, self._server.on_chunk = provider, on_chunk

    def fetch_state(
        self,
        source: Member,
        generation: int,
        *,
        accept: Callable[[dict[str, Any]], int],
        timeout: float,
        on_chunk: Callable[[int], None] | None = None,
    ) -> tuple[dict[str, Any], bytearray]:
        """Returns (header, bytes) of what `source` serves; see transfer.fetch.

        Raises:
            MemberLostError: the source is lost.
            TransferError: refused, damaged or too slow.
        """

        def check() -> None:
            failure = self._source_failure(source, generation)
            if failure is not None:
                raise failure

        args = (source, self.me, self.token, generation)
        try:
            return transfer.fetch(*args, accept=accept, check=check, timeout=timeout, on_chunk=on_chunk)
        except OSError as error:
            # The links find out within a second whether it is dead; until then nobody knows.
            with self._state.condition:
                self._state.condition.wait_for(lambda: self._source_failure(source, generation) is not None, 1.0)
            check()
            raise TransferError(f"the connection for the state of {source.task} broke: {error}") from None

    def close(self, why: str = "done", *, say_goodbye: bool = True) -> None:
        """Ends the threads and the helper. With a goodbye, so that nobody takes it for a crash."""
        if self._closed:
            return
        self._closed = True
        if not self.token:
            self._listener.close()
            return
        if say_goodbye:
            self._network.send_all({"bye": why})
            time.sleep(_GOODBYE_SECONDS)  # on another connection than the one that ends: let it arrive first
        self._watch.close()
        self._server.close()
        self._network.close()
        self._notices.close()
        if say_goodbye:
            with contextlib.suppress(StoreError):
                for prefix in (keys.READY, keys.CLAIM, keys.LEAVE, keys.LEASE):
                    keys.delete_of(self.store, prefix, self.me)

    def _source_failure(self, source: Member, generation: int) -> TfdistError | None:
        roster = self.roster
        if roster is not None and roster.generation == generation:
            return self._state.failure(roster, (source,))
        verdict = self._network.verdict(source)
        if verdict.state != "lost":
            return None
        return MemberLostError(generation, (source.task,), f"{source.task} lost ({verdict.reason})")

    def _tell(self, generation: int, sentence: str) -> None:
        self._notices.post(self._call_on_lost, generation, sentence)

    def _call_on_lost(self, generation: int, sentence: str) -> None:
        with self._telling:
            watched = self._state.watched
            if generation < (watched.generation if watched is not None else 0):
                return
            for callback in self._on_lost:
                callback(sentence)

    def _describe(self, task: object) -> str:
        try:
            return describe_phase(self.statuses(), task)
        except StoreError:
            return "(the store is away)"

    def _after_poll(self) -> None:
        state = self._state
        newest = state.store.roster
        mine = {r.generation: r for r in (state.watched, state.roster) if r is not None}
        members = [m for roster in mine.values() for m in roster.members]
        others = list(state.store.ready)
        if newest is not None:
            (members if newest.has(self.me.incarnation) else others).extend(newest.members)
        self._network.set_peers(members, others)
        self._dispatch.take_goodbyes()
