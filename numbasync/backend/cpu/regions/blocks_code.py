"""The code of a kernel's blocks: its regions, and how a block goes from one to the next.

A block goes from barrier to barrier as a whole. Where threads meet by warps, the warps run one after the
other, each from a barrier of the block to the next one (a *phase*), region by region.

A region exists in up to two copies. All threads that wait at its start is the usual case; in the
*masked* copy only those run that wait there, since others have returned or wait elsewhere.

Uniform values are variables of the function: `na.u.V` of the block; in phases `na.w.V` of the warp, which
begins with what the block had, `na.p.V`, and ends by writing the block's.
"""

from __future__ import annotations

from numbasync.backend.cpu.regions.cut import CutKernel, Level
from numbasync.backend.cpu.regions.hoisted_checks import HoistedChecks, hoist_checks
from numbasync.backend.cpu.regions.helper_code import ALL, FAILED_STATUS, RAISED
from numbasync.backend.cpu.regions.keep import Kept
from numbasync.backend.cpu.regions.layout import Layout, in_memory
from numbasync.backend.cpu.regions.region_code import (
    NEVER,
    NOTE,
    Region,
    RegionCode,
    Settings,
    Written,
)

MASKED_STATE = 1 << 20  # added to the state of a waiting block some of whose threads have returned
BEGIN, MEET, MEET_WARP = 9, 7, 8  # modes of the access function of checks


