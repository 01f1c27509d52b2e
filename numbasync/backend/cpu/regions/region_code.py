"""The code of one region: what threads do from one barrier to the next, as a loop over them."""

from __future__ import annotations

from collections.abc import Mapping

from numbasync.backend.cpu.regions.cut import BARRIER, FAIL, CutKernel, Level
from numbasync.backend.cpu.regions.instructions import Instruction, is_plain
from numbasync.backend.cpu.regions.keep import Kept
from numbasync.backend.cpu.regions.layout import Layout, in_memory
from numbasync.backend.cpu.regions.own_sums import OwnSums
from numbasync.backend.cpu.regions.private_atomics import without_lock
from numbasync.backend.cpu.regions.region import NEVER, NOTE, Region, Settings, Written, with_ways
from numbasync.backend.cpu.regions.state_lines import (
    latch_lines,
    load_lines,
    store_lines,
)
from numbasync.backend.cpu.regions.thread_loops import Loops


class RegionCode:
    """Writes one copy of a region.

    Args:
        level: whose threads its loop runs over: a warp's or a block's.
        masked: only those threads that wait at its start.
        suffix: of the names, for another copy.
        taken: by block, the only way from there that this copy has.
        facts: what some values are in this copy.
        own: sums that a worker has for itself.
    """

    def __init__(
        self, kernel: CutKernel, kept: Kept, layout: Layout, settings: Settings, region: Region,
        level: Level, masked: bool, out: Written, suffix: str = "",
        taken: Mapping[str, str] | None = None, facts: Mapping[str, str] | None = None,
        own: OwnSums | None = None,
    ) -> None:  # fmt: skip
        self._kernel, self._kept, self._settings = kernel, kept, settings
        self._blocks = kernel.function.blocks
        if taken:
            self._blocks, region = with_ways(kernel, region, taken)
        self.region, self.level, self.masked = region, level, masked
        letter = "w" if level is Level.WARP else "r"
        self.tag = f"{letter}{region.start}{'m' if masked else ''}{suffix}"
        self.varies = region.varies or masked
        self._out, self._own = out, own
        self._facts = dict(facts or {})
        self._group = ", !llvm.access.group !9000" if not settings.ordered else ""
        self._count = 0
        self._defined = {i.result for b in region.blocks for i in self._blocks[b] if i.result}
        self._defined -= set(self._facts)
        self._names: dict[str, str] = {
            f"%na.{c}": f"%{self.tag}.na.{c}" for c in ("tx", "ty", "tz", "tid")
        }
        self._names.update({b: f"%{self.tag}.v.{b[1:]}" for b in region.blocks})
        self._names.update({v: f"%{self.tag}.v.{v[1:]}" for v in self._defined})
        self._names.update({a: f"%{self.tag}.v.{a[1:]}" for a in kernel.local_arrays})
        self._names.update(layout.renamed)
        self._names.update(self._facts)
        self._uniform_outs = sorted(
            {
                v
                for e in region.ends
                if e
                for v in kept.live[e]
                if v in kept.uniform and v in self._defined
            }
        )

    def uniform_place(self, value: str) -> str:
        """The variable that keeps a uniform value."""
        return f"%na.{'w' if self.level is Level.WARP else 'u'}.{value[1:]}"

    def write(self) -> None:
        """Append the code from `TAG.start` to `TAG.after`, where all threads are done."""
        lines = self._out.lines
        tag = self.tag
        self._find_incoming()
        lines.append(f"{tag}.start:")
        for v in self._uniform_outs:
            self._place(f"%{tag}.o.{v[1:]}", self._kept.uniform[v])
            if self.varies:
                lines.append(
                    f"  %{tag}.o0.{v[1:]} = load {self._kept.uniform[v]}, "
                    f"ptr {self.uniform_place(v)}"
                )
                lines.append(
                    f"  store {self._kept.uniform[v]} %{tag}.o0.{v[1:]}, ptr %{tag}.o.{v[1:]}"
                )
        if self.varies and not self.masked:
            lines.append("  store i32 2147483647, ptr %na.least")
            lines.append("  store i32 -1, ptr %na.most")
        for v in self._loaded:
            if v in self._kept.uniform:
                lines.append(
                    f"  {self._initial[v]} = load {self._kept.uniform[v]}, "
                    f"ptr {self.uniform_place(v)}"
                )
        for i in self._made_before:
            lines.append(f"  {self._initial[i.result]} = {i.renamed(self._initial_names)}")
        loops = Loops(tag, self.level, self._settings, self._out, self._has_vectors())
        lines += loops.head()
        self._write_body()
        if self.varies and not self.masked:
            lines += latch_lines(tag)
        lines += loops.tail()
        lines.append(f"{tag}.after:")
        for v in self._uniform_outs:
            kind = self._kept.uniform[v]
            lines.append(f"  %{tag}.o1.{v[1:]} = load {kind}, ptr %{tag}.o.{v[1:]}")
            lines.append(f"  store {kind} %{tag}.o1.{v[1:]}, ptr {self.uniform_place(v)}")
        if self.region.fails and not self._settings.ordered:
            lines += [
                f"  %{tag}.first = load i64, ptr %na.first",
                f"  %{tag}.is_good = icmp eq i64 %{tag}.first, {NEVER}",
                f"  br i1 %{tag}.is_good, label %{tag}.go_on, label %failed",
                f"{tag}.go_on:",
            ]

    def _has_vectors(self) -> bool:
        """Whether vectors are worth their code: not for the few threads that are left where others
        have returned. In loops that were turned some are left in the last rounds of many.
        """
        start = self.region.start
        is_rest = self.masked and self._kernel.barriers[start - 1].level is not Level.LOOP
        return not (self.region.fails or is_rest)

    # --- what comes from before ---

    def _find_incoming(self) -> None:
        kept, start = self._kept, self.region.start
        used = {u for b in self.region.blocks for i in self._blocks[b] for u in i.uses}
        # What is kept on from here or made anew on the way is stored at the end: whichever it is.
        used |= {v for e in self.region.ends if e for v in kept.live[e] if v in self._defined}
        used -= set(self._facts)
        needed_remade: list[Instruction] = []
        for i in reversed(kept.remade[start]):
            if i.result in used:
                needed_remade.insert(0, i)
                used.update(u for u in i.uses if u not in self._facts)
        self._loaded = sorted(v for v in kept.live[start] if v in used)
        incoming = [*self._loaded, *(i.result for i in needed_remade)]
        self._initial = {v: f"%{self.tag}.in.{v[1:]}" for v in incoming}
        self._demoted = {v for v in incoming if v in self._defined}
        for v in incoming:
            if v not in self._demoted:
                self._names[v] = self._initial[v]
        self._initial_names = {**self._names, **self._initial}
        once = {v for v in self._loaded if v in kept.uniform} | set(self._facts)
        of_thread = {f"%na.{c}" for c in ("tx", "ty", "tz", "tid")} | set(self._kernel.local_arrays)
        inside = set(self.region.blocks)
        # Names of demoted values that are loaded at the end of a block for phis behind it.
        self._phi_names = {
            (v, b): f"%{self.tag}.e.{b[1:]}.{v[1:]}"
            for block in self.region.blocks
            for i in self._blocks[block]
            if i.opcode == "phi"
            for v, b in i.incoming
            if v in self._demoted and b in inside
        }
        self._made_before, self._made_inside = [], []
        for i in needed_remade:
            if all(u in once or (u in self._kernel.names and u not in of_thread) for u in i.uses):
                once.add(i.result)
                self._made_before.append(i)
            else:
                self._made_inside.append(i)

    def _type_of(self, value: str) -> str:
        kind = self._kept.uniform.get(value) or self._kept.per_thread.get(value)
        if kind is None:
            kind = next(i.type for i in self._kept.remade[self.region.start] if i.result == value)
        return kind

    # --- the body ---

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"%{self.tag}.{stem}.{self._count}"

    def _place(self, name: str, kind: str) -> None:
        self._out.places[name] = kind

    def _address(self, name: str, kind: str) -> tuple[str, str]:
        """A name for the thread's place in an array of all threads, and the line that makes it."""
        p = self._fresh("p")
        return p, f"  {p} = getelementptr inbounds {kind}, ptr {name}, i64 %{self.tag}.na.tid"

    def store_of_thread(self, name: str, kind: str, value: str) -> list[str]:
        """Store a value into the thread's place."""
        p, line = self._address(name, in_memory(kind))
        return [line, *store_lines(kind, value, p, f"{p}.byte", self._group)]

    def load_of_thread(self, name: str, kind: str, result: str) -> list[str]:
        p, line = self._address(name, in_memory(kind))
        return [line, *load_lines(kind, result, p, self._group)]

    def _write_body(self) -> None:
        lines, tag = self._out.lines, self.tag
        if self.masked:
            lines += self.load_of_thread("%na.next", "i32", f"%{tag}.waits_at")
            lines += [
                f"  %{tag}.is_here = icmp eq i32 %{tag}.waits_at, {self.region.start}",
                f"  br i1 %{tag}.is_here, label %{tag}.begin, label %{tag}.next",
                f"{tag}.begin:",
            ]
        for array, (kind, _) in self._kernel.local_arrays.items():
            lines.append(
                f"  {self._names[array]} = getelementptr inbounds {kind}, "
                f"ptr %na.local.{array[1:]}, i64 %{tag}.na.tid"
            )
        for v in self._loaded:
            if v in self._kept.per_thread:
                lines += self.load_of_thread(
                    f"%na.slot.{v[1:]}", self._kept.per_thread[v], self._initial[v]
                )
        for i in self._made_inside:
            lines.append(f"  {self._initial[i.result]} = {i.renamed(self._initial_names)}")
        for v in sorted(self._demoted):
            self._place(f"%{tag}.d.{v[1:]}", self._type_of(v))
            lines.append(f"  store {self._type_of(v)} {self._initial[v]}, ptr %{tag}.d.{v[1:]}")
        lines.append(f"  br label {self._names[self._kernel.starts()[self.region.start]]}")
        for block in self.region.blocks:
            lines.append(f"{self._names[block][1:]}:")
            self._write_block(block)

    def _current(self, value: str, lines: list[str]) -> str:
        """A name for what a value of the region is now."""
        if value not in self._demoted:
            return self._names[value]
        name = self._fresh("v")
        lines.append(f"  {name} = load {self._type_of(value)}, ptr %{self.tag}.d.{value[1:]}")
        return name

    def _write_block(self, block: str) -> None:
        lines = self._out.lines
        code = self._blocks[block]
        late: list[str] = []
        for i in code:
            if i.opcode != "phi" and late:
                lines += late
                late = []
            if i.opcode == "phi":
                incoming = [
                    (self._phi_names.get((v, b), self._names.get(v, v)), self._names[b])
                    for v, b in i.incoming
                    if b in self._names and block in self._blocks[b][-1].labels
                ]
                flags = i.text[4 : i.text.index(i.type + " [")]
                joined = ", ".join(f"[ {v}, {b} ]" for v, b in incoming)
                lines.append(f"  {self._names[i.result]} = phi {flags}{i.type} {joined}")
                if i.result in self._demoted:
                    late.append(
                        f"  store {i.type} {self._names[i.result]}, "
                        f"ptr %{self.tag}.d.{i.result[1:]}"
                    )
                continue
            self._write_instruction(block, i)

    def _write_instruction(self, block: str, i: Instruction) -> None:
        lines = self._out.lines
        if i.result in self._facts:
            return
        if i.labels or i.opcode in (FAIL, "ret", "unreachable"):
            done = set()
            for following in i.labels if i.opcode != BARRIER else ():
                for p in self._blocks[following]:
                    for v, b in p.incoming:
                        if b == block and v in self._demoted and v not in done:
                            done.add(v)
                            lines.append(
                                f"  {self._phi_names[v, b]} = load {self._type_of(v)}, "
                                f"ptr %{self.tag}.d.{v[1:]}"
                            )
        if i.opcode == BARRIER:
            number = next(b.number for b in self._kernel.barriers if b.block == block)
            self._write_end(number)
            return
        if i.opcode == "ret":
            self._write_end(0)
            return
        names = self._names
        demoted = [u for u in dict.fromkeys(i.uses) if u in self._demoted]
        if demoted:
            names = {**names, **{u: self._current(u, lines) for u in demoted}}
        if i.opcode == FAIL:
            self._write_failure(names.get(i.text, i.text))
            return
        if i.callee == "@na.note":
            self._write_note(i, names)
            return
        text = i.renamed(names)
        if self._own is not None and i.opcode == "atomicrmw" and i.uses[0] in self._own.addresses:
            lines.append(f"  {self._own.call(text)}")
            return
        plain = None
        if i.opcode == "atomicrmw":
            is_private = i.uses[0] in self._kernel.private_addresses()
            plain = without_lock(text, names[i.result], is_private)
        if plain is not None:
            lines += plain
        elif i.opcode in ("load", "store") and is_plain(i):
            text += self._group
        if plain is None:
            lines.append(f"  {names[i.result]} = {text}" if i.result else f"  {text}")
        if i.result in self._demoted:
            lines.append(
                f"  store {i.type} {self._names[i.result]}, ptr %{self.tag}.d.{i.result[1:]}"
            )

    # --- ends ---

    def _write_end(self, number: int) -> None:
        lines, kept = self._out.lines, self._kept
        wanted = kept.live[number] if number else set()
        for v in sorted(wanted):
            if v in kept.per_thread and v in self._defined:
                lines += self.store_of_thread(
                    f"%na.slot.{v[1:]}", kept.per_thread[v], self._current(v, lines)
                )
        for v in self._uniform_outs:
            if v in wanted:
                lines.append(
                    f"  store {kept.uniform[v]} {self._current(v, lines)}, "
                    f"ptr %{self.tag}.o.{v[1:]}"
                )
            elif not self.varies:
                lines.append(f"  store {kept.uniform[v]} poison, ptr %{self.tag}.o.{v[1:]}")
        if self.varies:
            lines += self.store_of_thread("%na.next", "i32", str(number))
            barrier = self._kernel.barriers[number - 1] if number else None
            if barrier is not None and barrier.level is Level.WARP:
                mask = barrier.mask
                value = (
                    self._current(mask, lines)
                    if mask in self._defined or mask in self._initial
                    else mask
                )
                lines += self.store_of_thread("%na.masks", "i32", value)
        if self.varies or len(self.region.ends) > 1:
            lines.append(f"  store i32 {number}, ptr %na.last")
        lines.append(
            f"  br label %{self.tag}.{'latch' if self.varies and not self.masked else 'next'}"
        )

    def _write_failure(self, status: str) -> None:
        lines, tag = self._out.lines, self.tag
        lines += self.store_of_thread("%na.statuses", "i32", status)
        if self._settings.ordered:
            lines += [f"  store i64 %{tag}.na.tid, ptr %na.first", "  br label %failed"]
            return
        for v in self._uniform_outs:
            if not self.varies:
                lines.append(f"  store {self._kept.uniform[v]} poison, ptr %{tag}.o.{v[1:]}")
        old, new = self._fresh("f"), self._fresh("f")
        lines += [
            f"  {old} = load i64, ptr %na.first",
            f"  {new} = call i64 @llvm.umin.i64(i64 {old}, i64 %{tag}.na.tid)",
            f"  store i64 {new}, ptr %na.first",
            f"  br label %{tag}.next",
        ]

    def _write_note(self, i: Instruction, names: dict[str, str]) -> None:
        for (field_name, kind), argument in zip(NOTE, i.arguments(), strict=True):
            value = argument.rsplit(" ", 1)[1]
            self._out.lines += self.store_of_thread(
                f"%na.note_{field_name}", kind, names.get(value, value)
            )
