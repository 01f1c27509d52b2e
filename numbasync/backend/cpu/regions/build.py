"""From the contract's module to machine code that runs blocks."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm

from numbasync.backend.cpu.record import WAITS_AT
from numbasync.backend.cpu.regions.any_blocks import most_merged
from numbasync.backend.cpu.regions.blocks_code import BlocksCode
from numbasync.backend.cpu.regions.cut import CutKernel, Level
from numbasync.backend.cpu.regions.failures import place_lines, write_failures
from numbasync.backend.cpu.regions.helper_code import helpers
from numbasync.backend.cpu.regions.instructions import without_metadata
from numbasync.backend.cpu.regions.keep import Kept, plan_kept
from numbasync.backend.cpu.regions.layout import Layout, lay_out
from numbasync.backend.cpu.regions.machine_code import Code, run_passes, target_machine
from numbasync.backend.cpu.regions.own_sums import BYTES, find_own_sums
from numbasync.backend.cpu.regions.prepare import MOST_THREADS, prepare
from numbasync.backend.cpu.regions.region import FIRST_LOOP, NOTE, Region, Settings, find_regions
from numbasync.backend.cpu.regions.run_function import (
    EXTENTS,
    SYMBOL,
    extents,
    write_run_function,
)

_OF_MORE_AXES = frozenset({"%na.ty", "%na.tz", "%na.wy", "%na.wz"})
_MOST = 2147483647
MANY_REGIONS = 8  # of more, LLVM's code is kept smaller: it is compiled in half the time


def build(text: str, name: str, settings: Settings) -> Code:
    """Compile the kernel `name` of a module by the contract.

    Raises:
        UnknownFormError: for a form of LLVM's language that is not known here.
    """
    assembly, code = write_module(text, name, settings)
    began = time.perf_counter()
    module = llvm.parse_assembly(assembly)
    module.verify()
    passes, machine = _levels(settings, code.notes["regions"])
    run_passes(module, level=passes)
    optimised = time.perf_counter()
    code.object_code = target_machine(level=machine).emit_object(module)
    code.notes["optimise_s"] = optimised - began
    code.notes["emit_s"] = time.perf_counter() - optimised
    return code


def _levels(settings: Settings, regions: int) -> tuple[int, int]:
    """The levels of LLVM's passes, and of its machine code.

    Threads with checks call a function at each access, where their time goes: better code is no
    faster, and to write it takes a sixth of the time of a compilation.
    """
    if settings.ordered:
        return 1, 0
    return (2 if regions > MANY_REGIONS else 3), 3


def write_module(text: str, name: str, settings: Settings) -> tuple[str, Code]:
    """The module of the blocks' code, not yet optimised, and all of `Code` but the machine code."""
    began = time.perf_counter()
    prepared = prepare(text, name, settings.turn_loops and not settings.ordered)
    kernel = prepared.kernel
    light = time.perf_counter()
    kept = plan_kept(kernel, settings.apart)
    regions = find_regions(kernel, kept, settings.apart)
    if settings.ordered or _asks_for_more_axes(kernel):
        settings = replace(settings, row=False)
    cooperative = any(b.level is Level.GRID for b in kernel.barriers)
    saved = {f"%na.save.{v[1:]}": kind for v, kind in kept.uniform.items()} if cooperative else {}
    own = None if settings.ordered else find_own_sums(kernel)
    if own is not None:
        saved["%na.own"] = f"[{BYTES} x i8]"
    layout = lay_out(kernel, kept, prepared.places, _of_threads(kernel, kept, regions), saved)
    merged = most_merged(kernel, kept) if settings.row else 0
    threads = max(MOST_THREADS, merged)
    blocks = BlocksCode(kernel, kept, layout, settings, regions, own)
    states = blocks.write()
    functions = [
        *write_run_function(kernel, layout, cooperative, own, threads),
        *_blocks_function(kernel, layout, blocks, states, settings, cooperative, threads),
    ]
    lines = [
        *_kept_lines(prepared.rest),
        f"@na.sites = internal constant {_array('i32', _sites(kernel))}",
        *functions,
        *helpers(functions),
        *(own.functions() if own is not None else []),
        *_declared_access(prepared.rest, settings),
        *_metadata(blocks, settings),
    ]
    code = Code(
        b"",
        SYMBOL,
        [kind for kind, _ in kernel.function.parameters],
        [(offset, size) for _, offset, size in layout.shared],
        layout.dynamic_offset,
        layout.fixed_bytes,
        layout.thread_bytes,
        settings.row,
        cooperative,
        merged,
        _sites(kernel),
        _notes(kernel, kept, regions, time.perf_counter() - light, light - began)
        | {
            "hoisted": sum(blocks.hoisted.values()),
            "checked": len(blocks.hoisted),
            "own_sums": own is not None,
        },
    )
    return _with_narrow_vectors("\n".join(lines)), code


