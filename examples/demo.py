"""The main job: three workers train on handwritten digits while one is killed, replaced, and another one freezes.

    make demo        or, where tfdist is installed:  python examples/demo.py

It ends with what happened and how long training stood still, and checks what tfdist promises. The exit code is 0 if all
of it holds. The training script is digits.py, the witness that counts how often each sample was used witness.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tfdist.testing import ClusterError, LocalCluster, faults

EPOCHS = 25
KILL_AT = 100  # committed step at which worker 0, the chief, gets SIGKILL
BETWEEN = 30  # steps that are trained between one incident and the next
MEMBERSHIP = {"heartbeat_interval": 0.5, "heartbeat_timeout": 2.0}  # seconds; a frozen worker is missed that late
PRECISION = "float64"  # rounding can't hide a sample that was dropped or used twice
TOLERANCE = 1e-9  # of max |w|
ACCURACY = 0.96
ALL, WITHOUT_0, WITHOUT_2 = [["worker/0", "worker/1", "worker/2"][i:j] for i, j in ((0, 3), (1, 3), (0, 2))]
SURVIVOR = 1  # the worker to which nothing is done: it sees every incident

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def work(plain: bool) -> dict[str, Any]:
    """What each worker process does; `plain` is the comparison, in one process and without a tfdist strategy."""
    import digits  # TensorFlow is needed in the workers only

    from tfdist.observe import emit, on_reach

    ended: list[float] = []

    def note(point: str, **facts: Any) -> None:
        if point == "step_end" and facts["phase"] == "fit":
            ended.append(time.monotonic())
            emit("step", "", step=facts["step"])

    on_reach(note)
    result = digits.train(EPOCHS, PRECISION, plain, **({} if plain else MEMBERSHIP))
    return {**result, "step_ended": np.array(ended), "pid": os.getpid()}


def train_with_incidents() -> tuple[dict[int, Any], list[dict[str, Any]]]:
    """What the workers returned, by index, and the formation of each group: one event per member."""
    with LocalCluster(3, faults=[faults.kill(0, step=KILL_AT)], restart=True) as cluster:

        def wait(says: str, count: int, **numbers: Any) -> None:
            step = cluster.wait_for_event("formation", 60.0, count, **numbers)[-1]["numbers"]["step"]
            console.print(f"  step {step:>4}  {says}")
            cluster.wait_for_event("step", 60.0, step=step + BETWEEN)

        for worker in range(3):
            cluster.start_worker(worker, work, False)
        wait("three workers train", 3, before=[], members=ALL)
        wait("worker 0, the chief, was killed (kill -9): the other two go on", 2, before=ALL, members=WITHOUT_0)
        wait("its replacement has joined: three again", 2, before=WITHOUT_0, members=ALL)
        cluster.freeze(2)
        wait("worker 2 froze (SIGSTOP) and was missed: the other two go on", 2, before=ALL, members=WITHOUT_2)
        cluster.thaw(2)
        wait("worker 2, thawed, has joined again: three to the end", 2, before=WITHOUT_2, members=ALL)
        results = cluster.wait(60.0)
        cluster.assert_all_fired()
        return results.values, cluster.events("formation")


def train_plainly() -> dict[str, Any]:
    """The same model over the same global batches, in one process."""
    with LocalCluster(1) as cluster:
        return cluster.run(work, True, timeout=90.0).values[0]


def incidents(values: dict[int, Any], formations: list[dict[str, Any]]) -> Table:
    """A row per change of the roster: what the members say about it, and the pause that the survivor's steps show."""
    ended = values[SURVIVOR]["step_ended"]
    usual = float(np.median(np.diff(ended)))
    table = Table(title="Incidents", title_justify="left", title_style="bold")
    for heading in ("step", "what happened", "members", "re-formed in", "training stood still"):
        table.add_column(heading, justify="left" if heading == "what happened" else "right")
    for generation in sorted({event["numbers"]["generation"] for event in formations})[1:]:
        told = [event["numbers"] for event in formations if event["numbers"]["generation"] == generation]
        message = next(e["message"] for e in formations if e["numbers"]["generation"] == generation)
        step, stayed = told[0]["step"], [n for n in told if n["before"]]
        reason = message.partition(": ")[2].partition(";")[0]
        seconds = max(n["seconds"] for n in stayed)
        pause = max(0.0, ended[step] - ended[step - 1] - usual)
        table.add_row(str(step), reason, str(len(told[0]["members"])), f"{seconds:.2f} s", f"{pause:.2f} s")
    table.caption = f"a step takes {usual * 1000:.0f} ms (median); a frozen worker is missed after "
    table.caption += f"{MEMBERSHIP['heartbeat_timeout']:g} s"
    return table


def difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest difference of two sets of weights, relative to the largest weight."""
    largest = max(float(np.abs(w).max()) for name, w in b.items() if not name.startswith("uses"))
    return max(float(np.abs(a[name] - b[name]).max()) for name in b) / largest


def claims(values: dict[int, Any], formations: list[dict[str, Any]], plain: dict[str, Any]) -> list[tuple[bool, str]]:
    """Whether each promise holds, and the figures that show it."""
    last = max(event["numbers"]["generation"] for event in formations)
    ended = [e for e in formations if e["numbers"]["generation"] == last]
    same = {e["pid"] for e in formations if e["task"] == f"worker/{SURVIVOR}"} == {values[SURVIVOR]["pid"]}
    came_back = {e["pid"] for e in formations if e["task"] == "worker/2"} == {values[2]["pid"]}
    workers = list(values.values())
    uses = np.concatenate([value["uses"] for value in workers])
    accuracy = min(value["accuracy"] for value in workers)
    between = max(difference(value["weights"], workers[0]["weights"]) for value in workers)
    apart = max(difference(value["weights"], plain["weights"]) for value in workers)
    losses = max(float(np.abs(np.subtract(value["loss"], plain["loss"])).max()) for value in workers)
    steps = len(values[SURVIVOR]["step_ended"])
    return [
        (
            len(ended) == 3 and same,
            f"the survivor trained all {steps} steps in one process; at the end there are three workers",
        ),
        (came_back, "the frozen worker joined again in the process that it was"),
        (accuracy >= ACCURACY, f"held-out accuracy {accuracy:.4f} (at least {ACCURACY})"),
        (
            bool(np.all(uses == EPOCHS)),
            f"each of {len(workers[0]['uses'])} samples was used exactly once in each of {EPOCHS} epochs: "
            f"the witnesses say {uses.min():g} to {uses.max():g}",
        ),
        (between == 0.0, f"the weights of all workers are the same, bit for bit (difference {between:g})"),
        (
            apart <= TOLERANCE,
            f"and those of plain Keras in one process: max difference / max |w| = {apart:.1e} (limit {TOLERANCE})",
        ),
        (losses <= TOLERANCE, f"so is the loss of every epoch (difference {losses:.1e})"),
    ]


def check(promises: list[tuple[bool, str]], say: Callable[[str], None]) -> bool:
    for holds, text in promises:
        say(f"  [green]holds[/green]  {text}" if holds else f"  [bold red]BROKEN[/bold red] {text}")
    return all(holds for holds, _ in promises)


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    began = time.monotonic()
    console.print(f"[bold]Training on the digits of scikit-learn, {EPOCHS} epochs, 3 workers[/bold]")
    try:
        values, formations = train_with_incidents()
        console.print("The same in one process, with plain Keras, for comparison")
        plain = train_plainly()
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        console.print("[bold red]The demonstration did not come to its end.[/bold red] The output is above.")
        return 1
    console.print()
    console.print(incidents(values, formations))
    console.print("\n[bold]Promises[/bold]")
    good = check(claims(values, formations, plain), console.print)
    console.print(f"\n{'All of them hold' if good else 'Not all of them hold'} ({time.monotonic() - began:.0f} s).")
    return 0 if good else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
