"""Random kernels whose names change their types between barriers, and the same kernels without the
barriers: every thread works on what is its own, so that both do the same.
"""

from __future__ import annotations

import itertools
import linecache
import random
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32

from numbasync.backend.cpu.runtime.choose_engine import prepare_kernel
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import ArrayKey

THREADS = 8
_rng = np.random.default_rng(0)
# Large integers, which a float does not hold, and which as a sum fit an int64.
ARRAYS: dict[str, np.ndarray] = {
    "a": _rng.integers(0, 256, THREADS).astype(np.uint8),
    "b": _rng.integers(-(2**30), 2**30, THREADS).astype(np.int32),
    "c": _rng.integers(2**53, 2**54, THREADS) | 1,
    "d": (_rng.integers(2**53, 2**54, THREADS) | 1).astype(np.uint64),
    "e": _rng.uniform(-100, 100, THREADS).astype(np.float32),
    "f": _rng.uniform(-100, 100, THREADS),
    "g": _rng.random(THREADS) > 0.5,
    "P": _rng.integers(-9, 9, (THREADS, 3)),
    "Q": _rng.uniform(-9, 9, (THREADS, 3)),
}
NUMBERS = "abcdefg"
SCALARS = {"n": 3, "scale": 5}
_OWN_CONDITIONS = ("t % 2 == 0", "t > 3", "g[t]", "v > w")
_SAME_CONDITIONS = ("n > 2", "n == 3")
_numbers = itertools.count()


class Writer:
    """Writes a kernel; a line that begins with an `@` is a barrier."""

    def __init__(self, seed: int, has_views: bool) -> None:
        self._random = random.Random(seed)
        self._has_views = has_views
        self._depth, self._loops = 1, 0
        # Most values of a name are made this type, or few kernels would be compiled.
        # Of a float, only what an int64 holds becomes an integer in the same way everywhere.
        self._homes = {"v": self._one("int64", "int32(int64", "uint32(int64", "float32"), "u": "",
                       "w": self._one("float64", "float32", "int64")}  # fmt: skip
        self.lines: list[str] = []
        self.stores = 0

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _is(self, share: float) -> bool:
        return self._random.random() < share

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def _atom(self) -> str:
        atoms = [*"vwuvwu", *(f"{name}[t]" for name in NUMBERS)]
        atoms += ["t", "n", "1", "2", "0.5", "3", "scale"]
        if self._has_views:
            atoms += ["p[0]", "q[1]", "l[0]", "m[1]"] * 2
        return self._one(*atoms)

    def _value(self) -> str:
        match self._random.randrange(10):
            case 0 | 1 | 2 | 3:
                return self._atom()
            case 4 | 5 | 6 | 7:
                operator, other = self._one(*"+-*/", "//"), self._one(*"32n7", "0.5", "t + 1")
                return f"{self._atom()} {operator} {other}"
            case 8:
                return f"({self._atom()} if {self._condition()[0]} else {self._atom()})"
            case _:
                return (
                    f"{self._one('max', 'min')}({self._one(*'vwt')}, {self._one('w', '1', 'e[t]')})"
                )

    def _condition(self) -> tuple[str, bool]:
        """A condition, and whether it differs between threads."""
        if self._is(0.6):
            return self._one(*_OWN_CONDITIONS), True
        return self._one("k0 == 1" if self._loops else "n == 2", *_SAME_CONDITIONS), False

    def _assign(self) -> None:
        name, value = self._one(*"vwu"), self._value()
        is_free = self._is(0.08) or (name == "u" and self._is(0.5))
        self._line(f"{name} = {value}" if is_free else f"{name} = {self._made(name, value)}")

    def _made(self, name: str, value: str) -> str:
        text = f"{self._homes[name]}({value})"
        return text + ")" * (text.count("(") - text.count(")"))

    def _store(self, name: str) -> None:
        equals = "+=" if self._loops else "="
        self._line(f"floats[t, {self.stores}] {equals} {name}")
        self._line(f"ints[t, {self.stores}] = {name}")
        self.stores += 1

    def _view(self) -> None:
        again = "p = P[t]" if self._loops else "p = p[1:] if n > 9 else p[0:2]"
        self._line(
            self._one("p = P[t]", "p = P[n]", "q = Q[t]", "q = Q[t, 0:2]", "l, m = m, l", again,
                      "l[0] += 1", "m[1] = v", "q = Q[(t + 1) % 8]", "u = p[1]", "w = q[0]")
        )  # fmt: skip

    def _block(self, count: int, is_divergent: bool) -> None:
        for _ in range(count):
            if self._is(0.45):
                some = is_divergent or self._is(0.3)
                self._line("@cuda.syncwarp()" if some else "@cuda.syncthreads()")
            kind = self._random.random()
            if kind < 0.38:
                self._assign()
            elif kind < 0.45:
                other = self._one("1", "n", "t", "scale", "2")
                self._line(f"{self._one(*'vwu')} {self._one(*'+-*')}= {other}")
            elif kind < 0.5:
                self._line(self._one("scale = scale * 2", "n = n", "u, v = v, u", "scale += n"))
            elif kind < 0.58 and self._has_views:
                self._view()
            elif kind < 0.76:
                self._store(self._one(*"vwu"))
            elif self._depth > 3:
                self._assign()
            elif kind < 0.88 or self._loops > 1:
                test, differs = self._condition()
                self._line(f"if {test}:")
                self._inside(is_divergent or differs)
                if self._is(0.4):
                    self._line("else:")
                    self._inside(is_divergent or differs)
            else:
                count_of_loop = self._one("2", "3", "n", "t % 3")
                leaves = self._is(0.15)
                differs = is_divergent or leaves or count_of_loop == "t % 3"
                self._line(f"for k{self._loops} in range({count_of_loop}):")
                self._loops += 1
                self._inside(differs)
                if leaves:
                    self._line(f"    if {self._condition()[0]}:")
                    self._line(f"        {self._one('break', 'continue')}")
                self._loops -= 1

    def _inside(self, is_divergent: bool) -> None:
        self._depth += 1
        self._block(self._random.randint(1, 2), is_divergent)
        self._depth -= 1

    def write(self) -> None:
        self._line("t = cuda.threadIdx.x")
        if self._has_views:
            for text in ("p = P[t]", "q = Q[t]", "l = cuda.local.array(2, float64)",
                         "m = cuda.local.array(2, float64)", "l[0] = t", "l[1] = t + 1",
                         "m[0] = -t", "m[1] = 7"):  # fmt: skip
                self._line(text)
        for name in self._homes:
            first = self._one(*(f"{a}[t]" for a in NUMBERS), "t", "n", "0", "1")
            self._line(f"{name} = {self._made(name, first)}")
        self._block(self._random.randint(3, 5), False)
        for name in self._homes:
            self._store(name)


