"""Elements of arrays: an index is checked, and the element loaded or stored, in as few instructions
as that takes. Everything else is numba-cuda's own, with checked indices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from numba.cuda import cgutils, stubs
from numba.cuda.core import imputils
from numba.cuda.np import arrayobj

from numbasync.backend.cpu.record import OUT_OF_RANGE
from numbasync.backend.cpu.target import accesses
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.context import Emit, TargetContext, emits
from numbasync.backend.cpu.target.module import I32, I64, types

_arrayobj: Any = arrayobj
_with_result: Callable[[Emit], Emit] = imputils.iternext_impl(imputils.RefType.BORROWED)
_atomic: Any = stubs.atomic


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


def widened(builder: Builder, value: Any, integer: Any) -> Any:
    """An integer, with 64 bits."""
    if value.type.width >= 64:
        return value
    return builder.sext(value, I64) if integer.signed else builder.zext(value, I64)


def checked(builder: Builder, index: Any, integer: Any, extent: Any, axis: int, site: Any) -> Any:
    """`index` as an unsigned number below the extent; else the thread stops."""
    wide = at = widened(builder, index, integer)
    if integer.signed:
        negative = builder.icmp_signed("<", wide, I64(0))
        at = builder.select(negative, builder.add(wide, extent), wide)
    is_bad = builder.icmp_unsigned(">=", at, extent)
    leave_if(builder, is_bad, site, axis, wide, extent)
    return at


def leave_if(builder: Builder, is_bad: Any, site: Any, axis: int, index: Any, extent: Any) -> None:
    """Stop the thread with a note of an index that is out of range."""
    if builder.stop_block is None:
        builder.stop_block = _Stop(builder)
    builder.stop_block.leave_if(builder, is_bad, [site, I64(axis), index, extent])


def parts_of(builder: Builder, index_type: Any, index: Any) -> tuple[list[Any], list[Any]]:
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


class Array:
    """An array whose elements are accessed. Its fields are taken out of the value: an allocation
    for each access would be most of the code.
    """

    def __init__(self, context: TargetContext, builder: Builder, array: Any, value: Any) -> None:
        model = context.data_model_manager[array]
        self.type, self._context, self._builder = array, context, builder
        self.item = context.get_abi_sizeof(context.get_data_type(array.dtype))

        def field(name: str, *of: int) -> Any:
            return builder.extract_value(value, [model.get_field_position(name), *of])

        self.data = field("data")
        self.shape = [field("shape", axis) for axis in range(array.ndim)]
        # Those of other layouts follow from the shape.
        self.strides = (
            [field("strides", k) for k in range(array.ndim)] if array.layout == "A" else []
        )

    def sure(self, parts: list[Any], values: list[Any], site: Any) -> tuple[list[Any], list[Any]]:
        """Types and values of an index, whose integers are in range, as unsigned numbers."""
        sure_types, sure = [], []
        for axis, part, value in zip(_axes(self.type, parts), parts, values, strict=True):
            part = types.unliteral(part)
            if isinstance(part, types.Integer) and axis < self.type.ndim:
                value = checked(self._builder, value, part, self.shape[axis], axis, site)
                part = types.uint64
            sure_types.append(part)
            sure.append(value)
        return sure_types, sure

    def pointer(self, values: list[Any], wraparound: bool = False) -> Any:
        strides = self.strides or self.shape  # not looked at
        return cgutils.get_item_pointer2(
            self._context, self._builder, self.data, self.shape, strides, self.type.layout, values,
            wraparound=wraparound,
        )  # fmt: skip

    def element(self, parts: list[Any], values: list[Any], site: Any) -> Any:
        """The address of an element."""
        if site is None:  # in Numba's own functions, whose indices are right
            wide = [widened(self._builder, v, types.unliteral(p))
                    for v, p in zip(values, parts, strict=True)]  # fmt: skip
            return self.pointer(wide, wraparound=True)
        return self.pointer(self.sure(parts, values, site)[1])


def _is_element(array: Any, parts: list[Any]) -> bool:
    numbers = all(isinstance(types.unliteral(p), types.Integer) for p in parts)
    return bool(parts) and numbers and len(parts) == array.ndim


def _site(builder: Builder) -> Any:
    """The number of the place; None in Numba's own functions."""
    lower = builder.lower
    return None if lower.is_numbas else lower.site(lower.array_text())


def _sure(
    context: TargetContext, builder: Builder, array: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any]:
    """Type and value of an index, whose integers are in range."""
    parts, values = parts_of(builder, index_type, index)
    site = _site(builder)
    if site is None or any(isinstance(p, types.Array) for p in parts):
        return index_type, index
    parts, values = Array(context, builder, array, value).sure(parts, values, site)
    if not isinstance(index_type, types.BaseTuple):
        return parts[0], values[0]
    sure_type = types.BaseTuple.from_types(parts)
    return sure_type, context.make_tuple(builder, sure_type, values)


