"""A job that is preempted twice, and resumes with another number of workers each time: 3, then 2, then 4.

    python examples/preempted.py

All workers get SIGTERM, as from a cloud that takes its machines back. They save the last step together and exit with
75; whoever is started next goes on from there, in the middle of an epoch. The end is that of plain Keras in one process
that nobody has interrupted. The training script is digits.py.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tfdist.errors import EXIT_PREEMPTED
from tfdist.testing import LocalCluster, faults

EPOCHS = 4  # of 30 steps
JOBS = ((3, 40), (2, 75), (4, None))  # workers, and the committed step at which all of them get SIGTERM
TOLERANCE = 1e-9  # of max |w|, in float64

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def work(checkpoints: str, plain: bool) -> dict[str, Any]:
    """What each worker process does."""
    import digits  # TensorFlow is needed in the workers only

    return digits.train(EPOCHS, "float64", plain, checkpoints)


def run_job(workers: int, stop_at: int | None, directory: str) -> dict[int, Any]:
    """One life of the job; returns what the workers that came to the end have returned."""
    notices = [faults.terminate(worker, step=stop_at) for worker in range(workers)] if stop_at is not None else []
    with LocalCluster(workers, faults=notices) as cluster:
        results = cluster.run(work, directory, False, check=stop_at is None)
        cluster.assert_all_fired()
        for event in results.events("resumed")[:1]:
            console.print(f"  {event['message']}")
        saved = max((event["numbers"]["step"] for event in results.events("saved")), default=0)
        expected = 0 if stop_at is None else EXIT_PREEMPTED
        if any(code != expected for code in results.codes.values()):
            raise SystemExit(f"the workers ended with {results.codes}\n\n{results}")
        console.print(f"  {workers} workers: ended with {expected}, the state of step {saved} is saved")
        return results.values


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    console.print(f"[bold]{EPOCHS} epochs on the digits, preempted twice[/bold]")
    with tempfile.TemporaryDirectory() as directory:
        values: dict[int, Any] = {}
        for workers, stop_at in JOBS:
            values = run_job(workers, stop_at, directory)
    console.print("The same in one process, with plain Keras, uninterrupted")
    with LocalCluster(1) as cluster:
        plain = cluster.run(work, "", True).values[0]
    largest = max(float(np.abs(w).max()) for name, w in plain["weights"].items() if not name.startswith("uses"))
    apart = max(
        float(np.abs(value["weights"][name] - w).max()) / largest
        for value in values.values()
        for name, w in plain["weights"].items()
    )
    once = all(np.all(value["uses"] == EPOCHS) for value in values.values())
    console.print(f"  each sample was used {'exactly' if once else 'NOT'} {EPOCHS} times in {EPOCHS} epochs")
    console.print(f"  weights: max difference / max |w| = {apart:.1e} (limit {TOLERANCE})")
    return 0 if once and apart <= TOLERANCE else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
