"""Regions: what threads can reach from one barrier without meeting at another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from numbasync.backend.cpu.regions.cut import BARRIER, FAIL, CutKernel, Level
from numbasync.backend.cpu.regions.divergence import divergent_branches
from numbasync.backend.cpu.regions.flow import END, post_dominators, predecessors, reached_from
from numbasync.backend.cpu.regions.instructions import Instruction
from numbasync.backend.cpu.regions.keep import Kept

FIRST_LOOP = 9100  # number of LLVM's metadata
NEVER = 9223372036854775807  # no thread
NOTE = (("kind", "i32"), ("site", "i32"), ("a", "i64"), ("b", "i64"), ("c", "i64"))


@dataclass(slots=True)
class Region:
    """What can be reached from a start without a barrier between.

    Attributes:
        ends: numbers of the barriers at which it ends, and 0 if threads return in it.
        varies: threads may end at different ones of them.
        fails: threads may stop with an error.
    """

    start: int
    blocks: list[str]
    ends: list[int]
    varies: bool
    fails: bool


def find_regions(kernel: CutKernel, kept: Kept, apart: bool) -> list[Region]:
    """The region behind each start."""
    blocks = kernel.function.blocks
    graph = kernel.graph(Level.WARP)
    numbers = {b.block: b.number for b in kernel.barriers}
    numbers.update({b: 0 for b, code in blocks.items() if code[-1].opcode == "ret"})
    leading = reached_from(predecessors(graph), numbers)
    if apart:
        is_divergent: Callable[[str], bool] = lambda _: True  # noqa: E731
    else:
        is_divergent = divergent_branches(blocks, kept.divergent)
    regions = []
    for number, start in enumerate(kernel.starts()):
        reached = reached_from(graph, [start])
        ends = sorted({numbers[b] for b in reached if b in numbers})
        ways = {b: [s for s in graph[b] if s in leading] for b in reached if b in leading}
        varies = False
        if len(ends) > 1:
            meets = post_dominators(ways)
            for block, following in ways.items():
                if len(following) > 1 and meets[block] == END and is_divergent(block):
                    part = {numbers[b] for b in reached_from(ways, following) if b in numbers}
                    varies = varies or len(part) > 1
        fails = any(blocks[b][-1].opcode == FAIL for b in reached)
        inside = [b for b in blocks if b in reached]
        regions.append(Region(number, inside, ends, varies, fails))
    return regions


@dataclass(frozen=True, slots=True)
class Settings:
    """How a kernel is compiled.

    Attributes:
        apart: keep everything once a thread, whatever the analysis of divergence says.
        ordered: for checks: threads and blocks come in an order that the launch gives, accesses are
            no promise of independence, and the first error stops a block.
        returned_are_missing: a thread that has returned before a barrier is reported.
        row: for blocks with one row of threads alone, unless the kernel asks for other axes.
        turn_loops: make the loop over threads the inner one where that is faster.
    """

    apart: bool = False
    ordered: bool = False
    returned_are_missing: bool = False
    row: bool = False
    turn_loops: bool = True


@dataclass(slots=True)
class Written:
    """Lines of code, and what has to be declared for them.

    Attributes:
        places: type and name of variables of the function.
        loops: the kind of each that has metadata.
    """

    lines: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)

    def loop_metadata(self, kind: str) -> str:
        """What marks a loop over threads as one whose accesses do not depend on each other.

        Args:
            kind: "vectors"; "short", if it has few rounds; "scalar", if it is to stay as it is.
        """
        self.loops.append(kind)
        return f", !llvm.loop !{FIRST_LOOP + len(self.loops) - 1}"


def with_ways(
    kernel: CutKernel, region: Region, taken: Mapping[str, str]
) -> tuple[dict[str, list[Instruction]], Region]:
    """The blocks of a region in which some branches go one way only."""
    blocks = {b: kernel.function.blocks[b] for b in region.blocks}
    for block, following in taken.items():
        jump = Instruction("", "br", "void", f"br label {following}", labels=(following,))
        blocks[block] = [*blocks[block][:-1], jump]
    graph = {b: () if c[-1].opcode == BARRIER else c[-1].labels for b, c in blocks.items()}
    reached = reached_from(graph, [kernel.starts()[region.start]])
    blocks = {b: code for b, code in blocks.items() if b in reached}
    fails = any(code[-1].opcode == FAIL for code in blocks.values())
    numbers = {b.block: b.number for b in kernel.barriers}
    ends = {numbers.get(b, 0) for b, c in blocks.items() if c[-1].opcode in (BARRIER, "ret")}
    varies = region.varies and len(ends) > 1
    return blocks, Region(region.start, list(blocks), sorted(ends), varies, fails)
