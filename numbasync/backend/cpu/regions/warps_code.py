"""The code of blocks whose threads meet by warps: one warp after the other, region by region.

A warp goes from one barrier of the block to the next one. Where its lanes come apart, it goes on
with those of them who wait at the first barrier for which all lanes of the mask are there.
"""

from __future__ import annotations

from typing import Protocol

from numbasync.backend.cpu.regions.cut import CutKernel, Level
from numbasync.backend.cpu.regions.helper_code import ALL
from numbasync.backend.cpu.regions.region import Region, Written
from numbasync.backend.cpu.regions.region_code import RegionCode
from numbasync.backend.cpu.regions.state_lines import cases, choose, copy_lines, extremes_lines


class States(Protocol):
    """The writer of a block's states; see `blocks_code.BlocksCode`."""

    kernel: CutKernel
    regions: list[Region]
    out: Written
    written: set[tuple[str, int, bool]]

    def level(self, number: int) -> Level: ...
    def want(self, kind: str, number: int, masked: bool) -> None: ...
    def go(self, number: int, masked: bool = False) -> str: ...
    def begin_warp(self, number: int, masked: bool = False) -> str: ...
    def switch_on_last(self, tag: str, labels: dict[int, str]) -> None: ...
    def switch_if_same(self, tag: str, labels: dict[int, str], least: str, most: str) -> None: ...
    def dispatch(self, tag: str, ends: list[int]) -> None: ...
    def uniform_at(self, number: int) -> list[tuple[str, str]]: ...


