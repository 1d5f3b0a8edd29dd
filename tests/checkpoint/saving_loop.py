"""Kills saving processes at many places, and looks at what is left: saving_loop.py DIRECTORY ROUNDS.

It forks the processes that it kills, because starting Python for each would take most of the time.
"""

import os
import random
import signal
import sys
import time

from tests.checkpoint.making import arrays_of, same, write
from tfdist.checkpoint.claim import Claim
from tfdist.checkpoint.files import open_files
from tfdist.checkpoint.layout import step_name
from tfdist.checkpoint.retention import RetentionPolicy
from tfdist.checkpoint.store import CheckpointStore
from tfdist.observe.points import on_reach

POLICY = RetentionPolicy(max_to_keep=2, keep_every=7)

# (point, facts that must agree, how many times it is passed before the kill): places in the code.
PLACES = [
    ("checkpoint_write", {"part": 0}, 4),
    ("checkpoint_write", {"part": 1}, 5),
    ("checkpoint_commit", {"phase": "begin"}, 1),
    ("checkpoint_commit", {"phase": "end"}, 1),
    ("checkpoint_prune", {"phase": "begin"}, 0),
    ("checkpoint_prune", {"phase": "renamed"}, 0),
]


def save_for_ever(directory, pipe, kill_at):
    if kill_at:
        point, facts, passes = kill_at
        seen = []

        def handler(name, **given):
            if name == point and all(given.get(key) == value for key, value in facts.items()):
                seen.append(name)
                if len(seen) > passes:
                    os.kill(os.getpid(), signal.SIGKILL)

        on_reach(handler)
    files = open_files(directory)
    store = CheckpointStore(directory)
    with Claim(files, "run", "worker/0", patience=1.0):
        restored = store.restore_newest(mine=True)
        step = restored[0].step if restored else 0
        os.write(pipe, f"{-step}\n".encode())
        while True:
            step += 1
            manifest = write(files, step, arrays_of(step), parts=2, at=step)
            store.commit(manifest, step_name(step))
            os.write(pipe, f"{step}\n".encode())
            store.prune(POLICY)


def one_round(directory, delay, kill_at):
    """Returns the last step that was reported as committed, and whether the process was killed while it saved."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            save_for_ever(directory, writer, kill_at)
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(writer, f"error {error!r}\n".encode())
        finally:
            os._exit(9)
    os.close(writer)
    if kill_at is None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        lines = file.read().split("\n")
    assert os.WIFSIGNALED(status) and not any(line.startswith("error") for line in lines), lines
    return max((abs(int(line)) for line in lines if line), default=0)


def check(directory, committed):
    store = CheckpointStore(directory)
    found = store.restore_newest()
    step = found[0].step if found else 0
    # The commit of the next one may have ended just before it could be reported.
    assert committed <= step <= committed + 1, (committed, step)
    if found:
        assert same(found[1], arrays_of(step)) and found[0].facts == {"at": step}
    assert not store.verify()
    # Two, the multiples of 7, one that is half written or half removed each; claim.json, .lock, quarantine, a rest.
    assert len(os.listdir(directory)) <= 8 + step // 7, os.listdir(directory)
    return step


def main(directory, rounds):
    chance = random.Random(0)
    committed = 0
    for kill_at in [*PLACES, *[None] * rounds]:
        committed = max(committed, one_round(directory, chance.uniform(0.0, 0.2), kill_at))
        committed = check(directory, committed)
    print("steps", committed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
