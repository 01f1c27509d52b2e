"""Range loops of Numba as loops that count: what LLVM's light passes leave to its heavy ones.

Numba's range counts down what is left, and computes its next value, by `sext` and `select` of
whether anything is left, in the block that tests it. Behind the test it is known which. What begins
at a number that is not negative and grows is never negative, so an index of it does not count from
the end. How many strides are left need not be known to know whether one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from numbasync.backend.cpu.regions.divergence import follows_from_operands
from numbasync.backend.cpu.regions.flow import dominates, dominators, predecessors
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Instruction, is_plain, parse_instruction
from numbasync.backend.cpu.regions.llvm_types import split_list

_EXTENSION = re.compile(r"[sz]ext i1 (%[\w.]+) to i\d+$")


def count_plainly(function: Function) -> None:
    """Where only the way of a true condition leads, write what it selects there."""
    blocks = function.blocks
    graph = function.successors()
    tree = dominators(graph, function.entry)
    before = predecessors(graph)
    for block, code in list(blocks.items()):
        test = re.match(r"br i1 (%[\w.]+), label (%[\w.]+), label", code[-1].text)
        if test is None or before[test[2]] != [block] or block not in tree:
            continue
        known = {
            i.result: value
            for i in code
            if i.result and (value := _if_true(i, test[1])) is not None
        }
        if known:
            _replace(function, known, block, _Behind(test[2], tree))


def drop_sign_tests(function: Function) -> None:
    """Write what follows from it that counters that grow are not negative."""
    definitions = {n: i for n, (_, i) in function.definitions().items()}
    counters = {n for n, i in definitions.items() if _only_grows(i, definitions)}
    facts: dict[str, str] = {}
    for name, i in definitions.items():
        test = re.fullmatch(r"icmp (?:samesign )?slt i64 (%[\w.]+), 0", i.text)
        if test is not None and test[1] in counters:
            facts[name] = "false"
        bit = re.fullmatch(r"and i64 (%[\w.]+), (\d+)", i.text)
        shifted = definitions.get(bit[1]) if bit is not None else None
        if bit is None or shifted is None:
            continue
        shift = re.fullmatch(r"lshr (?:exact )?i64 (%[\w.]+), (\d+)", shifted.text)
        if shift is not None and shift[1] in counters and int(bit[2]) << int(shift[2]) == 1 << 63:
            facts[name] = "0"
    if not facts:
        return
    for code in function.blocks.values():
        for n, i in enumerate(code):
            if any(u in facts for u in i.uses):
                text = i.renamed(facts)
                code[n] = parse_instruction(f"{i.result} = {text}" if i.result else text)


def test_by_value(function: Function) -> None:
    """Where a loop counts how many strides are left, test whether its value is below the end.

    Numba divides for that: by `gridsize`, once in each thread, and what is left differs between
    threads.
    """
    definitions = {n: i for n, (_, i) in function.definitions().items()}
    for code in function.blocks.values():
        phis = [i for i in code if i.opcode == "phi" and len(i.incoming) == 2]
        for n, i in enumerate(code):
            match = re.fullmatch(r"icmp (?:samesign )?sgt i64 (%[\w.]+), 0", i.text)
            counter = next((p for p in phis if match and p.result == match[1]), None)
            if counter is None:
                continue
            for value in phis:
                end = _end_of_strides(value, counter, definitions)
                if end is not None:
                    code[n] = parse_instruction(f"{i.result} = icmp slt i64 {value.result}, {end}")
                    break


def _end_of_strides(
    value: Instruction, counter: Instruction, definitions: Mapping[str, Instruction]
) -> str | None:
    """The end, if `counter` is how many strides `value` has to go to it."""
    name = re.escape(value.result)
    for (begin, entry), (after, latch) in (value.incoming, value.incoming[::-1]):
        step = re.fullmatch(
            rf"add (?:n[us]w )*i64 (?:{name}, (\S+)|(\S+), {name})",
            definitions[after].text if after in definitions else "",
        )
        counted = {b: v for v, b in counter.incoming}
        down = definitions.get(counted.get(latch, ""))
        if step is None or down is None or counted.keys() != {entry, latch}:
            continue
        if not re.fullmatch(rf"add (?:n[us]w )*i64 {re.escape(counter.result)}, -1", down.text):
            continue
        count = definitions.get(counted[entry])
        if count is None or count.opcode != "phi" or len(count.incoming) != 2:
            continue
        rounds = [v for v, _ in count.incoming if v != "0"]
        if len(rounds) != 1 or "0" not in (v for v, _ in count.incoming):
            continue
        return _end_of_rounds(rounds[0], begin, step[1] or step[2], definitions)
    return None


def _end_of_rounds(
    rounds: str, begin: str, step: str, definitions: Mapping[str, Instruction]
) -> str | None:
    """The `end` of `rounds` = `(end - begin) / step`, rounded up, where `end` is above `begin`."""
    total = definitions.get(rounds)
    if total is None or total.opcode != "add" or len(total.uses) != 2:
        return None
    parts = [definitions.get(u) for u in total.uses]
    whole = next((i for i in parts if i is not None and i.opcode == "udiv"), None)
    more = next((i for i in parts if i is not None and i.opcode == "zext"), None)
    if whole is None or more is None or not whole.text.endswith(f", {step}"):
        return None
    test = definitions.get(more.uses[0])
    rest = definitions.get(test.uses[0]) if test is not None and test.opcode == "icmp" else None
    if test is None or rest is None or not re.fullmatch(r"icmp ne i64 \S+, 0", test.text):
        return None
    length = whole.uses[0]
    if rest.opcode != "urem" or rest.text != f"urem i64 {length}, {step}":
        return None
    difference = definitions.get(length)
    match = re.fullmatch(
        rf"sub (?:n[us]w )*i64 (\S+), {re.escape(begin)}",
        difference.text if difference is not None else "",
    )
    return match[1] if match else None


def drop_unused(function: Function) -> None:
    """Drop what computes values that nothing needs."""
    definitions = {n: i for n, (_, i) in function.definitions().items()}
    waiting = [
        u
        for code in function.blocks.values()
        for i in code
        if not (i.result and _only_computes(i))
        for u in i.uses
    ]
    needed: set[str] = set()
    while waiting:
        value = waiting.pop()
        if value not in needed:
            needed.add(value)
            if value in definitions:
                waiting += definitions[value].uses
    for code in function.blocks.values():
        code[:] = [i for i in code if not i.result or i.result in needed or not _only_computes(i)]


def _only_computes(i: Instruction) -> bool:
    return follows_from_operands(i) or (i.opcode == "load" and is_plain(i))


def _only_grows(i: Instruction, definitions: Mapping[str, Instruction]) -> bool:
    """Whether a value begins with a number and has numbers added, in fewer than 2**63 rounds."""
    if i.opcode != "phi" or i.type != "i64":
        return False
    for value, _ in i.incoming:
        after = definitions.get(value)
        if after is None:
            if not re.fullmatch(r"\d{1,15}", value):
                return False
        elif not re.fullmatch(rf"add (?:n[us]w )*i64 {re.escape(i.result)}, \d{{1,3}}", after.text):
            return False
    return True


def _if_true(i: Instruction, condition: str) -> str | None:
    """What the value is if the condition holds."""
    match = _EXTENSION.match(i.text)
    if match is not None and match[1] == condition:
        return "1" if i.text[0] == "z" else "-1"
    if i.opcode == "select":
        tested, value, _ = (part.rsplit(" ", 1)[-1] for part in split_list(i.text))
        if tested == condition and re.fullmatch(r"%[\w.]+|-?\d+", value):
            return value
    return None


class _Behind:
    """Whether a block is reached through `start` alone."""

    def __init__(self, start: str, tree: Mapping[str, str]) -> None:
        self._start, self._tree = start, tree
        self._known: dict[str, bool] = {}

    def __call__(self, block: str) -> bool:
        if block not in self._known:
            self._known[block] = block in self._tree and dominates(self._tree, self._start, block)
        return self._known[block]


def _replace(function: Function, known: dict[str, str], block: str, is_behind: _Behind) -> None:
    """Write the known values behind the test, and in sums that are used behind it alone."""
    users: dict[str, list[tuple[str, Instruction]]] = {}
    for at, code in function.blocks.items():
        for i in code:
            for used in i.uses:
                users.setdefault(used, []).append((at, i))
    for at, code in function.blocks.items():
        for n, i in enumerate(code):
            mine = {v: known[v] for v in i.uses if v in known}
            if not mine:
                continue
            if i.opcode == "phi":
                text = _phi_text(i, known, is_behind)
            elif is_behind(at) or (
                at == block
                and i.opcode in ("add", "sub")
                and all(_uses_behind(u, b, i.result, is_behind) for b, u in users.get(i.result, ()))
            ):
                text = i.renamed(mine)
            else:
                continue
            code[n] = parse_instruction(f"{i.result} = {text}" if i.result else text)


def _phi_text(i: Instruction, known: dict[str, str], is_behind: _Behind) -> str:
    incoming = [(known.get(v, v) if is_behind(b) else v, b) for v, b in i.incoming]
    return f"phi {i.type} " + ", ".join(f"[ {v}, {b} ]" for v, b in incoming)


def _uses_behind(user: Instruction, at: str, value: str, is_behind: _Behind) -> bool:
    if user.opcode != "phi":
        return is_behind(at)
    return all(is_behind(b) for v, b in user.incoming if v == value)
