"""The errors of tfdist, one family, and the exit codes that a process which ends by one of them uses.

Each text names what failed (a field, a worker, a key), with the value received, and what to do about it.
"""

from collections.abc import Iterable


class TfdistError(Exception):
    """Base of every error that tfdist raises on purpose."""


class ConfigError(TfdistError, ValueError):
    """A value given by the user (TF_CONFIG, an option, a store address) cannot be used.

    Args:
        field: name of the value, such as ``TF_CONFIG task.index`` or ``MembershipOptions.start_timeout``.
        value: what was received; shown with ``repr``, cut to 200 characters.
        rule: what the value has to be.
        remedy: what to do, in one sentence; may be empty.
    """

    def __init__(self, field: str, value: object, rule: str, remedy: str = ""):
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        text = f"{field} = {shown}: {rule}."
        if remedy:
            text += f" {remedy}"
        super().__init__(text)
        self.field = field
        self.value = value
        self.rule = rule
        self.remedy = remedy


class UnsupportedError(TfdistError):
    """What was asked for cannot be done exactly, so it is refused; the text says why and what works instead."""


class StoreError(TfdistError):
    """The store refused an operation, or holds a value that cannot be understood; the key is named."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached at present. Training goes on; only a change of the roster needs it."""


class TransferError(TfdistError):
    """A transfer of state was refused or arrived damaged. Nothing of it was used."""


class TransferRefusedError(TransferError):
    """The other member lives, and does not have what was asked for."""


class WaitTimeoutError(TfdistError, TimeoutError):
    """A bounded wait is over; the text says what was waited for."""


class ClaimedError(TfdistError):
    """Two living processes claim the same task.

    Args:
        task: the task, such as ``worker/1``.
        mine: ``host:port`` of this process.
        theirs: ``host:port`` of the process that holds the task.
    """

    def __init__(self, task: object, mine: str, theirs: str):
        super().__init__(
            f"task {task} is claimed by two living processes: {theirs} holds it and {mine} (this process) wants it. "
            "Give each process its own task index in TF_CONFIG, or another run id (TFDIST_RUN_ID) to each run."
        )
        self.task = task
        self.mine = mine
        self.theirs = theirs


class RemovedError(TfdistError):
    """This incarnation is no longer in the roster: the others go on without it.

    Args:
        generation: the generation that no longer contains this process.
        reason: the sentence of that roster.
    """

    def __init__(self, generation: int, reason: str):
        super().__init__(f"this process was removed in generation {generation}: {reason}. Start it again to join.")
        self.generation = generation
        self.reason = reason


class MemberLostError(TfdistError):
    """Members of the current roster are lost, or a newer roster replaces it: the step cannot complete.

    Args:
        generation: generation of the roster that lost them.
        tasks: the lost tasks; empty when only the roster changed.
        reason: one sentence.
    """

    def __init__(self, generation: int, tasks: Iterable[object], reason: str):
        super().__init__(f"generation {generation} cannot go on: {reason}")
        self.generation = generation
        self.tasks = tuple(tasks)
        self.reason = reason


class TooFewWorkersError(TfdistError):
    """Fewer than ``min_workers`` members, for longer than ``join_timeout`` or with nobody left to wait for."""


class StartTimeoutError(TfdistError):
    """The first roster did not come about within ``start_timeout``; the text says who is missing."""


class StepFailedError(TfdistError):
    """One step failed again and again; the text says what was lost on the way."""


class PeerFailedError(TfdistError):
    """Another worker ended by an error of its own, which stops the job everywhere.

    Args:
        worker: the task that failed.
        traceback: text of its traceback.
    """

    def __init__(self, worker: object, traceback: str):
        super().__init__(f"{worker} failed, so the job stops. Its traceback:\n{traceback}")
        self.worker = worker
        self.traceback = traceback


class IncompatibleError(TfdistError):
    """This process differs from the run in something that must be the same everywhere.

    Args:
        name: the first thing that differs.
        mine: its value here.
        theirs: its value in the run.
    """

    def __init__(self, name: str, mine: object, theirs: object):
        super().__init__(
            f"{name} differs: {mine!r} here, {theirs!r} in the run. All workers must run the same script, with the "
            "same versions and options; a new run needs another run id (TFDIST_RUN_ID)."
        )
        self.name = name
        self.mine = mine
        self.theirs = theirs


