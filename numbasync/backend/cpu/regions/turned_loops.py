"""Loops turned inside out: a barrier in the body makes the loop over threads the inner one.

LLVM vectorises inner loops only. A loop of the kernel that all threads run equally often gets a barrier that
nobody has to come to, after which the loop over threads is inside of it. It has a price: what
differs between threads is stored and loaded in each round. So it is done where neighbouring threads use
neighbouring elements, or the same one, and where there is nothing in the loop that has no vectors.
"""

from __future__ import annotations

import re

from numbasync.backend.cpu.regions.cut import CutKernel, Level, cut
from numbasync.backend.cpu.regions.divergence import divergent_values, follows_from_operands
from numbasync.backend.cpu.regions.flow import NaturalLoop, natural_loops, predecessors, reached_from
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Instruction, parse_instruction
from numbasync.backend.cpu.regions.llvm_types import size_and_alignment, split_list
from numbasync.backend.cpu.regions.strides import Strides

FEW_ROUNDS = 16  # LLVM writes such a loop out
MOST_CARRIED = 6  # values of a thread that change from round to round
_TURN = "call void @na.turn(i32 -1)"


def cut_with_turned_loops(function: Function) -> CutKernel:
    """Cut a kernel, with barriers in the loops that are worth it."""
    plain = cut(_copy(function))
    if any(b.level is Level.WARP for b in plain.barriers):
        return plain
    candidates = [loop.header for loop in _innermost(plain) if _may_be_turned(plain, loop)]
    while candidates:
        kernel = cut(_with_turns(function, candidates))
        divergent = divergent_values(kernel)
        refused = [h for h in candidates if not _is_worth_it(kernel, h, divergent)]
        if not refused:
            return kernel
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
                if i.text.split(" ", 2)[1] in ("atomic", "volatile"):
                    return False
            elif i.opcode not in ("br", "switch") and not follows_from_operands(i):
                return False
    return True


def _exits(
    kernel: CutKernel, loop: NaturalLoop
) -> list[tuple[str, str]]:
    """The ways out of the loop, but for errors."""
    blocks = kernel.function.blocks
    graph = kernel.graph()
    good = reached_from(predecessors(graph), [b for b in graph if blocks[b][-1].opcode == "ret"])
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
        last = made.blocks[loop.header][-1]
        for following in dict.fromkeys(last.labels):
            stem = "body" if following in loop.blocks else "behind"
            _insert(made, loop.header, following, f"{stem}.{loop.header[1:]}")
    return made


def _insert(function: Function, block: str, following: str, stem: str) -> None:
    """A barrier between two blocks."""
    between = function.new_name(stem)
    last = function.blocks[block][-1]
    text = re.sub(rf"label {re.escape(following)}(?![\w.])", f"label {between}", last.text)
    function.blocks[block][-1] = parse_instruction(text)
    function.blocks[between] = [
        parse_instruction(_TURN),
        parse_instruction(f"br label {following}"),
    ]
    code = function.blocks[following]
    for n, i in enumerate(code):
        if i.opcode == "phi":
            text = re.sub(rf", {re.escape(block)} \]", f", {between} ]", i.text)
            code[n] = parse_instruction(f"{i.result} = {text}")


def _is_worth_it(kernel: CutKernel, header: str, divergent: set[str]) -> bool:
    """Whether the loop is run by all threads alike, on neighbouring elements."""
    blocks = kernel.function.blocks
    loops = natural_loops(kernel.graph(), kernel.function.entry)
    loop = next((found for found in loops if found.header == header), None)
    if loop is None:
        return False
    around = [other for other in loops if header in other.blocks]
    if any(
        u in divergent
        for other in around
        for block, _ in _exits(kernel, other)
        for u in blocks[block][-1].uses
    ):
        return False
    carried = [i for i in blocks[header] if i.opcode == "phi" and i.result in divergent]
    if len(carried) > MOST_CARRIED:
        return False
    strides = Strides({n: i for n, (_, i) in kernel.function.definitions().items()}, divergent)
    for block in loop.blocks:
        for i in blocks[block]:
            if i.opcode not in ("load", "store"):
                continue
            parts = split_list(i.text)
            kind = i.type if i.opcode == "load" else parts[0].split(" ", 1)[1].rsplit(" ", 1)[0]
            stride = strides.of(parts[1].rsplit(" ", 1)[-1])
            if stride is None or abs(stride) not in (0, size_and_alignment(kind)[0]):
                return False
            if i.opcode == "store" and stride == 0:
                return False
    return True
