"""Kernels of reductions along an axis that is not the last.

Neighbouring threads have neighbouring results, so that they read neighbouring elements. Where there
are few results, or few beside each other, threads share results: threads of the block first, then
blocks. The elements of a thread depend on the extents alone: a sum therefore has the same bits
whatever else the kernel computes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from numbasync.batch.codegen import block_results, reductions
from numbasync.batch.codegen.block_results import SHARES, Parts
from numbasync.batch.codegen.elements import Each, depends, elements_of, ends_of
from numbasync.batch.codegen.reductions import WARP, Reduction
from numbasync.batch.codegen.writer import MOST_LINES, WIDE, Emitter, KernelText, Scratch, indented
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.indexing import Space
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.record.element_ops import DType
from numbasync.batch.record.nodes import Nodes

LEAST_TILES = 4  # per block; with fewer, sharing costs more than it gains
# The multiple of the blocks that run concurrently up to which threads of a block share results.
# Blocks share results only up to the number that run concurrently: a few blocks beyond that would
# leave the others idle.
MOST_AT_ONCE = 2
MOST_ROUNDS = 16  # rounds in which one thread adds up the parts of other threads
REGISTERS = 128  # per thread, for loads to be in flight together


class Shape(NamedTuple):
    """The distribution of elements over threads.

    Attributes:
        threads: per block.
        lanes: results of a block: neighbouring threads have them.
        deep: threads that share a result.
        elements: of a thread that are loaded together.
        blocks: blocks with different results.
        shares: blocks with the same results.
    """

    threads: int
    lanes: int
    deep: int
    elements: int
    blocks: int
    shares: int

    @property
    def tile(self) -> int:
        """Elements of a result that a block processes at a time."""
        return self.deep * self.elements

    @classmethod
    def of(cls, space: Space, tuning: Tuning) -> Shape:
        """The distribution that suits a space."""
        threads = tuning.threads
        enough = MOST_AT_ONCE * tuning.at_once * threads // max(space.results, 1)
        deep = reductions.power_of_two_below(min(space.extent // tuning.elements, enough))
        lanes = max(threads // deep, min(WARP, reductions.power_of_two(space.inner)))
        lanes = reductions.power_of_two_below(min(lanes, threads & -threads))
        deep = threads // lanes
        elements = _elements(space.extent, deep, 2 * tuning.elements)
        blocks = -(-space.results // lanes)
        tiles = -(-space.extent // (deep * elements))
        shares = max(1, min(tiles // LEAST_TILES, tuning.at_once // max(blocks, 1)))
        return cls(threads, lanes, deep, elements, blocks, shares)


def _elements(extent: int, deep: int, most: int) -> int:
    """Elements that a thread loads together: all of its elements, or nearly `most`, preferring a
    number that leaves no partial tile.
    """
    per_thread = max(1, -(-extent // deep))
    if per_thread <= most:
        return per_thread
    fitting = (e for e in range(most, most // 2, -1) if extent % (deep * e) == 0)
    return next(fitting, most)


class _Extents(NamedTuple):
    """The numbers of a shape in the source.

    Where elements are unrolled, the numbers are literals: numbers known at compile time cost
    nothing at run time. Where there is a loop, the numbers are parameters: one source serves all
    shapes.
    """

    lanes: str
    depth: str
    tile: str
    some: str

    @classmethod
    def of(cls, emitter: Emitter, shape: Shape) -> _Extents:
        some = shape.deep
        if some > MOST_ROUNDS:
            some = reductions.power_of_two(math.isqrt(shape.deep - 1) + 1)
        numbers = (shape.lanes, shape.deep, shape.tile, some)
        if emitter.tuning.unroll:
            return cls(*map(str, numbers))
        names = zip(cls._fields, numbers, strict=True)
        return cls(*(emitter.parameter(name, "number", number) for name, number in names))


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group with a reduction along an axis that is not the last."""
    emitter = Emitter(nodes, group, written, tuning)
    space = group.space
    own = reductions.reductions(nodes, [n for n in group.roots if nodes[n].is_reduction])
    shape = Shape.of(space, tuning)
    extent = emitter.parameter("extent", "number", space.extent)
    is_wide = max(space.size, space.inner) >= WIDE
    inner = emitter.parameter("inner", "number", space.inner if is_wide else np.uint32(space.inner))
    results = emitter.parameter("results", "number", space.results)
    numbers = _Extents.of(emitter, shape)
    head = [
        f"lane = cuda.threadIdx.x % {numbers.lanes}",
        f"deep = cuda.threadIdx.x // {numbers.lanes}",
    ]
    step = numbers.tile
    if shape.shares == 1:
        head += ["block = cuda.blockIdx.x", "t = 0"]
    else:
        blocks = emitter.parameter("blocks", "number", shape.blocks)
        step = f"{emitter.parameter(SHARES, 'number', shape.shares)} * {numbers.tile}"
        head.append(f"block = cuda.blockIdx.x % {blocks}")
        head.append(f"t = cuda.blockIdx.x // {blocks} * {numbers.tile}")
    head.append(f"q = block * {numbers.lanes} + lane")
    flat = "q" if is_wide else "np.uint32(q)"
    begin = [
        f"outer = {flat} // {inner}",
        f"begin = np.int64(outer) * ({extent} * {inner}) + np.int64({flat} % {inner})",
    ]
    if space.outer == 1:
        begin = ["begin = q"]
    across = _across(emitter, own, shape, numbers, head)
    element_lines = elements_of(emitter, own, "q")
    body: list[str] = []
    for r in own.values():
        body += reductions.begin(r)
    lines = _lines(emitter, own) * shape.elements  # of an unrolled tile
    is_unrolled = tuning.unroll and lines <= MOST_LINES
    if is_unrolled:
        looped = _unrolled(
            element_lines, shape, numbers, space.extent, step, 2 * lines <= MOST_LINES
        )
    else:
        looped = ["while t < extent:", *indented([*_loop(element_lines, numbers), f"t += {step}"])]
    body += [
        f"if q < {results}:",
        *indented([*begin, *element_lines("", [""], "once"), *looped]),
        *across,
    ]
    ends = [f"if deep == 0 and q < {results}:", *indented(ends_of(emitter, own, "q", extent))]
    partials: tuple[Scratch, ...] = ()
    if shape.shares > 1:
        count = shape.blocks * shape.shares * shape.lanes
        own_index = f"cuda.blockIdx.x * {numbers.lanes} + lane"
        other_index = f"(k * blocks + block) * {numbers.lanes} + lane"
        parts = Parts(
            count,
            numbers.lanes,
            own_index,
            other_index,
            f"deep, {SHARES}, {numbers.depth}",
            "block",
        )
        combined_lines, partials = block_results.together(emitter, own, parts, head, lambda: across)
        ends = [*combined_lines, *indented(ends)]
    return emitter.finish(
        [*head, *body, *ends], shape.blocks * shape.shares, shape.threads,
        partials=partials, counters=shape.blocks if shape.shares > 1 else 0,
        registers=REGISTERS if is_unrolled else 0,
    )  # fmt: skip


