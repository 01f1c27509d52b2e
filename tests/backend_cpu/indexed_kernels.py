"""Random kernels that read by indices of all kinds, under conditions and in loops."""

from __future__ import annotations

import linecache
import random
import re
from typing import Any

from numba import cuda, float32, int32, int64

_INDICES = (
    "t", "i", "t + n", "i + 3", "t - n", "i - m", "n - t", "w - 1 - t", "t * 2", "t * n", "t // 2",
    "t ^ 1", "t + k", "k", "k * 3", "k - 2", "i - k", "n - k", "t * 3 - k * 2", "m", "t + b * 8",
    "int32(t - 5)", "min(t, n)", "abs(t - 9)", "u", "u + t", "u - k", "x[t % 8]", "t % 16",
)  # fmt: skip
_CONDITIONS = (
    "i < x.size", "t < n", "t >= n", "t > m", "t == n", "t != 3", "i + 3 < x.size", "t - n >= 0",
    "t < u", "n <= t", "t < n and t >= 3", "not (t < m)", "t < 10 or t > 50", "n > 5", "t % 2 == 0",
    "x[t % 8] > 3", "t * 2 < n", "0 <= t - n < 20",
)  # fmt: skip


class Writer:
    def __init__(self, seed: int, has_rows: bool) -> None:
        self._random = random.Random(seed)
        self._depth, self._loops = 1, 0
        self._lines: list[str] = []
        self._has_rows = has_rows

    def _one(self, choices: Any) -> str:
        return self._random.choice(choices)

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _index(self) -> str:
        text = self._one(_INDICES)
        text = text.replace("k", f"k{self._loops - 1}" if self._loops else "7")
        is_of_row = self._has_rows and self._random.random() < 0.2
        return re.sub(r"\bt\b", "ty", text, count=1) if is_of_row else text

    def _statement(self) -> None:
        kind = self._random.random()
        if kind < 0.5 or self._depth > 3:
            array = self._one(("x", "x", "s", "P"))
            if array == "P":
                self._line(f"acc += P[{self._index()}, {self._index()}]")
            else:
                self._line(f"acc += {array}[{self._index()}]")
        elif kind < 0.75:
            self._line(f"if {self._one(_CONDITIONS)}:")
            self._inside()
        elif kind < 0.9:
            self._line(f"for k{self._loops} in range({self._one(('n', 'm', '3', '20', '2, n'))}):")
            self._loops += 1
            self._inside()
            self._loops -= 1
        elif self._depth == 1 + self._loops:
            self._line("cuda.syncthreads()")
            self._line("u = (u * 3 + n) % 40")
        else:
            self._line("acc += t")

    def _inside(self) -> None:
        self._depth += 1
        for _ in range(self._random.randrange(1, 3)):
            self._statement()
        self._depth -= 1

    def source(self) -> str:
        for _ in range(self._random.randrange(1, 5)):
            self._statement()
        return "\n".join([*_HEAD, *self._lines, "    z[i] = acc", ""])


_HEAD = [
    "def kernel(z, x, P, n, m):",
    "    s = cuda.shared.array(48, int64)",
    "    t, ty = cuda.threadIdx.x, cuda.threadIdx.y",
    "    w, b = cuda.blockDim.x, cuda.blockIdx.x",
    "    i = b * w + t + ty * w * cuda.gridDim.x",
    "    u, acc = int64(n), int64(0)",
    "    if t < 48 and ty == 0:",
    "        s[t] = t",
    "    cuda.syncthreads()",
]


def make_kernel(seed: int, has_rows: bool = False) -> Any:
    """A kernel `(z, x, P, n, m)` of int64 arrays with 1, 1 and 2 axes."""
    text = Writer(seed, has_rows).source()
    file = f"<indexed {seed}, {has_rows}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names: dict[str, Any] = {"cuda": cuda, "int64": int64, "int32": int32, "float32": float32}
    exec(compile(text, file, "exec"), names)
    return cuda.jit(names["kernel"])
