"""Which shapes and element types the arrays that a kernel makes may have: on the CPU device those
that a GPU's compiler takes, and no others.
"""

from __future__ import annotations

import contextlib
import runpy
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import types

import numbasync as na
from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.backend.cpu.target import lower
from numbasync.backend.declared_signatures import type_of
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import KernelCompileError

KEYS = (ArrayKey("<i8", 1, "C"), types.int64, types.UniTuple(types.int64, 2))
NAMES = """\
import enum
import math
from collections import namedtuple

import numpy as np
from numba import boolean, cuda, float32, float64, int32, types

class Sizes(enum.IntEnum):
    SMALL = 8

TILE, ZERO, SHAPE, MIXED = 8, 0, (8, 9), (np.int64(8), 9)
COUNT, FLAG, REAL, NOTHING = np.int64(8), True, 8.0, None
LIST, PAIR, SMALL = [8, 9], namedtuple("Pair", "a b")(8, 9), Sizes.SMALL
TABLE = np.zeros((8, 9))
ELEMENT, TEXT, RECORD = np.float32, "float32", np.dtype([("a", np.int32), ("b", np.float32)])
PYTHONS, SECONDS, SWAPPED = float, np.dtype("M8[s]"), np.dtype(">f4")
"""


def written(folder: Path, body: str, functions: str = "") -> Any:
    """A launcher of a kernel; its arguments are a result, an int and a tuple of two."""
    path = folder / "kernels.py"
    head = f"{NAMES}\n{functions}\n@cuda.jit\ndef sized(z, n, t):\n"
    path.write_text(head + textwrap.indent(body, "    ") + "\n")
    return na.launcher(runpy.run_path(str(path))["sized"])


def made(folder: Path, call: str, before: str = "pass") -> Any:
    """A launcher of a kernel that gives the size of the array that `call` makes."""
    return written(folder, f"{before}\na = {call}\nz[0] = a.size")


def sizes_of(launcher: Any, count: int) -> list[int]:
    z = na.zeros(count, np.int64).sync()
    launcher[1, 1](z, 5, (3, 4)).sync()
    return z.to_host().sync().tolist()


def size_of(launcher: Any) -> int:
    return sizes_of(launcher, 1)[0]


def have_sizes(folder: Path, sizes: dict[str, int]) -> None:
    """One kernel makes all of these arrays."""
    lines = [f"z[{k}] = {call}.size" for k, call in enumerate(sizes)]
    found = sizes_of(written(folder, "\n".join(lines)), len(sizes))
    assert dict(zip(sizes, found, strict=True)) == sizes


@contextlib.contextmanager
def refused(match: str | None = None) -> Iterator[pytest.ExceptionInfo[KernelCompileError]]:
    """As `pytest.raises`. What the frames of the error hold, and so device memory, is let go now:
    else each test would end with a collection.
    """
    with pytest.raises(KernelCompileError, match=match) as error:
        yield error
    one: BaseException | None = error.value
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__


LITERALS = {
    "8": 8, "8 + 1": 9, "(8, 2 * 4 + 1)": 72, "-(-8)": 8, "2 ** 3": 8,
    "TILE": 8, "(TILE, TILE)": 64, "(TILE, 8 + 1)": 72, "SHAPE": 72, "SHAPE[1]": 9,
    "SHAPE[-1]": 9, "SHAPE[ZERO]": 8, "(SHAPE[0], 9)": 72, "SHAPE[1:]": 9,
    "8 if FLAG else n": 8, "TILE if n > 3 else 8": 8,
    "len(t)": 2, "z.ndim": 1,
}  # fmt: skip


@pytest.mark.parametrize("space", ["shared", "local"])
def test_shapes_that_are_literals(device: na.Device, tmp_path: Path, space: str) -> None:
    have_sizes(tmp_path, {f"cuda.{space}.array({k}, float32)": v for k, v in LITERALS.items()})


@pytest.mark.parametrize(
    ("before", "size"),
    [
        ("m = TILE", 8), ("m = 8 + 1", 9), ("m, _ = SHAPE", 8), ("m, _ = TILE, n", 8),
        ("m = 9\nz[0] = m\nm = 8", 8), ("m = 8\nif n > 3:\n    m = 8", 8),
        ("if n > 3:\n    m = 8\nelse:\n    m = TILE", 8),
        ("m = 8\nfor _ in range(n):\n    m = 8", 8),
        ("if TILE > 3:\n    m = 8\nelse:\n    m = 9", 8), ("w = (n, TILE)\nm = w[1]", 8),
        ("q = (TILE, 9)\nm = q", 72), ("for m in (8, 8):\n    z[0] = m", 8),
        ("def size():\n    return TILE\nm = size()", 8),
    ],
)  # fmt: skip
def test_variables_that_are_literals(
    device: na.Device, tmp_path: Path, before: str, size: int
) -> None:
    assert size_of(made(tmp_path, "cuda.shared.array(m, float32)", before)) == size


