"""A kernel cut at its barriers: blocks that end there, and blocks at which all go on behind.

A new kind of barrier is a name of `LEVELS` here, and of `_BARRIERS` in `target/lower.py`, for
functions that reach one.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field

from numbasync.backend.cpu.regions.flow import natural_loops, reverse_postorder
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Instruction, parse_instruction
from numbasync.backend.cpu.regions.llvm_types import UnknownFormError

BARRIER = "barrier"  # opcode of a block's end at which threads wait
FAIL = "fail"  # opcode of a block's end at which a thread stops with an error

OF_THREAD = ("tx", "ty", "tz", "tid")
OF_BLOCK = (
    "bx", "by", "bz", "wx", "wy", "wz", "gx", "gy", "gz", "threads", "block", "dynamic_bytes",
    "memory",
)  # fmt: skip
THREAD_NAMES = frozenset(f"%na.{n}" for n in OF_THREAD)
COORDINATES = {f"@na.{n}": f"%na.{n}" for n in (*OF_THREAD, *OF_BLOCK)}
_MEMORY = re.compile(r"@na\.address\.([\w.]+)$")
_CONSTANT = re.compile(r"i32 (?:noundef )?(-?\d+)$")


class Level(enum.IntEnum):
    """Who meets at a barrier."""

    WARP = 0
    LOOP = 1  # put into a loop, so that the loop over threads is the inner one; nobody has to come
    BLOCK = 2
    GRID = 3


LEVELS = {
    "@na.warp_barrier": Level.WARP,
    "@na.barrier": Level.BLOCK,
    "@na.grid_barrier": Level.GRID,
    "@na.turn": Level.LOOP,
}


@dataclass(slots=True)
class Barrier:
    """A place where threads meet.

    Attributes:
        number: from 1; those of warps come first, in the order of the code.
        block: that ends there.
        resume: the block at which they go on.
        mask: of a warp's barrier: the lanes that meet, as LLVM's text.
    """

    number: int
    level: Level
    site: int
    block: str
    resume: str
    mask: str = "-1"


@dataclass(slots=True)
class CutKernel:
    """A kernel whose blocks end at barriers.

    Attributes:
        names: of values that are known everywhere: parameters, coordinates, addresses of memory.
        local_arrays: type and alignment of each `alloca`, whose name is in `names`.
        memory: names K of `na.shared.K`, `na.exchange.K` and so on whose address is used.
    """

    function: Function
    barriers: list[Barrier]
    names: set[str]
    local_arrays: dict[str, tuple[str, int]] = field(default_factory=dict)
    memory: set[str] = field(default_factory=set)
    has_notes: bool = False
    _private: set[str] = field(default_factory=set)

    def private_addresses(self) -> set[str]:
        """The values that are addresses of shared or local memory of the block."""
        if not self._private:
            self._private = {f"%na.{name}" for name in self.memory} | set(self.local_arrays)
            for code in self.function.blocks.values():
                for i in code:
                    if i.opcode == "getelementptr" and i.uses and i.uses[0] in self._private:
                        self._private.add(i.result)
        return self._private

    def starts(self) -> list[str]:
        """The entry, and the block behind each barrier, by the barrier's number."""
        return [self.function.entry, *(b.resume for b in self.barriers)]

    def graph(self, least: Level | None = None) -> dict[str, list[str]]:
        """Successors; barriers of the level `least` and above end the ways."""
        graph = self.function.successors()
        for barrier in self.barriers:
            if least is not None and barrier.level >= least:
                graph[barrier.block] = []
        return graph


def cut(function: Function) -> CutKernel:
    """Cut a kernel that is inlined completely."""
    kernel = CutKernel(function, [], {name for _, name in function.parameters})
    kernel.names.update(COORDINATES.values())
    _name_places(kernel)
    _split_at_barriers(kernel)
    _separate_errors(function)
    order = {b: i for i, b in enumerate(_loops_first(function))}
    for unreached in [b for b in function.blocks if b not in order]:
        del function.blocks[unreached]
    kernel.barriers = [b for b in kernel.barriers if b.block in order]
    kernel.barriers.sort(key=lambda b: (b.level, order[b.block]))
    for number, barrier in enumerate(kernel.barriers, 1):
        barrier.number = number
    return kernel


def _loops_first(function: Function) -> list[str]:
    """The blocks in an order in which what is in a loop comes before what is behind it."""
    graph = function.successors()
    depth = dict.fromkeys(graph, 0)
    for loop in natural_loops(graph, function.entry):
        for block in loop.blocks:
            depth[block] += 1
    backwards = {b: following[::-1] for b, following in graph.items()}
    by_depth = {b: sorted(s, key=depth.__getitem__) for b, s in backwards.items()}
    return reverse_postorder(by_depth, function.entry)


