"""Calls of `numbasync.block` and `numbasync.warp`: all threads make them, or the kernel is stopped
at the line that makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbasync import block, warp
from numbasync.backend.cpu.record import LANES_MISSING
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.collectives import lanes_that_come
from numbasync.backend.cpu.target.context import TargetContext, call_own, emits
from numbasync.backend.cpu.target.module import I64, types

_COUNTS = {"sum": 1, "reduce": 2, "scan": 4}  # of arguments


def _meet_block(builder: Builder, name: str) -> None:
    builder.meet(f"block.{name}", "na")


def _meet_warp(builder: Builder, name: str) -> None:
    what = f"warp.{name}"
    came, count = lanes_that_come(builder, what, "na")
    with builder.if_then(builder.icmp_unsigned("!=", came, count), likely=False):
        site = builder.lower.site(f"na.{what}")
        numbers = (builder.zext(n, I64) for n in (came, count))
        builder.session.note(builder, LANES_MISSING, site, I64(0), *numbers)


def _meet_and_call(module: Any, name: str, meet: Callable[[Builder, str], None]) -> Any:
    own = getattr(module, f"{name}_together")

    def emit(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        meet(builder, name)
        return call_own(context, builder, own, signature, args)

    return emit


for _name, _count in _COUNTS.items():
    for _module, _meet in ((block, _meet_block), (warp, _meet_warp)):
        emits(getattr(_module, _name), *[types.Any] * _count)(_meet_and_call(_module, _name, _meet))
