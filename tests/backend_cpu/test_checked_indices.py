"""Indices of all kinds: compiled code checks many at once, and says what Python says of each."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numba import cuda

from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.library.options import types
from numbasync.backend.cpu.runtime.choose_engine import prepare_kernel
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import OutOfBoundsError

_numbers = itertools.count()
VECTOR, MATRIX, NUMBER = ArrayKey("<i8", 1, "C"), ArrayKey("<i8", 2, "C"), types.int64


class Argument:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def made(body: str, parameters: str) -> Any:
    """A kernel, with its source where Python looks for it."""
    source = f"def kernel({parameters}):\n" + "".join(f"    {x}\n" for x in body.splitlines())
    file = f"<hoisted kernel {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"cuda": cuda, "np": np}
    exec(compile(source, file, "exec"), names)
    return cuda.jit(names["kernel"])


def outcome(executable: Any, grid: Any, block: Any, *arrays: Any) -> list[int] | str:
    given = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
    args = [Argument(a) if isinstance(a, np.ndarray) else a for a in given]
    try:
        executable.run(grid, block, 0, args, Engine("test", 1))
    except OutOfBoundsError:
        return "out of bounds"
    return [int(v) for v in given[0].ravel()]


CASES = {
    "guarded": "i = cuda.grid(1)\nif i < z.shape[0]:\n    z[i] = x[i] + n",
    "leaves": "i = cuda.grid(1)\nif i >= z.shape[0]:\n    return\nz[i] = x[i] * 2",
    "two guards": (
        "i = cuda.grid(1)\nif i > 0 and i < z.shape[0] - 1:\n    z[i] = x[i - 1] + x[i + 1]"
    ),
    "not guarded": "i = cuda.grid(1)\nz[i] = x[i]",
    "negative": "i = cuda.grid(1)\nif i < z.shape[0]:\n    z[-1 - i] = x[-n]",
    "too far": "i = cuda.grid(1)\nif i < z.shape[0]:\n    z[i] = x[i + n]",
    "loop": "i = cuda.grid(1)\nif i < z.shape[0]:\n    for k in range(n):\n        z[i] += x[k]",
    "loop behind": (
        "i = cuda.grid(1)\nk = 0\nfor k in range(n):\n    pass\nif i < 8:\n    z[i] = x[k]"
    ),
    "own threads": "t = cuda.threadIdx.x\nif t < 3:\n    z[t] = x[cuda.blockIdx.x]",
    "of n": "i = cuda.grid(1)\nif n <= 3:\n    if i < z.shape[0]:\n        z[i] = x[n * i]",
    "stride": "i = cuda.threadIdx.x\nfor k in range(i, 9, 3):\n    z[k] = x[k]",
    "own loop": "i = cuda.threadIdx.x\nfor k in range(i):\n    z[k] = x[k]",
    "itself": "i = cuda.grid(1)\nn = n + i\nif n < z.shape[0]:\n    z[n] = x[n]",
    "twice": "i = cuda.grid(1)\ni = i * 2\nif i < z.shape[0]:\n    z[i] = x[i]",
    "atomic": "i = cuda.grid(1)\ncuda.atomic.add(z, n, x[i % 9])\ncuda.atomic.add(z, i + n - n, 1)",
    "else": "i = cuda.grid(1)\nif i < 5:\n    z[i] = 1\nelse:\n    z[i - 5] = x[i - 5]",
    "either": "i = cuda.grid(1)\nif i < 0 or i < n:\n    z[i] = x[i]",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_and_errors_stay(name: str) -> None:
    kernel = made(CASES[name], "z, x, n")
    fast = prepare_kernel(kernel, (VECTOR, VECTOR, NUMBER), 1024)
    slow = Interpreted(kernel, 1024)
    x = np.arange(9) + 100
    for (blocks, threads), size, n in itertools.product(
        ((1, 9), (3, 3), (2, 8), (1, 1)), (9, 6, 0), (1, 3, 12, -2)
    ):
        z = np.full(size, -1)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        expected = outcome(slow, grid, block, z, x, n)
        assert outcome(fast, grid, block, z, x, n) == expected, (blocks, threads, size, n)


def test_two_axes() -> None:
    body = (
        "i, j = cuda.grid(2)\nif i >= z.shape[0] or j >= z.shape[1]:\n    return\n"
        "z[i, j] = x[j, i] + n + x[0, cuda.threadIdx.x]"
    )
    kernel = made(body, "z, x, n")
    fast = prepare_kernel(kernel, (MATRIX, MATRIX, NUMBER), 1024)
    slow = Interpreted(kernel, 1024)
    for shape, x_shape in itertools.product(((6, 8), (5, 7)), ((8, 6), (7, 5), (8, 2))):
        x = np.arange(x_shape[0] * x_shape[1]).reshape(x_shape)
        z = np.zeros(shape, int)
        extents = (2, 4, 1), (3, 2, 1)
        assert outcome(fast, *extents, z, x, 4) == outcome(slow, *extents, z, x, 4)


INDICES = st.sampled_from(
    ["i", "t", "b", "k", "n", "0", "2", "i + 1", "i - 1", "t + k", "k - n", "2 * t", "b * n + t",
     "-i", "i + k * n", "x.shape[0] - 1 - i", "(t - 3) * 2", "-1", "i // 2", "k * k"]
)  # fmt: skip
TESTS = st.sampled_from(
    [
        "i < z.shape[0]",
        "i + k < x.shape[0]",
        "t < n",
        "n > 2",
        "i >= 1 and i < z.shape[0]",
        "k <= i",
    ]
)


@st.composite
def bodies(draw: st.DrawFn) -> str:
    lines = ["i = cuda.grid(1)", "t = cuda.threadIdx.x", "b = cuda.blockIdx.x", "k = n"]
    if draw(st.booleans()):
        lines.append(f"if not ({draw(TESTS)}):\n    return")
    pad = ""
    if draw(st.booleans()):
        lines[3] = f"for k in range({draw(st.sampled_from(['n', '3', '1, n', 'z.shape[0]']))}):"
        pad = "    "
        lines = [line for line in lines if not line.startswith("if not")]
    for _ in range(draw(st.integers(1, 2))):
        inner = pad
        if draw(st.booleans()):
            lines.append(f"{pad}if {draw(TESTS)}:")
            inner += "    "
        # Threads may add to one element, in any order or at once.
        lines.append(f"{inner}cuda.atomic.add(z, {draw(INDICES)}, x[{draw(INDICES)}])")
    return "\n".join(lines)


@pytest.mark.full
@given(bodies())
@settings(max_examples=10, database=None, phases=[Phase.generate])
def test_random_indices(body: str) -> None:
    kernel = made(body, "z, x, n")
    fast = prepare_kernel(kernel, (VECTOR, VECTOR, NUMBER), 1024)
    slow = Interpreted(kernel, 1024)
    for (blocks, threads), size, n in itertools.product(((1, 6), (3, 4)), (6, 12, 40), (0, 1, 5)):
        z, x = np.zeros(size, int), np.arange(size) + 1
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        expected = outcome(slow, grid, block, z, x, n)
        assert outcome(fast, grid, block, z, x, n) == expected, (body, blocks, threads, size, n)
