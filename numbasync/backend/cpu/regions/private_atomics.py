"""Atomic operations on memory of the block: one processor runs all of its threads, so they need no lock.

They are written as a load, an operation and a store, about which LLVM is told nothing: that the threads'
accesses do not depend on each other is not true of them.
"""

from __future__ import annotations

import re

from numbasync.backend.cpu.regions.cut import CutKernel

_ATOMIC = re.compile(r"atomicrmw (\w+) ptr (%[\w.]+), (\S+) (\S+) .*")
_PLAIN = frozenset(("add", "sub", "and", "or", "xor", "fadd", "fsub"))
_COMPARED = {"max": "sgt", "min": "slt", "umax": "ugt", "umin": "ult"}


def private_addresses(kernel: CutKernel) -> set[str]:
    """The values that are addresses of shared or local memory of the block."""
    found = {f"%na.{name}" for name in kernel.memory} | set(kernel.local_arrays)
    for block in kernel.function.blocks.values():  # definitions come before uses, but for loops
        for i in block:
            if i.opcode == "getelementptr" and i.uses and i.uses[0] in found:
                found.add(i.result)
    return found


def without_lock(text: str, result: str, address_is_private: bool) -> list[str] | None:
    """The lines for an atomic operation; None if it stays one.

    Args:
        text: the operation, with the names of its operands as they are in the code.
        result: the name of what was there before.
    """
    match = _ATOMIC.fullmatch(text)
    if match is None or not address_is_private:
        return None
    operation, address, kind, value = match.groups()
    lines = [f"  {result} = load {kind}, ptr {address}"]
    new = f"{result}.new"
    if operation in _PLAIN:
        lines.append(f"  {new} = {operation} {kind} {result}, {value}")
    elif operation in _COMPARED:
        lines += [
            f"  {result}.old = icmp {_COMPARED[operation]} {kind} {result}, {value}",
            f"  {new} = select i1 {result}.old, {kind} {result}, {kind} {value}",
        ]
    elif operation == "xchg":
        new = value
    else:
        return None
    return [*lines, f"  store {kind} {new}, ptr {address}"]
