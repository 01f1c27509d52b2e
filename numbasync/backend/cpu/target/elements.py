"""Elements of arrays: an index is checked, and the element loaded or stored, in as few instructions
as that takes. Everything else is numba-cuda's own, with checked indices.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import cgutils
from numba.cuda.np import arrayobj

from numbasync.backend.cpu.library.entry_points import OUT_OF_RANGE
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.context import OWN, TargetContext
from numbasync.backend.cpu.target.module import I32, I64, types

_arrayobj: Any = arrayobj


class _Stop:
    """Where a function goes when an index is out of range."""

    def __init__(self, builder: Builder) -> None:
        self.block = builder.function.append_basic_block("out_of_range")
        with builder.goto_block(self.block):
            self._site = builder.phi(I32)
            self._what = [builder.phi(I64) for _ in range(3)]  # axis, index, extent
            builder.session.note(builder, OUT_OF_RANGE, self._site, *self._what)

    def leave_if(self, builder: Builder, is_bad: Any, what: list[Any]) -> None:
        for phi, value in zip([self._site, *self._what], what, strict=True):
            phi.add_incoming(value, builder.block)
        goes_on = builder.append_basic_block()
        builder.cbranch(is_bad, self.block, goes_on).set_weights([1, 99])
        builder.position_at_end(goes_on)


def _widened(builder: Builder, value: Any, integer: Any) -> Any:
    if value.type.width >= 64:
        return value
    return builder.sext(value, I64) if integer.signed else builder.zext(value, I64)


def checked(
    builder: Builder, index: Any, integer: Any, extent: Any, axis: int, site: Any
) -> Any:
    """`index` as an unsigned number below the extent; else the thread stops."""
    wide = at = _widened(builder, index, integer)
    if integer.signed:
        negative = builder.icmp_signed("<", wide, I64(0))
        at = builder.select(negative, builder.add(wide, extent), wide)
    is_bad = builder.icmp_unsigned(">=", at, extent)
    if builder.stop_block is None:
        builder.stop_block = _Stop(builder)
    builder.stop_block.leave_if(builder, is_bad, [site, I64(axis), wide, extent])
    return at


def _is_numbas(builder: Builder) -> bool:
    """Whether the function is Numba's own, whose indices are right."""
    return builder.lower.is_numbas


def _parts(builder: Builder, index_type: Any, index: Any) -> tuple[list[Any], list[Any]]:
    """An index of one or several axes: types and values of its parts."""
    if isinstance(index_type, types.BaseTuple):
        return list(index_type), cgutils.unpack_tuple(builder, index, len(index_type))
    return [index_type], [index]


def _axes(array: Any, parts: list[Any]) -> list[int]:
    """The axis of each part of an index."""
    is_new = [isinstance(p, types.NoneType) for p in parts]
    missing = array.ndim - (len(parts) - sum(is_new)) + 1
    axes, axis = [], 0
    for part, new in zip(parts, is_new, strict=True):
        axes.append(axis)
        axis += 0 if new else missing if isinstance(part, types.EllipsisType) else 1
    return axes


def _checked_parts(
    builder: Builder, array: Any, view: Any, parts: list[Any], values: list[Any]
) -> tuple[list[Any], list[Any]]:
    """An index whose integers are in range, as unsigned numbers."""
    shape = cgutils.unpack_tuple(builder, view.shape, array.ndim)
    site = builder.lower.site(builder.lower.array_text())
    sure_types, sure = [], []
    for axis, part, value in zip(_axes(array, parts), parts, values, strict=True):
        part = types.unliteral(part)
        if isinstance(part, types.Integer) and axis < array.ndim:
            value = checked(builder, value, part, shape[axis], axis, site)
            part = types.uint64
        sure_types.append(part)
        sure.append(value)
    return sure_types, sure


def _is_element(array: Any, parts: list[Any]) -> bool:
    numbers = all(isinstance(types.unliteral(p), types.Integer) for p in parts)
    return isinstance(array, types.Array) and numbers and len(parts) == array.ndim


def _pointer(
    context: TargetContext, builder: Builder, array: Any, view: Any, parts: Any, values: Any
) -> Any:
    if not _is_numbas(builder):
        parts, values = _checked_parts(builder, array, view, parts, values)
    wide = [_widened(builder, v, types.unliteral(p)) for v, p in zip(values, parts, strict=True)]
    return cgutils.get_item_pointer(
        context, builder, array, view, wide, wraparound=_is_numbas(builder)
    )


def _sure(
    context: TargetContext, builder: Builder, array: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any]:
    """Type and value of an index, whose integers are in range."""
    parts, values = _parts(builder, index_type, index)
    is_plain = isinstance(array, types.Array) and not any(isinstance(p, types.Array) for p in parts)
    if _is_numbas(builder) or not is_plain:
        return index_type, index
    view = context.make_array(array)(context, builder, value)
    parts, values = _checked_parts(builder, array, view, parts, values)
    if not isinstance(index_type, types.BaseTuple):
        return parts[0], values[0]
    sure_type = types.BaseTuple.from_types(parts)
    return sure_type, context.make_tuple(builder, sure_type, values)


@OWN.lower(operator.getitem, types.Array, types.Integer)
@OWN.lower(operator.getitem, types.Array, types.BaseTuple)
def _getitem(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    array, index_type = signature.args
    parts, values = _parts(builder, index_type, args[1])
    if _is_element(array, parts) and parts:
        view = context.make_array(array)(context, builder, args[0])
        pointer = _pointer(context, builder, array, view, parts, values)
        return _arrayobj.load_item(context, builder, array, pointer)
    sure_type, sure = _sure(context, builder, array, args[0], index_type, args[1])
    if isinstance(sure_type, types.BaseTuple):
        emit = _arrayobj.getitem_array_tuple
    else:
        emit = _arrayobj.getitem_arraynd_intp
    own = signature.replace(args=(array, sure_type))
    return emit(context, builder, own, (args[0], sure))


@OWN.lower(operator.setitem, types.Array, types.Any, types.Any)
def _setitem(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    array, index_type, value_type = signature.args
    parts, values = _parts(builder, index_type, args[1])
    if _is_element(array, parts) and parts:
        view = context.make_array(array)(context, builder, args[0])
        pointer = _pointer(context, builder, array, view, parts, values)
        value = context.cast(builder, args[2], value_type, array.dtype)
        _arrayobj.store_item(context, builder, array, value, pointer)
        return context.get_dummy_value()
    sure_type, sure = _sure(context, builder, array, args[0], index_type, args[1])
    own = signature.replace(args=(array, sure_type, value_type))
    return _arrayobj.setitem_array(context, builder, own, (args[0], sure, args[2]))
