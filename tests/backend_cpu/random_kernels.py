"""Random kernels: names whose types change, threads that part, meet and exchange what they have.

Every number is exact in each of its types (integers that are small, floats with few bits behind the
point), and nothing depends on the order of threads: any device and Python itself give the same.
"""

from __future__ import annotations

import enum
import linecache
import math
from collections import namedtuple
from typing import Any

import numpy as np
from numba import (
    complex64,
    complex128,
    cuda,
    float32,
    float64,
    from_dtype,
    int8,
    int32,
    int64,
    uint8,
)

from tests.backend_cpu.kernel_writer import COLUMNS, Writer
from tests.backend_cpu.lockstep import Lockstep, Number

RECORD = np.dtype([("a", np.int32), ("b", np.float64), ("c", np.uint8)], align=True)
GRID = 2
PLACES = 64


class Colour(enum.IntEnum):
    RED, BLUE = 3, 4


class Shade(enum.Enum):
    DARK, LIGHT = 1, 2


Point = namedtuple("Point", "x k")  # noqa: PYI024 - Numba reads its fields by themselves

_CONVERSIONS: dict[str, Any] = {
    "float16": cuda.types.float16, "float32": float32, "float64": float64, "int8": int8,
    "int32": int32, "int64": int64, "uint8": uint8, "complex64": complex64,
    "complex128": complex128,
}  # fmt: skip
_DEVICE_FUNCTIONS = """
@cuda.jit(device=True)
def exchanged(value, t, n):
    held = cuda.shared.array(64, float64)
    held[t] = value
    cuda.syncthreads()
    result = held[n - 1 - t]
    cuda.syncthreads()
    return result

@cuda.jit(device=True)
def kept(value, t, puts):
    held = cuda.shared.array(64, float64)
    if puts > 0:
        held[t] = value
    cuda.syncthreads()
    return held[t]

@cuda.jit(device=True)
def rounds(value, t, n, count):
    held = cuda.shared.array(64, int64)
    total = 0
    for j in range(count):
        if j == 2:
            return total + 0.5
        held[t] = value
        cuda.syncthreads()
        total += held[(t + j) % n]
        cuda.syncthreads()
    return total

@cuda.jit(device=True)
def until(value, limit):
    for j in range(limit):
        if value * j > 40:
            return j
    return value + 0.5

@cuda.jit(device=True)
def pair_of(a, b=3):
    return a + b, a

@cuda.jit(device=True)
def turned(value, twice):
    if twice:
        return -value, value.imag
    return value * 1j, value.real

@cuda.jit(device=True)
def passed(value, t, n):
    held = cuda.shared.array(64, complex64)
    held[t] = value
    cuda.syncthreads()
    result = held[(t + 1) % n]
    cuda.syncthreads()
    return result

@cuda.jit(device=True)
def near(value):
    return value if abs(value) < float16(60) else float16(int32(float32(value)) % 7)

@cuda.jit(device=True)
def written(record, value):
    record.a = record.a % 512 + value % 99
    return int64(record.a - record.c)

@cuda.jit(device=True)
def lent(value, t, n):
    held = cuda.shared.array(0, float64)
    held[t] = value
    cuda.syncthreads()
    result = held[n - 1 - t]
    cuda.syncthreads()
    return result
"""


class RandomKernel:
    """A kernel by its number.

    Attributes:
        block: threads along each axis, of GRID blocks.
        dynamic_bytes: dynamic shared memory of a block.
    """

    def __init__(self, seed: int, may_return: bool = True) -> None:
        writer = Writer(seed, may_return)
        self.seed, self.source = seed, writer.source()
        self.block, self._kinds = writer.block, writer.kinds
        self.dynamic_bytes = 16 * math.prod(self.block)

    def arguments(self) -> list[Any]:
        """Arguments of a launch. The first three are what it writes."""
        return _arguments(self._kinds)

    def compiled(self) -> Any:
        """The kernel for a device."""
        return cuda.jit(self._made({"cuda": cuda, "cell": from_dtype(RECORD), **_CONVERSIONS}))

    def expected(self) -> np.ndarray:
        """What it has to write, by Python's own numbers, thread by thread."""
        machine, args = Lockstep(), self.arguments()
        types = {name: Number(name) for name in _CONVERSIONS}
        kernel = self._made({"cuda": machine, "cell": RECORD, **types})
        machine.launch(kernel, GRID, self.block, *args, dynamic_bytes=self.dynamic_bytes)
        return np.asarray(args[0])

    def _made(self, names: dict[str, Any]) -> Any:
        file = f"<random kernel {self.seed}>"
        text = _DEVICE_FUNCTIONS + "\n" + self.source
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        names.update(math=math, Colour=Colour, Shade=Shade, Point=Point, __name__=__name__)
        exec(compile(text, file, "exec"), names)
        return names["kernel"]


def _arguments(kinds: list[str]) -> list[Any]:
    draws = np.random.default_rng(5)

    def array(kind: str, shape: Any) -> np.ndarray:
        if kind == "?":
            return draws.random(shape) > 0.5
        if kind[0] == "c":
            return (array("f4", shape) % 99 + 1j * (array("f4", shape) % 50)).astype(kind)
        if kind == "f2":
            return (draws.integers(-200, 200, shape) / 4).astype(kind)
        if kind[0] == "f":
            return (draws.integers(-400, 400, shape) / 4).astype(kind)
        least, most = {"i1": (-50, 50), "u1": (0, 256), "u4": (0, 999), "u8": (0, 999)}.get(
            kind, (-999, 999)
        )
        return draws.integers(least, most, shape).astype(kind)

    records, made = np.zeros(3, RECORD), np.zeros(GRID * PLACES, RECORD)
    records["a"], records["b"], records["c"] = [1, -2, 3], [0.5, 1.5, -2.5], [1, 2, 250]
    made["a"], made["b"] = np.arange(GRID * PLACES), 0.25
    x, y, z = (array(kind, 2 * PLACES) for kind in kinds[:3])
    return [
        np.zeros((GRID * PLACES, COLUMNS)), np.zeros(GRID * PLACES, np.int64), made, x, y, z,
        array(kinds[4], 2 * PLACES), array("f2", 2 * PLACES), array(kinds[3], (8, 5)), records,
        array("f8", 8), 3, None,
    ]  # fmt: skip
