"""Elements of arrays in compiled kernels: the index is checked and the element loaded or stored by
one call, in as few instructions as that takes.

An index that is out of range leads to one place in each function, which writes the record and
returns. What it needs to know of the thread, `here` keeps in variables of the function: the
optimiser makes registers of them, and nothing is passed to each access.
"""

from __future__ import annotations

import ast
import operator
import weakref
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import load_item, store_item

from numbasync.backend.cpu.compiler.program import parsed
from numbasync.backend.cpu.library import entry_points, vector_access
from numbasync.backend.cpu.library.entry_points import types, widened

_I64 = ir.IntType(64)
_HERE = ("_m", "_bx", "_by", "_bz", "_tx", "_ty", "_tz")
_AXIS, _INDEX, _LITERAL = "_within_axis", "_within", "_literal"
_LOAD, _STORE, _SURE_LOAD, _SURE_STORE = "_element", "_set_element", "_sure_element", "_set_sure"
_SHORTER = {"_check": _INDEX, "_axis": _AXIS, "_at_literal": _LITERAL}


class _Exit:
    """Where a function goes when an index is out of range."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.here = [cgutils.alloca_once(builder, _I64) for _ in _HERE]
        self.block = builder.function.append_basic_block("out_of_range")
        with builder.goto_block(self.block):
            self._what = [builder.phi(_I64) for _ in range(4)]  # site, axis, index, extent
            record, *place = map(builder.load, self.here)
            numba_type = ir.Constant(_I64, entry_points.OUT_OF_RANGE)
            entry_points.store_record(builder, record, [numba_type, *self._what, *place])
            context.call_conv.return_user_exc(builder, IndexError, ("stopped",))

    def leave_if(self, builder: Any, condition: Any, what: list[Any]) -> None:
        for phi, value in zip(self._what, what, strict=True):
            phi.add_incoming(value, builder.block)
        goes_on = builder.append_basic_block()
        branch = builder.cbranch(condition, self.block, goes_on)
        branch.set_weights([1, 99])
        builder.position_at_end(goes_on)


_exits: weakref.WeakKeyDictionary[Any, _Exit] = weakref.WeakKeyDictionary()  # by function


@entry_points.any_intrinsic
def here(tyctx: Any, record: Any, bx: Any, by: Any, bz: Any, tx: Any, ty: Any, tz: Any):  # type: ignore[no-untyped-def]
    """Keep which thread it is, of which block, and where its record is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.function not in _exits:
            _exits[builder.function] = _Exit(context, builder)
        for variable, value in zip(_exits[builder.function].here, args, strict=True):
            builder.store(value, variable)
        return context.get_dummy_value()

    return types.void(*[types.int64] * len(_HERE)), codegen


# --- indices ---


def _parts(index: Any) -> list[Any]:
    index = types.unliteral(index)
    return [types.unliteral(p) for p in index] if isinstance(index, types.BaseTuple) else [index]


def _is_checked(array: Any, index: Any) -> bool:
    """Whether it is numbers that index an array. Numba checks, or refuses, anything else."""
    parts = _parts(index)
    numbers = all(isinstance(p, types.Integer) for p in parts)
    return isinstance(array, types.Array) and numbers and len(parts) <= array.ndim


def _unsigned(array: Any, index: Any) -> Any:
    """The type of the index when it has been checked."""
    if not _is_checked(array, index):
        return index
    is_tuple = isinstance(index, types.BaseTuple)
    return types.UniTuple(types.uint64, len(_parts(index))) if is_tuple else types.uint64


def _field(context: Any, builder: Any, numba_type: Any, array: Any, name: str) -> list[Any]:
    position = context.data_model_manager[numba_type].get_field_position(name)
    if name == "data":
        return [builder.extract_value(array, position)]
    return [builder.extract_value(array, [position, axis]) for axis in range(numba_type.ndim)]


def _checked(
    context: Any,
    builder: Any,
    numba_type: Any,
    array: Any,
    axis: int,
    index: Any,
    of: Any,
    site: Any,
) -> Any:
    """`index` of that axis, as an unsigned number below the extent; else the kernel stops."""
    extent = _field(context, builder, numba_type, array, "shape")[axis]
    wide = at = widened(builder, index, of)
    if of.signed:
        negative = builder.icmp_signed("<", wide, ir.Constant(_I64, 0))
        at = builder.select(negative, builder.add(wide, extent), wide)
    bad = builder.icmp_unsigned(">=", at, extent)
    what = [site, ir.Constant(_I64, axis), wide, extent]
    _exits[builder.function].leave_if(builder, bad, what)
    return at