def _name_places(kernel: CutKernel) -> None:
    """Give coordinates, addresses of the block's memory and local arrays names known everywhere."""
    names: dict[str, str] = {}
    entry = kernel.function.entry
    for block, code in kernel.function.blocks.items():
        kept = []
        for i in code:
            if i.callee in COORDINATES:
                names[i.result] = COORDINATES[i.callee]
            elif match := _MEMORY.match(i.callee):
                names[i.result] = f"%na.{match[1]}"
                kernel.memory.add(match[1])
                kernel.names.add(f"%na.{match[1]}")
            elif i.opcode == "alloca" and block == entry:
                kernel.local_arrays[i.result] = _of_alloca(i)
                kernel.names.add(i.result)
            elif i.callee.startswith(
                ("@llvm.lifetime.", "@llvm.assume", "@llvm.experimental.noalias")
            ):
                pass
            elif i.opcode == "alloca":
                raise UnknownFormError(f"memory of a thread in the middle of the code: {i.text}")
            else:
                kernel.has_notes = kernel.has_notes or i.callee == "@na.note"
                kept.append(i)
        code[:] = kept
    if names:
        for code in kernel.function.blocks.values():
            code[:] = [i.with_operands(names) for i in code]


def _of_alloca(i: Instruction) -> tuple[str, int]:
    match = re.fullmatch(r"alloca (.*?)(?:, i(?:32|64) (\d+))?(?:, align (\d+))?", i.text)
    if match is None:
        raise UnknownFormError(f"memory of a thread: {i.text}")
    kind = match[1] if match[2] in (None, "1") else f"[{match[2]} x {match[1]}]"
    return kind, int(match[3] or 1)


def relabelled(i: Instruction, names: dict[str, str]) -> Instruction:
    """An instruction; of a phi, one whose values come from blocks of other names."""
    if not any(b in names for _, b in i.incoming):
        return i
    return phi(i.result, i.type, [(v, names.get(b, b)) for v, b in i.incoming])


def phi(result: str, kind: str, incoming: list[tuple[str, str]]) -> Instruction:
    text = f"phi {kind} " + ", ".join(f"[ {v}, {b} ]" for v, b in incoming)
    uses = tuple(v for v, _ in incoming if v[0] == "%")
    return Instruction(result, "phi", kind, text, uses, incoming=tuple(incoming))


def _split_at_barriers(kernel: CutKernel) -> None:
    blocks = kernel.function.blocks
    pieces: dict[str, str] = {}  # the last piece of each block
    found: dict[str, list[Instruction]] = {}
    for name, code in blocks.items():
        current = name
        own: list[Instruction] = []
        found[name] = own
        for i in code:
            level = LEVELS.get(i.callee)
            if level is None:
                own.append(i)
                continue
            arguments = i.arguments()
            site = _CONSTANT.match(arguments[0]) if arguments else None
            resume = f"%resume.{len(kernel.barriers)}"
            mask = arguments[1].rsplit(" ", 1)[1] if len(arguments) > 1 else "-1"
            barrier = Barrier(0, level, int(site[1]) if site else -1, current, resume, mask)
            kernel.barriers.append(barrier)
            uses = (mask,) if mask[0] == "%" else ()
            own.append(Instruction("", BARRIER, "void", "", uses, (resume,)))
            current, own = resume, []
            found[resume] = own
        if current != name:
            pieces[name] = current
    for code in found.values():
        code[:] = [relabelled(i, pieces) for i in code]
    kernel.function.blocks = found


def _separate_errors(function: Function) -> None:
    """Make every return a block of its own: of the status 0, or of an error.

    Afterwards a block ends in `ret i32 0`, or in FAIL with the status as its text.
    """
    blocks = function.blocks
    for name in [b for b, code in blocks.items() if code[-1].opcode == "ret"]:
        code = blocks[name]
        status = code[-1].text.split(" ")[-1]
        merged = next((i for i in code if i.opcode == "phi" and i.result == status), None)
        if merged is not None and all(i.opcode in ("phi", "ret") for i in code):
            for value, before in merged.incoming:
                target = function.new_name("return")
                blocks[target] = []
                last = blocks[before][-1]
                if last.opcode == BARRIER:
                    raise UnknownFormError("a barrier directly before a merged return")
                blocks[before][-1] = last.with_label(name, target)
                _return(function, target, value)
            del blocks[name]
        else:
            del code[-1]
            _return(function, name, status)


def _return(function: Function, name: str, status: str) -> None:
    """End the block `name` by a return of `status`."""
    code = function.blocks[name]
    if status == "0":
        code.append(Instruction("", "ret", "void", "ret i32 0"))
    elif status[0] != "%":
        code.append(Instruction("", FAIL, "void", status))
    else:
        good, bad = function.new_name("good"), function.new_name("bad")
        test = f"{name}.is_good"
        code.append(parse_instruction(f"{test} = icmp eq i32 {status}, 0"))
        code.append(parse_instruction(f"br i1 {test}, label {good}, label {bad}"))
        function.blocks[good] = [Instruction("", "ret", "void", "ret i32 0")]
        function.blocks[bad] = [Instruction("", FAIL, "void", status, (status,))]
