"""What every module of the package keeps to: asserts, errors with values, the driver's results."""

from __future__ import annotations

import ast
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync import errors
from tests.rooms import statements

PACKAGE = Path(na.__file__).parent
CALLS_BACK = (
    "cuLaunchHostFunc", "cuStreamAddCallback", "cuGraphAddHostNode", "cuUserObjectCreate",
    "cudaLaunchHostFunc", "cudaStreamAddCallback", "add_callback", "async_done", "CFUNCTYPE",
    "cuGraphExecHostNodeSetParams", "CUhostFn", "CUstreamCallback", "add_host_callback",
    "callback", "cuLogsRegisterCallback",
)  # fmt: skip


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def test_the_driver_calls_only_the_compiled_function() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path, tree in trees().items()
        if not {"cpu", "cpu_cuda"} & set(path.parts)  # which have no driver
        and any(name in path.read_text() for name in CALLS_BACK)  # before all names are looked at
        for name in names_in(tree)
        if name in CALLS_BACK
    }
    assert found == {("backend/cuda/host_callback.py", "cuLaunchHostFunc")}
    wakeup = (PACKAGE / "backend/cuda/host_callback.py").read_text()
    assert wakeup.count("cuLaunchHostFunc") == wakeup.count('"libcuda.so.1").cuLaunchHostFunc') + 1
    assert wakeup.count("_launcher()(") == wakeup.count("_launcher()(int(stream), function, word)")
    assert wakeup.count("    function = ") == wakeup.count("    function = host_function()") == 1
    assert wakeup.count("    _function = ") == wakeup.count("    _function = notify.address") == 1
    assert "@cfunc(types.void(types.CPointer(types.uint32)))\n    def notify(" in wakeup


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")
def test_the_function_that_notifies_is_machine_code() -> None:
    pytest.importorskip("cuda.bindings.driver", reason="the CUDA packages are not installed")
    from numbasync.backend.cuda import host_callback

    if not host_callback._function:
        host_callback._compile()
    compiled: Any = host_callback._keep[-1]
    assert type(compiled).__name__ == "CFunc"
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        for _ in range(3):
            word = ctypes.c_uint32(fd + 1)
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)(ctypes.addressof(word))
            assert word.value == 0
        assert os.eventfd_read(fd) == 3
    finally:
        os.close(fd)


def test_an_assert_says_why_it_cannot_be_otherwise() -> None:
    """Users' mistakes are exceptions; an assert is for what the code itself has made so."""
    for path, tree in trees().items():
        lines = path.read_text().splitlines()
        for node in statements(tree):
            if isinstance(node, ast.Assert) and "testing" not in path.parts:
                assert "  # " in lines[node.lineno - 1], f"{path}:{node.lineno}"


# What was wrong has no value to show.
NO_VALUE = ("arange with a step of 0", "memcpy between two NumPy arrays", "a tensor of no axes")


def test_a_callers_error_has_the_wrong_values() -> None:
    found = 0
    for path, node in ((path, node) for path, tree in trees().items() for node in statements(tree)):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        kind = getattr(errors, ast.unparse(node.exc.func).rpartition(".")[2], None)
        if not (isinstance(kind, type) and issubclass(kind, errors.CallerError)):
            continue
        found += 1
        values = [n for a in node.exc.args for n in ast.walk(a) if isinstance(n, ast.Name)]
        said = ast.unparse(node.exc)
        missing_extra = issubclass(kind, errors.MissingExtraError)
        assert values or missing_extra or any(t in said for t in NO_VALUE), f"{path}: {said}"
    assert found > 100


def test_every_result_of_the_driver_is_looked_at() -> None:
    """And becomes an exception with its name, unless a finaliser has nobody to tell."""
    calls = 0
    for path, tree in trees().items():
        if "cuda" not in path.parts:
            continue
        quiet = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and "contextlib.suppress" in ast.unparse(node.items[0])
            for inner in ast.walk(node)
        }
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            read = {
                n.id for n in ast.walk(function)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
            }  # fmt: skip
            for node in ast.walk(function):
                if not isinstance(node, ast.Expr | ast.Assign):
                    continue
                if not ast.unparse(node.value).startswith("cu.cu"):
                    continue
                calls += 1
                if isinstance(node, ast.Expr):
                    assert id(node) in quiet, f"{path}:{node.lineno} drops a result"
                elif isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Tuple):
                    result = ast.unparse(node.targets[0].elts[0])
                    assert result in read, f"{path}:{node.lineno} does not look at {result}"
    assert calls > 10
