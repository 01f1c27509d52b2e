"""Kernels of 20 to 440 lines, whose compilation is measured: long, as people write them.

Their sources are put together here, and kept in `linecache`, where tracebacks look for them.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LongCase:
    """A kernel, and the types that it is compiled for.

    Attributes:
        name: the name in the table.
        body: makes a new function each time, which has not been compiled.
        arguments: scalar type and shape of each argument; () is the shape of a scalar.
        block: the threads of a block.
    """

    name: str
    body: Callable[[], Any]
    arguments: tuple[tuple[type, Shape], ...]
    block: int


def _maker(name: str, source: str) -> Callable[[], Any]:
    def body() -> Any:
        file = f"<numbasync bench {name}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        names = {"cuda": cuda, "math": math, "float32": float32, "int32": int32}
        exec(compile(source, file, "exec"), names)  # noqa: S102 - the source is of this module
        return names[name]

    return body


def _unrolled() -> str:
    """A filter of 8 by 8 taps and a sorting network, without a loop."""
    lines = ["i, j = cuda.grid(2)", "n, m = x.shape", "if i >= n - 8 or j >= m - 8:", "    return",
             "total = 0.0", "peak = x[i, j]"]  # fmt: skip
    for a in range(8):
        for b in range(8):
            v = f"v{a}{b}"
            lines += [f"{v} = x[i + {a}, j + {b}]", f"total += {v} * c[{a}, {b}]",
                      f"if {v} > peak:", f"    peak = {v}"]  # fmt: skip
    for k in range(56):
        low, high = f"v{k // 8}{k % 8}", f"v{k // 8 + 1}{k % 8}"
        lines += [f"least = min({low}, {high})", f"{high} = max({low}, {high})", f"{low} = least"]
    lines += ["out[i, j, 0] = total", "out[i, j, 1] = peak", "out[i, j, 2] = v00 + v77"]
    return _function("unrolled(out, x, c)", lines)


def _sorting() -> str:
    """A bitonic network over a block, without a loop: 28 barriers."""
    lines = ["s = cuda.shared.array(128, float32)", "o = cuda.shared.array(128, int32)",
             "t = cuda.threadIdx.x", "i = cuda.grid(1)",
             "s[t] = x[i] if i < x.size else float32(1e30)",
             "o[t] = keys[i] if i < keys.size else int32(-1)", "cuda.syncthreads()"]  # fmt: skip
    for size in (2 << k for k in range(7)):
        for stride in (size >> k for k in range(1, size.bit_length())):
            lines += [
                f"other = t ^ {stride}", "if other > t:", f"    up = (t & {size}) == 0",
                "    if (s[t] > s[other]) == up:",
                "        kept = s[t]", "        s[t] = s[other]", "        s[other] = kept",
                "        k = o[t]", "        o[t] = o[other]", "        o[other] = k",
                "cuda.syncthreads()",
            ]  # fmt: skip
    lines += ["if i < out.size:", "    out[i] = s[t] + o[t]"]
    return _function("sorting(out, x, keys)", lines)


def _sums() -> str:
    """Eight sums of a block: four by trees in shared memory, four by warps."""
    lines = ["t = cuda.threadIdx.x", "i = cuda.grid(1)",
             "v = x[i] if i < x.size else float32(0)", "w = y[i] if i < y.size else float32(0)",
             "s = cuda.shared.array(128, float32)"]  # fmt: skip
    for n, term in enumerate(("v", "v * v", "w", "v * w", "w * w", "abs(v)", "v - w", "abs(w)")):
        end = ["if t == 0:", f"    out[{n}, cuda.blockIdx.x] = s[0]", "cuda.syncthreads()"]
        if n % 2 == 0:
            lines += [f"s[t] = {term}", "cuda.syncthreads()", "half = 64", "while half > 0:",
                      "    if t < half:", "        s[t] += s[t + half]", "    cuda.syncthreads()",
                      "    half //= 2", *end]  # fmt: skip
        else:
            lines += [f"r = {term}", "d = 16", "while d > 0:",
                      "    r += cuda.shfl_down_sync(0xFFFFFFFF, r, d)", "    d //= 2",
                      "if t % 32 == 0:", "    s[t // 32] = r", "cuda.syncthreads()",
                      "if t == 0:", "    s[0] += s[1] + s[2] + s[3]", *end]  # fmt: skip
    return _function("sums(out, x, y)", lines)


def _physics() -> str:
    """Particles of nine kinds in a field, which turn, slow down or change their kind."""
    lines = ["p = cuda.grid(1)", "if p >= at.shape[0]:", "    return", "x = at[p, 0]",
             "y = at[p, 1]", "u = at[p, 2]", "v = at[p, 3]", "k = kind[p]", "e = energy[p]",
             "seed = p * 747796405 + 289133645", "for step in range(64):",
             "    b = field[int(x) % field.shape[0], int(y) % field.shape[1]]",
             "    seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF",
             "    chance = (seed >> 8) / 16777216.0"]  # fmt: skip
    for n in range(9):
        lines += [
            f"    {'elif' if n else 'if'} k == {n}:",
            f"        speed = math.sqrt(u * u + v * v) + {n}e-9",
            f"        if chance < {n + 1}e-2:",
            f"            k = {(n + 1) % 9}", "            e = e * 0.5",
            f"            cuda.atomic.add(hits, {n}, 1)",
            f"        elif chance < {n + 1}e-1 and speed > {n}.5:",
            "            drag = math.exp(-speed * 0.01)", "            u *= drag",
            "            v *= drag", "            e -= 0.5 * (1.0 - drag) * speed",
            "        elif e < 0.01:", "            u = 0.0", "            v = 0.0",
            f"        u += b * v * {n}.25e-2", f"        v -= b * u * {n}.25e-2",
            f"        e += math.sin(speed * {n}.0) * 0.001",
        ]  # fmt: skip
    for axis, speed in (("x", "u"), ("y", "v")):
        lines += [f"    {axis} += {speed} * 0.01", f"    if {axis} < 0.0 or {axis} > 32.0:",
                  f"        {speed} = -{speed}"]  # fmt: skip
    lines += ["at[p, 0] = x", "at[p, 1] = y", "at[p, 2] = u", "at[p, 3] = v", "energy[p] = e",
              "kind[p] = k"]  # fmt: skip
    return _function("physics(at, kind, energy, hits, field)", lines)


def _function(head: str, lines: list[str]) -> str:
    return f"def {head}:\n{indent(chr(10).join(lines), '    ')}\n"


def _reduce() -> Any:
    from numba.cuda.kernels.reduction import _gpu_reduce_factory

    return _gpu_reduce_factory(lambda a, b: a + b, float64).py_func


def _case(source: str, arguments: tuple[tuple[type, Shape], ...], block: int) -> LongCase:
    name = source.split("(", 1)[0].removeprefix("def ")
    return LongCase(f"compile {source.count(chr(10))} lines: {name}", _maker(name, source),
                    arguments, block)  # fmt: skip


_F, _I = np.float32, np.int32
LONG = (
    _case(_physics(), ((_F, (8, 4)), (_I, (8,)), (_F, (8,)), (_I, (9,)), (_F, (4, 4))), 8),
    _case(_sums(), ((_F, (8, 1)), (_F, (128,)), (_F, (128,))), 128),
    _case(_sorting(), ((_F, (128,)), (_F, (128,)), (_I, (128,))), 128),
    _case(_unrolled(), ((_F, (8, 8, 3)), (_F, (8, 8)), (_F, (8, 8))), 8),
    LongCase(
        "compile 22 lines: reduce", _reduce,
        ((np.float64, (128,)), (np.float64, (1,)), (np.float64, ()), (np.bool_, ())), 128,
    ),
)  # fmt: skip