@pytest.mark.parametrize(
    "shape",
    [
        "TILE + 1", "(TILE, TILE + 1)", "TILE * TILE", "-TILE", "int(TILE)", "int32(8)", "8 / 2",
        "len(SHAPE)", "min(TILE, 4)", "SHAPE[TILE - 8]", "SHAPE + (8,)", "COUNT", "(TILE, COUNT)",
        "MIXED", "MIXED[1]", "FLAG", "True", "REAL", "8.0", "NOTHING", "LIST", "PAIR", "SMALL",
        "Sizes.SMALL", "SMALL.value", "np.int64(8)", "'8'", "TABLE.shape", "TABLE.shape[0]",
        "len(TABLE)", "np.nan", "math.pi", "n", "(8, n)", "t", "t[0]", "z.shape", "z.shape[0]",
        "len(z)", "cuda.blockDim.x", "8 if n > 3 else 9", "-8", "(8, -1)", "(0, 4)", "(8, 0)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("space", ["shared", "local"])
def test_shapes_that_are_no_literals(
    device: na.Device, tmp_path: Path, space: str, shape: str
) -> None:
    launcher = made(tmp_path, f"cuda.{space}.array({shape}, float32)")
    with refused("kernel sized cannot be compiled") as error:
        size_of(launcher)
    if device.kind == "cpu":
        assert f"cuda.{space}.array, line" in str(error.value)
        assert error.value.__cause__ is not None


@pytest.mark.parametrize(
    "before",
    [
        "m = TILE + 1", "m = 8\nm += 1", "m = 8\nif n > 3:\n    m = 9", "m, _ = t",
        "for m in range(3):\n    z[0] = m", "for m in SHAPE:\n    z[0] = m",
        "b = cuda.shared.array(8, float32)\nm = b.shape", "m = (n, 8)",
        "m = 8\nfor _ in range(n):\n    m = m + 1",
    ],
)  # fmt: skip
def test_variables_that_are_no_literals(device: na.Device, tmp_path: Path, before: str) -> None:
    launcher = made(tmp_path, "cuda.shared.array(m, float32)", before)
    with refused():
        size_of(launcher)


def test_memory_of_no_elements(device: na.Device, tmp_path: Path) -> None:
    assert size_of(made(tmp_path, "cuda.shared.array(ZERO, float32)")) == 0  # as launched
    for shape in ("0", "(0,)"):
        with refused():
            size_of(made(tmp_path, f"cuda.local.array({shape}, float32)"))


DEVICE_FUNCTION = """
@cuda.jit(device=True)
def inner(m, d):
    return cuda.shared.array({shape}, d).size

def outer(m):
    return inner(m, float32)

outer = cuda.jit(device=True)(outer)

def closed_over(m):
    @cuda.jit(device=True)
    def inside():
        return cuda.shared.array({shape}, float32).size
    return inside

of_eight = closed_over(8)
of_count = closed_over(np.int64(8))
"""


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ("m", {
            "outer(8)": 8, "outer(TILE)": 8, "outer(SHAPE)": 72, "outer(8) + outer(9)": 17,
            "inner(8, 'float32')": 8,
        }),
        ("(m, 9)", {"outer(8)": 72, "of_eight()": 72}),
        ("m[1]", {"outer((n, 8))": 8}),
        ("len(m)", {"outer((n, 8))": 2}),
    ],
)  # fmt: skip
def test_parameters_of_device_functions(
    device: na.Device, tmp_path: Path, shape: str, sizes: dict[str, int]
) -> None:
    body = "\n".join(f"z[{k}] = {call}" for k, call in enumerate(sizes))
    launcher = written(tmp_path, body, DEVICE_FUNCTION.format(shape=shape))
    assert dict(zip(sizes, sizes_of(launcher, len(sizes)), strict=True)) == sizes


def test_two_shapes_on_one_line(device: na.Device, tmp_path: Path) -> None:
    call = "cuda.shared.array({}, float32).size"
    lines = f"m, k = (8, 9)\nz[0] = {call.format('m')} + {call.format('k')}"
    assert size_of(written(tmp_path, lines)) == 17


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("outer(n)", "m"), ("outer(TILE + 1)", "m"), ("outer(8)", "m + 1"), ("outer(t)", "m"),
        ("of_eight()", "m + 1"), ("of_count()", "m"),
    ],
)  # fmt: skip
def test_parameters_that_are_no_literals(
    device: na.Device, tmp_path: Path, call: str, shape: str
) -> None:
    launcher = written(tmp_path, f"z[0] = {call}", DEVICE_FUNCTION.format(shape=shape))
    with refused():
        size_of(launcher)


