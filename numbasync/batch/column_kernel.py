"""Kernels of reductions along an axis that is not the last.

Neighbouring threads have neighbouring results, so that they read neighbouring elements. Where there
are few results, or few beside each other, threads share them: other threads of the block first,
then other blocks. Which elements a thread has depends on the extents alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from numbasync.batch import reducing, sharing
from numbasync.batch.emit import MOST_LINES, WIDE, Emitter, KernelText, Scratch, indented
from numbasync.batch.fold_kernel import Each, depends, elements_of
from numbasync.batch.fuse import Group
from numbasync.batch.graph import Nodes
from numbasync.batch.reducing import WARP, Reduction
from numbasync.batch.sharing import SHARES, Parts
from numbasync.batch.space import Space
from numbasync.batch.tuning import Tuning

LEAST_TILES = 4  # of a block; with fewer, sharing costs more than it gains
# Blocks of threads, in those that run at once, up to which threads of a block share results. Blocks
# share them only as long as all run at once: behind those that do, a few would keep the rest idle.
MOST_AT_ONCE = 2
MOST_ROUNDS = 16  # in which one thread adds up what others have


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
    def of(cls, space: Space, nbytes: int, tuning: Tuning) -> Shape:
        """The one for reductions whose variables have `nbytes`, as long as shared memory has room
        for those of all threads the same whatever they are.
        """
        threads = tuning.threads
        room = reducing.power_of_two_below(tuning.shared_bytes // max(nbytes, 1))
        if room < threads:
            threads = max(WARP, room)
        enough = MOST_AT_ONCE * tuning.at_once * threads // max(space.results, 1)
        most = threads & -threads
        deep = reducing.power_of_two_below(min(space.extent // tuning.elements, enough))
        lanes = max(threads // deep, min(WARP, reducing.power_of_two(space.inner)))
        lanes = reducing.power_of_two_below(min(lanes, most))
        deep = threads // lanes
        elements = _elements(space.extent, deep, 2 * tuning.elements)
        blocks = -(-space.results // lanes)
        tiles = -(-space.extent // (deep * elements))
        shares = max(1, min(tiles // LEAST_TILES, tuning.at_once // max(blocks, 1)))
        return cls(threads, lanes, deep, elements, blocks, shares)


def _elements(extent: int, deep: int, most: int) -> int:
    """So many, `most` of them, that none are cut off, if that is possible."""
    each = max(1, -(-extent // deep))
    if each <= most:
        return each
    fitting = (e for e in range(most, most // 2, -1) if extent % (deep * e) == 0)
    return next(fitting, most)


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group with a reduction along an axis that is not the last."""
    made = Emitter(nodes, group, written, tuning)
    space = group.space
    own = reducing.reductions(nodes, [n for n in group.roots if nodes[n].is_reduction])
    shape = Shape.of(space, reducing.nbytes(own), tuning)
    extent = made.parameter("extent", "number", space.extent)
    is_wide = space.size >= WIDE
    inner = made.parameter("inner", "number", space.inner if is_wide else np.uint32(space.inner))
    results = made.parameter("results", "number", space.results)
    head = [f"lane = cuda.threadIdx.x % {shape.lanes}", f"deep = cuda.threadIdx.x // {shape.lanes}"]
    step = str(shape.tile)
    if shape.shares == 1:
        head += ["block = cuda.blockIdx.x", "t = 0"]
    else:
        blocks = made.parameter("blocks", "number", shape.blocks)
        step = f"{made.parameter(SHARES, 'number', shape.shares)} * {shape.tile}"
        head.append(f"block = cuda.blockIdx.x % {blocks}")
        head.append(f"t = cuda.blockIdx.x // {blocks} * {shape.tile}")
    head.append(f"q = block * {shape.lanes} + lane")
    flat = "q" if is_wide else "np.uint32(q)"
    begin = [
        f"outer = {flat} // {inner}",
        f"begin = np.int64(outer) * ({extent} * {inner}) + np.int64({flat} % {inner})",
    ]
    if space.outer == 1:
        begin = ["begin = q"]
    across = _across(made, own, shape, head)
    each = elements_of(made, own, "q")
    body: list[str] = []
    for r in own.values():
        body += reducing.begin(r)
    targets = [nodes[n].inputs[0] for n in own]
    targets += [n for n in made.outputs if not depends(made, own, n)]
    is_unrolled = tuning.unroll and len(made.order(targets, ())) * shape.elements <= MOST_LINES
    looped = _unrolled if is_unrolled else _loop
    body += [
        f"if q < {results}:",
        *indented([*begin, *each("", [""], "once")]),
        *indented(looped(each, shape, space.extent, step)),
        *across,
    ]
    names = made.constants()
    ends: list[str] = []
    for n, r in own.items():
        names[n] = made.name()
        ends.append(f"{names[n]} = {reducing.result(made, r, extent)}")
    for n in made.outputs:
        if depends(made, own, n):
            scope = dict(names)
            made.at_results([n], nodes[n].shape, "q", scope, ends)
            ends.append(made.store(n, "q", scope[n]))
    ends = [f"if deep == 0 and q < {results}:", *indented(ends)]
    partials: tuple[Scratch, ...] = ()
    if shape.shares > 1:
        count = shape.blocks * shape.shares * shape.lanes
        mine = f"cuda.blockIdx.x * {shape.lanes} + lane"
        others = f"(k * blocks + block) * {shape.lanes} + lane"
        loop = f"deep, {SHARES}, {shape.deep}"
        parts = Parts(count, shape.lanes, mine, others, loop, "block")
        lines, partials = sharing.together(made, own, parts, head, lambda: across)
        ends = [*lines, *indented(ends)]
    return made.finish(
        [*head, *body, *ends], shape.blocks * shape.shares, shape.threads,
        partials=partials, counters=shape.blocks if shape.shares > 1 else 0,
        many_registers=is_unrolled,
    )  # fmt: skip


