"""The function that is called from outside: it takes arguments and memory apart and runs blocks."""

from __future__ import annotations

import re

from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.layout import Layout
from numbasync.backend.cpu.regions.llvm_types import size_and_alignment
from numbasync.backend.cpu.regions.machine_code import PLACES
from numbasync.backend.cpu.regions.own_sums import OwnSums
from numbasync.backend.cpu.regions.prepare import MOST_BLOCKS

SYMBOL = "numbasync_run"
EXTENTS = ("wx", "wy", "wz", "gx", "gy", "gz")


def extents(threads: int) -> str:
    """The parameters of a launch's extents.

    Args:
        threads: the most of a block.
    """
    most = {"w": threads + 1, "g": MOST_BLOCKS + 1}
    return ", ".join(f"i32 range(i32 1, {most[e[0]]}) %na.{e}" for e in EXTENTS)


def write_run_function(
    kernel: CutKernel, layout: Layout, cooperative: bool, own: OwnSums | None, threads: int
) -> list[str]:
    """What is called from outside: it takes the arguments and the memory apart."""
    lines = [
        (
            f"define i32 @{SYMBOL}(ptr %arguments, ptr align 64 %memory, i64 %first, i64 %end, "
            f"{extents(threads)}, i64 %na.dynamic_bytes, ptr %order) {{"
        ),
        "top:",
        *(f"  %na.{e}64 = zext nneg i32 %na.{e} to i64" for e in ("wx", "wy", "wz")),
        "  %rows = mul nuw nsw i64 %na.wy64, %na.wz64",
        "  %threads = mul nuw nsw i64 %na.wx64, %rows",
        f"  %places.0 = add nuw nsw i64 %threads, {PLACES - 1}",
        f"  %places = and i64 %places.0, -{PLACES}",
        "  %dynamic.0 = add nuw nsw i64 %na.dynamic_bytes, 63",
        "  %dynamic = and i64 %dynamic.0, -64",
        f"  %of_threads = mul nuw nsw i64 %places, {layout.thread_bytes}",
        f"  %fixed = add nuw nsw i64 %dynamic, {layout.dynamic_offset + layout.fixed_bytes}",
        "  %stride = add nuw nsw i64 %fixed, %of_threads",
        "  %has_order = icmp ne ptr %order, null",
        "  br i1 %has_order, label %ordered, label %begin",
        "ordered:",
        "  %turns.v = load ptr, ptr %order",
        "  %turns.p = getelementptr inbounds ptr, ptr %order, i64 1",
        "  %blocks.v = load ptr, ptr %turns.p",
        "  br label %begin",
        "begin:",
        "  %turns = phi ptr [ null, %top ], [ %turns.v, %ordered ]",
        "  %turns_of_blocks = phi ptr [ null, %top ], [ %blocks.v, %ordered ]",
    ]
    passed = []
    for n, (kind, _) in enumerate(kernel.function.parameters):
        lines += _load_argument(n, kind)
        passed.append(f"{kind} %argument.{n}")
    tail = ", ".join(f"i32 %na.{e}" for e in EXTENTS)
    is_apart = "true" if own is None else "%own.is_apart"
    rest = f"{tail}, i64 %na.dynamic_bytes, ptr %turns, ptr %turns_of_blocks, i1 {is_apart}"
    memory = "%b.m" if cooperative else "%memory"
    blocks = "i64 %b, i64 %b1" if cooperative else "i64 %first, i64 %end"
    if cooperative:  # each block has memory of its own, and goes on where it waits
        lines += [
            "  br label %each",
            "each:",
            "  %b = phi i64 [ %first, %begin ], [ %b1, %each ]",
            "  %b1 = add nuw nsw i64 %b, 1",
            "  %b.o = mul i64 %b, %stride",
            "  %b.m = getelementptr inbounds i8, ptr %memory, i64 %b.o",
        ]
    lines += _addresses(layout, memory, "m")
    addresses = ", ".join(f"ptr {n.replace('%na.', '%m.')}" for n in layout.names())
    if own is not None:
        lines += own.begin_lines()
        passed[own.array.data] = "ptr %own.data"
    lines.append(
        f"  %r = call i32 @na.blocks({', '.join([*passed, addresses])}, ptr {memory}, {blocks}, "
        f"{rest})"
    )
    if cooperative:
        lines += [
            "  %is_good = icmp eq i32 %r, 0",
            "  %is_left = icmp slt i64 %b1, %end",
            "  %goes_on = and i1 %is_good, %is_left",
            "  br i1 %goes_on, label %each, label %stop",
            "stop:",
        ]
    return [*lines, *(own.end_lines() if own is not None else []), "  ret i32 %r", "}"]


def _load_argument(n: int, kind: str) -> list[str]:
    size = size_and_alignment(kind)[0]
    lines = [f"  %at.{n} = getelementptr inbounds i8, ptr %arguments, i64 {8 * n}"]
    memory = f"i{8 * size}" if re.fullmatch(r"i\d+", kind) else kind
    lines.append(
        f"  %argument.{n}{'.m' if memory != kind else ''} = load {memory}, ptr %at.{n}, align 8"
    )
    if memory != kind:
        lines.append(f"  %argument.{n} = trunc {memory} %argument.{n}.m to {kind}")
    return lines


def _addresses(layout: Layout, memory: str, letter: str) -> list[str]:
    lines = []
    for name, offset, _ in layout.shared:
        lines.append(
            f"  %{letter}.{name[4:]} = getelementptr inbounds i8, ptr {memory}, i64 {offset}"
        )
    lines += [
        f"  %{letter}.dynamic = getelementptr i8, ptr {memory}, i64 {layout.dynamic_offset}",
        f"  %{letter}.behind = getelementptr inbounds i8, ptr %{letter}.dynamic, i64 %dynamic",
    ]
    lines += [
        f"  %{letter}.{name[4:]} = getelementptr inbounds i8, ptr %{letter}.behind, i64 {offset}"
        for name, offset in layout.fixed
    ]
    for name, before in layout.threads:
        n = f"%{letter}.{name[4:]}"
        lines += [
            f"  {n}.o = mul nuw nsw i64 %places, {before}",
            f"  {n}.a = add nuw nsw i64 {n}.o, {layout.fixed_bytes}",
            f"  {n} = getelementptr inbounds i8, ptr %{letter}.behind, i64 {n}.a",
        ]
    return lines