def _with_narrow_vectors(text: str) -> str:
    """Let the processor's model say how wide vectors are: without this attribute LLVM takes what is
    written for what has to be, on x86-64 vectors of 512 bits, which slow down all that is beside.
    """
    return re.sub(r"^(define [^\n]*) \{$", r'\1 "min-legal-vector-width"="0" {', text, flags=re.M)


def _notes(
    kernel: CutKernel, kept: Kept, regions: list[Region], cut_s: float, light_s: float
) -> dict[str, Any]:
    return {
        "regions": len(regions),
        "uniform": len(kept.uniform),
        "per_thread": len(kept.per_thread),
        "local_arrays": len(kernel.local_arrays),
        "varying": sum(r.varies for r in regions),
        "turned": sum(b.level is Level.LOOP for b in kernel.barriers) // 2,
        "light_s": light_s,
        "cut_s": cut_s,
    }


def _of_threads(kernel: CutKernel, kept: Kept, regions: list[Region]) -> dict[str, str]:
    """What each thread has besides values: where it waits, and what it says when it fails."""
    found: dict[str, str] = {}
    if any(r.varies for r in regions) or any(b.level is Level.WARP for b in kernel.barriers):
        found["%na.next"] = "i32"
    if any(b.level is Level.WARP for b in kernel.barriers):
        found["%na.masks"] = "i32"
    if any(r.fails for r in regions):
        found["%na.statuses"] = "i32"
        if kernel.has_notes:
            found.update({f"%na.note_{name}": kind for name, kind in NOTE})
    return found


def _kept_lines(rest: list[str]) -> list[str]:
    """What the module has besides the kernel, without metadata and what stands for the contract."""
    dropped = re.compile(r"(?:!|; |source_filename|declare .*@na\.|@na\.(?:shared|exchange))")
    kept = [without_metadata(line) for line in rest if not dropped.match(line)]
    return kept + [line for line in rest if line.startswith("declare") and "@na.print(" in line]


def _sites(kernel: CutKernel) -> list[int]:
    """The place of each barrier, by its number."""
    return [-1, *(b.site for b in kernel.barriers)]


def _array(kind: str, values: list[int]) -> str:
    return f"[{len(values)} x {kind}] [{', '.join(f'{kind} {v}' for v in values)}]"


def _asks_for_more_axes(kernel: CutKernel) -> bool:
    """Whether a thread asks where it is beside the row."""
    code = kernel.function.blocks.values()
    return any(not _OF_MORE_AXES.isdisjoint(i.uses) for block in code for i in block)


@dataclass(frozen=True, slots=True)
class _Place:
    """Lines for the place of a block in its grid: before all blocks, in each, and behind it."""

    first: list[str]
    of_block: list[str]
    next: list[str]


def _place_in_turn() -> _Place:
    turn = [
        "  %na.turn = getelementptr inbounds i64, ptr %na.turns_of_blocks, i64 %na.b",
        "  %na.block = load i64, ptr %na.turn",
    ]
    return _Place([], turn + place_lines("%na.block", "%na.at."), [])


# Counted on: LLVM moves a division to where its result is used, into the loop over threads.
_PLACE = _Place(
    place_lines("%na.first_block", "%na.first."),
    [
        *(
            f"  %na.at.{c} = phi i64 [ %na.first.{c}, %na.top ], [ %na.next.{c}, %done ]"
            for c in "xyz"
        ),
        "  %na.block = add i64 %na.b, 0",
    ],
    [
        "  %na.behind.x = add nuw nsw i64 %na.at.x, 1",
        "  %na.row_ends = icmp eq i64 %na.behind.x, %na.gx64",
        "  %na.next.x = select i1 %na.row_ends, i64 0, i64 %na.behind.x",
        "  %na.rows1 = zext i1 %na.row_ends to i64",
        "  %na.behind.y = add nuw nsw i64 %na.at.y, %na.rows1",
        "  %na.plane_ends = icmp eq i64 %na.behind.y, %na.gy64",
        "  %na.next.y = select i1 %na.plane_ends, i64 0, i64 %na.behind.y",
        "  %na.planes1 = zext i1 %na.plane_ends to i64",
        "  %na.next.z = add nuw nsw i64 %na.at.z, %na.planes1",
    ],
)


