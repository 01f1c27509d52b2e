"""Kernels in which one block, one warp or a part of a warp holds a row: reductions, and values
computed from their results.

A kernel iterates over a row in passes. Each thread has some of the row's columns, the same ones in
every pass, and keeps the values that it has read and computed of them: the columns are unrolled in
the source, so that values stay in registers, and all loads are in flight together. Where unrolling
would take too many registers or lines, the kernel has a loop; values that are needed again are then
kept in shared memory or, without enough of it, computed again. A pass computes the operands of the
next reductions, and the last pass computes the values that depend on their results.

The columns of a thread, and their order, depend on the row's length alone: a sum therefore has the
same bits whatever else the kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from numbasync.batch.codegen import reductions
from numbasync.batch.codegen.reductions import WARP, Reduction
from numbasync.batch.codegen.writer import MOST_LINES, WIDTH, Emitter, KernelText, indented
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.tuning import MOST_THREADS, Tuning
from numbasync.batch.record.element_ops import BOOL, DType
from numbasync.batch.record.nodes import CONSTANT, Nodes
from numbasync.layout import Shape

FEWEST = 64  # threads of a block that holds a row

COLS = "cols"  # the name of the parameter
THERE = "there"  # the name of the flag that the thread's row exists

Names = dict[int, str]


class Share(NamedTuple):
    """The columns of a row that a thread has: `elements` columns, `width` neighbours at a time,
    those of `stride` threads side by side.
    """

    stride: int
    width: int
    elements: int

    @classmethod
    def of(cls, cols: int, stride: int, is_wide: bool) -> Share:
        width = WIDTH if is_wide and cols % WIDTH == 0 and cols >= WIDTH * stride else 1
        return cls(stride, width, -(-cols // (stride * width)) * width)


class Part(NamedTuple):
    """Neighbouring columns of a thread in the source.

    Attributes:
        column: the first column; `at`: its element.
        names: the names of the values at each column.
        is_cut: some threads have none of these columns.
    """

    column: str
    at: str
    names: list[Names]
    is_cut: bool = False


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group in which one block or warp holds each row."""
    emitter = Emitter(nodes, group, written, tuning)
    return _Row(emitter, group, set(written), tuning).write()


