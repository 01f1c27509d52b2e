"""Kernels of reductions along an axis that is not the last.

Neighbouring threads have neighbouring results, so that they read neighbouring elements. Where there
are few results, or few beside each other, threads share them: other threads of the block first,
then other blocks. Which elements a thread has depends on the extents alone: so a sum has the same
bits whatever else the kernel computes.
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

LEAST_TILES = 4  # of a block; with fewer, sharing costs more than it gains
# Blocks of threads, in those that run at once, up to which threads of a block share results. Blocks
# share them only up to as many as run at once: behind those, a few would keep the rest idle.
MOST_AT_ONCE = 2
MOST_ROUNDS = 16  # in which one thread adds up what others have
REGISTERS = 128  # of a thread, for loads to be in flight together


class Shape(NamedTuple):
    """How threads have the elements.

    Attributes:
        threads: of a block.
        lanes: results of a block: neighbouring threads have them.
        deep: threads that share a result.
        elements: of a thread that are loaded together.
        blocks: that have other results.
        shares: blocks that have the same ones.
    """

    threads: int
    lanes: int
    deep: int
    elements: int
    blocks: int
    shares: int

    @property
    def tile(self) -> int:
        """Elements of a result that a block goes through at a time."""
        return self.deep * self.elements

    @classmethod
    def of(cls, space: Space, tuning: Tuning) -> Shape:
        """The one that suits a space."""
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
    """All that a thread has, or nearly `most`: so many that none are cut off, if there is such a
    number.
    """
    each = max(1, -(-extent // deep))
    if each <= most:
        return each
    fitting = (e for e in range(most, most // 2, -1) if extent % (deep * e) == 0)
    return next(fitting, most)


class _Extents(NamedTuple):
    """The numbers of a shape in a text.

    Where elements are written out, they are part of it: what is known when it is compiled costs
    nothing when it runs. Where there is a loop, they are parameters: one text for all shapes.
    """

    lanes: str
    depth: str
    tile: str
    some: str

    @classmethod
    def of(cls, made: Emitter, shape: Shape) -> _Extents:
        some = shape.deep
        if some > MOST_ROUNDS:
            some = reductions.power_of_two(math.isqrt(shape.deep - 1) + 1)
        numbers = (shape.lanes, shape.deep, shape.tile, some)
        if made.tuning.unroll:
            return cls(*map(str, numbers))
        names = zip(cls._fields, numbers, strict=True)
        return cls(*(made.parameter(name, "number", number) for name, number in names))


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group with a reduction along an axis that is not the last."""
    made = Emitter(nodes, group, written, tuning)
    space = group.space
    own = reductions.reductions(nodes, [n for n in group.roots if nodes[n].is_reduction])
    shape = Shape.of(space, tuning)
    extent = made.parameter("extent", "number", space.extent)
    is_wide = max(space.size, space.inner) >= WIDE
    inner = made.parameter("inner", "number", space.inner if is_wide else np.uint32(space.inner))
    results = made.parameter("results", "number", space.results)
    by = _Extents.of(made, shape)
    head = [f"lane = cuda.threadIdx.x % {by.lanes}", f"deep = cuda.threadIdx.x // {by.lanes}"]
    step = by.tile
    if shape.shares == 1:
        head += ["block = cuda.blockIdx.x", "t = 0"]
    else:
        blocks = made.parameter("blocks", "number", shape.blocks)
        step = f"{made.parameter(SHARES, 'number', shape.shares)} * {by.tile}"
        head.append(f"block = cuda.blockIdx.x % {blocks}")
        head.append(f"t = cuda.blockIdx.x // {blocks} * {by.tile}")
    head.append(f"q = block * {by.lanes} + lane")
    flat = "q" if is_wide else "np.uint32(q)"
    begin = [
        f"outer = {flat} // {inner}",
        f"begin = np.int64(outer) * ({extent} * {inner}) + np.int64({flat} % {inner})",
    ]
    if space.outer == 1:
        begin = ["begin = q"]
    across = _across(made, own, shape, by, head)
    each = elements_of(made, own, "q")
    body: list[str] = []
    for r in own.values():
        body += reductions.begin(r)
    lines = _lines(made, own) * shape.elements  # of a tile that is written out
    is_unrolled = tuning.unroll and lines <= MOST_LINES
    if is_unrolled:
        looped = _unrolled(each, shape, by, space.extent, step, 2 * lines <= MOST_LINES)
    else:
        looped = ["while t < extent:", *indented([*_loop(each, by), f"t += {step}"])]
    body += [
        f"if q < {results}:",
        *indented([*begin, *each("", [""], "once"), *looped]),
        *across,
    ]
    ends = [f"if deep == 0 and q < {results}:", *indented(ends_of(made, own, "q", extent))]
    partials: tuple[Scratch, ...] = ()
    if shape.shares > 1:
        count = shape.blocks * shape.shares * shape.lanes
        mine = f"cuda.blockIdx.x * {by.lanes} + lane"
        others = f"(k * blocks + block) * {by.lanes} + lane"
        parts = Parts(count, by.lanes, mine, others, f"deep, {SHARES}, {by.depth}", "block")
        found, partials = block_results.together(made, own, parts, head, lambda: across)
        ends = [*found, *indented(ends)]
    return made.finish(
        [*head, *body, *ends], shape.blocks * shape.shares, shape.threads,
        partials=partials, counters=shape.blocks if shape.shares > 1 else 0,
        registers=REGISTERS if is_unrolled else 0,
    )  # fmt: skip


