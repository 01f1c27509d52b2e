"""Sessions of pytest in processes of their own, which need not import what takes longest.

`python -m tests.sessions` imports Numba and forks a process for each session that it is told of.
No device has been used there, and no plugin is imported.
"""

from __future__ import annotations

import atexit
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
from typing import Any


class Server:
    """The process that forks, started with `env`."""

    def __init__(self, python: str, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.sessions"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=env, cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        atexit.register(self._end)

    def run(
        self, args: list[str], env: dict[str, str], folder: Path, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of ``python -m pytest ARGS`` in `folder`."""
        with tempfile.TemporaryDirectory() as kept:
            files = [Path(kept, name) for name in ("stdout", "stderr")]
            told = {"args": args, "env": env, "folder": str(folder), "seconds": seconds}
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
    # What Python and Numba read as they start.
    early = frozenset((k, v) for k, v in env.items() if k.startswith(("PYTHON", "NUMBA_", "LD_")))
    return _server(python, early).run(args, env, folder, seconds)


@functools.cache
def _server(python: str, early: frozenset[tuple[str, str]]) -> Server:
    return Server(python, {**os.environ, **dict(early)})


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
    sys.path[0] = told["folder"]
    sys.argv = ["pytest", *told["args"]]
    with suppress(KeyError):
        del sys.modules["tests"], sys.modules["tests.sessions"]  # theirs may be called so
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import pytest  # noqa: F401
    from numba import cuda  # noqa: F401
    from numba.core.registry import cpu_target

    import numbasync.backend.cpu
    import numbasync.testing  # noqa: F401

    contexts: list[Any] = [cpu_target.typing_context, cpu_target.target_context]
    for context in contexts:
        context.refresh()  # what the first compilation of a process begins with
    gc.collect()
    gc.freeze()  # or each session would look at all of it
    if (session := _serve()) is not None:
        _become(session)
