"""Arrays of a block and of a thread: memory that `regions` gives places, and allocations."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import cudaimpl
from numba.cuda.typing.npydecl import parse_dtype  # pyright: ignore[reportMissingImports]

from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.context import TargetContext, emits, target_data
from numbasync.backend.cpu.target.module import I8, I64, types
from numbasync.backend.cpu.target.positions import dynamic_bytes

_cudaimpl: Any = cudaimpl
DYNAMIC_ALIGNMENT = 16  # as allocations on a GPU have at least
_LOCAL_ALIGNMENT = 16  # enough for every access of `numbasync.vectors`


def _shape(shape: Any) -> tuple[int, ...]:
    extents = shape if isinstance(shape, types.BaseTuple) else (shape,)
    return tuple(extent.literal_value for extent in extents)


def _check(context: TargetContext, shape: tuple[int, ...], dtype: Any, is_shared: bool) -> None:
    """Refuse what numba-cuda refuses while it lowers."""
    is_dynamic = is_shared and len(shape) == 1 and shape[0] <= 0
    if math.prod(shape) <= 0 and not (is_dynamic and shape[0] == 0):
        raise ValueError("array length <= 0")
    model = context.data_model_manager[dtype]
    is_known = (
        dtype in types.number_domain
        or isinstance(dtype, types.Record | types.Boolean | types.Number)
        or isinstance(model, _cudaimpl.StructModel)
        or (cuda.HAS_NUMBA and isinstance(model, _cudaimpl.CoreStructModel))
    )
    if not is_known:
        raise TypeError(f"unsupported type: {dtype}")


def _shared_memory(builder: Builder, elements: Any, alignment: int) -> Any:
    """The address of a new array of the block."""
    session = builder.session
    memory: Any = ir.GlobalVariable(session.module, elements, f"na.shared.{len(session.shared)}")
    memory.linkage, memory.align = "external", alignment
    start = ir.Constant(I64, 0)
    session.shared.append((memory, start))
    return builder.gep(memory, [I64(0), start], inbounds=True)


def _local_memory(builder: Builder, elements: Any) -> Any:
    """Memory of the thread, which is not zeroed, as Numba's `alloca_once` would."""
    with builder.goto_entry_block():
        return builder.alloca(elements, name="local")


def align_no_better(session: Any) -> None:
    """Let shared arrays begin at addresses that are no multiples of more than they ask for: a GPU
    may put them there, and vector accesses would be faults.
    """
    for memory, start in session.shared:
        elements = memory.value_type
        skipped = -(-memory.align // elements.element.get_abi_size(target_data()))
        memory.value_type = ir.ArrayType(elements.element, elements.count + skipped)
        memory.type = memory.value_type.as_pointer()
        start.constant = skipped
        memory.align *= 2


def dynamic_memory(builder: Builder) -> Any:
    """The start of dynamic shared memory."""
    module = builder.session.module
    memory: Any = module.globals.get("na.dynamic")
    if memory is None:
        memory = ir.GlobalVariable(module, ir.ArrayType(I8, 0), "na.dynamic")
        memory.linkage, memory.align = "external", DYNAMIC_ALIGNMENT
    return memory


def _alignment(context: TargetContext, element: Any, given: int | None) -> int:
    """That which the source says; else the least power of two that the element needs."""
    needed = context.get_abi_alignment(element)
    return given if given is not None else 1 << (needed - 1).bit_length()


def _made(is_shared: bool) -> Any:
    def emit(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        shape, dtype = _shape(signature.args[0]), parse_dtype(signature.args[1])
        given = _cudaimpl._try_extract_and_validate_alignment(signature)
        _check(context, shape, dtype, is_shared)
        element = context.get_data_type(dtype)
        elements = ir.ArrayType(element, max(math.prod(shape), 0))
        item = context.get_abi_sizeof(element)
        extents = [I64(extent) for extent in shape]
        if not is_shared:
            memory = _local_memory(builder, elements)
            memory.align = max(_alignment(context, element, given), _LOCAL_ALIGNMENT)
        elif math.prod(shape) <= 0:
            memory = dynamic_memory(builder)
            memory.align = max(memory.align, given or 1)
            extents = [builder.udiv(dynamic_bytes(builder), I64(item))]
        else:
            memory = _shared_memory(builder, elements, _alignment(context, element, given))
        strides = [I64(item * math.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        view = context.make_array(types.Array(dtype, len(shape), "C"))(context, builder)
        context.populate_array(
            view,
            data=builder.bitcast(memory, view.data.type),
            shape=extents,
            strides=strides,
            itemsize=I64(item),
            meminfo=None,
        )
        return view._getvalue()

    return emit


for _maker, _is_shared in ((cuda.shared.array, True), (cuda.local.array, False)):
    for _shape_type in (types.IntegerLiteral, types.BaseTuple):
        for _more in ((), (types.IntegerLiteral,), (types.NoneType,)):
            emits(_maker, _shape_type, types.Any, *_more)(_made(_is_shared))