class BlocksCode:
    """Writes the states of a block."""

    def __init__(
        self, kernel: CutKernel, kept: Kept, layout: Layout, settings: Settings,
        regions: list[Region], strict: bool, saved: dict[str, str],
    ) -> None:  # fmt: skip
        self._kernel, self._kept, self._layout, self._settings = kernel, kept, layout, settings
        self._regions, self._strict, self._saved = regions, strict, saved
        self.out = Written()
        self.hoisted: dict[str, bool] = {}  # by region's name: whether its checks are before it
        self._wanted: list[tuple[str, int, bool]] = []
        self._written: set[tuple[str, int, bool]] = set()
        self._phases: dict[int, set[int]] = {}
        self._find_phases()
        self.cooperative = any(b.level is Level.GRID for b in kernel.barriers)

    def _level(self, number: int) -> Level:
        return self._kernel.barriers[number - 1].level if number else Level.GRID

    def _find_phases(self) -> None:
        """The starts of a block from which warps meet, each with what their regions end at."""
        for region in self._regions:
            if region.start and self._level(region.start) is Level.WARP:
                continue
            seen: set[int] = set()
            ends: set[int] = set()
            waiting = [region.start]
            while waiting:
                start = waiting.pop()
                for end in self._regions[start].ends:
                    if end and self._level(end) is Level.WARP:
                        if end not in seen:
                            seen.add(end)
                            waiting.append(end)
                    else:
                        ends.add(end)
            if seen:
                self._phases[region.start] = ends
        self._phase_ends = sorted(set().union(*self._phases.values())) if self._phases else []
        in_warps = [
            r
            for r in self._regions
            if r.start in self._phases or (r.start and self._level(r.start) is Level.WARP)
        ]
        self._fills = len(self._phase_ends) > 1 or any(r.varies for r in in_warps)

    # --- what is needed ---

    def _want(self, kind: str, number: int, masked: bool) -> None:
        state = kind, number, masked
        if state not in self._written:
            self._written.add(state)
            self._wanted.append(state)

    def _go(self, number: int, masked: bool = False) -> str:
        """The label at which a block goes on that meets at a barrier, or has returned."""
        if number == 0:
            return "%done"
        m = "m" if masked else ""
        if self._level(number) is Level.GRID:
            self._want("grid", number, masked)
            return f"%g{number}{m}.start"
        return self._begin(number, masked)

    def _begin(self, number: int, masked: bool = False) -> str:
        """The label of the code behind a barrier of a block."""
        m = "m" if masked else ""
        if number in self._phases:
            self._want("phase", number, masked)
            return f"%p{number}{m}.start"
        self._want("block", number, masked)
        return f"%{self._meeting('r', number, masked)}"

    def _begin_warp(self, number: int, masked: bool = False) -> str:
        self._want("warp", number, masked)
        return f"%{self._meeting('w', number, masked)}"

    def _meeting(self, letter: str, number: int, masked: bool) -> str:
        """Where a region begins: in code that is checked, behind a word to the checks."""
        tag = f"{letter}{number}{'m' if masked else ''}"
        return f"{tag}.met" if self._settings.ordered and number else f"{tag}.start"

    # --- writing ---

    def write(self) -> list[str]:
        """All states, from the label `states` on."""
        first = self._begin(0)
        write = {
            "block": lambda n, m: self._write_region(Level.BLOCK, n, m),
            "warp": lambda n, m: self._write_region(Level.WARP, n, m),
            "phase": self._write_phase,
            "grid": self._write_grid,
            "resumed": self._write_resumed,
            "warps apart": lambda n, m: self._write_choice_of_warps(),
            "end of warps": lambda n, m: self._write_end_of_warps(),
        }
        while self._wanted:
            kind, number, masked = self._wanted.pop()
            write[kind](number, masked)
        if self._phases:
            self._write_next_warp()
        lines = self.out.lines
        lines.append("states:")
        if not self.cooperative:
            lines.append(f"  br label {first}")
            return lines
        labels = {0: first}
        for kind, number, masked in sorted(self._written):
            if kind == "resumed":
                labels[number + MASKED_STATE * masked] = f"%h{number}{'m' if masked else ''}.start"
        lines += [
            "  %na.state.now = load i32, ptr %na.state",
            f"  switch i32 %na.state.now, label %impossible [ {_cases(labels)} ]",
        ]
        return lines

    def _write_region(self, level: Level, number: int, masked: bool) -> None:
        lines = self.out.lines
        region = self._regions[number]
        tag = f"{'w' if level is Level.WARP else 'r'}{number}{'m' if masked else ''}"
        if self._settings.ordered and number:
            mode = MEET_WARP if self._level(number) is Level.WARP else MEET
            lines += [f"{tag}.met:", f"  {_access(0, mode)}", f"  br label %{tag}.start"]
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
            lines.append(f"  %{tag}.in.{v[1:]} = load {self._kept.uniform[v]}, ptr {place}")
        lines += [
            *hoisted.lines,
            f"  %{tag}.h = freeze i1 {hoisted.result}",
            f"  br i1 %{tag}.h, label %{tag}f.start, label %{tag}s.start",
        ]
        self._write_copy(level, region, masked, "f", hoisted)
        self._write_copy(level, region, masked, "s")

    def _hoisted(self, level: Level, region: Region, tag: str) -> HoistedChecks | None:
        if not self._settings.hoists_checks or (level is Level.WARP and not self._settings.row):
            return None
        live = self._kept.live[region.start]
        return hoist_checks(
            self._kernel,
            region.blocks,
            self._kernel.starts()[region.start],
            self._kept.divergent,
            {v for v in live if v in self._kept.uniform},
            {i.result for i in self._kept.remade[region.start]},
            self._settings.row,
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
            self._kernel, self._kept, self._layout, self._settings, region, level, masked, self.out,
            suffix, hoisted and hoisted.taken, hoisted and hoisted.facts,
        )  # fmt: skip
        code.write()
        if level is Level.WARP:
            self._leave_warp_region(code)
        else:
            self._leave_region(code)

    def _leave_region(self, code: RegionCode) -> None:
        lines, tag, ends = self.out.lines, code.tag, code.region.ends
        if not ends:
            lines.append("  unreachable")  # threads wait for ever, or fail
        elif not code.varies:
            self._switch_on_last(tag, {e: self._go(e) for e in ends})
        else:
            if not code.masked:
                self._switch_if_same(tag, {e: self._go(e) for e in ends}, "least", "most")
            self._dispatch(tag, ends)

    def _switch_on_last(self, tag: str, labels: dict[int, str]) -> None:
        """Go on where the last thread does, and all others, too."""
        if len(labels) == 1:
            self.out.lines.append(f"  br label {next(iter(labels.values()))}")
            return
        self.out.lines += [
            f"  %{tag}.to = load i32, ptr %na.last",
            f"  switch i32 %{tag}.to, label %impossible [ {_cases(labels)} ]",
        ]

    def _switch_if_same(self, tag: str, labels: dict[int, str], least: str, most: str) -> None:
        """Go on together if all threads end at the same, else fall through."""
        self.out.lines += [
            f"  %{tag}.least = load i32, ptr %na.{least}",
            f"  %{tag}.most = load i32, ptr %na.{most}",
            f"  %{tag}.same = icmp eq i32 %{tag}.least, %{tag}.most",
            f"  br i1 %{tag}.same, label %{tag}.together, label %{tag}.apart",
            f"{tag}.together:",
            f"  switch i32 %{tag}.most, label %impossible [ {_cases(labels)} ]",
            f"{tag}.apart:",
        ]

    def _dispatch(self, tag: str, ends: list[int]) -> None:
        """Go on where those go on who have not returned."""
        soft = [b.number for b in self._kernel.barriers if b.level is Level.LOOP]
        if soft:  # others may wait anywhere
            ends = [0, *(b.number for b in self._kernel.barriers if b.level >= Level.LOOP)]
        labels = {e: self._go(e, masked=True) for e in ends}
        labels[0] = "%done"
        for e in ends:
            if e:
                labels[e + ALL] = self._go(e)
        lines = self.out.lines
        self._copy_alive(tag, "0", "%na.threads")
        lines += [
            f"  %{tag}.choice = call i32 @na.choose(ptr %na.next, ptr %na.next, i64 0, i64 %na.threads, "
            f"i32 {min(soft, default=-2)}, i32 {max(soft, default=-2)}, i1 {int(self._strict)}, i1 0)",
            f"  switch i32 %{tag}.choice, label %diverged [ {_cases(labels)} ]",
        ]

    def _copy_alive(self, tag: str, base: str, count: str) -> None:
        if self._kernel.asks_who_is_alive:
            self.out.lines += [
                f"  %{tag}.ap = getelementptr inbounds i32, ptr %na.alive, i64 {base}",
                f"  %{tag}.np = getelementptr inbounds i32, ptr %na.next, i64 {base}",
                f"  %{tag}.nb = shl i64 {count}, 2",
                f"  call void @llvm.memcpy.p0.p0.i64(ptr %{tag}.ap, ptr %{tag}.np, i64 %{tag}.nb, i1 0)",
            ]

    # --- warps ---

    def _uniform_at(self, number: int) -> list[tuple[str, str]]:
        """Type and name of the uniform values that are needed behind a barrier."""
        return [
            (self._kept.uniform[v], v[1:])
            for v in sorted(self._kept.live[number])
            if v in self._kept.uniform
        ]

    def _write_phase(self, number: int, masked: bool) -> None:
        lines = self.out.lines
        tag = f"p{number}{'m' if masked else ''}"
        lines += [
            f"{tag}.start:",
            f"  store i32 {number * 2 + masked}, ptr %na.phase",
            "  store i64 0, ptr %na.base",
            "  store i32 2147483647, ptr %na.warp_least",
            "  store i32 -1, ptr %na.warp_most",
        ]
        for kind, v in self._uniform_at(number):
            self.out.places[f"%na.p.{v}"] = kind
            lines += _copy(kind, f"%na.u.{v}", f"%na.p.{v}", f"%{tag}.c.{v}")
        lines += [f"  br label %{tag}.warp", f"{tag}.warp:"]
        for kind, v in self._uniform_at(number):
            self.out.places[f"%na.w.{v}"] = kind
            lines += _copy(kind, f"%na.p.{v}", f"%na.w.{v}", f"%{tag}.d.{v}")
        lines += [
            f"  %{tag}.base = load i64, ptr %na.base",
            f"  %{tag}.left = sub i64 %na.threads, %{tag}.base",
            f"  %{tag}.lanes = call i64 @llvm.umin.i64(i64 %{tag}.left, i64 32)",
            f"  store i64 %{tag}.lanes, ptr %na.lanes",
        ]
        self._want("end of warps", 0, False)
        if not masked:
            lines.append(f"  br label {self._begin_warp(number)}")
            return
        lines += [  # of this barrier alone, as if no other was soft
            f"  %{tag}.choice = call i32 @na.choose(ptr %na.next, ptr %na.next, i64 %{tag}.base, "
            f"i64 %{tag}.lanes, i32 -2, i32 -2, i1 0, i1 0)",
            f"  switch i32 %{tag}.choice, label {self._begin_warp(number, masked=True)} ["
            f" i32 0, label %warp_to_0m i32 {number + ALL}, label {self._begin_warp(number)} ]",
        ]

    def _leave_warp_region(self, code: RegionCode) -> None:
        lines, tag, ends = self.out.lines, code.tag, code.region.ends
        if not ends:
            lines.append("  unreachable")
            return
        if not code.varies:
            self._switch_on_last(tag, {e: self._go_in_warp(e) for e in ends})
            return
        if not code.masked:
            labels = {e: self._go_in_warp(e, filled=True) for e in ends}
            self._switch_if_same(tag, labels, "least", "most")
        lines.append("  br label %warp.dispatch")
        self._want("warps apart", 0, False)

    def _go_in_warp(self, end: int, masked: bool = False, filled: bool = False) -> str:
        if end and self._level(end) is Level.WARP:
            return self._begin_warp(end, masked)
        return f"%warp_to_{end}" + ("f" if filled and not masked else "m" if masked else "")

    def _write_choice_of_warps(self) -> None:
        """Where a warp goes on whose lanes have come apart."""
        lines = self.out.lines
        soft = [b.number for b in self._kernel.barriers if b.level is Level.WARP]
        labels = {e: self._begin_warp(e, masked=True) for e in soft}
        labels.update({e + ALL: self._begin_warp(e) for e in soft})
        for e in self._phase_ends:
            labels[e] = f"%warp_to_{e}m"
            if e:
                labels[e + ALL] = f"%warp_to_{e}f"
        labels[0] = "%warp_to_0m"
        has_masks = int(any(b.mask != "-1" for b in self._kernel.barriers))
        lines += [
            "warp.dispatch:",
            "  %warp.base = load i64, ptr %na.base",
            "  %warp.lanes = load i64, ptr %na.lanes",
        ]
        self._copy_alive("warp", "%warp.base", "%warp.lanes")
        lines += [
            "  %warp.choice = call i32 @na.choose(ptr %na.next, ptr %na.masks, i64 %warp.base, "
            f"i64 %warp.lanes, i32 {min(soft)}, i32 {max(soft)}, i1 0, i1 {has_masks})",
            f"  switch i32 %warp.choice, label %warp_apart [ {_cases(labels)} ]",
        ]

    def _write_end_of_warps(self) -> None:
        """What is done when a warp is through its phase, and when all are."""
        lines = self.out.lines
        lines += ["warp_apart:", *_extremes("-1", "warp_apart"), "  br label %warp.next"]
        for e in {*self._phase_ends, 0}:
            for suffix in ("", "f", "m"):
                tag = f"warp_to_{e}{suffix}"
                lines.append(f"{tag}:")
                if suffix == "" and self._fills:
                    lines += [
                        f"  %{tag}.base = load i64, ptr %na.base",
                        f"  %{tag}.lanes = load i64, ptr %na.lanes",
                        f"  call void @na.fill(ptr %na.next, i64 %{tag}.base, i64 %{tag}.lanes, i32 {e})",
                    ]
                if e:
                    for kind, v in self._uniform_at(e):
                        self.out.places[f"%na.w.{v}"] = kind
                        lines += _copy(kind, f"%na.w.{v}", f"%na.u.{v}", f"%{tag}.c.{v}")
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
        ends = self._phase_ends
        if self._fills:
            self._switch_if_same("wd", {e: self._go(e) for e in ends}, "warp_least", "warp_most")
            self._dispatch("wd", ends)
        elif ends:
            lines.append(f"  br label {self._go(ends[0])}")
        else:
            lines.append("  unreachable")

    def _write_next_warp(self) -> None:
        cases = " ".join(
            f"i32 {n * 2 + masked}, label %p{n}{'m' if masked else ''}.warp"
            for kind, n, masked in sorted(self._written)
            if kind == "phase"
        )
        self.out.lines += [
            "warp.again:",
            "  %warp.phase = load i32, ptr %na.phase",
            f"  switch i32 %warp.phase, label %impossible [ {cases} ]",
        ]

    # --- blocks that meet ---

    def _write_grid(self, number: int, masked: bool) -> None:
        """A block waits for the others: it leaves, and comes back."""
        lines = self.out.lines
        tag = f"g{number}{'m' if masked else ''}"
        self._want("resumed", number, masked)
        lines.append(f"{tag}.start:")
        for kind, v in self._uniform_at(number):
            lines += [
                f"  %{tag}.u.{v} = load {kind}, ptr %na.u.{v}",
                *_widened(kind, f"%{tag}.u.{v}"),
                f"  store {in_memory(kind)} {_wide(kind, f'%{tag}.u.{v}')}, ptr %na.save.{v}",
            ]
        lines += [
            f"  store i32 {number + (MASKED_STATE if masked else 0)}, ptr %na.state",
            "  ret i32 0",
        ]

    def _write_resumed(self, number: int, masked: bool) -> None:
        lines = self.out.lines
        tag = f"h{number}{'m' if masked else ''}"
        lines.append(f"{tag}.start:")
        for kind, v in self._uniform_at(number):
            name = f"%{tag}.u.{v}"
            if kind == "i1":
                lines += [
                    f"  {name}.w = load i8, ptr %na.save.{v}",
                    f"  {name} = trunc i8 {name}.w to i1",
                ]
            else:
                lines.append(f"  {name} = load {kind}, ptr %na.save.{v}")
            lines.append(f"  store {kind} {name}, ptr %na.u.{v}")
        lines.append(f"  br label {self._begin(number, masked)}")

    # --- around the states ---

    def at_begin(self) -> list[str]:
        """What a block does first."""
        lines = []
        if "present" in self._kernel.memory:
            lines.append(
                f"  call void @llvm.memset.p0.i64(ptr %na.present, i8 0, i64 {self._layout.present_bytes}, i1 0)"
            )
        if self._kernel.asks_who_is_alive:
            lines.append("  call void @na.fill(ptr %na.alive, i64 0, i64 %na.threads, i32 1)")
        if self._settings.ordered:
            lines.append("  " + _access("%na.block", BEGIN))
        return lines

    def at_end(self) -> list[str]:
        """The errors."""
        lines = ["impossible:", "  unreachable", "diverged:"]
        where = "i64 %na.wx64, i64 %na.wy64, i64 %na.bx64, i64 %na.by64, i64 %na.bz64"
        if "%na.next" in self._layout.names():
            lines.append(
                f"  call void @na.diverged(ptr %na.memory, ptr %na.next, i64 %na.threads, {where})"
            )
        lines += [f"  ret i32 {FAILED_STATUS}", "failed:"]
        if any(r.fails for r in self._regions):
            lines += [
                "  %failed.first = load i64, ptr %na.first",
                "  %failed.p = getelementptr inbounds i32, ptr %na.statuses, i64 %failed.first",
                "  %failed.status = load i32, ptr %failed.p",
                f"  %failed.noted = icmp eq i32 %failed.status, {FAILED_STATUS}",
                "  br i1 %failed.noted, label %failed.note, label %failed.raised",
                "failed.note:",
            ]
            values = []
            if self._kernel.has_notes:
                for name, kind in NOTE:
                    v = f"%failed.{name}"
                    lines += [
                        f"  {v}.p = getelementptr inbounds {kind}, ptr %na.note_{name}, i64 %failed.first",
                        f"  {v}.v = load {kind}, ptr {v}.p",
                        f"  {v} = sext i32 {v}.v to i64"
                        if kind == "i32"
                        else f"  {v} = add i64 {v}.v, 0",
                    ]
                    values.append(f"i64 {v}")
                lines.append(
                    f"  call void @na.record(ptr %na.memory, {', '.join(values)}, i64 %failed.first, {where})"
                )
            lines += [
                f"  ret i32 {FAILED_STATUS}",
                "failed.raised:",
                f"  call void @na.record(ptr %na.memory, i64 {RAISED}, i64 -1, i64 0, i64 0, i64 0, "
                f"i64 %failed.first, {where})",
            ]
            if "%na.excinfos" in self._layout.names():
                lines += [
                    "  %failed.asked = icmp ne ptr %na.excinfo, null",
                    "  br i1 %failed.asked, label %failed.tell, label %failed.told",
                    "failed.tell:",
                    "  %failed.ep = getelementptr inbounds ptr, ptr %na.excinfos, i64 %failed.first",
                    "  %failed.e = load ptr, ptr %failed.ep",
                    "  store ptr %failed.e, ptr %na.excinfo",
                    "  br label %failed.told",
                    "failed.told:",
                ]
            lines.append("  ret i32 %failed.status")
        else:
            lines.append("  unreachable")
        return lines

    def variables(self) -> list[str]:
        """The function's variables, which LLVM makes values of."""
        places = dict(self.out.places)
        places.update(
            {"%na.last": "i32", "%na.least": "i32", "%na.most": "i32", "%na.first": "i64"}
        )
        places.update({f"%na.u.{v[1:]}": kind for v, kind in self._kept.uniform.items()})
        if self._phases:
            places.update({f"%na.w.{v[1:]}": kind for v, kind in self._kept.uniform.items()})
            places.update(
                {"%na.phase": "i32", "%na.base": "i64", "%na.lanes": "i64"}
                | {"%na.warp_least": "i32", "%na.warp_most": "i32"}
            )
        return [
            *(f"  {name} = alloca {kind}" for name, kind in places.items()),
            f"  store i64 {NEVER}, ptr %na.first",
        ]

    def is_used(self, name: str) -> bool:
        return any(name in line for line in self.out.lines)


