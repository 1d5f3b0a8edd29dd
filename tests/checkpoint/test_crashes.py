"""After `kill -9` at any place there is a valid checkpoint: the last committed one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_process_that_is_killed_while_it_saves_leaves_what_it_had_committed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.saving_loop", str(tmp_path / "ckpt"), "30"],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    word, steps = done.stdout.split()
    assert word == "steps" and int(steps) >= 6, "the places in the code alone commit that many"
