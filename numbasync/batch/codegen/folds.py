"""Kernels of reductions that no single block processes: along the last axis, or of all elements.

Several blocks share a result. Each block adds up its part; the last block to arrive adds up the
parts, and computes the values that depend on the results.
"""

from __future__ import annotations

from collections.abc import Iterable

from numbasync.batch.codegen import block_results, reductions
from numbasync.batch.codegen.block_results import Parts
from numbasync.batch.codegen.elements import elements_of, ends_of
from numbasync.batch.codegen.reductions import WARP
from numbasync.batch.codegen.writer import WIDTH, Emitter, KernelText, Scratch, indented
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.record.nodes import Nodes


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group with a reduction along the last axis, or of all elements."""
    emitter = Emitter(nodes, group, written, tuning)
    space, threads, elements = group.space, tuning.threads, tuning.elements
    cols, rows = space.extent, space.outer
    tile = threads * elements
    splits = max(1, min(-(-cols // tile), -(-tuning.splits // max(rows, 1))))
    # The elements of a thread depend on the extents alone: another order would give other bits.
    width = 1 if elements % WIDTH or (rows > 1 and cols % WIDTH) else WIDTH
    end, shares = emitter.parameter("cols", "number", cols), block_results.SHARES
    emitter.parameter(shares, "number", splits)
    own = reductions.reductions(nodes, [n for n in group.roots if nodes[n].is_reduction])
    element_lines = elements_of(emitter, own, "row")
    head: list[str] = []
    body = [
        f"row = cuda.blockIdx.x // {shares}",
        f"share = cuda.blockIdx.x % {shares}",
        f"begin = row * {end}",
        *element_lines("", [""], "once"),
    ]
    for r in own.values():
        body += reductions.begin(r)
    starts = range(0, elements if tuning.unroll else 0, width)
    suffixes = {s: [f"_{s + e}" for e in range(width)] for s in starts}
    lines: list[str] = []
    for s in starts:
        first_index = "cuda.threadIdx.x" + (f" * {width}" if width > 1 else "")
        lines += [
            f"j{s} = t + {first_index}" + (f" + {s * threads}" if s else ""),
            f"i{s} = begin + j{s}",
        ]
        lines += element_lines(f"i{s}", suffixes[s], "load")
    for s in starts:
        lines += element_lines(f"i{s}", suffixes[s], f"j{s}")
    body.append(f"t = share * {tile}")
    full_tiles = [f"while t + {tile} <= {end}:", *indented([*lines, f"t += {shares} * {tile}"])]
    if tuning.unroll:
        body += (
            full_tiles
            if width == 1
            else [f"if {emitter.aligned(space.shape)}:", *indented(full_tiles)]
        )
    single = ["i = begin + j", *element_lines("i", [""], "load"), *element_lines("i", [""], "j")]
    start, stop = "t + cuda.threadIdx.x", f"min(t + {tile}, {end})"
    if width == 1:
        single = [f"for j in range({start}, {stop}, {threads}):", *indented(single)]
    else:
        single = [
            f"for s in range({start} * {width}, {stop}, {threads * width}):",
            f"    for j in range(s, min(s + {width}, {end})):",
            *indented(indented(single)),
        ]
    body.append(f"while t < {end}:  # what is cut off, or lies elsewhere")
    body += indented([*single, f"t += {shares} * {tile}"])
    body += _across(emitter, own, head, threads)
    partials: tuple[Scratch, ...] = ()
    ends = ends_of(emitter, own, "row", end)
    if splits == 1:
        body += ["if cuda.threadIdx.x == 0:", *indented(ends)]
    else:
        loop = f"cuda.threadIdx.x, {shares}, {threads}"
        parts = Parts(rows * splits, "1", "cuda.blockIdx.x", f"row * {shares} + k", loop, "row")
        lines, partials = block_results.together(
            emitter, own, parts, head, lambda: _across(emitter, own, head, threads, "_all")
        )
        body += [*lines, *indented(["if cuda.threadIdx.x == 0:", *indented(ends)])]
    return emitter.finish(
        [*head, *body], rows * splits, threads,
        partials=partials, counters=rows if splits > 1 else 0,
    )  # fmt: skip


def _across(
    emitter: Emitter, own: dict[int, reductions.Reduction], head: list[str], threads: int,
    suffix: str = "",
) -> list[str]:  # fmt: skip
    """Combine the parts of a block's threads, through shared memory of this reduction's own; every
    thread gets the result.
    """
    places: dict[int, tuple[str, ...]] = {}
    for n, r in own.items():
        lines, places[n] = reductions.rooms(r, threads // WARP, suffix)
        head += lines
    return reductions.across_block(emitter, own, places, threads)
