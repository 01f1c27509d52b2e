"""The code of a kernel's blocks: its regions, and how a block goes from one to the next.

A block goes from barrier to barrier as a whole. Where threads meet by warps, the warps run one
after the other, each from a barrier of the block to the next one (a *phase*), region by region.

A region exists in several copies. All threads that wait at its start is the usual case; in the
*masked* copy only those run that wait there, since others have returned or wait elsewhere.

Uniform values are variables of the function: `na.u.V` of the block; in phases `na.w.V` of the warp,
which begins with what the block had, `na.p.V`, and ends by writing the block's.
"""

from __future__ import annotations

from dataclasses import replace

from numbasync.backend.cpu.regions.corner_values import HoistedChecks
from numbasync.backend.cpu.regions.cut import CutKernel, Level
from numbasync.backend.cpu.regions.helper_code import ALL
from numbasync.backend.cpu.regions.hoisted_checks import hoist_checks
from numbasync.backend.cpu.regions.keep import Kept
from numbasync.backend.cpu.regions.layout import Layout
from numbasync.backend.cpu.regions.own_sums import OwnSums
from numbasync.backend.cpu.regions.region import NEVER, Region, Settings, Written
from numbasync.backend.cpu.regions.region_code import RegionCode
from numbasync.backend.cpu.regions.state_lines import access, cases, choose, load_lines, store_lines
from numbasync.backend.cpu.regions.warps_code import WarpPhases

MASKED_STATE = 1 << 20  # added to the state of a waiting block some of whose threads have returned
BEGIN, MEET, MEET_WARP = 9, 7, 8  # modes of the access function of checks


