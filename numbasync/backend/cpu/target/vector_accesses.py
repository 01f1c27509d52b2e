"""Loads and stores of `numbasync.vectors`, whose indices and alignment are checked."""

from __future__ import annotations

from typing import Any

from numbasync import vectors
from numbasync.backend.cpu.record import MISALIGNED
from numbasync.backend.cpu.target import accesses
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.context import TargetContext, call_own, emits
from numbasync.backend.cpu.target.elements import Array, leave_if, parts_of
from numbasync.backend.cpu.target.module import I64, types


class _Elements:
    """Neighbouring elements: those from an index on."""

    def __init__(
        self, context: TargetContext, builder: Builder, signature: Any, args: Any, count: int
    ) -> None:
        builder.session.uses.add("vector")
        array, index_type = signature.args[:2]
        lower = builder.lower
        self.site = lower.site(lower.argument_text(0))
        self.array, self.count = Array(context, builder, array, args[0]), count
        parts, values = parts_of(builder, index_type, args[1])
        _, sure = self.array.sure(parts, values, self.site)
        last = builder.add(sure[-1], I64(count - 1))
        extent, axis = self.array.shape[-1], array.ndim - 1
        is_bad = builder.icmp_unsigned(">=", last, extent)
        leave_if(builder, is_bad, self.site, axis, last, extent)
        self.pointer = self.array.pointer(sure)
        nbytes = count * self.array.item
        rest = builder.urem(builder.ptrtoint(self.pointer, I64), I64(nbytes))
        with builder.if_then(builder.icmp_unsigned("!=", rest, I64(0)), likely=False):
            builder.session.note(builder, MISALIGNED, self.site, I64(0), sure[-1], I64(nbytes))

    def places(self, builder: Builder) -> list[Any]:
        return [builder.gep(self.pointer, [I64(k)]) for k in range(self.count)]


@emits(vectors.load, types.Any, types.Any, types.Any)
def _load(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    elements = _Elements(context, builder, signature, args, len(signature.return_type))
    if accesses.is_watched(builder, signature.args[0]):
        for place in elements.places(builder):
            accesses.read(builder, elements.site, place, elements.array.item)
    return call_own(context, builder, vectors.load_vector, signature, args)


@emits(vectors.store, types.Any, types.Any, types.Any)
def _store(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    elements = _Elements(context, builder, signature, args, len(signature.args[2]))
    writes = []
    if accesses.is_watched(builder, signature.args[0]):
        item = elements.array.item
        writes = [accesses.Write(builder, elements.site, p, item) for p in elements.places(builder)]
    result = call_own(context, builder, vectors.store_vector, signature, args)
    for write in writes:
        write.done()
    return result
