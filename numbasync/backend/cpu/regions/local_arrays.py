"""Local arrays that the threads of a block can have one after the other, at one place in memory."""

from __future__ import annotations

from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.region import Region


def arrays_at_one_place(kernel: CutKernel, regions: list[Region]) -> dict[str, set[str]]:
    """The arrays that a thread is done with when the next one begins, with their addresses.

    They are used in one region alone, which threads run once.
    """
    users: dict[str, list[tuple[str, str, str]]] = {}
    for block, code in kernel.function.blocks.items():
        for i in code:
            for used in i.uses:
                opcode = i.opcode
                if opcode == "store" and used in i.uses[:-1]:
                    opcode = "kept in memory"
                users.setdefault(used, []).append((block, opcode, i.result))
    found: dict[str, set[str]] = {}
    for array in kernel.local_arrays:
        addresses, blocks, waiting = {array}, set(), [array]
        is_simple = True
        while waiting and is_simple:
            for block, opcode, result in users.get(waiting.pop(), ()):
                blocks.add(block)
                if opcode == "getelementptr":
                    addresses.add(result)
                    waiting.append(result)
                elif opcode not in ("load", "store"):
                    is_simple = False
        used_in = [r for r in regions if not blocks.isdisjoint(r.blocks)]
        if is_simple and len(used_in) == 1 and not _comes_again(used_in[0].start, regions):
            found[array] = addresses
    return found


def _comes_again(start: int, regions: list[Region]) -> bool:
    """Whether a region can follow on itself."""
    seen: set[int] = set()
    waiting = [e for e in regions[start].ends if e]
    while waiting:
        number = waiting.pop()
        if number == start:
            return True
        if number not in seen:
            seen.add(number)
            waiting += [e for e in regions[number].ends if e]
    return False