def _made(lines: list[str]) -> Any:
    """The kernel, with its source where Python looks for it."""
    parameters = ", ".join(["floats", "ints", *SCALARS, *ARRAYS])
    source = "\n".join([f"def kernel({parameters}):", *lines]) + "\n"
    file = f"<random kernel with barriers {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"cuda": cuda, "float32": float32, "float64": float64, "int32": int32,
                             "int64": int64, "uint32": uint32}  # fmt: skip
    exec(compile(source, file, "exec"), names)
    return cuda.jit(names["kernel"])


class _Argument:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def _result(kernel: Any, stores: int) -> list[np.ndarray]:
    results = [np.zeros((THREADS, stores), np.float64), np.zeros((THREADS, stores), np.int64)]
    arrays = [*results, *ARRAYS.values()]
    keys: list[Any] = [ArrayKey(a.dtype.str, a.ndim, "C") for a in arrays]
    keys[2:2] = [int64] * len(SCALARS)
    arguments: list[Any] = [_Argument(a) for a in arrays]
    arguments[2:2] = SCALARS.values()
    executable = prepare_kernel(kernel, tuple(keys), 1024)
    executable.run((1, 1, 1), (THREADS, 1, 1), 0, arguments, Engine("test", 1))
    return results


def results(seed: int) -> tuple[str, list[np.ndarray], list[np.ndarray]]:
    """A kernel's source, what its twin without barriers gives, and what it gives itself."""
    writer = Writer(seed, has_views=seed % 3 == 0)
    writer.write()
    own = [line.replace("@cuda", "cuda") for line in writer.lines]
    twin = [line.partition("@")[0] + "pass" if "@" in line else line for line in writer.lines]
    expected = _result(_made(twin), writer.stores)
    return "\n".join(own), expected, _result(_made(own), writer.stores)
