"""Range loops of Numba as loops that count: what LLVM's light passes leave to its heavy ones.

What begins at a number that is not negative and grows is never negative, so an index of it does not
count from the end. Numba's range counts down how many strides are left, which need not be known to
know whether one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from numbasync.backend.cpu.regions.divergence import follows_from_operands
from numbasync.backend.cpu.regions.function_text import Function
from numbasync.backend.cpu.regions.instructions import Instruction, is_plain, parse_instruction


def drop_sign_tests(function: Function) -> None:
    """Write what follows from it that counters that grow are not negative."""
    definitions = function.made()
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
        code[:] = [i.with_operands(facts) for i in code]


def test_by_value(function: Function) -> None:
    """Where a loop counts how many strides are left, test whether its value is below the end.

    Numba divides for that: by `gridsize`, once in each thread, and what is left differs between
    threads.
    """
    definitions = function.made()
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
    definitions = function.made()
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
