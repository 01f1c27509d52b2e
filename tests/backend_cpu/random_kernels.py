"""Random kernels: names whose types change, threads that part, meet and exchange what they have.

Every number is exact in each of its types (integers that are small, floats with few bits behind the
point), and nothing depends on the order of threads: any device and Python itself give the same.
"""

from __future__ import annotations

import enum
import linecache
from collections import namedtuple
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int8, int32, int64, uint8

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
"""


class RandomKernel:
    """A kernel by its number.

    Attributes:
        block: threads along each axis, of GRID blocks.
    """

    def __init__(self, seed: int, may_return: bool = True) -> None:
        writer = Writer(seed, may_return)
        self.seed, self.source = seed, writer.source()
        self.block, self._kinds = writer.block, writer.kinds

    def arguments(self) -> list[Any]:
        """Arguments of a launch. The first two are what it writes."""
        return _arguments(self._kinds)

    def compiled(self) -> Any:
        """The kernel for a device."""
        types = {"float32": float32, "float64": float64, "int8": int8, "int32": int32}
        return cuda.jit(self._made({"cuda": cuda, "int64": int64, "uint8": uint8, **types}))

    def expected(self) -> np.ndarray:
        """What it has to write, by Python's own numbers, thread by thread."""
        machine, args = Lockstep(), self.arguments()
        types = {n: Number(n) for n in ("float32", "float64", "int8", "int32", "int64", "uint8")}
        machine.launch(self._made({"cuda": machine, **types}), GRID, self.block, *args)
        return np.asarray(args[0])

    def _made(self, names: dict[str, Any]) -> Any:
        file = f"<random kernel {self.seed}>"
        text = _DEVICE_FUNCTIONS + "\n" + self.source
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        names.update(Colour=Colour, Shade=Shade, Point=Point, __name__=__name__)
        exec(compile(text, file, "exec"), names)
        return names["kernel"]


def _arguments(kinds: list[str]) -> list[Any]:
    draws = np.random.default_rng(5)

    def array(kind: str, shape: Any) -> np.ndarray:
        if kind == "?":
            return draws.random(shape) > 0.5
        if kind[0] == "f":
            return (draws.integers(-400, 400, shape) / 4).astype(kind)
        least, most = {"i1": (-50, 50), "u1": (0, 256), "u4": (0, 999), "u8": (0, 999)}.get(
            kind, (-999, 999)
        )
        return draws.integers(least, most, shape).astype(kind)

    records = np.zeros(3, RECORD)
    records["a"], records["b"], records["c"] = [1, -2, 3], [0.5, 1.5, -2.5], [1, 2, 250]
    x, y, z = (array(kind, 2 * PLACES) for kind in kinds[:3])
    return [
        np.zeros((GRID * PLACES, COLUMNS)), np.zeros(GRID * PLACES, np.int64), x, y, z,
        array(kinds[3], (8, 5)), records, array("f8", 8), 3, None,
    ]  # fmt: skip
