"""Kernels in which one block has a row, or one warp, or a part of one: reductions, and what is
computed from them.

A row is gone through in passes. Each thread has some of its columns, the same ones in every pass,
and keeps what it has read and computed of them: its columns are written out, so that values stay
in registers, and all loads are in flight together. Where that were too much, it is a loop; what is
needed again is then kept in shared memory or, without room for that, computed again.

Which columns a thread has, and in which order, depends on the row's length alone: so a sum has the
same bits whatever else the kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from numbasync.batch.codegen import passes, reductions
from numbasync.batch.codegen.reductions import WARP, Reduction
from numbasync.batch.codegen.writer import MOST_LINES, WIDTH, Emitter, KernelText, indented
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.tuning import MOST_THREADS, Tuning
from numbasync.batch.record.element_ops import BOOL
from numbasync.batch.record.nodes import Nodes
from numbasync.layout import Shape

FEWEST = 64  # threads of a block that has a row

COLS = "cols"  # the parameter
THERE = "there"  # whether the thread's row is one of its own

Names = dict[int, str]


class Share(NamedTuple):
    """Which columns of a row a thread has: `elements` of them, `width` neighbours at a time, those
    of `stride` threads side by side.
    """

    stride: int
    width: int
    elements: int

    @classmethod
    def of(cls, cols: int, stride: int, is_wide: bool) -> Share:
        width = WIDTH if is_wide and cols % WIDTH == 0 and cols >= WIDTH * stride else 1
        return cls(stride, width, -(-cols // (stride * width)) * width)


class Part(NamedTuple):
    """Neighbouring columns of a thread in a text.

    Attributes:
        column: the first one; `at`: its element.
        names: of the values of each.
        is_cut: some threads have none of these.
    """

    column: str
    at: str
    names: list[Names]
    is_cut: bool = False


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group whose rows each are held by one block or warp."""
    made = Emitter(nodes, group, written, tuning)
    return _Row(made, group, set(written), tuning).write()


