"""Atomic operations on memory of the block: one processor runs all of its threads, so they need no
lock.

They are written as a load, an operation and a store, about which LLVM is told nothing: that the
threads' accesses do not depend on each other is not true of them.
"""

from __future__ import annotations

import re

_ATOMIC = re.compile(r"atomicrmw (\w+) ptr (%[\w.]+), (\S+) (\S+) .*")
_PLAIN = frozenset(("add", "sub", "and", "or", "xor", "fadd", "fsub"))
_COMPARED = {"max": "sgt", "min": "slt", "umax": "ugt", "umin": "ult"}


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