class BlocksCode:
    """Writes the states of a block.

    Attributes:
        out: what is written.
        written: the states that are wanted: kind, number of the start, whether it is masked.
        hoisted: by name of a region with checks, whether they are before its loop.
    """

    def __init__(
        self, kernel: CutKernel, kept: Kept, layout: Layout, settings: Settings,
        regions: list[Region], own: OwnSums | None = None,
    ) -> None:  # fmt: skip
        self._own = own
        self.kernel, self.kept, self._layout, self._settings = kernel, kept, layout, settings
        self.regions = regions
        self.out = Written()
        self.hoisted: dict[str, bool] = {}
        self._wanted: list[tuple[str, int, bool]] = []
        self.written: set[tuple[str, int, bool]] = set()
        self.warps = WarpPhases(self)
        self.cooperative = any(b.level is Level.GRID for b in kernel.barriers)

    def level(self, number: int) -> Level:
        return self.kernel.barriers[number - 1].level if number else Level.GRID

    # --- what is needed ---

    def want(self, kind: str, number: int, masked: bool) -> None:
        state = kind, number, masked
        if state not in self.written:
            self.written.add(state)
            self._wanted.append(state)

    def go(self, number: int, masked: bool = False) -> str:
        """The label at which a block goes on that meets at a barrier, or has returned."""
        if number == 0:
            return "%done"
        m = "m" if masked else ""
        if self.level(number) is Level.GRID:
            self.want("grid", number, masked)
            return f"%g{number}{m}.start"
        return self._begin(number, masked)

    def _begin(self, number: int, masked: bool = False) -> str:
        """The label of the code behind a barrier of a block."""
        m = "m" if masked else ""
        if number in self.warps.phases:
            self.want("phase", number, masked)
            return f"%p{number}{m}.start"
        self.want("block", number, masked)
        return f"%{self._meeting('r', number, masked)}"

    def begin_warp(self, number: int, masked: bool = False) -> str:
        self.want("warp", number, masked)
        return f"%{self._meeting('w', number, masked)}"

    def _meeting(self, letter: str, number: int, masked: bool) -> str:
        """Where a region begins: in code that is checked, behind a word to the checks."""
        tag = f"{letter}{number}{'m' if masked else ''}"
        return f"{tag}.met" if self._settings.ordered and number else f"{tag}.start"

    # --- writing ---

    def write(self) -> list[str]:
        """All states, from the label `states` on."""
        first = self._begin(0)
        while self._wanted:
            self._write_state(*self._wanted.pop())
        if self.warps.phases:
            self.warps.write_next()
        lines = self.out.lines
        lines.append("states:")
        if not self.cooperative:
            lines.append(f"  br label {first}")
            return lines
        labels = {0: first}
        for kind, number, masked in sorted(self.written):
            if kind == "resumed":
                labels[number + MASKED_STATE * masked] = f"%h{number}{'m' if masked else ''}.start"
        lines += [
            "  %na.state.now = load i32, ptr %na.state",
            f"  switch i32 %na.state.now, label %impossible [ {cases(labels)} ]",
        ]
        return lines

    def _write_state(self, kind: str, number: int, masked: bool) -> None:
        match kind:
            case "block":
                self._write_region(Level.BLOCK, number, masked)
            case "warp":
                self._write_region(Level.WARP, number, masked)
            case "phase":
                self.warps.write_phase(number, masked)
            case "grid":
                self._write_grid(number, masked)
            case "resumed":
                self._write_resumed(number, masked)
            case "warps apart":
                self.warps.write_choice()
            case _:
                self.warps.write_end()

    def _write_region(self, level: Level, number: int, masked: bool) -> None:
        lines = self.out.lines
        region = self.regions[number]
        tag = f"{'w' if level is Level.WARP else 'r'}{number}{'m' if masked else ''}"
        if self._settings.ordered and number:
            mode = MEET_WARP if self.level(number) is Level.WARP else MEET
            lines += [f"{tag}.met:", f"  {access(0, mode)}", f"  br label %{tag}.start"]
        hoisted = self._hoisted(level, region, tag) if region.fails and not masked else None
        if region.fails and not masked:
            self.hoisted[tag] = hoisted is not None
        if hoisted is None:
            self._write_copy(level, region, masked, "")
            return
        lines.append(f"{tag}.start:")
        if level is Level.WARP:
            lines += [
                f"  %{tag}.h.base = load i64, ptr %na.base",
                f"  %{tag}.h.lanes = load i64, ptr %na.lanes",
                f"  %{tag}.h.end = add nuw nsw i64 %{tag}.h.base, %{tag}.h.lanes",
            ]
        for v in sorted(hoisted.uniform):
            place = f"%na.{'w' if level is Level.WARP else 'u'}.{v[1:]}"
            lines.append(f"  %{tag}.in.{v[1:]} = load {self.kept.uniform[v]}, ptr {place}")
        lines += [
            *hoisted.lines,
            f"  %{tag}.h = freeze i1 {hoisted.result}",
            f"  br i1 %{tag}.h, label %{tag}.good, label %{tag}s.start",
            f"{tag}.good:",
        ]
        if hoisted.entered and all(b.level is Level.LOOP for b in self.kernel.barriers):
            # Without masks vectors take half the time, and a round of a turned loop that no thread
            # leaves notes nothing for each. Where threads meet it is code for little.
            lines += [
                f"  %{tag}.e = freeze i1 {hoisted.all_enter}",
                f"  br i1 %{tag}.e, label %{tag}e.start, label %{tag}f.start",
            ]
            everywhere = replace(hoisted, taken={**hoisted.taken, **hoisted.entered})
            self._write_copy(level, region, masked, "e", everywhere)
        else:
            lines.append(f"  br label %{tag}f.start")
        self._write_copy(level, region, masked, "f", hoisted)
        self._write_copy(level, region, masked, "s")

    def _hoisted(self, level: Level, region: Region, tag: str) -> HoistedChecks | None:
        settings = self._settings
        if settings.apart or settings.ordered or (level is Level.WARP and not settings.row):
            return None
        live = self.kept.live[region.start]
        return hoist_checks(
            self.kernel,
            region.blocks,
            self.kernel.starts()[region.start],
            self.kept.divergent,
            {v for v in live if v in self.kept.uniform},
            {i.result for i in self.kept.remade[region.start]},
            settings.row,
            tag,
            (f"%{tag}.h.base", f"%{tag}.h.end") if level is Level.WARP else None,
        )

    def _write_copy(
        self,
        level: Level,
        region: Region,
        masked: bool,
        suffix: str,
        hoisted: HoistedChecks | None = None,
    ) -> None:
        code = RegionCode(
            self.kernel, self.kept, self._layout, self._settings, region, level, masked, self.out,
            suffix, hoisted.taken if hoisted else None, hoisted.facts if hoisted else None,
            self._own,
        )  # fmt: skip
        code.write()
        if level is Level.WARP:
            self.warps.leave_region(code)
        else:
            self._leave_region(code)

    def _leave_region(self, code: RegionCode) -> None:
        lines, tag, ends = self.out.lines, code.tag, code.region.ends
        if not ends:
            lines.append("  unreachable")  # threads wait for ever, or fail
        elif not code.varies:
            self.switch_on_last(tag, {e: self.go(e) for e in ends})
        else:
            if not code.masked:
                self.switch_if_same(tag, {e: self.go(e) for e in ends}, "least", "most")
            self.dispatch(tag, ends)

    def switch_on_last(self, tag: str, labels: dict[int, str]) -> None:
        """Go on where the last thread does, and all others, too."""
        if len(labels) == 1:
            self.out.lines.append(f"  br label {next(iter(labels.values()))}")
            return
        self.out.lines += [
            f"  %{tag}.to = load i32, ptr %na.last",
            f"  switch i32 %{tag}.to, label %impossible [ {cases(labels)} ]",
        ]

    def switch_if_same(self, tag: str, labels: dict[int, str], least: str, most: str) -> None:
        """Go on together if all threads end at the same, else fall through."""
        self.out.lines += [
            f"  %{tag}.least = load i32, ptr %na.{least}",
            f"  %{tag}.most = load i32, ptr %na.{most}",
            f"  %{tag}.same = icmp eq i32 %{tag}.least, %{tag}.most",
            f"  br i1 %{tag}.same, label %{tag}.together, label %{tag}.apart",
            f"{tag}.together:",
            f"  switch i32 %{tag}.most, label %impossible [ {cases(labels)} ]",
            f"{tag}.apart:",
        ]

    def dispatch(self, tag: str, ends: list[int]) -> None:
        """Go on where those go on who have not returned."""
        soft = [b.number for b in self.kernel.barriers if b.level is Level.LOOP]
        if soft:  # others may wait anywhere
            ends = [0, *(b.number for b in self.kernel.barriers if b.level >= Level.LOOP)]
        labels = {e: self.go(e, masked=True) for e in ends}
        labels[0] = "%done"
        for e in ends:
            if e:
                labels[e + ALL] = self.go(e)
        lines = self.out.lines
        lines += [
            choose(
                f"%{tag}.choice",
                "%na.next",
                "0",
                "%na.threads",
                soft,
                self._settings.returned_are_missing,
            ),
            f"  switch i32 %{tag}.choice, label %diverged [ {cases(labels)} ]",
        ]

    def uniform_at(self, number: int) -> list[tuple[str, str]]:
        """Type and name of the uniform values that are needed behind a barrier."""
        return [
            (self.kept.uniform[v], v[1:])
            for v in sorted(self.kept.live[number])
            if v in self.kept.uniform
        ]

    # --- blocks that meet ---

    def _write_grid(self, number: int, masked: bool) -> None:
        """A block waits for the others: it leaves, and comes back."""
        lines = self.out.lines
        tag = f"g{number}{'m' if masked else ''}"
        self.want("resumed", number, masked)
        lines.append(f"{tag}.start:")
        for kind, v in self.uniform_at(number):
            name = f"%{tag}.u.{v}"
            lines.append(f"  {name} = load {kind}, ptr %na.u.{v}")
            lines += store_lines(kind, name, f"%na.save.{v}", f"{name}.byte")
        lines += [
            f"  store i32 {number + (MASKED_STATE if masked else 0)}, ptr %na.state",
            "  ret i32 0",
        ]

    def _write_resumed(self, number: int, masked: bool) -> None:
        lines = self.out.lines
        tag = f"h{number}{'m' if masked else ''}"
        lines.append(f"{tag}.start:")
        for kind, v in self.uniform_at(number):
            name = f"%{tag}.u.{v}"
            lines += load_lines(kind, name, f"%na.save.{v}")
            lines.append(f"  store {kind} {name}, ptr %na.u.{v}")
        lines.append(f"  br label {self._begin(number, masked)}")

    # --- around the states ---

    def at_begin(self) -> list[str]:
        """What a block does first."""
        lines = []
        if "present" in self.kernel.memory:
            lines.append(
                "  call void @llvm.memset.p0.i64(ptr %na.present, i8 0, "
                f"i64 {self._layout.present_bytes}, i1 0)"
            )
        if self._settings.ordered:
            lines.append("  " + access("%na.block", BEGIN))
        return lines

    def variables(self) -> list[str]:
        """The function's variables, which LLVM makes values of."""
        places = dict(self.out.places)
        places.update(
            {"%na.last": "i32", "%na.least": "i32", "%na.most": "i32", "%na.first": "i64"}
        )
        places.update({f"%na.u.{v[1:]}": kind for v, kind in self.kept.uniform.items()})
        if self.warps.phases:
            places.update({f"%na.w.{v[1:]}": kind for v, kind in self.kept.uniform.items()})
            places.update(
                {"%na.phase": "i32", "%na.base": "i64", "%na.lanes": "i64"}
                | {"%na.warp_least": "i32", "%na.warp_most": "i32"}
            )
        return [
            *(f"  {name} = alloca {kind}" for name, kind in places.items()),
            f"  store i64 {NEVER}, ptr %na.first",
        ]
