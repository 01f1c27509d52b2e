"""The function that is called from outside: it takes arguments and memory apart and runs blocks."""

from __future__ import annotations

import re

from numbasync.backend.cpu.record import DIVERGED
from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.helper_code import FAILED_STATUS
from numbasync.backend.cpu.regions.layout import Layout
from numbasync.backend.cpu.regions.llvm_types import size_and_alignment
from numbasync.backend.cpu.regions.machine_code import PLACES
from numbasync.backend.cpu.regions.own_sums import OwnSums
from numbasync.backend.cpu.regions.prepare import MOST_BLOCKS, MOST_THREADS

SYMBOL = "numbasync_run"
EXTENTS = ("wx", "wy", "wz", "gx", "gy", "gz")


def extents() -> str:
    most = {"w": MOST_THREADS + 1, "g": MOST_BLOCKS + 1}
    return ", ".join(f"i32 range(i32 1, {most[e[0]]}) %na.{e}" for e in EXTENTS)


def write_run_function(
    kernel: CutKernel, layout: Layout, cooperative: bool, own: OwnSums | None
) -> list[str]:
    """What is called from outside: it takes the arguments and the memory apart."""
    lines = [
        (
            f"define i32 @{SYMBOL}(ptr %arguments, ptr align 64 %memory, i64 %first, i64 %end, "
            f"{extents()}, i64 %na.dynamic_bytes, ptr %order) {{"
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
    if not cooperative:
        lines += _addresses(layout, "%memory", "m")
        addresses = ", ".join(f"ptr {n.replace('%na.', '%m.')}" for n in layout.names())
        if own is not None:
            lines += own.begin_lines()
            passed[own.array.data] = "ptr %own.data"
        lines += [
            (
                f"  %r = call i32 @na.blocks({', '.join([*passed, addresses])}, ptr %memory, "
                f"i64 %first, i64 %end, {rest})"
            ),
            *(own.end_lines() if own is not None else []),
            "  ret i32 %r",
            "}",
        ]
        return lines
    state = next(offset for name, offset in layout.fixed if name == "%na.state")
    addresses = ", ".join(f"ptr {n.replace('%na.', '%m.')}" for n in layout.names())
    return [
        *lines,
        f"  %state_at.0 = add nuw nsw i64 %dynamic, {layout.dynamic_offset + state}",
        "  br label %clear",
        "clear:",
        "  %c = phi i64 [ %first, %begin ], [ %c1, %clear ]",
        "  %c.n = sub i64 %c, %first",
        "  %c.o = mul i64 %c.n, %stride",
        "  %c.a = add i64 %c.o, %state_at.0",
        "  %c.p = getelementptr inbounds i8, ptr %memory, i64 %c.a",
        "  store i32 0, ptr %c.p",
        "  %c1 = add nuw nsw i64 %c, 1",
        "  %c.more = icmp slt i64 %c1, %end",
        "  br i1 %c.more, label %clear, label %round",
        "round:",
        "  br label %each",
        "each:",
        "  %b = phi i64 [ %first, %round ], [ %b1, %each.next ]",
        "  %least = phi i32 [ 2147483647, %round ], [ %least1, %each.next ]",
        "  %most = phi i32 [ -1, %round ], [ %most1, %each.next ]",
        "  %b.n = sub i64 %b, %first",
        "  %b.o = mul i64 %b.n, %stride",
        "  %b.m = getelementptr inbounds i8, ptr %memory, i64 %b.o",
        *_addresses(layout, "%b.m", "m"),
        "  %b1 = add nuw nsw i64 %b, 1",
        (
            f"  %r = call i32 @na.blocks({', '.join([*passed, addresses])}, ptr %b.m, i64 %b, "
            f"i64 %b1, {rest})"
        ),
        "  %bad = icmp ne i32 %r, 0",
        "  br i1 %bad, label %stop, label %each.next",
        "each.next:",
        "  %s1 = load i32, ptr %m.state",
        "  %s2 = and i32 %s1, 1048575",
        "  %least1 = call i32 @llvm.smin.i32(i32 %least, i32 %s2)",
        "  %most1 = call i32 @llvm.smax.i32(i32 %most, i32 %s2)",
        "  %b.more = icmp slt i64 %b1, %end",
        "  br i1 %b.more, label %each, label %met",
        "met:",
        "  %is_done = icmp eq i32 %most1, 0",
        "  br i1 %is_done, label %stop, label %go_on",
        "go_on:",
        "  %same = icmp eq i32 %least1, %most1",
        "  br i1 %same, label %round, label %apart",
        "apart:",
        "  %site.i = zext nneg i32 %most1 to i64",
        "  %site.p = getelementptr inbounds i32, ptr @na.sites, i64 %site.i",
        "  %site.v = load i32, ptr %site.p",
        "  %site = sext i32 %site.v to i64",
        "  br label %find",
        "find:",
        "  %f = phi i64 [ %first, %apart ], [ %f1, %find ]",
        "  %f1 = add nuw nsw i64 %f, 1",
        "  %f.n = sub i64 %f, %first",
        "  %f.o = mul i64 %f.n, %stride",
        "  %f.m = getelementptr inbounds i8, ptr %memory, i64 %f.o",
        "  %f.p = getelementptr inbounds i8, ptr %f.m, i64 %state_at.0",
        "  %f.s = load i32, ptr %f.p",
        "  %f.s2 = and i32 %f.s, 1048575",
        "  %f.waits = icmp eq i32 %f.s2, %most1",
        "  br i1 %f.waits, label %find, label %write",
        "write:",
        "  %gx64 = zext nneg i32 %na.gx to i64",
        "  %gy64 = zext nneg i32 %na.gy to i64",
        "  %bx = urem i64 %f, %gx64",
        "  %bq = udiv i64 %f, %gx64",
        "  %by = urem i64 %bq, %gy64",
        "  %bz = udiv i64 %bq, %gy64",
        (
            f"  call void @na.record(ptr %f.m, i64 {DIVERGED}, i64 %site, i64 0, i64 0, "
            "i64 %threads, i64 0, i64 %na.wx64, i64 %na.wy64, i64 %bx, i64 %by, i64 %bz)"
        ),
        "  br label %stop",
        "stop:",
        f"  %result = phi i32 [ %r, %each ], [ 0, %met ], [ {FAILED_STATUS}, %write ]",
        "  ret i32 %result",
        "}",
    ]


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
