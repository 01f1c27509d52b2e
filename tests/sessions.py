"""Sessions of pytest, and programs, in processes of their own, which need not import what takes
longest.

`python -m tests.sessions` imports Numba and forks a process for each session or program that it is
told of. No device has been used there, and no plugin is imported; for programs, not even pytest.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any


class Server:
    """The process that forks, started with `env`; `what`: "sessions" or "programs"."""

    def __init__(self, python: str, env: dict[str, str], what: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.sessions", what], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=env, cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        atexit.register(self._end)

    def run(
        self, args: list[str], env: dict[str, str], folder: Path, seconds: float, **more: bool
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of a session or program with `args` in `folder`."""
        with tempfile.TemporaryDirectory() as kept:
            files = [Path(kept, name) for name in ("stdout", "stderr")]
            told = {"args": args, "env": env, "folder": str(folder), "seconds": seconds, **more}
            told["files"] = [str(file) for file in files]
            tell, hear = self._process.stdin, self._process.stdout
            assert tell is not None and hear is not None
            print(json.dumps(told), file=tell, flush=True)
            code, in_time = json.loads(hear.readline())
            said = [file.read_text() for file in files]
        if not in_time:
            raise subprocess.TimeoutExpired(args, seconds, *said)
        return subprocess.CompletedProcess(args, code, *said)

    def _end(self) -> None:
        self._process.communicate()  # it ends where its input does


def run(
    python: str, args: list[str], env: dict[str, str], folder: Path, seconds: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of ``python -m pytest ARGS`` in `folder`."""
    if not hasattr(signal, "sigtimedwait"):  # as where there is no fork
        return subprocess.run(
            [python, "-m", "pytest", *args], capture_output=True, text=True, timeout=seconds,
            env=env, cwd=folder,
        )  # fmt: skip
    return _server(python, _early(env), "sessions").run(args, env, folder, seconds)


def run_program(
    python: str, args: list[str], env: dict[str, str], seconds: float, is_of_ends: bool = False
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of ``python ARGS``, which begin with a file, or with ``-c`` and a text.

    Numba and the CPU device's modules are imported there; a program for another device, or where
    there is no fork, has a process that is started for it.

    Args:
        is_of_ends: what was imported is collected at the end of the process, too, as it is at the
            end of one that has imported it itself.
    """
    if not hasattr(signal, "sigtimedwait") or env.get("NUMBASYNC_DEVICE") != "cpu":
        return subprocess.run(
            [python, *args], capture_output=True, text=True, timeout=seconds, env=env
        )
    return _server(python, _early(env), "programs").run(
        args, env, Path.cwd(), seconds, is_of_ends=is_of_ends
    )


def _early(env: dict[str, str]) -> frozenset[tuple[str, str]]:
    """What Python and Numba read as they start."""
    return frozenset((k, v) for k, v in env.items() if k.startswith(("PYTHON", "NUMBA_", "LD_")))


@functools.cache
def _server(python: str, early: frozenset[tuple[str, str]], what: str) -> Server:
    return Server(python, {**os.environ, **dict(early)}, what)


def _serve() -> dict[str, Any] | None:
    """Fork for each line: None at the end, and in a forked process what it was told."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        with warnings.catch_warnings(action="ignore"):  # NumPy has threads
            pid = os.fork()
        if pid == 0:
            return told
        in_time = signal.sigtimedwait({signal.SIGCHLD}, told["seconds"]) is not None
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{json.dumps([os.waitstatus_to_exitcode(status), in_time])}\n")
        sys.stdout.flush()
    return None


def _become(told: dict[str, Any]) -> None:
    """What a new process would be."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["env"])
    for number, name in enumerate((os.devnull, *told["files"])):
        with open(name, "w" if number else "r") as file:
            os.dup2(file.fileno(), number)
    with suppress(KeyError):
        del sys.modules["tests"], sys.modules["tests.sessions"]  # theirs may be called so


def _be_session(told: dict[str, Any]) -> None:
    sys.path[0] = told["folder"]
    sys.argv = ["pytest", *told["args"]]
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


def _be_program(told: dict[str, Any]) -> None:
    """Run it as the module `__main__`, which lives until the interpreter ends."""
    if told["is_of_ends"]:
        gc.unfreeze()
    args = told["args"]
    is_text = args[0] == "-c"
    sys.path[0] = "" if is_text else str(Path(args[0]).parent)
    sys.argv = ["-c", *args[2:]] if is_text else args
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if not is_text:
        main.__file__ = args[0]
    sys.modules["__main__"] = main
    text = args[1] if is_text else Path(args[0]).read_bytes()
    exec(compile(text, "<string>" if is_text else args[0], "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    is_of_sessions = sys.argv[1] == "sessions"
    if is_of_sessions:
        import pytest  # noqa: F401
    from numba import cuda  # noqa: F401
    from numba.core.registry import cpu_target

    import numbasync.backend.cpu

    if is_of_sessions:
        import numbasync.testing  # noqa: F401
    contexts: list[Any] = [cpu_target.typing_context, cpu_target.target_context]
    for context in contexts:
        context.refresh()  # what the first compilation of a process begins with
    gc.collect()
    gc.freeze()  # or each session would look at all of it
    if (told := _serve()) is not None:
        _become(told)
        (_be_session if is_of_sessions else _be_program)(told)