def _numbers(context: Any, builder: Any, array: Any, index: Any, args: Any, site: Any) -> list[Any]:
    """The numbers of an index; checked, if there is a site."""
    is_tuple = isinstance(index, types.BaseTuple)
    argument_types = _parts(index)
    values = cgutils.unpack_tuple(builder, args[1], len(argument_types)) if is_tuple else [args[1]]
    if site is None:
        return [widened(builder, v, k) for v, k in zip(values, argument_types, strict=True)]
    return [
        _checked(context, builder, array, args[0], axis, v, k, site)
        for axis, (v, k) in enumerate(zip(values, argument_types, strict=True))
    ]


def _index(context: Any, builder: Any, array: Any, index: Any, args: Any, site: Any) -> Any:
    """An index as Numba's own operations take it."""
    if not _is_checked(array, index):
        return args[1]
    numbers = _numbers(context, builder, array, index, args, site)
    if not isinstance(index, types.BaseTuple):
        return numbers[0]
    return context.make_tuple(builder, _unsigned(array, index), numbers)


@entry_points.any_intrinsic
def within(tyctx: Any, array: Any, index: Any, site: Any):  # type: ignore[no-untyped-def]
    """`index`, a number or a tuple of them; what is neither is given back as it is."""
    index = types.unliteral(index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _index(context, builder, array, index, args, args[2])

    return _unsigned(array, index)(array, index, types.int64), codegen


@entry_points.literal_intrinsic
def within_axis(tyctx: Any, array: Any, axis: Any, index: Any, site: Any):  # type: ignore[no-untyped-def]
    """`index`, which is of that axis of `array`; what is neither is given back as it is."""
    index, number = types.unliteral(index), axis.literal_value
    is_checked = _is_checked(array, index) and not isinstance(index, types.BaseTuple)
    is_checked = is_checked and number < array.ndim

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not is_checked:
            return args[2]
        return _checked(context, builder, array, args[0], number, args[2], index, args[3])

    given = types.uint64 if is_checked else index
    return given(array, axis, index, types.int64), codegen


@entry_points.literal_intrinsic
def literal(tyctx: Any, array: Any, index: Any, site: Any):  # type: ignore[no-untyped-def]
    """`array`, or a tuple, as it is; if it is an array, it has the literal `index`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(array, types.Array):
            at = ir.Constant(_I64, index.literal_value)
            _checked(context, builder, array, args[0], 0, at, types.int64, args[2])
        return args[0]

    return array(array, index, types.int64), codegen


# --- elements ---


def _is_number(array: Any, index: Any) -> bool:
    """Whether it is one number of an array, and no row, record, or element of a tuple."""
    return (
        _is_checked(array, index)
        and len(_parts(index)) == array.ndim
        and isinstance(array.dtype, types.Number | types.Boolean)
    )


def _pointer(context: Any, builder: Any, array: Any, index: Any, args: Any, site: Any) -> Any:
    numbers = _numbers(context, builder, array, index, args, site)
    (data,) = _field(context, builder, array, args[0], "data")
    shape = _field(context, builder, array, args[0], "shape")
    strides = _field(context, builder, array, args[0], "strides")
    return cgutils.get_item_pointer2(
        context, builder, data, shape, strides, array.layout, numbers, wraparound=False
    )


def _loaded(tyctx: Any, array: Any, index: Any, site: Any) -> Any:
    index = types.unliteral(index)
    function = tyctx.resolve_function_type(operator.getitem, (array, _unsigned(array, index)), {})
    if function is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = args[2] if site else None
        if _is_number(array, index):
            pointer = _pointer(context, builder, array, index, args, place)
            return load_item(context, builder, array, pointer)
        place_in_array = _index(context, builder, array, index, args, place)
        place_in_array = context.cast(
            builder, place_in_array, _unsigned(array, index), function.args[1]
        )
        return context.get_function(operator.getitem, function)(builder, (args[0], place_in_array))

    return function.return_type(array, index, *([types.int64] if site else ())), codegen


def _stored(tyctx: Any, value: Any, array: Any, index: Any, site: Any) -> Any:
    index, value = types.unliteral(index), types.unliteral(value)
    given = (array, _unsigned(array, index), value)
    function = tyctx.resolve_function_type(operator.setitem, given, {})
    if function is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = args[3] if site else None
        if _is_number(array, index):
            given = context.cast(builder, args[0], value, array.dtype)
            pointer = _pointer(context, builder, array, index, args[1:], place)
            store_item(context, builder, array, given, pointer)
        else:
            place_in_array = _index(context, builder, array, index, args[1:], place)
            place_in_array = context.cast(
                builder, place_in_array, _unsigned(array, index), function.args[1]
            )
            given = context.cast(builder, args[0], value, function.args[2])
            context.get_function(operator.setitem, function)(
                builder, (args[1], place_in_array, given)
            )
        return context.get_dummy_value()

    return types.void(value, array, index, *([types.int64] if site else ())), codegen


@entry_points.any_intrinsic
def element(tyctx: Any, array: Any, index: Any, site: Any):  # type: ignore[no-untyped-def]
    """`array[index]`."""
    return _loaded(tyctx, array, index, site)


@entry_points.any_intrinsic
def sure_element(tyctx: Any, array: Any, index: Any):  # type: ignore[no-untyped-def]
    """`array[index]`, which is known to be in range."""
    return _loaded(tyctx, array, index, None)


@entry_points.any_intrinsic
def set_element(tyctx: Any, value: Any, array: Any, index: Any, site: Any):  # type: ignore[no-untyped-def]
    """`array[index] = value`; the value comes first, as Python computes it first."""
    return _stored(tyctx, value, array, index, site)


@entry_points.any_intrinsic
def set_sure(tyctx: Any, value: Any, array: Any, index: Any):  # type: ignore[no-untyped-def]
    """`array[index] = value`, which is known to be in range."""
    return _stored(tyctx, value, array, index, None)


NAMES: dict[str, Any] = {
    "_here": here, _INDEX: within, _AXIS: within_axis, _LITERAL: literal, _LOAD: element,
    _STORE: set_element, _SURE_LOAD: sure_element, _SURE_STORE: set_sure, **vector_access.NAMES,
}  # fmt: skip


# --- in the code of a kernel ---


def shortened(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, with these calls for checks and subscripts."""
    short = _Short()
    return [short.visit(s) for s in statements]


def where(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The call of `here` that shortened statements need before them, if they do."""
    used = {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}
    if not used & {_INDEX, _AXIS, _LITERAL, _LOAD, _STORE}:
        return []
    return [ast.Expr(parsed(f"_here({', '.join(_HERE)})"))]


class _Short(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = _called(node)
        if name in _SHORTER:
            *inputs, _, site, _ = node.args
            return ast.Call(ast.Name(_SHORTER[name], ast.Load()), [*inputs, site], [])
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        arguments = _of_element(node) if isinstance(node.ctx, ast.Load) else None
        return node if arguments is None else _call((_LOAD, _SURE_LOAD), arguments)

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        target = node.targets[0]
        if len(node.targets) > 1 or not isinstance(target, ast.Subscript):
            return node
        arguments = _of_element(target)
        if arguments is None:
            return node
        return ast.Expr(_call((_STORE, _SURE_STORE), [node.value, *arguments]))


def _called(node: ast.AST) -> str:
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_named else ""  # type: ignore[attr-defined]


def _call(names: tuple[str, str], arguments: list[ast.expr]) -> ast.expr:
    """Of the first name if a site is among the arguments, else of the second."""
    checked, sure = names
    count = len(arguments) - (checked == _STORE)
    return ast.Call(ast.Name(checked if count == 3 else sure, ast.Load()), arguments, [])


def _of_element(node: ast.Subscript) -> list[ast.expr] | None:
    """The array, the index and the site of a subscript that has been checked as a whole; without
    a site, if it need not be. None: of another one.
    """
    array, index = node.value, node.slice
    if not isinstance(array, ast.Name):
        return None
    if _called(index) == _INDEX:
        _, at, site = index.args  # type: ignore[attr-defined]
        return [array, at, site]
    if _called(index) == "_sure":
        return [array, *index.args]  # type: ignore[attr-defined]
    if not isinstance(index, ast.Tuple) or not index.elts:
        return None
    if all(_called(e) == _AXIS for e in index.elts):
        calls: list[Any] = list(index.elts)
        return [array, ast.Tuple([c.args[2] for c in calls], ast.Load()), calls[0].args[3]]
    if all(_called(e) == "_sure" for e in index.elts):
        parts: list[Any] = [c.args[0] for c in index.elts]  # type: ignore[attr-defined]
        return [array, ast.Tuple(parts, ast.Load())]
    return None
