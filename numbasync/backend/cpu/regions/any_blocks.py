"""Kernels whose threads may be in any blocks: they know their place in the grid, and no more.

Such a kernel does the same in blocks of other sizes, if the grid has as many threads. Where a
grid-stride loop has been turned, blocks that are merged read and write memory straight on; one
after the other they would come back to each of its pages, each time for a part of it.
"""

from __future__ import annotations

from numbasync.backend.cpu.regions.cut import OF_BLOCK, THREAD_NAMES, CutKernel, Level
from numbasync.backend.cpu.regions.instructions import Instruction
from numbasync.backend.cpu.regions.keep import Kept
from numbasync.backend.cpu.regions.llvm_types import size_and_alignment

MOST_MERGED = 1 << 14  # threads: of numbers of 32 bits a round takes 64 KiB of each array
_MOST_KEPT = 1 << 15  # bytes, which stay in the nearest cache from round to round
_PLACE = ("%na.wx", "%na.bx", "%na.gx")
_COORDINATES = THREAD_NAMES | {f"%na.{name}" for name in OF_BLOCK}


def most_merged(kernel: CutKernel, kept: Kept) -> int:
    """How many threads blocks may have that are made of several; 0 if they are to stay apart."""
    turned = [b for b in kernel.barriers if b.level is Level.LOOP]
    if not turned or len(turned) < len(kernel.barriers) or kernel.memory:
        return 0
    if not _know_only_the_grid(kernel):
        return 0
    nbytes = sum(size_and_alignment(kind)[0] for kind in kept.per_thread.values())
    nbytes += sum(size_and_alignment(kind)[0] for kind, _ in kernel.local_arrays.values())
    return min(MOST_MERGED, _MOST_KEPT // max(nbytes, 1))


def _know_only_the_grid(kernel: CutKernel) -> bool:
    """Whether coordinates are used in `blockDim.x * blockIdx.x + threadIdx.x` and `blockDim.x *
    gridDim.x` alone.
    """
    widened: dict[str, str] = {}  # the coordinate that a value is, as 64 bits
    first: set[str] = set()  # products that are the number of a block's first thread
    code = [i for block in kernel.function.blocks.values() for i in block]
    for i in code:
        if i.opcode in ("zext", "sext") and i.uses[0] in ("%na.tx", *_PLACE) and i.type == "i64":
            widened[i.result] = i.uses[0]
    for i in code:
        if i.opcode == "mul" and {widened.get(u) for u in i.uses} == {"%na.wx", "%na.bx"}:
            first.add(i.result)
    return all(_keeps_to_the_grid(i, widened, first) for i in code)


def _keeps_to_the_grid(i: Instruction, widened: dict[str, str], first: set[str]) -> bool:
    if i.result in widened or i.result in first:
        return True
    used = {widened.get(u) for u in i.uses} - {None}
    if i.opcode == "add" and used == {"%na.tx"} and len(i.uses) == 2 and first & set(i.uses):
        return True
    if i.opcode == "mul" and used == {"%na.wx", "%na.gx"}:
        return True
    return not used and first.isdisjoint(i.uses) and _COORDINATES.isdisjoint(i.uses)
