"""numba-cuda's tests without a GPU: the switch, `numbasync.cpu_cuda`, is judged as it is. What
stands in for something here is not judged: compiled code, and processes.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import linecache
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

from numbasync import cpu_cuda
from numbasync.cpu_cuda import launches
from tests.numba_suite import launch
from tests.numba_suite.outcome import NO_OUTPUT, NOT_SIMULATED

OUTPUT = (
    "get_const_mem_size", "get_local_mem_per_thread", "get_max_threads_per_block",
    "get_regs_per_thread", "get_shared_mem_per_block", "inspect_asm", "inspect_llvm",
    "inspect_lto_ptx", "inspect_sass", "inspect_sass_cfg", "inspect_types",
)  # fmt: skip
COMPILERS = (
    "compile", "compile_all", "compile_for_current_device", "compile_ptx",
    "compile_ptx_for_current_device",
)  # fmt: skip


def install(beyond: bool) -> None:
    """Put all stand-ins in place. Call it before a test module is imported.

    Args:
        beyond: run what Numba's simulator leaves out, too.
    """
    _without_filecheck()
    _exec()
    _device()
    _output()
    _decorators(beyond)


def _module(name: str) -> Any:
    """A module of numba-cuda; the empty name is `numba.cuda` itself."""
    return importlib.import_module(f"numba.cuda.{name}".rstrip("."))


def _refuse(reason: str) -> Callable[..., Any]:
    def refuse(*args: object, **kwargs: object) -> None:
        raise unittest.SkipTest(reason)

    return refuse


def _without_filecheck() -> None:
    """The package that compares PTX with patterns need not be installed."""
    for module, name in (
        ("matcher", "Matcher"), ("options", "Options"), ("parser", "Parser"), ("finput", "FInput"),
    ):  # fmt: skip
        made = types.ModuleType(f"filecheck.{module}")
        setattr(made, name, _refuse(NO_OUTPUT))
        sys.modules[made.__name__] = made
    sys.modules["filecheck.parser"].pattern_for_opts = _refuse(NO_OUTPUT)  # type: ignore[attr-defined]
    sys.modules["filecheck"] = types.ModuleType("filecheck")


def _exec() -> None:
    """Register the text of functions that tests make by `exec`: the CPU device needs it."""
    plain, numbers = builtins.exec, itertools.count()

    def registered(source: Any, /, *names: Any, **keywords: Any) -> None:
        if isinstance(source, str):
            file, lines = f"<exec {next(numbers)}>", source.splitlines(keepends=True)
            linecache.cache[file] = (len(source), None, lines, file)
            source = compile(source, file, "exec", dont_inherit=True)
        caller = sys._getframe(1)
        plain(source, *(names or (caller.f_globals, caller.f_locals)), **keywords)

    builtins.exec = registered


def _device() -> None:
    """Programs for `numba.cuda` use the CPU device; each launch is noted."""
    cuda = _module("")
    declare = cuda.declare_device
    refused = _refuse("links code that is made for a GPU")
    cuda.declare_device = lambda *args, link=None, **kws: (
        declare(*args, **kws) if link is None else refused()
    )
    launches.launch = launch.noted(launches.launch)
    cpu_cuda.switch(True)


def _output() -> None:
    cuda, compiler, support = map(_module, ("", "compiler", "tests.support"))
    CUDADispatcher = _module("dispatcher").CUDADispatcher
    refuse = _refuse(NO_OUTPUT)
    for name in OUTPUT:
        setattr(CUDADispatcher, name, refuse)
    for name in COMPILERS:
        setattr(compiler, name, refuse)
        setattr(cuda, name, refuse)
    support.run_in_subprocess = _refuse("runs in a process of its own")
    support.TestCase.subprocess_test_runner = _refuse("runs in a process of its own")


def _decorators(beyond: bool) -> None:
    """Leave out what Numba's simulator leaves out, and nothing else."""
    testing, support = map(_module, ("testing", "tests.support"))
    if beyond:
        testing.skip_on_cudasim = lambda reason: lambda test: test
    else:
        testing.skip_on_cudasim = lambda reason: unittest.skip(f"{NOT_SIMULATED}: {reason}")
    testing.skip_unless_cudasim = lambda reason: unittest.skip("judges the simulator itself")
    testing.xfail_unless_cudasim = lambda test: test
    testing.cc_X_or_above = lambda major, minor: True
    for name in vars(testing):
        if name.startswith(("skip_unless_cc_", "skip_if_cudadevrt")):
            setattr(testing, name, lambda test: test)
    for name in ("assertFileCheckAsm", "assertFileCheckLLVM", "assertFileCheckMatches"):
        setattr(testing.CUDATestCase, name, _refuse(NO_OUTPUT))
    support.skip_unless_cffi = unittest.skip("needs cffi and a compiler for the device")
