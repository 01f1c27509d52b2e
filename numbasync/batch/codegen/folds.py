"""Kernels of reductions that no single block goes through: along the last axis, or of everything.

Several blocks share a result. Each adds up its part; the block that comes last adds up the parts,
and computes what is made of the results.
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
    """The kernel of a group with a reduction along the last axis, or of everything."""
    made = Emitter(nodes, group, written, tuning)
    space, threads, elements = group.space, tuning.threads, tuning.elements
    cols, rows = space.extent, space.outer
    tile = threads * elements
    splits = max(1, min(-(-cols // tile), -(-tuning.splits // max(rows, 1))))
    # Which elements a thread has depends on the extents alone: in other orders other bits come out.
    width = 1 if elements % WIDTH or (rows > 1 and cols % WIDTH) else WIDTH
    end, shares = made.parameter("cols", "number", cols), block_results.SHARES
    made.parameter(shares, "number", splits)
    own = reductions.reductions(nodes, [n for n in group.roots if nodes[n].is_reduction])
    each = elements_of(made, own, "row")
    head: list[str] = []
    body = [
        f"row = cuda.blockIdx.x // {shares}",
        f"share = cuda.blockIdx.x % {shares}",
        f"begin = row * {end}",
        *each("", [""], "once"),
    ]
    for r in own.values():
        body += reductions.begin(r)
    starts = range(0, elements if tuning.unroll else 0, width)
    suffixes = {s: [f"_{s + e}" for e in range(width)] for s in starts}
    lines: list[str] = []
    for s in starts:
        place = "cuda.threadIdx.x" + (f" * {width}" if width > 1 else "")
        lines += [
            f"j{s} = t + {place}" + (f" + {s * threads}" if s else ""),
            f"i{s} = begin + j{s}",
        ]
        lines += each(f"i{s}", suffixes[s], "load")
    for s in starts:
        lines += each(f"i{s}", suffixes[s], f"j{s}")
    body.append(f"t = share * {tile}")
    whole = [f"while t + {tile} <= {end}:", *indented([*lines, f"t += {shares} * {tile}"])]
    if tuning.unroll:
        body += whole if width == 1 else [f"if {made.aligned(space.shape)}:", *indented(whole)]
    one = ["i = begin + j", *each("i", [""], "load"), *each("i", [""], "j")]
    at, upto = "t + cuda.threadIdx.x", f"min(t + {tile}, {end})"
    if width == 1:
        one = [f"for j in range({at}, {upto}, {threads}):", *indented(one)]
    else:
        one = [
            f"for s in range({at} * {width}, {upto}, {threads * width}):",
            f"    for j in range(s, min(s + {width}, {end})):",
            *indented(indented(one)),
        ]
    body.append(f"while t < {end}:  # what is cut off, or lies elsewhere")
    body += indented([*one, f"t += {shares} * {tile}"])
    body += _across(made, own, head, threads)
    partials: tuple[Scratch, ...] = ()
    ends = ends_of(made, own, "row", end)
    if splits == 1:
        body += ["if cuda.threadIdx.x == 0:", *indented(ends)]
    else:
        loop = f"cuda.threadIdx.x, {shares}, {threads}"
        parts = Parts(rows * splits, "1", "cuda.blockIdx.x", f"row * {shares} + k", loop, "row")
        lines, partials = block_results.together(
            made, own, parts, head, lambda: _across(made, own, head, threads, "_all")
        )
        body += [*lines, *indented(["if cuda.threadIdx.x == 0:", *indented(ends)])]
    return made.finish(
        [*head, *body], rows * splits, threads,
        partials=partials, counters=rows if splits > 1 else 0,
    )  # fmt: skip


def _across(
    made: Emitter, own: dict[int, reductions.Reduction], head: list[str], threads: int,
    suffix: str = "",
) -> list[str]:  # fmt: skip
    """Every thread gets what the block has, through shared memory of its own."""
    places: dict[int, tuple[str, ...]] = {}
    for n, r in own.items():
        lines, places[n] = reductions.rooms(r, threads // WARP, suffix)
        head += lines
    return reductions.across_block(made, own, places, threads)