class StateLostError(TfdistError):
    """The run had progress that no living member and no checkpoint holds. It never starts anew silently."""


class RunEndedError(TfdistError):
    """The run is over; a process that arrives after its end has nothing to do and exits with 0."""


class CheckpointError(TfdistError):
    """A checkpoint, or the directory that holds checkpoints, cannot be used; the text names the file and the remedy."""


class DamagedCheckpointError(CheckpointError):
    """What a checkpoint holds is not what was written: a wrong checksum, a wrong size, nonsense in a manifest.

    Args:
        path: the file, or the checkpoint, that is damaged.
        what: what is wrong with it, with what was expected and what was found.
        remedy: what to do, in one sentence.
    """

    def __init__(self, path: str, what: str, remedy: str = "An older checkpoint can be used instead of it."):
        super().__init__(f"{path} is damaged: {what}. {remedy}")
        self.path = path
        self.what = what


class IncompatibleCheckpointError(CheckpointError):
    """A good checkpoint that does not fit: of another model, or of a format that this version does not know."""


class CheckpointWriteError(CheckpointError):
    """A file of a checkpoint could not be written, moved or removed; the text has the reason of the system."""


class CheckpointClaimedError(CheckpointError):
    """Another job writes to the directory.

    Args:
        directory: that of the checkpoints.
        mine: run id of this process.
        holder: run id, host, pid of the other one, as far as they are known.
        reason: why it is held to live; one clause.
    """

    def __init__(self, directory: str, mine: str, holder: dict[str, object], reason: str):
        run, host, pid = (holder.get(key, "unknown") for key in ("run_id", "host", "pid"))
        super().__init__(
            f"{directory} is written to by another job: run {run!r} (host {host}, pid {pid}) {reason}, and this is run "
            f"{mine!r}. Give each job a directory of its own, or end the other one first."
        )
        self.directory = directory
        self.holder = dict(holder)


EXIT_DONE = 0
EXIT_SCRIPT_FAILED = 1
EXIT_PREEMPTED = 75
EXIT_TOO_FEW_WORKERS = 76
EXIT_PEER_FAILED = 77
EXIT_CONFIG = 78
EXIT_STATE_LOST = 79

EXIT_CODES: dict[int, str] = {
    EXIT_DONE: "completed or drained",
    EXIT_SCRIPT_FAILED: "the script failed",
    EXIT_PREEMPTED: "preempted: this worker handed over and left; start it again",
    EXIT_TOO_FEW_WORKERS: "too few workers until join_timeout or start_timeout",
    EXIT_PEER_FAILED: "stopped because another worker failed; its traceback is in the log",
    EXIT_CONFIG: "refused configuration (TF_CONFIG, options, incompatible peer, claimed task)",
    EXIT_STATE_LOST: "state lost: neither a member nor a checkpoint holds the run's progress",
}

_CODE_OF: tuple[tuple[type[BaseException], int], ...] = (
    (RunEndedError, EXIT_DONE),
    (RemovedError, EXIT_PREEMPTED),  # like a preempted worker: nothing is wrong with the run, start it again
    (TooFewWorkersError, EXIT_TOO_FEW_WORKERS),
    (StartTimeoutError, EXIT_TOO_FEW_WORKERS),
    (PeerFailedError, EXIT_PEER_FAILED),
    (ConfigError, EXIT_CONFIG),
    (IncompatibleError, EXIT_CONFIG),
    (ClaimedError, EXIT_CONFIG),
    (UnsupportedError, EXIT_CONFIG),
    (CheckpointClaimedError, EXIT_CONFIG),  # like a claimed task
    (IncompatibleCheckpointError, EXIT_CONFIG),
    (DamagedCheckpointError, EXIT_STATE_LOST),  # ends a process only where no checkpoint at all can be used
    (StateLostError, EXIT_STATE_LOST),
)


def exit_code(error: BaseException | None) -> int:
    """Returns the documented exit code of a process that ends by `error` (None: it ended well).

    ``SystemExit`` keeps its own code; an error outside the table is the script's own: 1.
    """
    if error is None:
        return EXIT_DONE
    if isinstance(error, SystemExit):
        if error.code is None:
            return EXIT_DONE
        return error.code if isinstance(error.code, int) else EXIT_SCRIPT_FAILED
    for kind, code in _CODE_OF:
        if isinstance(error, kind):
            return code
    return EXIT_SCRIPT_FAILED
