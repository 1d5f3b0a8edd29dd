"""`tfdist run` as a whole, with tiny scripts that need no TensorFlow."""

import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.run import RunOptions
from tfdist.launch.supervise import RestartPolicy

ROOT = Path(__file__).resolve().parents[2]
PRELUDE = "import json, os, pathlib, signal, sys, time\nTASK = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


class Run:
    """A `tfdist run` in a process of its own; every wait is bounded."""

    def __init__(self, tmp_path, text, *options, arguments=()):
        script = tmp_path / "script.py"
        script.write_text(PRELUDE + text)
        command = [sys.executable, "-m", "tfdist", "run", "--preload", "json", "--log-dir", str(tmp_path / "log")]
        self.process: Any = subprocess.Popen(
            [*command, *options, str(script), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            process_group=0,
        )
        self.output = ""

    def read_until(self, *texts, seconds=30):
        """Reads until the output has all texts."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not all(text in self.output for text in texts):
                assert selector.select(seconds), f"{texts} did not come in {seconds} s; so far:\n{self.output}"
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, f"{texts} never came:\n{self.output}"
                self.output += data.decode()
        return self

    def end(self, seconds=30):
        """Waits for the end; returns the exit code."""
        output, _ = self.process.communicate(timeout=seconds)
        self.output += output.decode()
        return self.process.returncode


@pytest.fixture
def run(tmp_path):
    runs = []

    def start(*arguments, **more):
        runs.append(Run(tmp_path, *arguments, **more))
        return runs[-1]

    yield start
    for each in runs:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(10)
        each.process.stdout.close()


def test_each_worker_is_told_its_task_and_its_output_has_its_name(run, tmp_path):
    one = run("print('task', TASK, sys.argv[1:])", "--workers", "3", arguments=["--lr", "0.1"])
    assert one.end() == 0, one.output
    for task in range(3):
        assert f"[worker {task}] task {task} ['--lr', '0.1']\n" in one.output
        assert (tmp_path / "log" / f"worker-{task}.log").read_text() == f"task {task} ['--lr', '0.1']\n"
    assert "[tfdist] all 3 workers are done" in one.output


def test_the_workers_share_cluster_store_run_and_limits(run):
    one = run(
        "print('>', sorted(json.loads(os.environ['TF_CONFIG'])['cluster']['worker']), "
        "*[os.environ.get('TFDIST_' + n) for n in "
        "('STORE', 'RUN_ID', 'MIN_WORKERS', 'MAX_WORKERS', 'EVENTS', 'HEARTBEAT_TIMEOUT')])",
        *("--min-workers", "2", "--max-workers", "4", "--run-id", "r7", "--heartbeat-timeout", "9"),
    )
    assert one.end() == 0, one.output
    told = {line.split("> ")[1] for line in one.output.splitlines() if "> " in line}
    assert len(told) == 1
    assert "sqlite:////" in one.output
    assert " r7 2 4 /" in one.output
    assert one.output.count(" 9.0\n") == 2


def test_a_killed_worker_is_replaced(run):
    one = run(
        "mark = pathlib.Path(f'mark{TASK}')\n"
        "if TASK == 1 and not mark.exists():\n    mark.touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "print('process', os.environ['TFDIST_INCARNATION_NUMBER'], 'ends')"
    )
    assert one.end() == 0, one.output
    assert "worker 1 was killed by SIGKILL; it is replaced now (replacement 1 of 10)" in one.output
    assert "[worker 1] process 1 ends" in one.output


def test_a_worker_that_dies_too_often_stays_away_and_the_rest_goes_on(run):
    one = run("if TASK == 1: os.kill(os.getpid(), signal.SIGKILL)\nprint('well')", "--restarts", "1")
    assert one.end() == 0, one.output
    assert "was replaced 1 times already: it stays away" in one.output


def test_too_few_workers_end_the_run(run):
    text = "if TASK == 1: os.kill(os.getpid(), signal.SIGKILL)\nwhile True: time.sleep(0.05)"
    one = run(text, "--restarts", "0", "--min-workers", "2")
    assert one.end() == 76, one.output


def test_a_failing_worker_ends_all_with_its_own_code(run):
    one = run("if TASK == 1: sys.exit(3)\nwhile True: time.sleep(0.05)")
    assert one.end() == 3, one.output
    assert "worker 1 ended with exit code 3" in one.output


def test_an_echo_of_a_failure_does_not_hide_it(run):
    one = run(
        "if TASK == 1:\n    pathlib.Path('new').write_text(str(os.getpid()))\n"
        "    os.rename('new', 'pid')\n    sys.exit(77)\n"
        "while not pathlib.Path('pid').exists() or pathlib.Path('/proc', pathlib.Path('pid').read_text()).exists():\n"
        "    time.sleep(0.01)\n"
        "raise ValueError('the reason')"
    )
    assert one.end() == 1, one.output
    assert "ValueError: the reason" in one.output


WAIT_POLITELY = (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"
)
WAIT_STUBBORNLY = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"
)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_stop_lets_the_workers_leave_in_order(run, number, code):
    one = run(WAIT_POLITELY).read_until("[worker 0] ready", "[worker 1] ready")
    one.process.send_signal(number)
    assert one.end() == code, one.output


def test_a_second_ctrl_c_kills_at_once(run):
    one = run(WAIT_STUBBORNLY).read_until("[worker 0] ready", "[worker 1] ready")
    one.process.send_signal(signal.SIGINT)
    one.read_until("a second one kills them")
    one.process.send_signal(signal.SIGINT)
    assert one.end(seconds=8) == 130, one.output  # the grace is 10 s


def test_ctrl_c_of_the_terminal_reaches_the_supervisor_only(run):
    one = run("print('ready', flush=True)\nwhile True: time.sleep(0.05)").read_until(
        "[worker 0] ready", "[worker 1] ready"
    )
    os.killpg(one.process.pid, signal.SIGINT)  # what a terminal does
    assert one.end() == 130, one.output
    assert "KeyboardInterrupt" not in one.output


def test_no_worker_outlives_a_killed_supervisor(run):
    one = run("print('pid', os.getpid(), flush=True)\nwhile True: time.sleep(0.05)").read_until("0] pid", "1] pid")
    one.process.kill()
    # The fork server holds the output open, too: that it ends says that the server has.
    one.end(seconds=10)
    pids = [int(line.split("pid ")[1]) for line in one.output.splitlines() if "] pid " in line]
    assert len(pids) == 2
    for pid in pids:
        assert not _runs(pid)


def _runs(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        signal.sigtimedwait([], 0.05)
    return True


def test_a_missing_script_and_bad_numbers_are_refused(tmp_path):
    command = [sys.executable, "-m", "tfdist", "run"]
    for arguments, said in [
        (["nowhere.py"], "nowhere.py: there is no such file"),
        (["--workers", "0", str(ROOT / "tfdist" / "__main__.py")], "workers = 0: must be at least 1"),
    ]:
        done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 78
        assert said in done.stderr


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workers": 0}, "workers = 0"),
        ({"cluster": ("a:1", "b:1"), "index_from": 1, "store": "etcd://a:1"}, "runs the tasks 1 to 2"),
        ({"cluster": ("a:1", "b:1")}, "store = None"),
        ({"index_from": 2}, "index_from = 2: needs cluster"),
        ({"policy": RestartPolicy(min_workers=3)}, "min_workers = 3"),
        ({"max_workers": 1}, "max_workers = 1"),
        ({"heartbeat_timeout": 0.0}, "heartbeat_timeout = 0.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(fields, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        RunOptions(script=Path("x"), arguments=(), directory=tmp_path, **fields)


def test_one_machine_of_several_runs_its_own_tasks(run):
    one = run(
        "print(TASK, json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])",
        *("--workers", "1", "--cluster", "a:1,b:2", "--index-from", "1", "--store", "etcd://a:3", "--run-id", "r"),
    )
    assert one.end() == 0, one.output
    assert "[worker 1] 1 ['a:1', 'b:2']" in one.output
