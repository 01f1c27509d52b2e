"""Kernels of reductions along an axis that is not the last.

A warp has 32 neighbouring results, so that it reads 32 neighbouring elements at a time. The warps
of a block share the elements of each result, and add up what they have in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from numbasync.batch import reducing
from numbasync.batch.emit import Emitter, KernelText, indented
from numbasync.batch.fold_kernel import depends, elements_of
from numbasync.batch.fuse import Group
from numbasync.batch.graph import Nodes
from numbasync.batch.reducing import WARP
from numbasync.batch.tuning import Tuning

FEW_BLOCKS = 1024  # with fewer, each has as many threads as it can
MOST_THREADS = 512  # each may then have 128 registers


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group with a reduction along an axis that is not the last."""
    made = Emitter(nodes, group, written, tuning)
    space = group.space
    extent = made.parameter("extent", "number", space.extent)
    inner = made.parameter("inner", "number", space.inner)
    results = made.parameter("results", "number", space.results)
    blocks = -(-space.results // WARP)
    own = reducing.reductions(nodes, [n for n in group.roots if nodes[n].is_reduction])
    threads = tuning.threads
    while blocks < FEW_BLOCKS and threads < MOST_THREADS and space.extent > threads:
        threads *= 2
    room = tuning.shared_bytes // max(reducing.nbytes(own), 1) // WARP * WARP
    threads = max(WARP, min(threads, room))
    warps = threads // WARP
    each = elements_of(made, own)
    head = [
        f"lane = cuda.threadIdx.x % {WARP}",
        f"warp = cuda.threadIdx.x // {WARP}",
        f"q = cuda.blockIdx.x * {WARP} + lane",
    ]
    body = each("", [""], "once")
    rooms: dict[int, tuple[str, ...]] = {}
    for n, r in own.items():
        lines, rooms[n] = reducing.rooms(r, threads)
        head += lines
        body += reducing.begin(r)
    body.append(f"if q < {results}:")
    inside = [
        f"begin = q // {inner} * ({extent} * {inner}) + q % {inner}",
        f"for j in range(warp, {extent}, {warps}):",
        f"    i = begin + j * {inner}",
    ]
    inside += indented([*each("i", [""], "load"), *each("i", [""], "j")])
    body += indented(inside)
    for n, r in own.items():
        body += [
            f"{room}[cuda.threadIdx.x] = {name}"
            for room, name in zip(rooms[n], r.names, strict=True)
        ]
    body += ["cuda.syncthreads()", f"if warp == 0 and q < {results}:"]
    ends = [f"for w in range(1, {warps}):"]
    for n, r in own.items():
        parts = tuple(f"{name}_part" for name in r.names)
        ends += [
            f"    {part} = {room}[w * {WARP} + lane]"
            for part, room in zip(parts, rooms[n], strict=True)
        ]
        ends += indented(reducing.merge(made, r, parts))
    names = made.constants()
    for n, r in own.items():
        names[n] = made.name()
        ends.append(f"{names[n]} = {reducing.result(made, r, extent)}")
    for n in made.outputs:
        if depends(made, own, n):
            scope = dict(names)
            made.at_results([n], nodes[n].shape, "q", scope, ends)
            ends.append(made.store(n, "q", scope[n]))
    body += indented(ends)
    return made.finish([*head, *body], blocks, threads)
