"""What a block does at its end if threads have failed, or wait at different barriers."""

from __future__ import annotations

from numbasync.backend.cpu.record import RAISED
from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.helper_code import FAILED_STATUS
from numbasync.backend.cpu.regions.layout import Layout
from numbasync.backend.cpu.regions.region import NOTE, Region


def place_lines(number: str, stem: str) -> list[str]:
    """The place in the grid of a block by its number: `STEMx`, `STEMy`, `STEMz`."""
    return [
        f"  {stem}x = urem i64 {number}, %na.gx64",
        f"  {stem}q = udiv i64 {number}, %na.gx64",
        f"  {stem}y = urem i64 {stem}q, %na.gy64",
        f"  {stem}z = udiv i64 {stem}q, %na.gy64",
    ]


def _where(stem: str) -> str:
    return f"i64 %na.wx64, i64 %na.wy64, i64 {stem}x, i64 {stem}y, i64 {stem}z"


def write_failures(kernel: CutKernel, layout: Layout, regions: list[Region]) -> list[str]:
    """The errors."""
    lines = ["impossible:", "  unreachable", "diverged:"]
    # By division, so that kernels that do not ask for their place need not count it.
    if "%na.next" in layout.names():
        lines += place_lines("%na.block", "%diverged.b")
        lines.append(
            "  call void @na.diverged(ptr %na.memory, ptr %na.next, i64 %na.threads, "
            f"{_where('%diverged.b')})"
        )
    where = _where("%failed.b")
    lines += [f"  ret i32 {FAILED_STATUS}", "failed:"]
    if any(r.fails for r in regions):
        lines += place_lines("%na.block", "%failed.b")
        lines += [
            "  %failed.first = load i64, ptr %na.first",
            "  %failed.p = getelementptr inbounds i32, ptr %na.statuses, i64 %failed.first",
            "  %failed.status = load i32, ptr %failed.p",
            f"  %failed.noted = icmp eq i32 %failed.status, {FAILED_STATUS}",
            "  br i1 %failed.noted, label %failed.note, label %failed.raised",
            "failed.note:",
        ]
        values = []
        if kernel.has_notes:
            for name, kind in NOTE:
                v = f"%failed.{name}"
                lines += [
                    (
                        f"  {v}.p = getelementptr inbounds {kind}, ptr %na.note_{name}, "
                        "i64 %failed.first"
                    ),
                    f"  {v}.v = load {kind}, ptr {v}.p",
                    f"  {v} = sext i32 {v}.v to i64"
                    if kind == "i32"
                    else f"  {v} = add i64 {v}.v, 0",
                ]
                values.append(f"i64 {v}")
            lines.append(
                f"  call void @na.record(ptr %na.memory, {', '.join(values)}, "
                f"i64 %failed.first, {where})"
            )
        lines += [
            f"  ret i32 {FAILED_STATUS}",
            "failed.raised:",
            (
                f"  call void @na.record(ptr %na.memory, i64 {RAISED}, i64 -1, i64 0, "
                f"i64 0, i64 0, i64 %failed.first, {where})"
            ),
        ]
        lines.append("  ret i32 %failed.status")
    else:
        lines.append("  unreachable")
    return lines
