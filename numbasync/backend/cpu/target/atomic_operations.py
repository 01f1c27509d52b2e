"""Atomic operations that numba-cuda calls by name: those of floats, and those that wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbasync.backend.cpu.target.builder import NAMES, Builder

_LETTERS = {"float": "f32", "double": "f64"}


def _instruction(operation: str) -> Any:
    def emit(builder: Builder, function: Any, args: list[Any]) -> Any:
        return builder.atomic_rmw(operation, args[0], args[1], "monotonic")

    return emit


def _exchanged(is_better: Callable[[Any, Any, Any], Any]) -> Any:
    """Replace a float in memory where the new value is better."""

    def emit(builder: Builder, function: Any, args: list[Any]) -> Any:
        place, value = args
        word = ir.IntType(32 if isinstance(value.type, ir.FloatType) else 64)
        address = builder.bitcast(place, word.as_pointer())
        bits = builder.bitcast(value, word)
        entry = builder.block
        first = builder.load_atomic(address, "monotonic", word.width // 8)
        head, attempt, done = (builder.append_basic_block(n) for n in ("better", "attempt", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        old = builder.phi(word)
        old.add_incoming(first, entry)
        builder.cbranch(is_better(builder, builder.bitcast(old, value.type), value), attempt, done)
        builder.position_at_end(attempt)
        result = builder.cmpxchg(address, old, bits, "monotonic", "monotonic")
        old.add_incoming(builder.extract_value(result, 0), attempt)
        builder.cbranch(builder.extract_value(result, 1), done, head)
        builder.position_at_end(done)
        return builder.bitcast(old, value.type)

    return emit


def _better(name: str) -> Callable[[Any, Any, Any], Any]:
    """A NaN as argument is ignored. A NaN in memory stays; nanmax and nanmin replace it."""
    sign = ">" if name.endswith("max") else "<"

    def is_better(builder: Any, old: Any, value: Any) -> Any:
        better = builder.fcmp_ordered(sign, value, old)
        if not name.startswith("nan"):
            return better
        is_number = builder.fcmp_ordered("ord", value, value)
        return builder.or_(better, builder.and_(is_number, builder.fcmp_unordered("uno", old, old)))

    return is_better


for _type, _letter in _LETTERS.items():
    NAMES[f"llvm.nvvm.atomic.load.add.{_letter}.p0{_letter}"] = _instruction("fadd")
    NAMES[f"___numba_atomic_{_type}_add"] = _instruction("fadd")
    NAMES[f"___numba_atomic_{_type}_sub"] = _instruction("fsub")
    for _name in ("max", "min", "nanmax", "nanmin"):
        NAMES[f"___numba_atomic_{_type}_{_name}"] = _exchanged(_better(_name))
for _kind in ("inc", "dec"):
    NAMES[f"llvm.nvvm.atomic.load.{_kind}.32.p0i32"] = _instruction(f"u{_kind}_wrap")
    NAMES[f"___numba_atomic_u64_{_kind}"] = _instruction(f"u{_kind}_wrap")