def _cases(labels: dict[int, str]) -> str:
    return " ".join(f"i32 {number}, label {label}" for number, label in labels.items())


def _copy(kind: str, source: str, target: str, name: str) -> list[str]:
    return [f"  {name} = load {kind}, ptr {source}", f"  store {kind} {name}, ptr {target}"]


def _wide(kind: str, name: str) -> str:
    return f"{name}.w" if kind == "i1" else name


def _widened(kind: str, name: str) -> list[str]:
    return [f"  {name}.w = zext i1 {name} to i8"] if kind == "i1" else []


def _extremes(value: str, tag: str) -> list[str]:
    return [
        f"  %{tag}.a = load i32, ptr %na.warp_least",
        f"  %{tag}.b = call i32 @llvm.smin.i32(i32 %{tag}.a, i32 {value})",
        f"  store i32 %{tag}.b, ptr %na.warp_least",
        f"  %{tag}.e = load i32, ptr %na.warp_most",
        f"  %{tag}.f = call i32 @llvm.smax.i32(i32 %{tag}.e, i32 {value})",
        f"  store i32 %{tag}.f, ptr %na.warp_most",
    ]


def _access(address: int | str, mode: int) -> str:
    return (
        f"call i64 @numbasync_access(i64 %na.memory64, i64 {address}, i64 0, i64 {mode}, "
        "i64 0, i64 0, i64 0, i64 0)"
    )