def _lines(made: Emitter, own: dict[int, Reduction]) -> int:
    """Of one element, about."""
    targets = [made.nodes[n].inputs[0] for n in own]
    targets += [n for n in made.outputs if not depends(made, own, n)]
    return len(made.order(targets, ())) + sum(2 * len(r.names) - 1 for r in own.values())


def _loop(each: Each, by: _Extents) -> list[str]:
    """A tile, an element after the other."""
    return [
        f"for j in range(t + deep, min(t + {by.tile}, extent), {by.depth}):",
        "    i = begin + j * inner",
        *indented([*each("i", [""], "load"), *each("i", [""], "j")]),
    ]


def _unrolled(
    each: Each, shape: Shape, by: _Extents, extent: int, step: str, all_of_it: bool
) -> list[str]:
    """In the same order, those of a tile together. Of the last tile, what is cut off is loaded from
    elsewhere, and not used.

    Args:
        all_of_it: also of a tile that is cut off.
    """

    def tile(is_cut: bool) -> list[str]:
        lines: list[str] = []
        for s in range(shape.elements):
            lines.append(f"j{s} = t + deep" + (f" + {s * shape.deep}" if s else ""))
            found = f"min(j{s}, extent - 1)" if is_cut else f"j{s}"
            lines += [f"i{s} = begin + {found} * inner", *each(f"i{s}", [f"_{s}"], "load")]
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
    made: Emitter, own: Mapping[int, Reduction], shape: Shape, by: _Extents, head: list[str]
) -> list[str]:
    """The first threads of a block get what those have who share their results, through shared
    memory: some of them what some others have, and then the first ones all. As many reductions at a
    time as it has room for.
    """
    if shape.deep == 1:
        return []
    lines: list[str] = []
    for some in _rooms(made, own, shape.threads, head):
        pairs = [
            pair for n, rooms in some.items() for pair in zip(rooms, own[n].names, strict=True)
        ]
        writes = [f"{room}[cuda.threadIdx.x] = {name}" for room, name in pairs]
        inner: list[str] = []
        for n, rooms in some.items():
            parts = tuple(f"{name}_there" for name in own[n].names)
            inner += [f"{x} = {room}[w * {by.lanes} + lane]"
                      for x, room in zip(parts, rooms, strict=True)]  # fmt: skip
            inner += reductions.merge(made, own[n], parts)
        if lines:
            lines.append("cuda.syncthreads()")  # what was there has been read
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
    made: Emitter, own: Mapping[int, Reduction], threads: int, head: list[str]
) -> list[dict[int, tuple[str, ...]]]:
    """Shared memory for the reductions of each round: one for all, if there is room."""
    need: Counter[DType] = Counter()
    for r in own.values():
        need |= Counter(r.dtypes)  # of any one
    room = made.tuning.shared_bytes - block_results.SHARED_BYTES
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
