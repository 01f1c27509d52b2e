"""Accesses of checked kernels: each calls `na.access`, which says whether it is right."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from numbasync.backend.cpu.races.words import ATOMIC, ATTEMPT, QUIET, READ, WRITE
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.module import BYTES, I32, I64, STOPPED, types


def is_watched(builder: Builder, array: Any) -> bool:
    """Whether accesses of an array's elements are checked."""
    is_number = isinstance(array.dtype, types.Number | types.Boolean)
    return builder.session.options.checked and is_number and not builder.lower.is_numbas


def _call(builder: Builder, mode: Any, site: Any, address: Any, nbytes: int) -> Any:
    function = builder.session.function("na.access", I32, I32, I32, BYTES, I64)
    return builder.call(function, [mode, site, address, I64(nbytes)])


def touch(builder: Builder, mode: Any, site: Any, pointer: Any, nbytes: int) -> None:
    """Say that bytes are accessed; the thread stops if they must not be."""
    mode = I32(mode) if isinstance(mode, int) else mode
    wrong = _call(builder, mode, site, builder.bitcast(pointer, BYTES), nbytes)
    with builder.if_then(builder.icmp_signed("!=", wrong, I32(0)), likely=False):
        builder.ret(I32(STOPPED))


def fence(builder: Builder, mode: int, site: Any) -> None:
    """Say that the thread passes a fence."""
    _call(builder, I32(mode), site, ir.Constant(BYTES, None), 0)


def read(builder: Builder, site: Any, pointer: Any, nbytes: int) -> None:
    touch(builder, READ, site, pointer, nbytes)


class Write:
    """A store: `Write(...)`, then the store, then `done()`. One that leaves the value is quiet."""

    def __init__(self, builder: Builder, site: Any, pointer: Any, nbytes: int) -> None:
        self._to = builder, site, pointer, nbytes
        self._before = self._bits()

    def _bits(self) -> Any:
        builder, _, pointer, nbytes = self._to
        word = ir.IntType(8 * nbytes)
        return builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)

    def done(self) -> None:
        builder, site, pointer, nbytes = self._to
        is_same = builder.icmp_unsigned("==", self._before, self._bits())
        mode = builder.select(is_same, I32(QUIET), I32(WRITE))
        touch(builder, mode, site, pointer, nbytes)


def atomic(builder: Builder, site: Any, pointer: Any, nbytes: int, old: Any = None) -> None:
    """Say that an element is about to be changed atomically; if `old` is given, only from that."""
    mode = I32(ATOMIC)
    if old is not None:
        now = builder.load(pointer)
        mode = builder.select(builder.icmp_unsigned("==", now, old), mode, I32(ATTEMPT))
    touch(builder, mode, site, pointer, nbytes)


def filled(context: Any, builder: Builder, array: Any, value: Any, site: Any) -> None:
    """Say that all elements of a view are written."""
    view = context.make_array(array)(context, builder, value)
    shape = cgutils.unpack_tuple(builder, view.shape, array.ndim)
    nbytes = context.get_abi_sizeof(context.get_data_type(array.dtype))
    with cgutils.loop_nest(builder, shape, I64) as indices:
        pointer = cgutils.get_item_pointer(context, builder, array, view, indices)
        touch(builder, WRITE, site, pointer, nbytes)
