"""Random kernels whose names take values of many types, on both sides of barriers: numbers of
several types, rows, tuples, records, None, and results of device functions with shared memory.

Threads meet wherever all of a block come. No float becomes an integer, so that any order of
operations of different threads gives the same bits.
"""

from __future__ import annotations

import enum
import linecache
import random
from types import FunctionType
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int8, int32, int64, uint8

KINDS = ["i1", "i4", "i8", "u1", "u8", "f4", "f8"]
RECORD = np.dtype([("a", np.int32), ("b", np.float64), ("c", np.uint8)])
SLOTS, MOST = 12, 64
_NAMES, _ROWS = ["p", "q", "r", "s"], ["row", "other"]
_INTEGERS = ["i4", "i8", "i1", "u1"]


class Colour(enum.IntEnum):
    RED, BLUE = 3, 4


@cuda.jit(device=True)
def exchanged(value: Any, t: Any, n: Any) -> Any:
    """The value of the thread on the other end of the block."""
    held = cuda.shared.array(MOST, float64)
    held[t] = value
    cuda.syncthreads()
    result = held[n - 1 - t]
    cuda.syncthreads()
    return result


@cuda.jit(device=True)
def pair_of(a: Any, b: Any = 3) -> Any:
    return a + b, a


class Writer:
    """Writes one kernel."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._depth = 1
        self._slots = 0
        self._shared = 0

    def source(self) -> str:
        for name in _NAMES:
            self._line(f"{name} = x{self._one(*KINDS)}[i % 4, t % 5]")
        for name in _ROWS:
            self._line(f"{name} = x{self._one(*KINDS)}[i % 4]")
        self._block(9, meets=True)
        for name in _NAMES:
            self._store(name)
        return "\n".join([*_HEAD, *self._lines])

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _number(self) -> str:
        kind, other = self._one(*KINDS), self._one(*KINDS)
        return self._one(
            f"x{kind}[i % 4, t % 5]", f"x{kind}[0, (t + 1) % 5] + x{other}[i % 4, 2]", "t", "i",
            "2", "0.5", "True", f"float32({self._one(*_NAMES)})",
            "int32(t)", "uint8(200)", "int64(7)",
        )  # fmt: skip

    def _value(self) -> str:
        a, b = self._one(*_NAMES), self._one(*_NAMES)
        return self._one(
            self._number(), self._number(), a, f"{a} + {b}", f"{a} * 2", f"{a} - t", f"-{a}",
            f"{a} / 64", f"max({a} * 2, {b} * 2)", f"min({a} * 2, 2.5)", f"abs({a} * 2)",
            f"{a} < {b}", f"{a} if t % 3 else {b}",
            f"{self._one(*_ROWS)}[{self._one('0', '1', 't % 3')}]",
        )  # fmt: skip

    def _block(self, count: int, meets: bool) -> None:
        for _ in range(count):
            self._statement(meets)

    def _statement(self, meets: bool) -> None:
        kind = self._random.random()
        if kind < 0.3:
            self._line(f"{self._one(*_NAMES)} = {self._value()}")
        elif kind < 0.38:
            self._line(f"{self._one(*_NAMES)} {self._one('+', '-', '*')}= {self._number()}")
        elif kind < 0.5:
            self._bind_row()
        elif kind < 0.6:
            self._tuple()
        elif kind < 0.65:
            self._store(self._one(*_NAMES))
        elif kind < 0.7:
            self._line(f"if nothing is None and colour != Colour.{self._one('RED', 'BLUE')}:")
            self._line(f"    {self._one(*_NAMES)} = {self._value()}")
        elif kind < 0.82 and meets:
            self._meet()
        elif self._depth < 3:
            self._inner(meets)

    def _bind_row(self) -> None:
        """Arrays of the same type: a name has one type of arrays."""
        name, kind = self._one(*_ROWS), self._one(*KINDS)
        fresh = f"v{len(self._lines)}"
        if self._depth == 1:
            self._line(f"{name} = x{kind}[(i + {self._one('1', '2')}) % 4]")
            return
        self._line(f"{fresh} = x{kind}[t % 4]")
        self._line(f"{self._one(*_NAMES)} = {fresh}[{self._one('1', '-1')}]")

    def _tuple(self) -> None:
        fresh, name = f"v{len(self._lines)}", self._one(*_NAMES)
        a, b = self._one(*_NAMES), self._one(*_NAMES)
        made = self._one(
            f"({a}, ({b}, t))", f"pair_of({a}, {b})", f"pair_of({a})", f"pair_of({a}, b={b})",
            "records[i % 3]",
        )  # fmt: skip
        self._line(f"{fresh} = {made}")
        if self._depth == 1 and self._random.random() < 0.6:
            self._line("cuda.syncthreads()")
        if made.startswith("records"):
            self._line(f"{name} = {fresh}.a + {fresh}.b - {fresh}['c']")
        else:
            self._line(f"{name} = {fresh}[{'1][0' if 't))' in made else self._one('0', '1')}]")

    def _meet(self) -> None:
        name = self._one(*_NAMES)
        match self._random.randrange(5):
            case 0 | 1:
                self._line("cuda.syncthreads()")
            case 2:
                self._line(f"{name} = exchanged({self._one(*_NAMES)}, t, n)")
            case 3:
                self._line(f"{name} = cuda.shfl_xor_sync(-1, float64({name}), 1)")
            case _:
                self._line(
                    f"h{self._shared} = cuda.shared.array(64, {self._one('float32', 'int64')})"
                )
                shared = f"h{self._shared}"
                self._shared += 1
                kind = self._one(*_INTEGERS)
                self._line(f"{shared}[t] = x{kind}[t % 4, 1]")
                self._line("cuda.syncthreads()")
                self._line(f"{name} = {shared}[(t + 1) % n]")
                self._line("cuda.syncthreads()")

    def _inner(self, meets: bool) -> None:
        own = self._random.random() < 0.5
        head = self._one(
            *(("if t % 2:", f"if {self._one(*_NAMES)} > 3:", "for k in range(t % 3):") if own
              else ("if m > 2:", "for k in range(m % 4):", "for k in range(2):"))
        )  # fmt: skip
        self._line(head)
        self._depth += 1
        before = len(self._lines)
        self._block(self._random.randrange(1, 4), meets and not own)
        if len(self._lines) == before:
            self._line("p = p + 1")
        self._depth -= 1

    def _store(self, name: str) -> None:
        self._line(f"z[i, {self._slots % SLOTS}] += {name}")
        self._slots += 1


_HEAD = [
    f"def kernel(z, {', '.join('x' + k for k in KINDS)}, records, nothing, colour, m):",
    "    i, t, n = cuda.grid(1), cuda.threadIdx.x, cuda.blockDim.x",
]


def written(seed: int) -> Any:
    """A kernel, of this number."""
    source = Writer(seed).source()
    file = f"<typed {seed}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    scope = {
        "cuda": cuda, "float32": float32, "float64": float64, "int8": int8, "int32": int32,
        "int64": int64, "uint8": uint8, "Colour": Colour, "exchanged": exchanged,
        "pair_of": pair_of, "__name__": __name__,
    }  # fmt: skip
    exec(compile(source, file, "exec"), scope)
    function = scope["kernel"]
    assert isinstance(function, FunctionType)
    return cuda.jit(function)


def arguments(threads: int) -> list[Any]:
    """Arguments of a launch of so many threads; the first is what it writes."""
    draws = np.random.default_rng(5)
    arrays = [draws.integers(0, 100, (4, 5)).astype(kind) for kind in KINDS]
    records = np.zeros(3, RECORD)
    records["a"], records["b"], records["c"] = [1, -2, 3], [0.5, 1.5, -2.5], [1, 2, 250]
    return [np.zeros((threads, SLOTS)), *arrays, records, None, int(Colour.RED), 3]
