"""Kernels whose source is in no file: found where it was typed or sent, or refused."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.facts.source import find_source
from tests import sessions

SOURCE = dedent("""
    @na.launcher
    @cuda.jit
    def tripled(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.size:
            z[i] = 3 * x[i]
    """).lstrip()


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with na.use_device(na.devices("cpu")[0]):
        yield


def defined(source: str, file: str) -> Any:
    names: dict[str, Any] = {"na": na, "cuda": cuda}
    exec(compile(source, file, "exec"), names)
    return names["tripled"]


def run(kernel: Any, dtype: Any = np.float32) -> list[float]:
    z: np.ndarray = kernel(na.zeros(3, dtype), np.arange(3, dtype=dtype)).output().to_host().sync()
    return z.tolist()


def register(source: str, file: str) -> None:
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)


def test_a_kernel_made_by_exec_runs() -> None:
    assert run(defined(SOURCE, "<made>")) == [0, 3, 6]
    kernel = defined(SOURCE, "<made>")
    register(SOURCE.replace("3", "4"), "<made>")  # another function of that name
    assert run(kernel) == [0, 3, 6]


def module_of(path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path.write_text(f"import numbasync as na\nfrom numba import cuda\n{source}")
    monkeypatch.syspath_prepend(path.parent)
    return importlib.import_module(path.stem)


def test_a_file_edited_before_its_kernel_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(tmp_path / "edited_before.py", SOURCE, monkeypatch)
    (tmp_path / "edited_before.py").write_text("")
    linecache.checkcache()  # as every printed traceback and every cell of a notebook does
    assert run(module.tripled) == [0, 3, 6]


def test_a_file_edited_before_defining_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = "\n".join(line for line in SOURCE.splitlines() if not line.startswith("@"))
    module = module_of(tmp_path / "edited_too_early.py", plain, monkeypatch)
    (tmp_path / "edited_too_early.py").write_text("")
    assert run(na.launcher(cuda.jit(module.tripled))) == [0, 3, 6]


def test_a_file_that_is_edited_between_two_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = SOURCE + SOURCE.replace("tripled", "times").replace("3", "5")
    module = module_of(tmp_path / "edited_between.py", both, monkeypatch)
    assert run(module.tripled) == [0, 3, 6]
    (tmp_path / "edited_between.py").write_text("")
    linecache.checkcache()
    assert run(module.tripled, np.int64) == [0, 3, 6]
    assert run(module.times) == [0, 5, 10]


def test_a_program_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"import numbasync as na\n\n{SOURCE}"
    monkeypatch.setattr(sys, "orig_argv", ["python", "-W", "ignore", "-c", source, "-c"])
    assert run(defined(source, "<string>")) == [0, 3, 6]


@pytest.mark.parametrize("file", ["<stdin>", "<console>"])
def test_an_entry_of_the_prompt(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's prompt keeps lines, and numbers those of each entry from 1."""
    lines = [
        "import numbasync as na", *SOURCE.splitlines(),
        *SOURCE.replace("3", "4").splitlines(), "z = na.zeros(3)", "run(tripled)",
    ]  # fmt: skip
    history = SimpleNamespace(
        get_current_history_length=lambda: len(lines), get_history_item=lambda i: lines[i - 1]
    )
    monkeypatch.setitem(sys.modules, "readline", history)
    first, second = defined(SOURCE, file), defined(SOURCE.replace("3", "4"), file)
    assert run(first) == [0, 3, 6] and run(second) == [0, 4, 8]
    source = find_source(first.py_func)
    assert source is not None and source[0] == SOURCE.rstrip()  # with its decorators' lines


def test_a_kernel_that_is_sent_to_another_process(
    python: str, python_env: dict[str, str], tmp_path: Path
) -> None:
    """A kernel of a notebook, whose cell the receiver does not have."""
    source = (
        "@cuda.jit(device=True)\ndef times(x, by):\n    return x * by\n"
        + SOURCE.replace("3 * x[i]", "times(x[i], 3)")
    )  # fmt: skip
    register(source, "<a cell>")
    kernel = defined(source, "<a cell>")
    kernel.py_func.__module__ = kernel.Result.__module__ = "__main__"
    (tmp_path / "data").write_bytes(cloudpickle.dumps(kernel))
    program = """
import pathlib, pickle, sys
import numbasync as na
kernel = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
print(kernel(na.zeros(3), na.arange(3)).output().to_host().sync().tolist())
"""
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu"}
    result = sessions.run_program(python, ["-c", program, str(tmp_path / "data")], env, seconds=600)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[0.0, 3.0, 6.0]\n", "")


def test_two_lambdas_of_one_line_are_indistinct() -> None:
    both = [lambda a: a + 1, lambda a: a * 2]
    assert find_source(both[0]) is None
    assert find_source(lambda a: a + 1) is not None
