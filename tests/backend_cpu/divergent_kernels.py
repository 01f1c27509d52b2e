"""Random kernels in which threads go ways of their own, meet at barriers and exchange what they
have.

Names that begin with `u` are the same in all threads of a block, those with `w` in those of a warp:
only they decide about ways with barriers, so that the kernels are right on any device. All others
may differ. Values are integers below 1024, so that any order gives the same bits.
"""

from __future__ import annotations

import linecache
import random
from types import FunctionType
from typing import Any

from numba import cuda, int32, int64

PLACES = 128  # of the shared array; threads of a block at most
_MOST_LINES = 40
_OWN = "abc"


class Writer:
    """Writes one kernel.

    Args:
        has_warps: threads meet by warps, too.
        has_returns: some threads return before others meet.
    """

    def __init__(self, seed: int, has_warps: bool, has_returns: bool) -> None:
        self._random = random.Random(seed)
        self._has_warps, self._has_returns = has_warps, has_returns
        self._lines: list[str] = []
        self._depth = 1
        self._loops: list[bool] = []  # whether the threads of the block run each together
        self._counters = 0
        self._stores = 0
        self._has_returned = False

    def source(self) -> str:
        self._block("block", 6)
        if not any("sync" in line for line in self._lines):
            self._exchange()
        return "\n".join([*_HEAD, *self._lines, *_TAIL])

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    # --- expressions ---

    def _uniform(self) -> str:
        names = ["u", "v", "n", "1", "3", "cuda.blockIdx.x"]
        names += [f"k{i}" for i, same in enumerate(self._loops) if same]
        a, b = self._one(*names), self._one(*names)
        return f"({a} {self._one('+', '*', '^', '-', '|')} {b}) % 1021"

    def _any(self) -> str:
        names = [*_OWN, *_OWN, "t", "u", "v", "w", "n", "2", "x[i]", "l[a % 4]", "l[u % 4]"]
        names += [f"k{i}" for i in range(len(self._loops))]
        a, b, c = (self._one(*names) for _ in range(3))
        kind = self._random.randrange(4)
        if kind == 0:
            return f"{a}"
        if kind == 1:
            return f"({a} if {self._condition()} else {b})"
        return f"({a} {self._one('+', '*', '^', '-')} {b} {self._one('+', '-', '^')} {c}) % 1021"

    def _condition(self) -> str:
        return self._one(
            "t % 3 == 1", "t < 9", "a > b", "b % 2 == 0", "c > 500", "i % 5 < 2", "x[i] > 400",
            "t == 5", "u > 100", "a < n",
        )  # fmt: skip

    def _uniform_condition(self) -> str:
        tests = ["u % 2 == 0", "n > 2", "v > u", "cuda.blockIdx.x == 1", "u > 300", "n == 1"]
        tests += [f"k{i} == 1" for i, same in enumerate(self._loops) if same]
        return self._one(*tests)

    def _warp_condition(self) -> str:
        return self._one("t < 32", "t // 32 == 1", "w % 2 == 0", "w > 1", "t >= 32", "u % 2 == 0")

    # --- statements ---

    def _block(self, scope: str, count: int) -> None:
        for _ in range(count):
            self._statement(scope)

    def _statement(self, scope: str) -> None:
        kind = self._random.random()
        if kind < 0.05:
            self._line(f"l[{self._one(*_OWN, 't')} % 4] = {self._one(*_OWN)}")
        elif kind < 0.25:
            self._line(f"{self._one(*_OWN)} = {self._any()}")
        elif kind < 0.4:
            if scope == "block":
                self._line(f"{self._one('u', 'v')} = {self._uniform()}")
            elif scope == "warp":
                self._line(f"w = (w * 5 + {self._one('u', 'n', 't // 32')}) % 1021")
            else:
                self._line(f"{self._one(*_OWN)} = {self._any()}")
        elif kind < 0.5:
            self._store()
        elif kind < 0.65 and scope == "block":
            self._exchange()
        elif kind < 0.65 and scope == "warp":
            self._shuffle()
        elif len(self._lines) > _MOST_LINES or self._depth > 4:
            self._line(f"{self._one(*_OWN)} = {self._any()}")
        elif kind < 0.82:
            self._branch(scope)
        elif kind < 0.96:
            self._loop(scope)
        elif self._has_returns and scope == "block" and not self._loops:
            self._line(f"if {self._condition()}:")
            self._line("    return")
            self._has_returned = True

    def _store(self) -> None:
        self._line(f"out[i, {self._stores % 8}] += {self._one(*_OWN, 'u', 'v', 'w')}")
        self._stores += 1

    def _exchange(self) -> None:
        name, other = self._one(*_OWN), self._one(*_OWN)
        self._line(f"s[t] = {name}")
        self._line("cuda.syncthreads()")
        self._line(
            f"{other} = s[(t * {self._one('1', '3', '5')} + {self._one('1', 'u', 'v')}) % size]"
        )
        self._line("cuda.syncthreads()")
        if self._random.random() < 0.3:
            counted = self._one("count", "and", "or")
            self._line(f"u = (u + cuda.syncthreads_{counted}(int32({self._condition()}))) % 1021")

    def _shuffle(self) -> None:
        name, other = self._one(*_OWN), self._one(*_OWN)
        match self._random.randrange(4):
            case 0:
                self._line("cuda.syncwarp()")
            case 1 if not self._has_returned:
                self._line(f"{other} = cuda.shfl_xor_sync(-1, {name}, {self._one('1', '2', '3')})")
            case 2:
                self._line(
                    f"w = (w + cuda.popc(cuda.ballot_sync(-1, bool({self._condition()})))) % 1021"
                )
            case _:
                self._line(f"s[t] = {name}")
                self._line("cuda.syncwarp()")
                self._line(f"{other} = s[t ^ 1] if (t ^ 1) < size else 7")
                self._line("cuda.syncwarp()")

    def _branch(self, scope: str) -> None:
        inner = self._inner(scope)
        test = {"block": self._uniform_condition, "warp": self._warp_condition}.get(
            inner, self._condition
        )()
        self._line(f"if {test}:")
        self._indented(inner)
        if self._random.random() < 0.5:
            self._line("else:")
            self._indented(inner)

    def _inner(self, scope: str) -> str:
        """Who runs together inside of a branch or loop."""
        scopes = ["own"]
        if scope == "block":
            scopes += ["block", "block"]
        if scope != "own" and self._has_warps:
            scopes += ["warp", "warp"]
        return self._one(*scopes)

    def _loop(self, scope: str) -> None:
        inner = self._inner(scope)
        counter = f"k{len(self._loops)}"
        count = {
            "block": self._one("2", "n", "u % 4", "3"),
            "warp": self._one("2", "w % 3", "t // 32 + 1", "u % 3"),
        }.get(inner, self._one("t % 4", "a % 3", "2", "b % 5"))
        self._line(f"for {counter} in range({count}):")
        self._loops.append(inner == "block")
        self._indented(inner)
        if self._random.random() < 0.3:
            test = {"block": self._uniform_condition, "warp": self._warp_condition}.get(
                inner, self._condition
            )()
            self._line(f"    if {test}:")
            self._line(f"        {self._one('break', 'continue')}")
            self._depth += 1
            self._statement(inner)
            self._depth -= 1
        self._loops.pop()

    def _indented(self, scope: str) -> None:
        self._depth += 1
        before = len(self._lines)
        self._block(scope, self._random.randrange(1, 4))
        if len(self._lines) == before:
            self._line("a = t")
        self._depth -= 1