def _lines(emitter: Emitter, own: dict[int, Reduction]) -> int:
    """The approximate number of lines for one element."""
    targets = [emitter.nodes[n].inputs[0] for n in own]
    targets += [n for n in emitter.outputs if not depends(emitter, own, n)]
    return len(emitter.order(targets, ())) + sum(2 * len(r.names) - 1 for r in own.values())


def _loop(each: Each, by: _Extents) -> list[str]:
    """A tile, one element after the other."""
    return [
        f"for j in range(t + deep, min(t + {by.tile}, extent), {by.depth}):",
        "    i = begin + j * inner",
        *indented([*each("i", [""], "load"), *each("i", [""], "j")]),
    ]


def _unrolled(
    each: Each, shape: Shape, by: _Extents, extent: int, step: str, all_of_it: bool
) -> list[str]:
    """The elements in the same order, those of a tile together. In the last tile, elements beyond
    the end are loaded from another index, and not used.

    Args:
        all_of_it: unroll a partial tile, too.
    """

    def tile(is_cut: bool) -> list[str]:
        lines: list[str] = []
        for s in range(shape.elements):
            lines.append(f"j{s} = t + deep" + (f" + {s * shape.deep}" if s else ""))
            column = f"min(j{s}, extent - 1)" if is_cut else f"j{s}"
            lines += [f"i{s} = begin + {column} * inner", *each(f"i{s}", [f"_{s}"], "load")]
        for s in range(shape.elements):
            taken = each(f"i{s}", [f"_{s}"], f"j{s}")
            lines += [f"if j{s} < extent:", *indented(taken)] if is_cut else taken
        return lines

    lines: list[str] = []
    if extent >= shape.tile:
        whole = [*tile(False), f"t += {step}"]
        lines = [f"while t + {shape.tile} <= extent:", *indented(whole)]
    if extent % shape.tile:
        lines += ["if t < extent:", *indented(tile(True) if all_of_it else _loop(each, by))]
    return lines


