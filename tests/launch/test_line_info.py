"""Line numbers in compiled kernels: by default, and when not."""

from __future__ import annotations

import inspect
import linecache
import runpy
from pathlib import Path
from typing import Any

from numba import cuda

import numbasync as na
from numbasync.launch.line_info import drop_wrong_line_info
from numbasync.launch.plan import as_device_function


@na.launcher
@cuda.jit
def plain(z):
    z[0] = 1


@na.launcher
@cuda.jit(fastmath=True)
def keyword_only(z, *, by):
    z[0] = by


@na.launcher
@cuda.jit(lineinfo=False)
def refused(z):
    z[0] = 1


@na.launcher(lineinfo=False)
def refused_without_jit(z):
    z[0] = 1


@na.launcher
@cuda.jit(debug=True, opt=False)
def debugged(z):
    z[0] = 1


@na.launcher
@cuda.jit
def tile(t: na.Tile):
    t[0] = 1


def lines(kernel: na.Launcher) -> Any:
    return kernel.kernel.targetoptions["lineinfo"]


def test_kernels_have_line_numbers_unless_they_say_otherwise() -> None:
    assert [lines(plain), lines(keyword_only)] == [True, True]
    assert [lines(refused), lines(refused_without_jit), lines(debugged)] == [False, False, False]


def test_kernels_whose_lines_numba_cannot_read_have_none() -> None:
    """It would warn of a kernel without source, and fail for one that begins left of its `def`."""
    names: dict[str, Any] = {"na": na, "cuda": cuda}
    exec("@na.launcher\n@cuda.jit\ndef unread(z):\n    z[0] = 1\n", names)

    @na.launcher
    @cuda.jit
    def flush_left(z):
        text = """of which a line
begins at the margin"""
        z[0] = len(text)

    assert [lines(names["unread"]), lines(flush_left)] == [False, False]


MODULE = """
import numbasync as na

@na.launcher
def edited(z):
    z[0] = 1

@na.launcher
def as_before(z):
    z[0] = 1
"""


def test_a_kernel_whose_file_is_edited_loses_them(tmp_path: Path) -> None:
    """Numba reads the file when it compiles, and would parse other lines than the kernel's."""
    path = tmp_path / "edited_kernels.py"
    path.write_text(MODULE)
    names = runpy.run_path(str(path))
    kernels = [names["edited"], names["as_before"]]
    assert [lines(k) for k in kernels] == [True, True]
    path.write_text(MODULE.replace("    z[0] = 1", "    if True:\n        z[0] = 1", 1))
    inner = [as_device_function(kernel.kernel) for kernel in kernels]  # called by other kernels
    assert [i.targetoptions["lineinfo"] for i in inner] == [True, False]
    for kernel in kernels:
        drop_wrong_line_info(kernel.kernel)
    assert [lines(k) for k in kernels] == [True, False]


def test_a_kernel_around_tiles_has_a_source_for_its_numbers() -> None:
    generated = tile.planner._with_tiles((1,), False)
    linecache.checkcache()
    assert generated.targetoptions["lineinfo"]
    assert inspect.getsource(generated.py_func).startswith("def kernel(p0, p0_0):\n    body(")
