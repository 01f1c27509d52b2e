"""Blocks that share results: each block writes its part, and the last block to arrive
combines all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numbasync.batch.codegen import reductions
from numbasync.batch.codegen.writer import Emitter, Scratch, indented

SHARED_BYTES = 4  # of a block's shared memory, taken by `together`
SHARES = "shares"  # the parameter: blocks that share the same results


class Parts(NamedTuple):
    """Where the blocks write their parts.

    Attributes:
        total: the number of parts of one variable, over all blocks.
        writers: the number of threads of a block that have a part each, the first threads.
        own: the index of this thread's part.
        others: the index of the part that iteration `k` of the loop adds.
        loop: the values of `k` for this thread.
        counter: the index of the counter of these results.
    """

    total: int
    writers: str
    own: str
    others: str
    loop: str
    counter: str


def together(
    emitter: Emitter, own: dict[int, reductions.Reduction], parts: Parts, head: list[str],
    across: Callable[[], list[str]],
) -> tuple[list[str], tuple[Scratch, ...]]:  # fmt: skip
    """Generate the write of the block's part; the lines behind it run in the last block, whose
    threads add up all parts, always in the same order, whichever block came last.

    Args:
        head: the lines that declare shared memory.
        across: generates the combination of the parts of a block's threads.
    """
    partials: list[Scratch] = []
    rooms: dict[int, list[str]] = {}
    writes: list[str] = []
    for n, r in own.items():
        rooms[n] = []
        for name, dtype in zip(r.names, r.dtypes, strict=True):
            room = emitter.parameter(f"parts{len(partials)}", "partial", len(partials))
            partials.append(Scratch(parts.total, dtype))
            rooms[n].append(room)
            writes.append(f"{room}[{parts.own}] = {name}")
    counter = emitter.parameter("arrived", "counter", None)
    head.append("is_last = cuda.shared.array(1, np.int32)")
    fence = "cuda.threadfence()  # before anyone sees that this block has arrived"
    arrival = [
        f"before = cuda.atomic.inc({counter}, {parts.counter}, np.uint32({SHARES} - 1))",
        f"is_last[0] = np.int32(1) if before == {SHARES} - 1 else np.int32(0)",
    ]
    if parts.writers == "1":
        lines = ["if cuda.threadIdx.x == 0:", *indented([*writes, fence, *arrival])]
    else:
        lines = [
            f"if cuda.threadIdx.x < {parts.writers}:", *indented([*writes, fence]),
            "cuda.syncthreads()",
            "if cuda.threadIdx.x == 0:", *indented(arrival),
        ]  # fmt: skip
    lines += [
        "cuda.syncthreads()",
        "if is_last[0] == 1:  # the counter is 0 again",
        "    cuda.threadfence()",
    ]
    inner: list[str] = []
    for r in own.values():
        inner += reductions.begin(r)
    inner.append(f"for k in range({parts.loop}):")
    for n, r in own.items():
        names = tuple(f"{name}_part" for name in r.names)
        loads = [f"{x} = {room}[{parts.others}]" for x, room in zip(names, rooms[n], strict=True)]
        inner += indented([*loads, *reductions.merge(emitter, r, names)])
    return [*lines, *indented([*inner, *across()])], tuple(partials)