def _loop(each: Each, shape: Shape, extent: int, step: str) -> list[str]:
    """An element after the other."""
    upto = f"t + {shape.tile}" if extent % shape.tile == 0 else f"min(t + {shape.tile}, extent)"
    return [
        "while t < extent:",
        f"    for j in range(t + deep, {upto}, {shape.deep}):",
        "        i = begin + j * inner",
        *indented(indented([*each("i", [""], "load"), *each("i", [""], "j")])),
        f"    t += {step}",
    ]


def _unrolled(each: Each, shape: Shape, extent: int, step: str) -> list[str]:
    """In the same order, those of a tile together. Of the last tile, what is cut off is loaded from
    elsewhere, and not used.
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
        lines = [
            f"while t + {shape.tile} <= extent:", *indented([*tile(False), f"t += {step}"])
        ]  # fmt: skip
    if extent % shape.tile:
        lines += ["if t < extent:", *indented(tile(True))]
    return lines


def _across(
    made: Emitter, own: Mapping[int, Reduction], shape: Shape, head: list[str]
) -> list[str]:
    """The first threads of a block get what those have who share their results, through shared
    memory: some of them what some others have, and then the first ones all.
    """
    if shape.deep == 1:
        return []
    rooms: dict[int, tuple[str, ...]] = {}
    for n, r in own.items():
        declared, rooms[n] = reducing.rooms(r, shape.threads)
        head += declared
    pairs = [pair for n, r in own.items() for pair in zip(rooms[n], r.names, strict=True)]
    writes = [f"{room}[cuda.threadIdx.x] = {name}" for room, name in pairs]
    inner: list[str] = []
    for n, r in own.items():
        parts = tuple(f"{name}_there" for name in r.names)
        inner += [f"{x} = {room}[w * {shape.lanes} + lane]"
                  for x, room in zip(parts, rooms[n], strict=True)]  # fmt: skip
        inner += reducing.merge(made, r, parts)
    lines = [*writes, "cuda.syncthreads()"]
    some = shape.deep
    if some > MOST_ROUNDS:
        some = reducing.power_of_two(math.isqrt(shape.deep - 1) + 1)
        lines += [
            f"if deep < {some}:",
            f"    for w in range(deep + {some}, {shape.deep}, {some}):",
            *indented(indented(inner)),
            *indented(writes),
            "cuda.syncthreads()",
        ]
    return [
        *lines, "if deep == 0:", f"    for w in range(1, {some}):", *indented(indented(inner))
    ]  # fmt: skip
