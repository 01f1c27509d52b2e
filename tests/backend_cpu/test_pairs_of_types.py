"""A name that has one type and then another: all 90 ordered pairs of ten types, in seven shapes of
kernels. Each value is what was stored, bit for bit.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.common import full

TYPES = ["?", "u1", "i2", "i4", "u4", "i8", "u8", "f4", "f8", "c16"]
THREADS = 32
# `v` is the name, `x` and `y` are arrays of its two types, `z` and `w` of the same two; `t` is the
# thread, `m` is 2.
SHAPES = {
    "straight": """
v = x[t]
cuda.syncthreads()
z[t] = v
v = y[t]
cuda.syncthreads()
w[t] = v
""",
    "one region": """
v = x[t]
z[t] = v
v = y[t]
cuda.syncthreads()
w[t] = v
""",
    "no barrier": """
v = x[t]
z[t] = v
v = y[t]
w[t] = v
""",
    "loop": """
for k in range(m):
    v = x[t]
    cuda.syncthreads()
    z[t] = v
    v = y[t]
    cuda.syncthreads()
    w[t] = v
""",
    "if": """
if m > 1:
    v = x[t]
    cuda.syncthreads()
    z[t] = v
    v = y[t]
    cuda.syncthreads()
    w[t] = v
""",
    "two loops": """
for k in range(m):
    v = x[t]
    cuda.syncthreads()
    z[t] = v
for k in range(m):
    v = y[t]
    cuda.syncthreads()
    w[t] = v
""",
    "shuffle": """
v = x[t]
other = cuda.shfl_xor_sync(-1, t, 1)
z[t] = v
v = y[other]
other = cuda.shfl_xor_sync(-1, other, 1)
w[cuda.shfl_xor_sync(-1, t, 1)] = v
""",
}


def _kernel(shape: str, first: str, others: list[str]) -> Any:
    """The shape once for each of the other types; its name and its arrays then have a number."""
    lines = ["t = cuda.threadIdx.x"]
    for n in range(len(others)):
        text = re.sub(r"\b([vyw])\b", rf"\g<1>{n}", SHAPES[shape].strip())
        lines += text.replace("z[t]", f"z[{n}, t]").splitlines()
    numbers = range(len(others))
    given = ["x", "z", "m", *(f"y{n}" for n in numbers), *(f"w{n}" for n in numbers)]
    text = f"def kernel({', '.join(given)}):\n" + "".join(f"    {line}\n" for line in lines)
    file = f"<{shape}, {first} and {others}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    scope: dict[str, Any] = {"cuda": cuda}
    exec(compile(text, file, "exec"), scope)
    return cuda.jit(scope["kernel"])


def _values(kind: str) -> np.ndarray:
    """The ends of the type among them, and numbers that a float64 does not hold."""
    draws = np.random.default_rng(3)
    if kind == "?":
        return draws.random(THREADS) > 0.5
    if kind[0] in "fc":
        return (draws.standard_normal(THREADS) * (1 + (2j if kind == "c16" else 0))).astype(kind)
    ends = np.iinfo(kind)
    found = draws.integers(ends.min, ends.max, THREADS, dtype=kind, endpoint=True)
    found[:2] = ends.min, ends.max
    return found


def _others(first: str, count: int) -> list[str]:
    """So many other types, beginning behind this one."""
    at = TYPES.index(first)
    return [*TYPES[at + 1 :], *TYPES[:at]][-count:]


CASES = [
    *((shape, TYPES[n + 1], 2) for n, shape in enumerate(SHAPES)),
    *(full(shape, first, 9) for shape in SHAPES for first in TYPES),
]


@pytest.mark.parametrize(("shape", "first", "count"), CASES, ids=str)
def test_a_name_has_a_type_for_each_value(
    device: na.Device, shape: str, first: str, count: int
) -> None:
    others = _others(first, count)
    z = na.zeros((count, THREADS), first).sync()
    w = [na.zeros(THREADS, kind).sync() for kind in others]
    kernel = na.launcher(_kernel(shape, first, others))
    kernel[1, THREADS](_values(first), z, 2, *map(_values, others), *w).sync()
    for found in z.to_host().sync():
        np.testing.assert_array_equal(found, _values(first))
    for kind, each in zip(others, w, strict=True):
        np.testing.assert_array_equal(each.to_host().sync(), _values(kind))