@emits(operator.getitem, types.Array, types.Integer)
@emits(operator.getitem, types.Array, types.SliceType)
@emits(operator.getitem, types.Array, types.BaseTuple)
def _getitem(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    array, index_type = signature.args
    parts, values = parts_of(builder, index_type, args[1])
    if _is_element(array, parts):
        view, site = Array(context, builder, array, args[0]), _site(builder)
        pointer = view.element(parts, values, site)
        if accesses.is_watched(builder, array):
            accesses.read(builder, site, pointer, view.item)
        return _arrayobj.load_item(context, builder, array, pointer)
    sure_type, sure = _sure(context, builder, array, args[0], index_type, args[1])
    is_tuple = isinstance(sure_type, types.BaseTuple)
    emit = _arrayobj.getitem_array_tuple if is_tuple else _arrayobj.getitem_arraynd_intp
    own = signature.replace(args=(array, sure_type))
    return emit(context, builder, own, (args[0], sure))


@emits("iternext", types.ArrayIterator)
@_with_result
def _iternext(
    context: TargetContext, builder: Builder, signature: Any, args: list[Any], result: Any
) -> None:
    """The next element of an array, or its next row."""
    (iterator,) = signature.args
    state = context.make_helper(builder, iterator, value=args[0])
    array, value = iterator.array_type, state.array
    view = Array(context, builder, array, value)
    index = builder.load(state.index)
    is_valid = builder.icmp_signed("<", index, view.shape[0])
    result.set_valid(is_valid)
    with builder.if_then(is_valid):
        if array.ndim == 1 and accesses.is_watched(builder, array):
            site = builder.lower.site(builder.lower.array_text())
            accesses.read(builder, site, view.pointer([index]), view.item)
        numbas = context.make_array(array)(context, builder, value=value)
        kind = iterator.yield_type
        result.yield_(
            _arrayobj._getitem_array_single_int(context, builder, kind, array, numbas, index)
        )
        builder.store(cgutils.increment_index(builder, index), state.index)


@emits(operator.setitem, types.Array, types.Any, types.Any)
def _setitem(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    array, index_type, value_type = signature.args
    parts, values = parts_of(builder, index_type, args[1])
    if _is_element(array, parts):
        view, site = Array(context, builder, array, args[0]), _site(builder)
        pointer = view.element(parts, values, site)
        value = context.cast(builder, args[2], value_type, array.dtype)
        is_watched = accesses.is_watched(builder, array)
        write = accesses.Write(builder, site, pointer, view.item) if is_watched else None
        _arrayobj.store_item(context, builder, array, value, pointer)
        if write is not None:
            write.done()
        return context.get_dummy_value()
    sure_type, sure = _sure(context, builder, array, args[0], index_type, args[1])
    own = signature.replace(args=(array, sure_type, value_type))
    _arrayobj.setitem_array(context, builder, own, (args[0], sure, args[2]))
    if accesses.is_watched(builder, array):
        _say_filled(context, builder, array, args[0], sure_type, sure)
    return context.get_dummy_value()


def _say_filled(
    context: TargetContext, builder: Builder, array: Any, value: Any, index_type: Any, index: Any
) -> None:
    """Say that the elements of a view have been written; of an index by an array, nothing is."""
    parts, _ = parts_of(builder, index_type, index)
    if any(isinstance(p, types.Array) for p in parts):
        return
    getitem = context.typing_context.resolve_value_type(operator.getitem)
    signature = getitem.get_call_type(context.typing_context, (array, index_type), {})
    view = context.get_function(getitem, signature)(builder, (value, index))
    if isinstance(signature.return_type, types.Array):
        accesses.filled(context, builder, signature.return_type, view, _site(builder))


# --- atomic operations ---


def _atomic_at(key: Any) -> Any:
    """numba-cuda's own operation, on an element whose index is checked."""

    def emit(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        array, index_type, *value_types = signature.args
        parts, values = parts_of(builder, index_type, args[1])
        if not _is_element(array, parts):
            return context.numbas_function(key, signature)(builder, args)
        view = Array(context, builder, array, args[0])
        site = builder.lower.site(builder.lower.argument_text(0))
        _, sure = view.sure(parts, values, site)
        if accesses.is_watched(builder, array):
            old = args[2] if key is _atomic.cas and isinstance(array.dtype, types.Integer) else None
            accesses.atomic(builder, site, view.pointer(sure), view.item, old)
        sure_type: Any = types.intp
        if isinstance(index_type, types.BaseTuple):
            sure_type = types.UniTuple(types.intp, len(sure))
        at = context.make_tuple(builder, sure_type, sure) if sure_type != types.intp else sure[0]
        own = signature.replace(args=(array, sure_type, *value_types))
        return context.numbas_function(key, own)(builder, (args[0], at, *args[2:]))

    return emit


for _name in (
    "add", "sub", "and_", "or_", "xor", "inc", "dec", "exch", "max", "min", "nanmax", "nanmin",
):  # fmt: skip
    _key = getattr(_atomic, _name)
    emits(_key, types.Array, types.Any, types.Any)(_atomic_at(_key))
emits(_atomic.cas, types.Array, types.Any, types.Any, types.Any)(_atomic_at(_atomic.cas))
