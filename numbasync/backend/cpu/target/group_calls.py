"""Calls of `numbasync.block` and `numbasync.warp`: all threads make them, or the kernel is stopped
at the line that makes them.
"""

from __future__ import annotations

from typing import Any

from numbasync import block, warp
from numbasync.backend.cpu.record import LANES_MISSING
from numbasync.backend.cpu.target import group_functions
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.collectives import lanes_that_come
from numbasync.backend.cpu.target.context import TargetContext, call_own, emits
from numbasync.backend.cpu.target.module import I64, types
from numbasync.warp import is_none

_COUNTS = {"sum": 1, "reduce": 2, "scan": 4}  # of arguments


def _of_block(name: str) -> Any:
    own = getattr(group_functions, f"{name}_brought")

    def emit(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        is_sum = name == "sum" or (name == "scan" and is_none(signature.args[1]))
        bring = group_functions.bring_to_sum if is_sum else group_functions.bring
        brought = types.void(signature.args[0])
        call_own(context, builder, bring, brought, args[:1])
        builder.meet(f"block.{name}", "na")
        return call_own(context, builder, own, signature, args)

    return emit


def _sort(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    builder.meet("block.sort", "na")
    return call_own(context, builder, block.sort_together, signature, args)


def _of_warp(name: str) -> Any:
    own = getattr(warp, f"{name}_together")

    def emit(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        came, count = lanes_that_come(builder, f"warp.{name}", "na")
        with builder.if_then(builder.icmp_unsigned("!=", came, count), likely=False):
            site = builder.lower.site(f"na.warp.{name}")
            numbers = (builder.zext(n, I64) for n in (came, count))
            builder.session.note(builder, LANES_MISSING, site, I64(0), *numbers)
        return call_own(context, builder, own, signature, args)

    return emit


for _name, _count in _COUNTS.items():
    emits(getattr(block, _name), *[types.Any] * _count)(_of_block(_name))
    emits(getattr(warp, _name), *[types.Any] * _count)(_of_warp(_name))
emits(block.sort, *[types.Any] * 4)(_sort)
