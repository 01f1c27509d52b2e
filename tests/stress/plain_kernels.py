"""Random plain kernels: their coarsened variants against the kernels as written, bit for bit.

    python -m tests.stress.plain_kernels COUNT DEVICE [SEED]

prints one line for each kernel that differs, with its source, and a summary. On the CPU device both
run as written, which tests the generator alone.
"""

from __future__ import annotations

import linecache
import math
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import cuda, float32, int32

import numbasync as na

DTYPES = ("f4", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "c8", "f2", "?")
AXES = "ijk"


@cuda.jit(device=True)
def clamped(value: Any, low: Any, high: Any) -> Any:
    if value < low:
        return low
    return min(value, high)


@dataclass
class Program:
    """A kernel and a call of it.

    Attributes:
        source: of the kernel, named `kernel`.
        extents: of the outputs, by axis of `cuda.grid`.
        order: the axes of `cuda.grid` that index an array, in the order of the array's axes.
        dtypes: of each array parameter, outputs first.
        outputs: the number of outputs.
        offset: elements by which each array starts behind an aligned address.
        block: threads of a block.
        elements: positions a thread of the variant.
    """

    source: str
    extents: tuple[int, ...]
    order: tuple[int, ...]
    dtypes: list[str]
    outputs: int
    offset: list[int]
    block: tuple[int, ...]
    elements: int
    scalars: list[Any] = field(default_factory=list)


