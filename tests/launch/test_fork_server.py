"""The fork server, with processes that need no TensorFlow."""

import os
import signal
from pathlib import Path

import pytest

from tfdist.launch.fork_server import ForkServer, ForkServerError


@pytest.fixture
def run_script(light_fork_server, tmp_path):
    """Runs a script's text to its end; returns its exit code and its output."""

    def run(text, *arguments, env=None):
        script, output = tmp_path / "script.py", tmp_path / "output"
        script.write_text(text)
        with output.open("wb") as file:
            process = light_fork_server.spawn(
                {"script": str(script)},
                [str(script), *arguments],
                env=env or {},
                stdout=file.fileno(),
                stderr=file.fileno(),
            )
            return process.wait(30), output.read_text()

    return run


def test_a_script_runs_as_if_started_by_python(run_script, tmp_path):
    code, output = run_script(
        "import sys, os, __main__\nprint(__name__, sys.argv[1:], dict(os.environ), sys.path[0], __main__.__file__)\n",
        "--lr",
        "0.1",
        env={"A": "b"},
    )
    assert code == 0
    assert output == f"__main__ ['--lr', '0.1'] {{'A': 'b'}} {tmp_path} {tmp_path / 'script.py'}\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('words')", 1),
        ("raise ValueError('x')", 1),
        ("from tfdist.errors import *\nraise StateLostError('gone')", 79),
        ("from tfdist.errors import *\nraise RunEndedError('over')", 0),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),  # the default action, not the server's
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_the_end_of_a_script_is_its_exit_code(run_script, text, code):
    assert run_script(text)[0] == code


def test_a_traceback_begins_in_the_script(run_script, tmp_path):
    _, output = run_script("def f():\n    raise ValueError('x')\nf()\n")
    assert output.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path / "script.py"}", line 3, in <module>',
    ]
    assert "worker_process" not in output


def test_exit_handlers_run_and_threads_are_joined(run_script):
    _, output = run_script(
        "import atexit, threading, time\natexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')"
    )
    assert output.split() == ["main", "thread", "handler"]


def test_forked_processes_draw_different_random_numbers(run_script):
    text = "import numpy, random\nprint(numpy.random.rand(), random.random())"
    first, second = (run_script(text)[1].split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_processes_have_a_single_thread_and_few_open_files_at_the_start(run_script):
    _, output = run_script(
        "import os\nprint(len(os.listdir('/proc/self/task')))\n"
        "print([p for p in (os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') "
        "if os.path.exists(f'/proc/self/fd/{n}')) if p.startswith(('socket:', 'pipe:'))])"
    )
    assert output.splitlines() == ["1", "[]"]


def test_a_module_that_is_missing_is_named():
    with ForkServer(preload=("no_such_module",)) as server:
        with pytest.raises(ForkServerError, match="import no_such_module: ModuleNotFoundError"):
            server.wait_ready(60)
        with pytest.raises(ForkServerError):
            server.spawn({"script": "x"}, [], env={}, stdout=1, stderr=1)


WAIT = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(0.05)\n"


@pytest.fixture
def waiting_process(tmp_path):
    """A fork server of its own, and a process of it that runs for ever."""
    script = tmp_path / "wait.py"
    script.write_text(WAIT)
    server = ForkServer(preload=())
    with Path(os.devnull).open("wb") as nothing:
        process = server.spawn(
            {"script": str(script)}, ["wait.py"], env={}, stdout=nothing.fileno(), stderr=nothing.fileno()
        )
    yield server, process
    server.close()


def test_closing_the_server_kills_its_processes(waiting_process):
    server, process = waiting_process
    server.close()
    assert process.wait(10) == -signal.SIGKILL
    _assert_gone(process.pid)


def test_processes_die_with_a_server_that_is_killed(waiting_process):
    server, process = waiting_process
    os.kill(server._process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    _assert_gone(process.pid)
    with pytest.raises(ForkServerError, match="is gone"):
        server.spawn({"script": "x"}, [], env={}, stdout=1, stderr=1)


def test_a_process_that_ended_gets_no_signal(waiting_process):
    _, process = waiting_process
    process.signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    process.signal(signal.SIGKILL)


def _assert_gone(pid):
    for _ in range(200):  # the kernel needs a moment after it has closed the dead one's socket
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        os.sched_yield()
        signal.sigtimedwait([], 0.05)
    raise AssertionError(f"process {pid} still runs")
