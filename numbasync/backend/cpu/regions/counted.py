"""Range loops of Numba as loops that count: what LLVM's light passes leave to its heavy ones.

Numba's range counts down what is left, by `sext i1` of whether anything is, in the block that tests it.
Behind the test that is -1.
"""

from __future__ import annotations

import re

from numbasync.backend.cpu.regions.flow import dominates, dominators, predecessors
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Instruction, parse_instruction

_EXTENSION = re.compile(r"[sz]ext i1 (%[\w.]+) to i\d+$")


def count_plainly(function: Function) -> None:
    """Write 1 or -1 for an extended condition where its sum is used behind the condition alone."""
    blocks = function.blocks
    graph = function.successors()
    tree = dominators(graph, function.entry)
    before = predecessors(graph)
    users: dict[str, list[tuple[str, Instruction]]] = {}
    for block, code in blocks.items():
        for i in code:
            for used in set(i.uses):
                users.setdefault(used, []).append((block, i))
    for block, code in blocks.items():
        last = code[-1]
        test = re.match(r"br i1 (%[\w.]+), label (%[\w.]+), label", last.text)
        if test is None or before[test[2]] != [block] or block not in tree:
            continue
        for extension in code:
            match = _EXTENSION.match(extension.text)
            if match is None or match[1] != test[1]:
                continue
            value = "1" if extension.text[0] == "z" else "-1"
            for n, i in enumerate(code):
                if (
                    i.opcode == "add"
                    and extension.result in i.uses
                    and all(
                        _is_behind(user, at, i.result, test[2], tree)
                        for at, user in users.get(i.result, ())
                    )
                ):
                    text = re.sub(rf"{re.escape(extension.result)}(?![\w.])", value, i.text)
                    code[n] = parse_instruction(f"{i.result} = {text}")


def _is_behind(
    user: Instruction, at: str, value: str, start: str, tree: dict[str, str]
) -> bool:
    places = [at]
    if user.opcode == "phi":
        places = [block for v, block in user.incoming if v == value]
    return all(p in tree and dominates(tree, start, p) for p in places)