def _across(
    emitter: Emitter, own: Mapping[int, Reduction], shape: Shape, by: _Extents, head: list[str]
) -> list[str]:
    """Combine, through shared memory, the parts of threads that share results, in the first threads
    of a block: some threads first take the parts of some others, then the first ones take all. As
    many reductions at a time as shared memory has room for.
    """
    if shape.deep == 1:
        return []
    lines: list[str] = []
    for some in _rooms(emitter, own, shape.threads, head):
        pairs = [
            pair for n, rooms in some.items() for pair in zip(rooms, own[n].names, strict=True)
        ]
        writes = [f"{room}[cuda.threadIdx.x] = {name}" for room, name in pairs]
        inner: list[str] = []
        for n, rooms in some.items():
            parts = tuple(f"{name}_there" for name in own[n].names)
            inner += [f"{x} = {room}[w * {by.lanes} + lane]"
                      for x, room in zip(parts, rooms, strict=True)]  # fmt: skip
            inner += reductions.merge(emitter, own[n], parts)
        if lines:
            lines.append("cuda.syncthreads()")  # the previous round's values have been read
        lines += [*writes, "cuda.syncthreads()"]
        if shape.deep > MOST_ROUNDS:
            lines += [
                f"if deep < {by.some}:",
                f"    for w in range(deep + {by.some}, {by.depth}, {by.some}):",
                *indented(indented(inner)),
                *indented(writes),
                "cuda.syncthreads()",
            ]
        lines += ["if deep == 0:", f"    for w in range(1, {by.some}):", *indented(indented(inner))]
    return lines


def _rooms(
    emitter: Emitter, own: Mapping[int, Reduction], threads: int, head: list[str]
) -> list[dict[int, tuple[str, ...]]]:
    """Shared memory for the reductions of each round: one round for all, if there is room."""
    need: Counter[DType] = Counter()
    for r in own.values():
        need |= Counter(r.dtypes)  # the need of any one reduction
    room = emitter.tuning.shared_bytes - block_results.SHARED_BYTES
    most = len(own)
    if reductions.nbytes(own) * threads > room:
        most = max(1, room // (threads * sum(k.itemsize * count for k, count in need.items())))
    rounds: list[dict[int, tuple[str, ...]]] = []
    declared: dict[str, None] = {}
    numbers = list(own)
    for first in range(0, len(numbers), most):
        used: Counter[DType] = Counter()
        rounds.append({})
        for n in numbers[first : first + most]:
            names: list[str] = []
            for dtype in own[n].dtypes:
                names.append(f"room{used[dtype]}_{dtype.name}")
                used[dtype] += 1
                declared[f"{names[-1]} = cuda.shared.array({threads}, np.{dtype.name})"] = None
            rounds[-1][n] = tuple(names)
    head += declared
    return rounds
