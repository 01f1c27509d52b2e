"""Loops turned inside out: a barrier in the body makes the loop over threads the inner one.

LLVM vectorises inner loops only. A loop of the kernel that all threads run equally often gets a
barrier that nobody has to come to, after which the loop over threads is inside of it. It has a
price: what differs between threads is stored and loaded in each round. So it is done where
neighbouring threads use neighbouring elements, or the same one, and where there is nothing in the
loop that has no vectors.
"""

from __future__ import annotations

import re

from numbasync.backend.cpu.regions.cut import COORDINATES, CutKernel, Level, cut, relabelled
from numbasync.backend.cpu.regions.divergence import (
    divergent_values,
    follows_from_operands,
    values_of_memory,
)
from numbasync.backend.cpu.regions.flow import (
    NaturalLoop,
    natural_loops,
    that_return,
)
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Instruction, is_plain, parse_instruction
from numbasync.backend.cpu.regions.keep import is_cheap
from numbasync.backend.cpu.regions.llvm_types import size_and_alignment, split_list
from numbasync.backend.cpu.regions.strides import Strides
from numbasync.backend.cpu.regions.tests_first import test_first

FEW_ROUNDS = 16  # LLVM writes such a loop out
MOST_CARRIED = 6  # values of a thread that change from round to round
MOST_TURNED = 6  # loops: each has copies of its code, which are most of what LLVM compiles
MOST_JUDGED = 50  # loops: with so many, most are short ones of functions that were inlined
_TURN = "call void @na.turn(i32 -1)"


def cut_with_turned_loops(function: Function) -> CutKernel:
    """Cut a kernel, with barriers in the loops that are worth it."""
    plain = cut(_copy(function))
    if any(b.level is Level.WARP for b in plain.barriers):
        return plain
    function = _copy(function)
    test_first(function)
    tested = cut(_copy(function))
    candidates = [loop.header for loop in _innermost(tested) if _may_be_turned(tested, loop)]
    while 0 < len(candidates) <= MOST_JUDGED:
        kernel = cut(_with_turns(function, candidates))
        judge = _Judge(kernel)
        refused = [h for h in candidates if not judge.is_worth_it(h)]
        if not refused:
            return kernel if len(candidates) <= MOST_TURNED else plain
        candidates = [h for h in candidates if h not in refused]
    return plain


def _copy(function: Function) -> Function:
    blocks = {name: list(code) for name, code in function.blocks.items()}
    return Function(function.name, function.parameters, blocks)


def _innermost(kernel: CutKernel) -> list[NaturalLoop]:
    loops = natural_loops(kernel.graph(), kernel.function.entry)
    headers = {loop.header for loop in loops}
    return [loop for loop in loops if not (headers & loop.blocks) - {loop.header}]


def _may_be_turned(kernel: CutKernel, loop: NaturalLoop) -> bool:
    """Whether all that the loop does has vectors, and it is no short one."""
    blocks = kernel.function.blocks
    meets = {b.block for b in kernel.barriers}
    if len(loop.latches) != 1 or loop.blocks & meets or _rounds(blocks, loop) <= FEW_ROUNDS:
        return False
    exits = _exits(kernel, loop)
    if len(exits) != 1 or exits[0][0] != loop.header:
        return False
    for block in loop.blocks:
        for i in blocks[block]:
            if i.opcode in ("load", "store"):
                if not is_plain(i):
                    return False
            elif i.opcode not in ("br", "switch") and not follows_from_operands(i):
                return False
    return True


def _exits(kernel: CutKernel, loop: NaturalLoop) -> list[tuple[str, str]]:
    """The ways out of the loop, but for errors."""
    blocks = kernel.function.blocks
    graph = kernel.graph()
    good = that_return(blocks, graph)
    return [
        (block, following)
        for block in loop.blocks
        for following in blocks[block][-1].labels
        if following not in loop.blocks and following in good
    ]


def _rounds(blocks: dict[str, list[Instruction]], loop: NaturalLoop) -> float:
    """How often it runs, if that is a number; else infinite."""
    definitions = {i.result: i for b in loop.blocks for i in blocks[b] if i.result}
    for test in blocks[loop.header]:
        match = re.fullmatch(r"icmp (?:samesign )?\w+ i\d+ (%[\w.]+), (-?\d+)", test.text)
        phi = definitions.get(match[1]) if match else None
        if match is None or phi is None or phi.opcode != "phi":
            continue
        begins = [v for v, b in phi.incoming if b not in loop.blocks]
        steps = [definitions.get(v) for v, b in phi.incoming if b in loop.blocks]
        step = re.search(r"(-?\d+)$", steps[0].text) if steps and steps[0] is not None else None
        if step and len(begins) == 1 and re.fullmatch(r"-?\d+", begins[0]) and int(step[1]):
            return abs((int(match[2]) - int(begins[0])) / int(step[1]))
    return float("inf")


