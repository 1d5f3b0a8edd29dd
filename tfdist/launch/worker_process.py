"""What a freshly forked process does to become a worker: own group, signals, environment, output; then the script."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import runpy
import signal
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_INTERRUPTED = 130  # the exit code that shells give to SIGINT


def become_worker(request: dict[str, Any], *, stdout: int, stderr: int, parent: int) -> None:
    """Makes this forked process an ordinary one, as if the script had been started by itself.

    Args:
        request: The spawn message (tfdist/launch/wire.py).
        stdout: File descriptor for standard output; closed afterwards, as is stderr.
        stderr: File descriptor for standard error.
        parent: Process id of the fork server.
    """
    die_with_parent(parent)
    os.setpgid(0, 0)  # a Ctrl-C in the terminal reaches the supervisor only, which then ends the workers in order
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    for descriptor in {nothing, stdout, stderr} - {0, 1, 2}:
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[:] = request["argv"]
    faulthandler.enable()
    _seed_numpy()


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the thread that forked it ends (Linux; elsewhere the server does it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)


def _seed_numpy() -> None:
    """Forked processes would otherwise all draw the same numbers. Python's own generator is reseeded by the fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def run_target(target: dict[str, str]) -> None:
    """Runs a script or a module as `__main__`, as `python script.py` and `python -m module` do.

    An exception that nobody handles is shown by sys.excepthook and becomes the exit code that tfdist.errors gives it.
    """
    from tfdist.observe.logs import show_log

    show_log()
    if "TFDIST_FAULTS" in os.environ:
        importlib.import_module("tfdist.testing.faults").install_from_environment()
    try:
        if "script" in target:
            _run_script(target["script"])
        else:
            runpy.run_module(target["module"], run_name="__main__", alter_sys=True)
    except Exception as error:  # noqa: BLE001 - the outermost frame: shown, and told by the exit code
        _exit_with(error)
    except KeyboardInterrupt as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(_INTERRUPTED)


def _run_script(path: str) -> None:
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    # Not runpy.run_path: its __main__ is gone when exit handlers and other threads still use it.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.path.insert(0, str(Path(path).resolve().parent))
    exec(code, main.__dict__)  # noqa: S102 - the user's own script


def _exit_with(error: Exception) -> NoReturn:
    from tfdist.errors import RunEndedError, exit_code

    if isinstance(error, RunEndedError):  # nothing went wrong: this process came after the end
        sys.stderr.write(f"tfdist: {error}\n")
        sys.exit(exit_code(error))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the user's traceback begins in the user's script
    error = error.with_traceback(trace or error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(exit_code(error))
