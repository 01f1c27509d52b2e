"""Random kernels: compiled, they do what they do when they run as Python. Integers stay small, so
that Python's numbers are a GPU's.
"""

from __future__ import annotations

import itertools
import linecache
import os
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numba import cuda, int64

from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.runtime.choose_engine import prepare_kernel
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import ArgumentAccess, ArrayKey, Checks

_numbers = itertools.count()
# What differs between threads, and what is the same for all of a block.
OWN = ["t", "a", "b", "x[i]", "sm[t]", "sm[(t + 1) % n]", "(t * 7 + 3) % 5"]
SAME = ["n", "s", "k", "3", "cuda.blockIdx.x", "x.shape[0]"]


class Writer:
    """Writes a kernel whose threads meet, and in which no thread reads what another may be
    writing: shared memory is written and read on two sides of a barrier.
    """

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.lines: list[str] = []
        self._depth = 1
        self._loops = 0

    def _draw(self, *choices: Any) -> Any:
        return self._data.draw(st.sampled_from(choices))

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def value(self, own: bool) -> str:
        one = self._draw(*(OWN if own else SAME))
        operator, other = self._draw("+", "-", "*"), self._draw(*SAME)
        return f"({one} {operator} {other}) % 1009"

    def private(self) -> None:
        """Statements of each thread, in which none of them meet."""
        match self._draw("assign", "augment", "if", "loop", "early"):
            case "assign":
                self.line(f"{self._draw('a', 'b')} = {self.value(True)}")
            case "augment":
                self.line(f"{self._draw('a', 'b')} += {self.value(True)}")
            case "if":
                self.line(f"if {self.value(True)} < 400:")
                self.line(f"    a = {self.value(True)}")
                self.line("else:")
                self.line(f"    b -= {self.value(False)}")
            case "loop":
                self.line(f"for j in range({self._draw('t % 4', '3', 's % 3 + 1')}):")
                self.line("    a += j * b % 17")
                if self._draw(True, False):
                    self.line("    if a % 3 == 0:")
                    self.line(f"        {self._draw('break', 'continue')}")
                self.line("    b += 1")
            case "early":
                self.line("a = b if a % 2 else t")

    def exchange(self) -> None:
        """Every thread gives something to another one."""
        self.line("cuda.syncthreads()")
        self.line(f"sm[t] = {self._draw('a', 'b', 'a * 2 + t', 'x[i] + b')}")
        match self._draw("barrier", "count", "and", "or"):
            case "barrier":
                self.line("cuda.syncthreads()")
            case "count":
                self.line("b += cuda.syncthreads_count(int(a % 2))")
            case "and":
                self.line("b += cuda.syncthreads_and(int(a % 2 == 0))")
            case "or":
                self.line("s = s + cuda.syncthreads_or(int(b % 5 == 0))")
        self.line(f"{self._draw('a', 'b')} += sm[(t + {self._draw('1', '3', 's % 5')}) % n] % 101")

    def block(self, depth: int) -> None:
        for _ in range(self._draw(1, 2, 3)):
            kind = self._draw("private", "private", "exchange", "if", "for", "while", "same")
            if depth == 0 and kind in ("if", "for", "while"):
                kind = "exchange"
            match kind:
                case "private":
                    self.private()
                case "exchange":
                    self.exchange()
                case "same":
                    self.line(f"s = {self.value(False)}")
                case "if":
                    self.line(f"if {self.value(False)} < 300:")
                    self._inside(depth)
                    if self._draw(True, False):
                        self.line("else:")
                        self._inside(depth)
                case "for":
                    self.line(f"for k in range({self._draw('2', '3', 's % 3')}):")
                    self._inside(depth)
                    self._end_of_loop()
                case "while":
                    self._loops += 1
                    name = f"w{self._loops}"
                    self.line(f"{name} = {self._draw('2', '3', 's % 3')}")
                    self.line(f"while {name} > 0:")
                    self._inside(depth, f"{name} -= 1")
                    self._end_of_loop()

    def _end_of_loop(self) -> None:
        """Perhaps a break of all threads, beside an assignment of each, and an else."""
        if self._draw(True, False):
            self.line(f"    if {self.value(False)} < 500:")
            self.line(f"        a = {self.value(True)}")
            self.line("        break")
            self.line("    s += 1")
        if self._draw(True, False):
            self.line("else:")
            self.line("    cuda.syncthreads()")
            self.line("    b += 1")

    def _inside(self, depth: int, first: str = "") -> None:
        self._depth += 1
        if first:
            self.line(first)
        if self._draw(True, False, False):
            self.line("if s % 4 == 1:")
            self.line("    s += 1")
        self.block(depth - 1)
        self._depth -= 1


def written(data: st.DataObject) -> str:
    writer = Writer(data)
    for text in (
        "sm = cuda.shared.array(64, int64)", "i = cuda.grid(1)", "t = cuda.threadIdx.x",
        "n = cuda.blockDim.x", "a = x[i]", "b = t", "s = n // 2", "k = 0",
    ):  # fmt: skip
        writer.line(text)
    writer.line("sm[t] = t")
    writer.line("cuda.syncthreads()")
    writer.block(2)
    writer.line("cuda.syncthreads()")
    writer.line("z[i] = a + b * 3 + sm[t] + s")
    return "def kernel(z, x):\n" + "\n".join(writer.lines) + "\n"


def made(source: str) -> Any:
    """The kernel, with its source where Python looks for it."""
    file = f"<random kernel {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"cuda": cuda, "int64": int64}
    exec(compile(source, file, "exec"), names)
    return cuda.jit(names["kernel"])


class Argument:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def result(executable: Any, blocks: int, threads: int, checks: Checks | None = None) -> list[int]:
    x = np.random.default_rng(blocks).integers(0, 1000, blocks * threads)
    z = np.full(x.shape, -1)
    engine = Engine("test", 1)
    executable.run(
        (blocks, 1, 1), (threads, 1, 1), 0, [Argument(z), Argument(x)], engine, checks,
        (ArgumentAccess(True), ArgumentAccess(False)),
    )  # fmt: skip
    return [int(v) for v in z]


# Other kernels in each run; some take seconds to compile.
@given(st.data())
@settings(
    max_examples=int(os.environ.get("NUMBASYNC_KERNELS", "3")), database=None,
    phases=[Phase.generate],
)  # fmt: skip
def test_compiled_and_interpreted_kernels_agree(data: st.DataObject) -> None:
    source = written(data)
    kernel = made(source)
    key = ArrayKey("<i8", 1, "C")
    fast, slow = prepare_kernel(kernel, (key, key), 1024), Interpreted(kernel, 1024)
    for blocks, threads in ((1, 1), (2, 7), (3, 40)):
        expected = result(slow, blocks, threads)
        assert result(fast, blocks, threads) == expected, source
        # Nor does the order of threads matter, and none of them is in a race.
        for checks in (Checks("reverse"), Checks("shuffled", blocks)):
            assert result(fast, blocks, threads, checks) == expected, source