_HEAD = [
    "def kernel(out, x, n):",
    f"    s = cuda.shared.array({PLACES}, int64)",
    "    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y",
    "    size = cuda.blockDim.x * cuda.blockDim.y",
    "    i = cuda.blockIdx.x * size + t",
    "    a, b, c = x[i], int64(t), int64(n)",
    "    u, v, w = int64(n + 1), int64(cuda.blockIdx.x + 3), int64(t // 32)",
    "    s[t] = 0",
    "    l = cuda.local.array(4, int64)",
    "    l[0] = l[1] = l[2] = l[3] = t",
    "    cuda.syncthreads()",
]
_TAIL = [f"    out[i, {8 + k}] = {name}" for k, name in enumerate([*_OWN, "u", "v", "w"])]
COLUMNS = 8 + len(_TAIL)


def make_kernel(seed: int, has_warps: bool = False, has_returns: bool = False) -> Any:
    """A kernel `(out, x, n)` of int64 arrays, `out` with COLUMNS columns."""
    text = Writer(seed, has_warps, has_returns).source() + "\n"
    file = f"<divergent {seed}, {has_warps}, {has_returns}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {"cuda": cuda, "int32": int32, "int64": int64}
    exec(compile(text, file, "exec"), names)
    function: FunctionType = names["kernel"]
    return cuda.jit(function)
