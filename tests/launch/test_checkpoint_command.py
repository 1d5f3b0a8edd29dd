"""`tfdist checkpoint`: what people see of checkpoints, and exit codes for scripts."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import tfdist
from tests.checkpoint.making import arrays_of, save, write
from tfdist.checkpoint.claim import Claim
from tfdist.checkpoint.files import open_files
from tfdist.checkpoint.layout import MANIFEST, step_name
from tfdist.checkpoint.store import CheckpointStore
from tfdist.errors import CheckpointError, DamagedCheckpointError
from tfdist.launch.checkpoint_command import _age, _size
from tfdist.launch.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def some(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, parts=2, metric=1 / step, progress={"epoch": step // 10}, protected=step == 10)
    return tmp_path


def test_ls_lists_good_damaged_and_incomplete_ones(some, capsys):
    (some / step_name(20) / MANIFEST).write_text("{}")
    write(open_files(some), 40, arrays_of(40))
    assert main(["checkpoint", "ls", str(some)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["STEP", "EPOCH", "SIZE", "PARTS", "AGE", "METRIC"]
    assert lines[1].split() == ["10", "1", "68", "B", "2", "?", "0.1"]
    assert "20" in lines[2] and "manifest.json is damaged" in lines[2]
    assert lines[3].split()[0] == "30" and "incomplete" in lines[4]


def test_ls_of_nothing_says_so(tmp_path, capsys):
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "has no checkpoint" in capsys.readouterr().err
    assert main(["checkpoint", "ls", str(tmp_path / "none")]) == 78
    assert "does not exist" in capsys.readouterr().err


def test_show_says_what_a_checkpoint_holds(some, capsys):
    assert main(["checkpoint", "show", str(some)]) == 0
    text = capsys.readouterr().out
    assert "step 30 of run 'run', generation 1" in text and "3 arrays, 68 B, written in 2 parts" in text
    assert "progress: {'epoch': 3}" in text
    assert any(line.split() == ["dense/kernel", "float32", "(4,", "3)", "48", "B", "2"] for line in text.splitlines())
    assert main(["checkpoint", "show", str(some), "--step", "10"]) == 0
    assert "step 10 of run" in capsys.readouterr().out
    assert main(["checkpoint", "show", str(some), "--step", "11"]) != 0


def test_verify_ends_with_an_error_if_a_byte_is_wrong(some, capsys):
    assert main(["checkpoint", "verify", str(some)]) == 0
    assert "all 3 checkpoints: every byte" in capsys.readouterr().out
    path = some / step_name(20) / "part-0000" / "dense" / "kernel" / "0.0"
    path.write_bytes(path.read_bytes()[::-1])
    assert main(["checkpoint", "verify", str(some)]) == 1
    assert str(path) in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(some), "--step", "30"]) == 0
    assert main(["checkpoint", "verify", str(some), "--step", "31"]) == 1
    for manifest in some.glob("*/manifest.json"):
        manifest.unlink()
    assert main(["checkpoint", "verify", str(some)]) == 1


def test_prune_removes_what_it_said_it_would(some, capsys):
    arguments = ["checkpoint", "prune", str(some), "--keep", "1", "--keep-every", "100"]
    assert main([*arguments, "--dry-run"]) == 0
    text = "remove the steps [20]: 3 checkpoints, of which the newest 1, multiples of 100, 1 protected stay"
    assert capsys.readouterr().out == f"would {text}\n"
    assert len(CheckpointStore(some).list()) == 3
    assert main(arguments) == 0
    assert capsys.readouterr().out == text.replace("remove", "removed") + "\n"
    assert [manifest.step for manifest in CheckpointStore(some).list()] == [10, 30]
    assert main([*arguments, "--keep", "0"]) == 78


def test_prune_is_refused_while_a_job_writes(some, capsys):
    with Claim(open_files(some), "job", "worker/0"):
        assert main(["checkpoint", "prune", str(some), "--keep", "1"]) == 78
    assert "run 'job'" in capsys.readouterr().err
    assert len(CheckpointStore(some).list()) == 3


def test_it_runs_without_tensorflow_and_help_without_numpy(some):
    code = (
        "import sys; from tfdist.launch.cli import main\n"
        "try: main(['checkpoint', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'numpy' not in sys.modules\n"
        f"assert main(['checkpoint', 'ls', {str(some)!r}]) == 0\n"
        "print([name for name in ('tensorflow', 'jax', 'orbax', 'fsspec', 'ml_dtypes') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_sizes_and_ages_are_short():
    assert [_size(n) for n in (0, 999, 1500, 4.01e8, 7e9, 2e12)] == ["0 B", "999 B", "1.5 KB", "401 MB", "7 GB", "2 TB"]
    now = datetime.now(UTC)
    assert [_age((now - timedelta(seconds=s)).isoformat()) for s in (5, 600, 7200, 3 * 86400)] == [
        "5 s", "10 min", "2 h", "3 d"]  # fmt: skip
    assert _age("") == "?" and _age((now + timedelta(days=1)).isoformat()) == "0 s"
    assert _age(now.replace(tzinfo=None).isoformat()) == "0 s"


def test_the_public_functions_load_list_and_verify(some):
    manifest, arrays = tfdist.checkpoint.load(some)
    assert manifest.step == 30 and np.array_equal(arrays["dense/kernel"], arrays_of(30)["dense/kernel"])
    assert tfdist.checkpoint.load(some, step=10)[0].step == 10
    with pytest.raises(CheckpointError, match="no complete checkpoint of step 11; it has: 10, 20, 30"):
        tfdist.checkpoint.load(some, step=11)
    with pytest.raises(CheckpointError, match="has no complete checkpoint"):
        tfdist.checkpoint.load(some / "none")
    assert [one.step for one in tfdist.checkpoint.list_checkpoints(some)] == [10, 20, 30]
    assert tfdist.checkpoint.verify(some) == []
    path = some / step_name(20) / "part-0000" / "dense" / "kernel" / "0.0"
    path.unlink()
    assert len(tfdist.checkpoint.verify(some, step=20)) == 1
    with pytest.raises(DamagedCheckpointError, match="is missing"):
        tfdist.checkpoint.load(some, step=20)
    assert set(tfdist.checkpoint.__all__) <= set(dir(tfdist.checkpoint))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tfdist.checkpoint.nonsense