def _with_turns(function: Function, headers: list[str]) -> Function:
    """A copy with barriers at the begin of the loops' bodies and behind the loops."""
    made = _copy(function)
    kernel = CutKernel(made, [], set())
    for loop in natural_loops(kernel.graph(), made.entry):
        if loop.header not in headers:
            continue
        _move_out(made, loop)
        _count_from_zero(made, loop)
        last = made.blocks[loop.header][-1]
        for following in dict.fromkeys(last.labels):
            if following in loop.blocks:
                _insert(made, loop.header, following, f"body.{loop.header[1:]}")
            elif any(i.opcode not in ("phi", "ret") for i in made.blocks[following]):
                _insert(made, loop.header, following, f"behind.{loop.header[1:]}")
    return made


def _move_out(function: Function, loop: NaturalLoop) -> None:
    """Make before the loop what is the same in each round, such as `cuda.gridsize(1)`."""
    before = [
        b
        for b, code in function.blocks.items()
        if loop.header in code[-1].labels and b not in loop.blocks
    ]
    if len(before) != 1:
        return
    inside = {i.result for b in loop.blocks for i in function.blocks[b] if i.result}
    target = function.blocks[before[0]]
    for block in (b for b in function.blocks if b in loop.blocks):
        for i in list(function.blocks[block]):
            is_same = i.callee in COORDINATES or is_cheap(i)
            if is_same and inside.isdisjoint(i.uses):
                function.blocks[block].remove(i)
                target.insert(-1, i)
                inside.discard(i.result)


def _count_from_zero(function: Function, loop: NaturalLoop) -> None:
    """Write `p` that begins with `a` and grows by `s` as `a` and a counter from 0.

    The counter is the same for all threads if `s` is, and then only `a` is kept once a thread.
    """
    code = function.blocks[loop.header]
    inside = {i.result: i for b in loop.blocks for i in function.blocks[b] if i.result}
    sums = []
    for n, i in enumerate(code):
        if i.opcode != "phi" or i.type[0] != "i" or len(i.incoming) != 2:
            continue
        (begin, entry), (after, latch) = sorted(i.incoming, key=lambda pair: pair[1] in loop.blocks)
        step = _step(i.result, inside.get(after), inside)
        if begin[0] != "%" or entry in loop.blocks or step is None:
            continue
        counter, following = f"{i.result}.from_zero", f"{i.result}.from_zero_next"
        code[n] = parse_instruction(
            f"{counter} = phi {i.type} [ 0, {entry} ], [ {following}, {latch} ]"
        )
        sums += [
            f"{i.result} = add {i.type} {begin}, {counter}",
            f"{following} = add {i.type} {counter}, {step}",
        ]
    first = next(n for n, i in enumerate(code) if i.opcode != "phi")
    code[first:first] = [parse_instruction(text) for text in sums]


def _step(value: str, after: Instruction | None, inside: dict[str, Instruction]) -> str | None:
    """What is added to `value` in each round, if it is always the same."""
    if after is None or after.opcode != "add" or value not in after.uses:
        return None
    operands = after.operands()
    other = operands[1] if operands[0] == value else operands[0]
    return None if other in inside or other == value else other


def _insert(function: Function, block: str, following: str, stem: str) -> None:
    """A barrier between two blocks."""
    between = function.new_name(stem)
    function.blocks[block][-1] = function.blocks[block][-1].with_label(following, between)
    function.blocks[between] = [
        parse_instruction(_TURN),
        parse_instruction(f"br label {following}"),
    ]
    code = function.blocks[following]
    code[:] = [relabelled(i, {block: between}) for i in code]


class _Judge:
    """Whether loops of a kernel that are turned are worth it."""

    def __init__(self, kernel: CutKernel) -> None:
        self._kernel = kernel
        self._blocks = kernel.function.blocks
        self._loops = natural_loops(kernel.graph(), kernel.function.entry)
        self._divergent = divergent_values(kernel)
        self._from_memory = values_of_memory(kernel)
        self._strides = Strides(kernel.function.made(), self._divergent)

    def is_worth_it(self, header: str) -> bool:
        """Whether the loop is run by all threads alike, on neighbouring elements."""
        blocks = self._blocks
        loop = next((found for found in self._loops if found.header == header), None)
        if loop is None:
            return False
        for other in self._loops:
            if header not in other.blocks:
                continue
            # How often a thread runs it may depend on its number, not on what it has read.
            refused = self._from_memory if other is loop else self._divergent
            exits = _exits(self._kernel, other)
            if any(u in refused for b, _ in exits for u in blocks[b][-1].uses):
                return False
        carried = [i for i in blocks[header] if i.opcode == "phi" and i.result in self._divergent]
        return len(carried) <= MOST_CARRIED and all(
            self._is_side_by_side(i)
            for block in loop.blocks
            for i in blocks[block]
            if i.opcode in ("load", "store")
        )

    def _is_side_by_side(self, i: Instruction) -> bool:
        """Whether neighbouring threads use neighbouring elements, or read the same one."""
        parts = split_list(i.text)
        kind = i.type if i.opcode == "load" else parts[0].split(" ", 1)[1].rsplit(" ", 1)[0]
        stride = self._strides.of(parts[1].rsplit(" ", 1)[-1])
        if stride == 0:
            return i.opcode == "load"
        return stride is not None and abs(stride) == size_and_alignment(kind)[0]