def program(draw: random.Random) -> Program:
    """A random plain kernel, and a call of it."""
    rank = draw.choice((1, 1, 1, 2, 2, 3))
    longest = {1: 5000, 2: 90, 3: 24}[rank]
    extents = tuple(draw.randint(8, longest) for _ in range(rank))
    order = tuple(draw.sample(range(rank), rank))
    outputs = draw.choice((1, 1, 2))
    count = outputs + draw.randint(1, 3)
    dtypes = [draw.choice(DTYPES) for _ in range(count)]
    names = [f"z{n}" if n < outputs else f"x{n}" for n in range(count)]
    index = ", ".join(AXES[a] for a in order)
    margin = draw.choice((0, 0, 1, 2))
    guard = _guard(draw, rank, order, margin)
    body = _body(draw, names, dtypes, outputs, index, order, margin)
    indent = "        " if guard[-1].startswith("    if") and guard[-1].endswith(":") else "    "
    coordinates = ", ".join(AXES[:rank])
    lines = [
        f"def kernel({', '.join(names)}, a, n):",
        f"    {coordinates} = cuda.grid({rank})",
        *guard,
        *(indent + line for line in body),
    ]
    threads = draw.choice((32, 64, 128, 256))
    block = {1: (threads,), 2: (threads // 4, 4), 3: (threads // 8, 4, 2)}[rank]
    if draw.random() < 0.8:  # a row of threads, mostly where elements lie side by side
        row = draw.choice((order[-1], order[-1], order[-1], order[0]))
        block = tuple(min(threads, 64) if axis == row else 1 for axis in range(rank))
    offset = [draw.choice((0, 0, 1, 3)) if rank == 1 else 0 for _ in names]
    if draw.random() < 0.5:
        offset = [0] * count
    return Program(
        "\n".join(lines) + "\n", extents, order, dtypes, outputs, offset, block,
        draw.choice((2, 4, 4, 8)), [draw.choice((np.float32(0.75), 3, 1.25)), extents[0]],
    )  # fmt: skip


def _guard(draw: random.Random, rank: int, order: tuple[int, ...], margin: int) -> list[str]:
    """Lines in front of the body; the last one opens a block, or returns."""
    place = {axis: f"z0.shape[{position}]" for position, axis in enumerate(order)}
    if rank == 1:
        place[0] = draw.choice(("z0.shape[0]", "z0.size", "len(z0)", "n"))
    low = f"{margin} <= " if margin else ""
    less = f" - {margin}" if margin else ""
    tests = [f"{low}{AXES[a]} < {place[a]}{less}" for a in range(rank)]
    style = draw.randrange(3)
    if style == 0:
        return [f"    if {' and '.join(tests)}:"]
    if style == 1:
        return [f"    if not ({' and '.join(tests)}):", "        return"]
    return [line for test in tests for line in (f"    if not ({test}):", "        return")]


def _body(
    draw: random.Random, names: list[str], dtypes: list[str], outputs: int, index: str,
    order: tuple[int, ...], margin: int,
) -> list[str]:  # fmt: skip
    reads = [name for name, dtype in zip(names[outputs:], dtypes[outputs:], strict=True)]
    shifted = index
    if margin:
        step = draw.choice((f"- {margin}", f"+ {margin}"))
        shifted = index.replace(AXES[order[-1]], f"{AXES[order[-1]]} {step}")
    lines = []
    terms = [f"{name}[{draw.choice((index, shifted))}]" for name in reads]
    if draw.random() < 0.5:
        lines.append(f"v = {draw.choice(terms)}")
        terms.append("v")
    for n in range(outputs):
        is_real = all(d not in ("c8", "?", "f2") for d in dtypes)
        expression = _expression(draw, terms, is_real)
        target = f"{names[n]}[{index}]"
        if draw.random() < 0.3 and dtypes[n] not in ("?", "c8") and is_real:
            lines.append(f"{target} += {expression}")
        else:
            lines.append(f"{target} = {expression}")
    return lines


def _expression(draw: random.Random, terms: list[str], is_real: bool, depth: int = 0) -> str:
    if depth > 2 or draw.random() < 0.2:
        return draw.choice(terms)

    def part() -> str:
        return _expression(draw, terms, is_real, depth + 1)

    kinds = ["+", "+", "-", "*", "*"]
    if is_real:
        kinds += ["min", "max", "if", "a", "clamped", "exp", "abs", "fma"]
    kind = draw.choice(kinds)
    if kind in "+-*":
        return f"({part()} {kind} {part()})"
    if kind in ("min", "max"):
        return f"{kind}({part()}, {part()})"
    if kind == "if":
        return f"({part()} if {part()} > 1 else {part()})"
    if kind == "a":
        return f"(a * {part()})"
    if kind == "clamped":
        return f"clamped({part()}, -2, 2)"
    if kind == "exp":
        return f"math.exp(-abs(float32({part()})))"
    if kind == "abs":
        return f"abs({part()})"
    # The same product for every position: a compiler may share it.
    return f"(float32(0.2) * {draw.choice(terms)} + float32(0.4) * {draw.choice(terms)})"


def compiled(source: str, number: int, elements: int) -> Any:
    """The launcher of a kernel, which has its own file."""
    file = f"<plain kernel {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Any] = {
        "cuda": cuda, "math": math, "float32": float32, "int32": int32, "clamped": clamped,
    }  # fmt: skip
    exec(compile(source, file, "exec"), names)
    return na.launcher(elements=elements)(cuda.jit(names["kernel"]))


def results(p: Program, number: int, elements: int) -> tuple[list[np.ndarray[Any, Any]], int]:
    """The outputs of one launch, each with what lies around it; the coarsened kernels it used."""
    draw = np.random.default_rng(number)
    shape = tuple(p.extents[axis] for axis in p.order)
    whole, views = [], []
    for dtype, offset in zip(p.dtypes, p.offset, strict=True):
        size = math.prod(shape)
        numbers = draw.integers(0, 5, size + 16)
        tensor = na.from_host((numbers > 2 if dtype == "?" else numbers).astype(dtype)).sync()
        whole.append(tensor)
        views.append(tensor[offset : offset + size].reshape(shape))
    grid = tuple(-(-n // b) for n, b in zip(p.extents, p.block, strict=True))
    kernel = compiled(p.source, number, elements)
    kernel[grid, p.block](*views, *p.scalars).sync()
    return [t.to_host().sync() for t in whole], len(kernel.planner.coarse_kernels)


def main(count: int, device: str, seed: int) -> int:
    """Compare `count` programs; returns the number that differ."""
    wrong = refused = coarsened = 0
    with na.use_device(na.devices(device)[0]):
        for number in range(seed, seed + count):
            p = program(random.Random(number))
            try:
                expected, _ = results(p, number, 1)
            except na.errors.KernelCompileError:  # Numba has no such operation
                refused += 1
                continue
            actual, used = results(p, number, p.elements)
            coarsened += used
            if any(a.tobytes() != b.tobytes() for a, b in zip(expected, actual, strict=True)):
                wrong += 1
                print(f"program {number} differs: {p}\n{p.source}")
    print(
        f"{count} programs from {seed}: {wrong} differ, {coarsened} were coarsened, {refused} are "
        "refused by Numba"
    )
    return wrong


if __name__ == "__main__":
    arguments = sys.argv[1:]
    first = int(arguments[2]) if len(arguments) > 2 else 0
    sys.exit(bool(main(int(arguments[0]), arguments[1], first)))