def _block(cols: int, tuning: Tuning) -> int:
    """Threads of a block. Blocks of 256 threads are the fastest, since while some of them wait for
    each other others go on; smaller ones, where their threads have enough to do.
    """
    threads = reductions.power_of_two(-(-cols // tuning.row_elements))
    threads = max(FEWEST, min(threads, tuning.threads))
    while threads * tuning.row_most < cols and 2 * threads <= MOST_THREADS:
        threads *= 2
    return threads


def _lanes(cols: int, is_wide: bool) -> int:
    """Threads of a warp that have a row: each has a few of its columns at least."""
    if is_wide and cols % WIDTH == 0:
        return min(WARP, reductions.power_of_two_below(cols // WIDTH))
    return min(WARP, reductions.power_of_two(-(-cols // WIDTH)))


class _Row:
    def __init__(self, made: Emitter, group: Group, written: set[int], tuning: Tuning) -> None:
        self.made = made
        self.nodes = made.nodes
        self.group = group
        self.plan = passes.passes(made.nodes, group, written)
        space = group.space
        self.rows, self.cols = space.outer, space.extent
        self.by_warp = self.cols <= tuning.warp_most
        self.threads = tuning.threads if self.by_warp else _block(self.cols, tuning)
        is_wide = tuning.elements % WIDTH == 0
        self.lanes = _lanes(self.cols, is_wide) if self.by_warp else self.threads
        self.per_block = self.threads // self.lanes
        # Threads of a warp meet, so they may not leave; behind the last row they have it, too.
        self.is_cut = 1 < self.lanes < WARP and self.rows % (WARP // self.lanes) != 0
        self.share = Share.of(self.cols, self.lanes, is_wide)
        self.together = self.share.width if tuning.unroll else 1  # that are loaded at once
        own = [n for n in group.roots if made.nodes[n].is_reduction]
        self.reductions = reductions.reductions(made.nodes, own)
        self.width = max(self.lanes, reductions.power_of_two(self.cols))
        self.slots, self.kinds = passes.rooms(made.nodes, self.plan.kept)
        self.is_unrolled = tuning.unroll and self._can_be_unrolled(tuning.kept_words)
        if self.is_unrolled or self._room() > tuning.shared_bytes:
            self.plan.kept, self.slots, self.kinds = {}, {}, []

    def _can_be_unrolled(self, most: int) -> bool:
        """Whether a thread can keep its columns, in so many words at most."""
        words = sum(-(-k.itemsize // 4) for k in self.kinds) * self.share.elements
        if words > (most if self.threads < MOST_THREADS else most // 2):
            return False
        each = sum(len(self.made.order(wanted, ())) for wanted in self.plan.wanted)
        return each * self.share.elements <= MOST_LINES

    def _room(self) -> int:
        """Bytes of shared memory, if rows are kept there."""
        room = sum(k.itemsize for k in self.kinds) * self.width * self.per_block
        if not self.by_warp:
            room += reductions.nbytes(self.reductions) * (self.threads // WARP)
        return room

    def write(self) -> KernelText:
        made = self.made
        made.parameter(COLS, "number", self.cols)
        head = []
        for s, dtype in enumerate(self.kinds):
            head.append(
                f"kept{s} = cuda.shared.array({self.width * self.per_block}, np.{dtype.name})"
            )
        rooms: dict[int, tuple[str, ...]] = {}
        for n, r in self.reductions.items():
            if self.by_warp:
                rooms[n] = ()
            else:
                lines, rooms[n] = reductions.rooms(r, self.threads // WARP)
                head += lines
        if self.by_warp:
            head += [
                f"lane = cuda.threadIdx.x % {self.lanes}",
                f"row = cuda.blockIdx.x * {self.per_block} + cuda.threadIdx.x // {self.lanes}",
            ]
            if self.slots:
                head.append(f"own = cuda.threadIdx.x // {self.lanes} * {self.width}")
        else:
            head += ["lane = cuda.threadIdx.x", "row = cuda.blockIdx.x"]
        body = self._body(rooms)
        if self.by_warp:
            rows = made.parameter("rows", "number", self.rows)
            if self.is_cut:
                body = [f"{THERE} = row < {rows}", f"row = min(row, {rows} - 1)", *body]
            else:
                body = [f"if row < {rows}:", *indented(body)]
        return made.finish([*head, *body], -(-self.rows // self.per_block), self.threads)

    def _body(self, rooms: dict[int, tuple[str, ...]]) -> list[str]:
        made, plan, nodes = self.made, self.plan, self.nodes
        lines = [f"begin = row * {COLS}"]
        space = self.group.space
        shape = space.reduced_shape
        names = made.constants()  # of what a row has one of
        for n in made.reads:
            if nodes[n].size == 1:
                names[n] = made.name()
                lines.append(f"{names[n]} = {made.load(n, '0')}")
        common = dict(names)
        self._results(0, shape, names, lines)
        stride, width, elements = self.share
        if self.together > 1:
            lines.append(f"aligned = {made.aligned(space.shape)}")
        parts: list[Part] = []
        place = f"lane * {width}" if width > 1 else "lane"
        if self.is_unrolled:
            for k in range(0, elements, width):
                lines.append(f"j{k} = {place}{f' + {k * stride}' if k else ''}")
                lines.append(f"i{k} = begin + j{k}")
                is_cut = (k + width) * stride > self.cols
                parts.append(Part(f"j{k}", f"i{k}", [{} for _ in range(width)], is_cut))
        for at in range(plan.count):
            own = [r for n, r in self.reductions.items() if plan.ready[n] == at + 1]
            for r in own:
                lines += reductions.begin(r)
            if self.is_unrolled:
                lines += self._pass(at, own, parts, names)
            else:
                part = Part("j", "i", [{} for _ in range(self.together)])
                looped = ["i = begin + j", *self._pass(at, own, [part], names)]
                column = "j"
                if self.together < width:
                    column = "s"
                    looped = [f"for j in range(s, s + {width}):", *indented(looped)]
                lines.append(f"for {column} in range({place}, {COLS}, {stride * width}):")
                lines += indented(looped)
            if own:
                lines += (
                    reductions.across_warp(made, own, self.lanes) if self.by_warp
                    else reductions.across_block(
                        made, {r.node: r for r in own}, rooms, self.threads
                    )
                )  # fmt: skip
            for r in own:
                names[r.node] = common[r.node] = made.name()
                lines.append(f"{names[r.node]} = {reductions.result(made, r, COLS)}")
            self._results(at + 1, shape, names, lines)
        ends: list[str] = []
        for n in made.outputs:
            if not passes.is_wide(nodes, self.group, n):
                scope = dict(common)
                made.at_results([n], nodes[n].shape, "row", scope, ends)
                ends.append(made.store(n, "row", scope[n]))
        first = f"lane == 0 and {THERE}" if self.is_cut else "lane == 0"
        return [*lines, f"if {first}:", *indented(ends)] if ends else lines

    def _results(self, at: int, shape: Shape, names: Names, lines: list[str]) -> None:
        """What is computed once a row for all of its elements, as soon as it can be."""
        plan = self.plan
        for n in sorted(plan.narrow):
            if plan.ready[n] == at and n not in names and n not in self.reductions:
                self.made.at_results([n], shape, "row", names, lines)

    def _pass(
        self, at: int, own: list[Reduction], parts: Sequence[Part], narrow: Names
    ) -> list[str]:
        """What is done at the columns of `parts`: all loads, then the rest."""
        lines: list[str] = []
        for part in parts:
            for names in part.names:
                names |= narrow
            if self.slots:
                lines += self._again(at, part)
        loads = [self._loads(at, part) for part in parts]
        lines += self._moves([load for load in loads if load is not None])
        for part in parts:
            computed = self._computed(at, own, part)
            lines += _guarded(part, computed)
        return lines

    def _again(self, at: int, part: Part) -> list[str]:
        """What an earlier pass has kept in shared memory."""
        lines: list[str] = []
        for n, slot in self.slots.items():
            if self.plan.kept[n][0] < at and self._is_used(n, at):
                for e, names in enumerate(part.names):
                    names[n] = self.made.name()
                    text = f"kept{slot}[{self._place(e)}]"
                    text = f"({text} != 0)" if self.nodes[n].dtype == BOOL else text
                    lines.append(f"{names[n]} = {text}")
        return lines

    def _place(self, e: int) -> str:
        """Where the thread keeps column `j + e` in shared memory."""
        place = "own + j" if self.by_warp else "j"
        return f"{place} + {e}" if e else place

    def _loads(self, at: int, part: Part) -> Callable[[bool], list[str]] | None:
        """What writes the loads of a pass, of neighbours at once or not; None: there are none."""
        made = self.made
        new: dict[int, list[str]] = {}
        for n in made.order(self.plan.wanted[at], part.names[0]):
            if n in made.reads:
                new[n] = [made.name() for _ in part.names]
                for names, name in zip(part.names, new[n], strict=True):
                    names[n] = name
        if not new:
            return None

        def written(together: bool) -> list[str]:
            if together:
                return _guarded(part, made.elements(new, part.at))
            lines: list[str] = []
            for e in range(len(part.names)):
                one = {n: [names[e]] for n, names in new.items()}
                lines += made.elements(one, f"({part.at} + {e})" if e else part.at)
            return _guarded(part, lines)

        return written

    def _moves(self, parts: Sequence[Callable[[bool], list[str]]]) -> list[str]:
        """Loads or stores of neighbours: at once, if they lie as it takes."""
        if not parts:
            return []
        at_once = [line for written in parts for line in written(True)]
        if self.together == 1:
            return at_once
        apart = [line for written in parts for line in written(False)]
        return ["if aligned:", *indented(at_once), "else:", *indented(apart)]

    def _computed(self, at: int, own: list[Reduction], part: Part) -> list[str]:
        """What is computed, kept, stored and added up at neighbouring columns."""
        made, plan, nodes = self.made, self.plan, self.nodes
        lines: list[str] = []
        for e, names in enumerate(part.names):
            made.compute(plan.wanted[at], names, lines)
            for n, slot in self.slots.items():
                if plan.kept[n][0] == at:
                    kept = f"np.int8({names[n]})" if nodes[n].dtype == BOOL else names[n]
                    lines.append(f"kept{slot}[{self._place(e)}] = {kept}")
        stored = [
            n for n in made.outputs if passes.is_wide(nodes, self.group, n) and plan.ready[n] == at
        ]

        def stores(together: bool) -> list[str]:
            values = {n: [names[n] for names in part.names] for n in stored}
            if together:
                return [made.store_neighbours(n, part.at, v) for n, v in values.items()]
            return [
                made.store(n, f"{part.at} + {e}", value)
                for n, v in values.items()
                for e, value in enumerate(v)
            ]

        moved = self._moves([stores] if stored else [])
        lines += [f"if {THERE}:", *indented(moved)] if moved and self.is_cut else moved
        for e, names in enumerate(part.names):
            place = f"({part.column} + {e})" if e else part.column
            for r in own:
                lines += reductions.take(made, r, names[nodes[r.node].inputs[0]], place)
        return lines

    def _is_used(self, n: int, at: int) -> bool:
        """Whether pass `at` needs a value of an earlier one."""
        seen: set[int] = set()
        waiting = list(self.plan.wanted[at])
        while waiting:
            m = waiting.pop()
            if m == n:
                return True
            if (
                m in seen
                or m in self.plan.narrow
                or (m in self.slots and self.plan.kept[m][0] < at)
            ):
                continue
            seen.add(m)
            if m not in self.made.reads:
                waiting += self.nodes[m].inputs
        return False


def _guarded(part: Part, lines: list[str]) -> list[str]:
    """For the threads that have these columns."""
    return [f"if {part.column} < {COLS}:", *indented(lines)] if part.is_cut and lines else lines