class WarpPhases:
    """Writes the phases of a block.

    Attributes:
        phases: by start of a block from which warps meet, the barriers of blocks that follow.
    """

    def __init__(self, blocks: States) -> None:
        self._blocks = blocks
        self.phases: dict[int, set[int]] = {}
        self._find()

    def _find(self) -> None:
        """The starts of a block from which warps meet, each with what their regions end at."""
        for region in self._blocks.regions:
            if region.start and self._blocks.level(region.start) is Level.WARP:
                continue
            seen: set[int] = set()
            ends: set[int] = set()
            waiting = [region.start]
            while waiting:
                start = waiting.pop()
                for end in self._blocks.regions[start].ends:
                    if end and self._blocks.level(end) is Level.WARP:
                        if end not in seen:
                            seen.add(end)
                            waiting.append(end)
                    else:
                        ends.add(end)
            if seen:
                self.phases[region.start] = ends
        self._ends = sorted(set().union(*self.phases.values())) if self.phases else []
        # Threads may also have come apart before, and some not be there when a phase begins.
        varies = any(r.varies for r in self._blocks.regions)
        # Each phase ends at one barrier: nothing has to be kept for threads that are elsewhere.
        self._is_together = not varies and all(len(e) == 1 for e in self.phases.values())
        self._fills = not self._is_together and (len(self._ends) > 1 or varies)

    def write_phase(self, number: int, masked: bool) -> None:
        lines = self._blocks.out.lines
        tag = f"p{number}{'m' if masked else ''}"
        lines += [
            f"{tag}.start:",
            f"  store i32 {number * 2 + masked}, ptr %na.phase",
            "  store i64 0, ptr %na.base",
            "  store i32 2147483647, ptr %na.warp_least",
            "  store i32 -1, ptr %na.warp_most",
        ]
        for kind, v in self._blocks.uniform_at(number):
            self._blocks.out.places[f"%na.p.{v}"] = kind
            lines += copy_lines(kind, f"%na.u.{v}", f"%na.p.{v}", f"%{tag}.c.{v}")
        lines += [f"  br label %{tag}.warp", f"{tag}.warp:"]
        for kind, v in self._blocks.uniform_at(number):
            self._blocks.out.places[f"%na.w.{v}"] = kind
            lines += copy_lines(kind, f"%na.p.{v}", f"%na.w.{v}", f"%{tag}.d.{v}")
        lines += [
            f"  %{tag}.base = load i64, ptr %na.base",
            f"  %{tag}.left = sub i64 %na.threads, %{tag}.base",
            f"  %{tag}.lanes = call i64 @llvm.umin.i64(i64 %{tag}.left, i64 32)",
            f"  store i64 %{tag}.lanes, ptr %na.lanes",
        ]
        self._blocks.want("end of warps", 0, False)
        if not masked:
            lines.append(f"  br label {self._blocks.begin_warp(number)}")
            return
        lines += [  # of this barrier alone, as if no other was soft
            choose(f"%{tag}.choice", "%na.next", f"%{tag}.base", f"%{tag}.lanes", ()),
            (
                f"  switch i32 %{tag}.choice, label {self._blocks.begin_warp(number, masked=True)} "
                f"[ {cases({0: '%warp_to_0m', number + ALL: self._blocks.begin_warp(number)})} ]"
            ),
        ]

    def leave_region(self, code: RegionCode) -> None:
        lines, tag, ends = self._blocks.out.lines, code.tag, code.region.ends
        if not ends:
            lines.append("  unreachable")
            return
        if not code.varies:
            self._blocks.switch_on_last(tag, {e: self._go(e) for e in ends})
            return
        if not code.masked:
            labels = {e: self._go(e, filled=True) for e in ends}
            self._blocks.switch_if_same(tag, labels, "least", "most")
        lines.append("  br label %warp.dispatch")
        self._blocks.want("warps apart", 0, False)

    def _go(self, end: int, masked: bool = False, filled: bool = False) -> str:
        if end and self._blocks.level(end) is Level.WARP:
            return self._blocks.begin_warp(end, masked)
        return f"%warp_to_{end}" + ("f" if filled and not masked else "m" if masked else "")

    def write_choice(self) -> None:
        """Where a warp goes on whose lanes have come apart."""
        lines = self._blocks.out.lines
        soft = [b.number for b in self._blocks.kernel.barriers if b.level is Level.WARP]
        labels = {e: self._blocks.begin_warp(e, masked=True) for e in soft}
        labels.update({e + ALL: self._blocks.begin_warp(e) for e in soft})
        for e in self._ends:
            labels[e] = f"%warp_to_{e}m"
            if e:
                labels[e + ALL] = f"%warp_to_{e}f"
        labels[0] = "%warp_to_0m"
        has_masks = any(b.mask != "-1" for b in self._blocks.kernel.barriers)
        masks = "%na.masks" if has_masks else "%na.next"
        lines += [
            "warp.dispatch:",
            "  %warp.base = load i64, ptr %na.base",
            "  %warp.lanes = load i64, ptr %na.lanes",
        ]
        lines += [
            choose("%warp.choice", masks, "%warp.base", "%warp.lanes", soft),
            f"  switch i32 %warp.choice, label %warp_apart [ {cases(labels)} ]",
        ]

    def write_end(self) -> None:
        """What is done when a warp is through its phase, and when all are."""
        lines = self._blocks.out.lines
        lines += ["warp_apart:", *_extremes("-1", "warp_apart"), "  br label %warp.next"]
        for e in {*self._ends, 0}:
            for suffix in ("", "f", "m"):
                tag = f"warp_to_{e}{suffix}"
                lines.append(f"{tag}:")
                if suffix == "" and self._fills:
                    lines += [
                        f"  %{tag}.base = load i64, ptr %na.base",
                        f"  %{tag}.lanes = load i64, ptr %na.lanes",
                        (
                            f"  call void @na.fill(ptr %na.next, i64 %{tag}.base, "
                            f"i64 %{tag}.lanes, i32 {e})"
                        ),
                    ]
                if e:
                    for kind, v in self._blocks.uniform_at(e):
                        self._blocks.out.places[f"%na.w.{v}"] = kind
                        lines += copy_lines(kind, f"%na.w.{v}", f"%na.u.{v}", f"%{tag}.c.{v}")
                lines += _extremes(str(e), tag)
                if suffix == "m" and e:
                    lines += _extremes("0", f"{tag}.r")
                lines.append("  br label %warp.next")
        lines += [
            "warp.next:",
            "  %warp.b0 = load i64, ptr %na.base",
            "  %warp.b1 = add nuw nsw i64 %warp.b0, 32",
            "  store i64 %warp.b1, ptr %na.base",
            "  %warp.more = icmp ult i64 %warp.b1, %na.threads",
            "  br i1 %warp.more, label %warp.again, label %warp.done",
            "warp.done:",
        ]
        ends = self._ends
        if self._fills:
            self._blocks.switch_if_same(
                "wd", {e: self._blocks.go(e) for e in ends}, "warp_least", "warp_most"
            )
            self._blocks.dispatch("wd", ends)
        elif self._is_together:
            labels = cases({e: self._blocks.go(e) for e in ends})
            lines += [
                "  %wd.most = load i32, ptr %na.warp_most",
                f"  switch i32 %wd.most, label %impossible [ {labels} ]",
            ]
        elif ends:
            lines.append(f"  br label {self._blocks.go(ends[0])}")
        else:
            lines.append("  unreachable")

    def write_next(self) -> None:
        phases = " ".join(
            f"i32 {n * 2 + masked}, label %p{n}{'m' if masked else ''}.warp"
            for kind, n, masked in sorted(self._blocks.written)
            if kind == "phase"
        )
        self._blocks.out.lines += [
            "warp.again:",
            "  %warp.phase = load i32, ptr %na.phase",
            f"  switch i32 %warp.phase, label %impossible [ {phases} ]",
        ]


def _extremes(value: str, tag: str) -> list[str]:
    return extremes_lines(value, tag, "%na.warp_least", "%na.warp_most")