def _block(cols: int, tuning: Tuning) -> int:
    """Threads of a block. Blocks of 256 threads are the fastest, since while some wait at a barrier
    other blocks continue; smaller blocks, where their threads have enough work.
    """
    threads = reductions.power_of_two(-(-cols // tuning.row_elements))
    threads = max(FEWEST, min(threads, tuning.threads))
    while threads * tuning.row_most < cols and 2 * threads <= MOST_THREADS:
        threads *= 2
    return threads


def _lanes(cols: int, is_wide: bool) -> int:
    """Threads of a warp that share a row: each has a few of its columns at least."""
    if is_wide and cols % WIDTH == 0:
        return min(WARP, reductions.power_of_two_below(cols // WIDTH))
    return min(WARP, reductions.power_of_two(-(-cols // WIDTH)))


class _Row:
    def __init__(self, emitter: Emitter, group: Group, written: set[int], tuning: Tuning) -> None:
        self.emitter = emitter
        self.nodes = emitter.nodes
        self.group = group
        self.plan = passes_of(emitter.nodes, group, written)
        space = group.space
        self.rows, self.cols = space.outer, space.extent
        self.by_warp = self.cols <= tuning.warp_most
        self.threads = tuning.threads if self.by_warp else _block(self.cols, tuning)
        is_wide = tuning.elements % WIDTH == 0
        self.lanes = _lanes(self.cols, is_wide) if self.by_warp else self.threads
        self.per_block = self.threads // self.lanes
        # The threads of a warp synchronise, so none may return early; threads beyond the last row
        # repeat that row.
        self.is_cut = 1 < self.lanes < WARP and self.rows % (WARP // self.lanes) != 0
        self.share = Share.of(self.cols, self.lanes, is_wide)
        # columns loaded by one instruction
        self.together = self.share.width if tuning.unroll else 1
        own = [n for n in group.roots if emitter.nodes[n].is_reduction]
        self.reductions = reductions.reductions(emitter.nodes, own)
        self.width = max(self.lanes, reductions.power_of_two(self.cols))
        self.slots, self.kinds = rooms(emitter.nodes, self.plan.kept)
        self.is_unrolled = tuning.unroll and self._can_be_unrolled(tuning.kept_words)
        if self.is_unrolled or self._room() > tuning.shared_bytes:
            self.plan.kept, self.slots, self.kinds = {}, {}, []

    def _can_be_unrolled(self, most: int) -> bool:
        """Whether a thread can keep its columns in at most `most` words of 4 bytes."""
        words = sum(-(-k.itemsize // 4) for k in self.kinds) * self.share.elements
        if words > (most if self.threads < MOST_THREADS else most // 2):
            return False
        count = sum(len(self.emitter.order(wanted, ())) for wanted in self.plan.wanted)
        return count * self.share.elements <= MOST_LINES

    def _room(self) -> int:
        """Bytes of shared memory needed to keep rows there."""
        room = sum(k.itemsize for k in self.kinds) * self.width * self.per_block
        if not self.by_warp:
            room += reductions.nbytes(self.reductions) * (self.threads // WARP)
        return room

    def write(self) -> KernelText:
        emitter = self.emitter
        emitter.parameter(COLS, "number", self.cols)
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
            rows = emitter.parameter("rows", "number", self.rows)
            if self.is_cut:
                body = [f"{THERE} = row < {rows}", f"row = min(row, {rows} - 1)", *body]
            else:
                body = [f"if row < {rows}:", *indented(body)]
        return emitter.finish([*head, *body], -(-self.rows // self.per_block), self.threads)

    def _body(self, rooms: dict[int, tuple[str, ...]]) -> list[str]:
        emitter, plan, nodes = self.emitter, self.plan, self.nodes
        lines = [f"begin = row * {COLS}"]
        space = self.group.space
        shape = space.reduced_shape
        names = emitter.constants()  # of values that a row has one of
        for n in emitter.reads:
            if nodes[n].size == 1:
                names[n] = emitter.name()
                lines.append(f"{names[n]} = {emitter.load(n, '0')}")
        common = dict(names)
        self._results(0, shape, names, lines)
        stride, width, elements = self.share
        if self.together > 1:
            lines.append(f"aligned = {emitter.aligned(space.shape)}")
        parts: list[Part] = []
        first_column = f"lane * {width}" if width > 1 else "lane"
        if self.is_unrolled:
            for k in range(0, elements, width):
                lines.append(f"j{k} = {first_column}{f' + {k * stride}' if k else ''}")
                lines.append(f"i{k} = begin + j{k}")
                is_cut = (k + width) * stride > self.cols
                parts.append(Part(f"j{k}", f"i{k}", [{} for _ in range(width)], is_cut))
        for index in range(plan.count):
            ending = [r for n, r in self.reductions.items() if plan.ready[n] == index + 1]
            for r in ending:
                lines += reductions.begin(r)
            if self.is_unrolled:
                lines += self._pass(index, ending, parts, names)
            else:
                part = Part("j", "i", [{} for _ in range(self.together)])
                looped = ["i = begin + j", *self._pass(index, ending, [part], names)]
                column = "j"
                if self.together < width:
                    column = "s"
                    looped = [f"for j in range(s, s + {width}):", *indented(looped)]
                lines.append(f"for {column} in range({first_column}, {COLS}, {stride * width}):")
                lines += indented(looped)
            if ending:
                lines += (
                    reductions.across_warp(emitter, ending, self.lanes) if self.by_warp
                    else reductions.across_block(
                        emitter, {r.node: r for r in ending}, rooms, self.threads
                    )
                )  # fmt: skip
            for r in ending:
                names[r.node] = common[r.node] = emitter.name()
                lines.append(f"{names[r.node]} = {reductions.result(emitter, r, COLS)}")
            self._results(index + 1, shape, names, lines)
        ends: list[str] = []
        for n in emitter.outputs:
            if not is_wide(nodes, self.group, n):
                scope = dict(common)
                emitter.at_results([n], nodes[n].shape, "row", scope, ends)
                ends.append(emitter.store(n, "row", scope[n]))
        first = f"lane == 0 and {THERE}" if self.is_cut else "lane == 0"
        return [*lines, f"if {first}:", *indented(ends)] if ends else lines

    def _results(self, at: int, shape: Shape, names: Names, lines: list[str]) -> None:
        """Generate values computed once per row, for all of its elements, in the first pass that
        has their operands.
        """
        plan = self.plan
        for n in sorted(plan.narrow):
            if plan.ready[n] == at and n not in names and n not in self.reductions:
                self.emitter.at_results([n], shape, "row", names, lines)

    def _pass(
        self, at: int, own: list[Reduction], parts: Sequence[Part], narrow: Names
    ) -> list[str]:
        """One pass over the columns of `parts`: all loads, then the rest."""
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
        """Read values that an earlier pass has kept in shared memory."""
        lines: list[str] = []
        for n, slot in self.slots.items():
            if self.plan.kept[n][0] < at and self._is_used(n, at):
                for e, names in enumerate(part.names):
                    names[n] = self.emitter.name()
                    text = f"kept{slot}[{self._place(e)}]"
                    text = f"({text} != 0)" if self.nodes[n].dtype == BOOL else text
                    lines.append(f"{names[n]} = {text}")
        return lines

    def _place(self, e: int) -> str:
        """The index in shared memory at which the thread keeps column `j + e`."""
        index = "own + j" if self.by_warp else "j"
        return f"{index} + {e}" if e else index

    def _loads(self, at: int, part: Part) -> Callable[[bool], list[str]] | None:
        """A writer for the loads of a pass, by one instruction for neighbours or element by
        element; None if there are none.
        """
        emitter = self.emitter
        new: dict[int, list[str]] = {}
        for n in emitter.order(self.plan.wanted[at], part.names[0]):
            if n in emitter.reads:
                new[n] = [emitter.name() for _ in part.names]
                for names, name in zip(part.names, new[n], strict=True):
                    names[n] = name
        if not new:
            return None

        def written(together: bool) -> list[str]:
            if together:
                return _guarded(part, emitter.elements(new, part.at))
            lines: list[str] = []
            for e in range(len(part.names)):
                single = {n: [names[e]] for n, names in new.items()}
                lines += emitter.elements(single, f"({part.at} + {e})" if e else part.at)
            return _guarded(part, lines)

        return written

    def _moves(self, parts: Sequence[Callable[[bool], list[str]]]) -> list[str]:
        """Loads or stores of neighbours: by one instruction, if the arrays are aligned."""
        if not parts:
            return []
        together = [line for written in parts for line in written(True)]
        if self.together == 1:
            return together
        apart = [line for written in parts for line in written(False)]
        return ["if aligned:", *indented(together), "else:", *indented(apart)]

    def _computed(self, at: int, own: list[Reduction], part: Part) -> list[str]:
        """Generate the values that are computed, kept, stored and reduced at neighbouring
        columns.
        """
        emitter, plan, nodes = self.emitter, self.plan, self.nodes
        lines: list[str] = []
        for e, names in enumerate(part.names):
            emitter.compute(plan.wanted[at], names, lines)
            for n, slot in self.slots.items():
                if plan.kept[n][0] == at:
                    stored_value = f"np.int8({names[n]})" if nodes[n].dtype == BOOL else names[n]
                    lines.append(f"kept{slot}[{self._place(e)}] = {stored_value}")
        stored = [
            n for n in emitter.outputs if is_wide(nodes, self.group, n) and plan.ready[n] == at
        ]

        def stores(together: bool) -> list[str]:
            values = {n: [names[n] for names in part.names] for n in stored}
            if together:
                return [emitter.store_neighbours(n, part.at, v) for n, v in values.items()]
            return [
                emitter.store(n, f"{part.at} + {e}", value)
                for n, v in values.items()
                for e, value in enumerate(v)
            ]

        moved = self._moves([stores] if stored else [])
        lines += [f"if {THERE}:", *indented(moved)] if moved and self.is_cut else moved
        for e, names in enumerate(part.names):
            position = f"({part.column} + {e})" if e else part.column
            for r in own:
                lines += reductions.take(emitter, r, names[nodes[r.node].inputs[0]], position)
        return lines

    def _is_used(self, n: int, at: int) -> bool:
        """Whether pass `at` needs a value of an earlier pass."""
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
            if m not in self.emitter.reads:
                waiting += self.nodes[m].inputs
        return False


def _guarded(part: Part, lines: list[str]) -> list[str]:
    """The lines, guarded for the threads that have these columns."""
    return [f"if {part.column} < {COLS}:", *indented(lines)] if part.is_cut and lines else lines


# --- passes: which value is computed in which ---


@dataclass
class Passes:
    """The pass in which each value is computed.

    Attributes:
        count: the number of passes.
        ready: the first pass in which a value is available; for a reduction, the pass after its
            own.
        narrow: values of which a row has one.
        wanted: for each pass, the values that it must compute at every element.
        kept: first and last pass of each value that is kept between passes.
    """

    count: int
    ready: dict[int, int]
    narrow: set[int]
    wanted: list[list[int]]
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)


def is_wide(nodes: Nodes, group: Group, root: int) -> bool:
    """Whether a root has all the elements that the kernel iterates over."""
    return not nodes[root].is_reduction and nodes[root].shape == group.space.shape


def passes_of(nodes: Nodes, group: Group, written: Iterable[int]) -> Passes:
    """The passes of a group; `kept` assumes that there is room for all values."""
    space, outputs = group.space, set(written)
    available = sorted(group.inside | set(group.reads))
    constants = {i for n in available for i in nodes[n].inputs if nodes[i].op == CONSTANT}
    ready = dict.fromkeys([*constants, *group.reads], 0)
    for n in sorted(group.inside):
        ready[n] = max((ready[i] for i in nodes[n].inputs), default=0) + nodes[n].is_reduction
    narrow = {
        n
        for n in available
        if (nodes[n].is_reduction and n in group.inside)
        or (nodes[n].shape != space.shape and space.aligned(nodes[n].shape))
    }
    wide_roots = [n for n in group.roots if n in outputs and is_wide(nodes, group, n)]
    reduction_roots = [n for n in group.roots if nodes[n].is_reduction]
    count = max([ready[n] + 1 for n in wide_roots] + [ready[n] for n in reduction_roots])
    wanted: list[list[int]] = [[] for _ in range(count)]
    for n in reduction_roots:
        wanted[ready[n] - 1].append(nodes[n].inputs[0])
    for n in wide_roots:
        wanted[ready[n]].append(n)
    result = Passes(count, ready, narrow, wanted)
    first: dict[int, int] = {}
    for index in range(count):
        seen: set[int] = set()
        waiting = list(wanted[index])
        while waiting:
            n = waiting.pop()
            if n in seen or n in narrow or nodes[n].op == CONSTANT:
                continue
            seen.add(n)
            first_pass = first.setdefault(n, index)
            if first_pass < index and nodes[n].shape == space.shape:
                result.kept[n] = result.kept.get(n, (first_pass, index))[0], index
            elif n not in group.reads:
                waiting += nodes[n].inputs
    return result


def rooms(nodes: Nodes, kept: dict[int, tuple[int, int]]) -> tuple[dict[int, int], list[DType]]:
    """A slot for each kept value, and the slots' types. A thread reads its element before it writes
    one, so a slot that a pass reads for the last time can hold a value that is kept from that pass
    on.
    """
    slots: dict[int, int] = {}
    dtypes: list[DType] = []
    free_from: list[int] = []
    for n, (begins, ends) in sorted(kept.items(), key=lambda item: (item[1][0], item[0])):
        dtype = reductions.shared_dtype(nodes[n].dtype)
        for s, last in enumerate(free_from):
            if last <= begins and dtypes[s] == dtype:
                slots[n], free_from[s] = s, ends
                break
        else:
            slots[n] = len(dtypes)
            dtypes.append(dtype)
            free_from.append(ends)
    return slots, dtypes
