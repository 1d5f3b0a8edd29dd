"""The examples do what they say: with workers, with a loss, and the witness sees what it is there to see."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tfdist.testing import LocalCluster, faults

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EPOCHS = 2


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("demo", None)


def test_each_digit_is_used_once_per_epoch_although_a_worker_is_killed(tmp_path: Path, fork_server: object) -> None:
    with LocalCluster(2, dir=tmp_path, faults=[faults.kill(0, step=40)]) as cluster:
        results = cluster.run(f"{EXAMPLES / 'digits.py'}:train", EPOCHS, "float64")
        cluster.assert_all_fired()
    with LocalCluster(1, dir=tmp_path) as cluster:
        plain = cluster.run(f"{EXAMPLES / 'digits.py'}:train", EPOCHS, "float64", True).values[0]
    survivor = results.values[1]
    assert set(survivor["uses"].tolist()) == {float(EPOCHS)}
    assert np.allclose(survivor["loss"], plain["loss"], rtol=1e-12)
    for name, weights in plain["weights"].items():
        assert np.allclose(survivor["weights"][name], weights, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("script", [("minimal.py",), ("custom_train_step.py", "--epochs", "1")], ids=lambda s: s[0])
def test_an_example_runs_with_two_workers(script: tuple[str, ...], tmp_path: Path, fork_server: object) -> None:
    with LocalCluster(2, dir=tmp_path) as cluster:
        results = cluster.run(EXAMPLES / script[0], *script[1:])
    assert results.codes == {0: 0, 1: 0}
    assert "loss" in results.last(0).output


def test_a_job_that_is_preempted_twice_ends_as_if_it_had_not_been(fork_server: object) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "preempted.py")],
        cwd=EXAMPLES.parent,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 workers: ended with 0" in done.stdout and "used exactly 4 times" in done.stdout


def run_of_three(module: ModuleType) -> tuple[dict, list, dict]:
    """What the workers of a run without any flaw would have left."""
    told = {
        1: ([], module.ALL, [1, 2, 3]),
        2: (module.ALL, module.WITHOUT_0, [2, 3]),
        3: (module.WITHOUT_0, module.ALL, [2, 3, 4]),
    }
    formations = [
        {
            "task": f"worker/{(pid - 1) % 3}",
            "pid": pid,
            "message": f"generation {generation}: worker/0 does something; 3 members",
            "numbers": {"generation": generation, "members": members, "before": before, "step": 10, "seconds": 0.1},
        }
        for generation, (before, members, pids) in told.items()
        for pid in pids
    ]
    value = {
        "accuracy": 0.98,
        "uses": np.full(4, float(module.EPOCHS)),
        "weights": {"dense": np.ones(3), "uses/counts": np.full(4, float(module.EPOCHS))},
        "loss": [0.5] * module.EPOCHS,
    }
    values = {i: {**value, "step_ended": np.arange(20.0), "pid": pid} for i, pid in ((0, 4), (1, 2), (2, 3))}
    return values, formations, value


def test_the_demo_finds_all_promises_kept_in_a_run_without_flaw(demo: ModuleType) -> None:
    values, formations, plain = run_of_three(demo)
    assert [holds for holds, _ in demo.claims(values, formations, plain)] == [True] * 7
    assert demo.incidents(values, formations).row_count == 2


@pytest.mark.parametrize(
    ("flaw", "broken"),
    [
        ({"accuracy": 0.95}, [2]),
        ({"uses": np.array([25.0, 25.0, 24.0, 25.0])}, [3]),  # one sample left out once
        ({"uses": np.array([25.0, 26.0, 25.0, 25.0])}, [3]),  # one used twice
        ({"weights": {"dense": np.ones(3) * (1 + 1e-8), "uses/counts": np.full(4, 25.0)}}, [4, 5]),
        ({"loss": [0.5] * 24 + [0.6]}, [6]),
        ({"pid": 99}, [0]),  # the survivor was another process at the end
    ],
    ids=["accuracy", "left out", "used twice", "weights", "loss", "process"],
)
def test_the_demo_finds_a_promise_broken(demo: ModuleType, flaw: dict, broken: list[int]) -> None:
    values, formations, plain = run_of_three(demo)
    values[demo.SURVIVOR] = {**values[demo.SURVIVOR], **flaw}
    promises = demo.claims(values, formations, plain)
    assert [number for number, (holds, _) in enumerate(promises) if not holds] == broken
    assert not demo.check(promises, lambda _: None)