def _blocks_function(
    kernel: CutKernel, layout: Layout, blocks: BlocksCode, states: list[str], settings: Settings,
    cooperative: bool, threads: int,
) -> list[str]:  # fmt: skip
    alias = "" if settings.ordered else "noalias "
    aligned = dict.fromkeys(layout.names(), 64)
    aligned.update({name: 64 if offset % 64 == 0 else 16 for name, offset, _ in layout.shared})
    parameters = [
        *(f"{kind} {name}" for kind, name in kernel.function.parameters),
        *(f"ptr {alias}nonnull align {aligned[name]} {name}" for name in layout.names()),
        "ptr %na.memory, i64 %na.first_block, i64 %na.end_block",
        extents(threads),
        "i64 %na.dynamic_bytes, ptr %na.turns, ptr %na.turns_of_blocks, i1 %na.is_apart",
    ]
    place = _place_in_turn() if settings.ordered else _PLACE
    return [
        f"define internal i32 @na.blocks({', '.join(parameters)}) noinline {{",
        "na.top:",
        *blocks.variables(),
        *(f"  %na.{e}64 = zext nneg i32 %na.{e} to i64" for e in EXTENTS),
        "  %na.rows = mul nuw nsw i64 %na.wy64, %na.wz64",
        "  %na.threads = mul nuw nsw i64 %na.wx64, %na.rows",
        "  %na.memory64 = ptrtoint ptr %na.memory to i64",
        f"  %na.state = getelementptr inbounds i64, ptr %na.memory, i64 {WAITS_AT}",
        *place.first,
        "  br label %blocks",
        "blocks:",
        "  %na.b = phi i64 [ %na.first_block, %na.top ], [ %na.b1, %done ]",
        *place.of_block,
        *(
            line
            for c in "xyz"
            for line in (
                f"  %na.b{c}.t = trunc i64 %na.at.{c} to i32",
                f"  %na.b{c} = and i32 %na.b{c}.t, {_MOST}",
            )
        ),
        *blocks.at_begin(),
        "  br label %states",
        *states,
        *write_failures(kernel, layout, blocks.regions),
        "done:",
        *(["  store i32 0, ptr %na.state"] if cooperative else []),
        *place.next,
        "  %na.b1 = add nuw nsw i64 %na.b, 1",
        "  %na.more = icmp slt i64 %na.b1, %na.end_block",
        "  br i1 %na.more, label %blocks, label %na.end",
        "na.end:",
        "  ret i32 0",
        "}",
    ]


def _declared_access(rest: list[str], settings: Settings) -> list[str]:
    """The function of checks that states call, which the kernel may call, too."""
    if not settings.ordered or any("@numbasync_access(" in line for line in rest):
        return []
    return ["declare i64 @numbasync_access(i64, i64, i64, i64, i64, i64, i64, i64)"]


def _metadata(blocks: BlocksCode, settings: Settings) -> list[str]:
    lines = []
    if not settings.ordered:
        lines = [
            "!9000 = distinct !{}",
            '!9001 = !{!"llvm.loop.parallel_accesses", !9000}',
            '!9002 = !{!"llvm.loop.vectorize.enable", i1 false}',
            '!9003 = !{!"llvm.loop.unroll.disable"}',
            '!9004 = !{!"llvm.loop.interleave.count", i32 1}',
        ]
        many = len(blocks.regions) > MANY_REGIONS
        more = {
            "vectors": ", !9004, !9003" if many else "",
            "short": ", !9004, !9003" if many else ", !9004",
            "scalar": ", !9002, !9003",
        }
        for n, kind in enumerate(blocks.out.loops, FIRST_LOOP):
            lines.append(f"!{n} = distinct !{{!{n}, !9001{more[kind]}}}")
    return lines