ELEMENTS = (
    "float32", "ELEMENT", "TEXT", "'i4'", "RECORD", "TABLE.dtype", "z.dtype", "np.dtype('float32')",
    "boolean", "np.bool_", "np.float16", "types.complex64", "'i4,f4'",
)  # fmt: skip


def test_element_types(device: na.Device, tmp_path: Path) -> None:
    have_sizes(tmp_path, {f"cuda.shared.array(8, {dtype})": 8 for dtype in ELEMENTS})


def is_refused(folder: Path, call: str) -> None:
    launcher = made(folder, call)
    with refused():
        size_of(launcher)


@pytest.mark.parametrize(
    "dtype",
    [
        "float", "PYTHONS", "int", "bool", "None", "TILE", "SECONDS", "SWAPPED", "'S3'", "'no'",
        "float32 if n > 3 else float64", "object", "SHAPE",
    ],
)  # fmt: skip
def test_what_is_no_element_type(device: na.Device, tmp_path: Path, dtype: str) -> None:
    is_refused(tmp_path, f"cuda.shared.array(8, {dtype})")


def test_other_arguments(device: na.Device, tmp_path: Path) -> None:
    ways = ("shape=8, dtype=float32", "dtype=float32, shape=8", "8, float32, 16",
            "8, float32, alignment=TILE", "8, float32, None")  # fmt: skip
    have_sizes(tmp_path, {f"cuda.shared.array({way})": 8 for way in ways})


@pytest.mark.parametrize(
    "call",
    [
        "8, float32, 4", "8, float32, 24", "8, float32, n", "8, float32, TILE * 2",
        "8, float32, True", "8, float32, 8, 9", "8", "8, float32, shape=8", "8, float32, order='C'",
    ],
)  # fmt: skip
def test_arguments_that_are_refused(device: na.Device, tmp_path: Path, call: str) -> None:
    is_refused(tmp_path, f"cuda.shared.array({call})")


def test_constant_arrays(device: na.Device, tmp_path: Path) -> None:
    sizes = {"TABLE": 72, "TABLE[0]": 9, "ndarray=TABLE": 72, "cuda.shared.array(8, float32)": 8}
    have_sizes(tmp_path, {f"cuda.const.array_like({of})": size for of, size in sizes.items()})


@pytest.mark.parametrize(
    "of", ["array=TABLE", "TABLE, 3", "", "TILE", "SHAPE", "LIST", "(1, 2)"]
)  # fmt: skip
def test_what_is_no_constant_array(device: na.Device, tmp_path: Path, of: str) -> None:
    is_refused(tmp_path, f"cuda.const.array_like({of})")


def test_branches_that_are_never_taken_are_not_compiled(device: na.Device, tmp_path: Path) -> None:
    for branch in ("if FLAG:", "if NOTHING is None:", "if TILE == 8:"):
        text = f"{branch}\n    m = 8\nelse:\n    m = n"
        assert size_of(made(tmp_path, "cuda.shared.array(m, float32)", text)) == 8


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("(TILE, TILE + 1)", "in the shape, TILE + 1 is no literal"),
        ("(TILE, TILE + 1)", "    SIZE = TILE + 1  # at module level"),
        ("(TILE - 1) * TILE", "    SIZE = (TILE - 1) * TILE  # at module level"),
        ("Sizes.SMALL", "Sizes, and is to be a plain int, as SIZE = int(Sizes.SMALL)"),
        ("n", "in the shape, n is no literal"),
        ("n", "    cuda.shared.array(0, dtype)"),
        ("COUNT", "is of type numpy.int64, and is to be a plain int"),
        ("TILE if n > 3 else n", "TILE if n > 3 else n is no literal"),
        ("(0, 4)", "the shape (0, 4) has no elements"),
    ],
)
def test_what_to_write_is_said(device: na.Device, tmp_path: Path, shape: str, said: str) -> None:
    with refused() as error:
        size_of(made(tmp_path, f"cuda.shared.array({shape}, float32)"))
    assert said in str(error.value)


def test_it_is_said_of_numbas_own_error(tmp_path: Path) -> None:
    function = made(tmp_path, "cuda.shared.array(TILE + 1, float32)").kernel.py_func
    kinds = [type_of(key) for key in KEYS]
    with pytest.raises(Exception, match="No implementation") as error:
        lower(function, kinds)  # by the front end of Numba's compiler for GPUs
    assert "SIZE = TILE + 1" in str(compile_error(function, kinds, error.value))


def test_the_interpreter_refuses_the_same(tmp_path: Path) -> None:
    launcher = made(tmp_path, "cuda.shared.array(TILE + 1, float32)")
    with refused("SIZE = TILE"):
        choose_engine.prepare_kernel(launcher.kernel, KEYS, 1024, "interpreted")
