"""Shared layouts for Numba's compiler for GPUs: a layout's type, whose attributes are arrays."""

from __future__ import annotations

import importlib
import math
from typing import Any

from llvmlite import ir
from numba.cuda import extending, types

from numbasync import dtypes

# Of type Any: type checkers do not know all of their names.
_extending: Any = extending
_templates: Any = importlib.import_module("numba.cuda.typing.templates")
_types: Any = types
_SYMBOL = "numbasync_shared_layout"  # NVVM takes no dots in names of shared memory
_SHARED = 3  # LLVM's number of the address space
_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class SharedLayoutType(_types.Dummy):  # type: ignore[misc]
    """The type of one `SharedLayout`. Equal layouts have equal types."""

    def __init__(self, layout: Any) -> None:
        self.layout = layout
        # A type is known by its name: it has all that the types of the arrays depend on.
        members = (
            f"{a.name}: {a.declared or a.dtype}{list(a.shape)} at {a.offset}" for a in layout.arrays
        )
        super().__init__(name=f"SharedLayout({', '.join(members)}; align={layout.align})")


def array_type(array: Any) -> Any:
    """Numba's type of a `SharedArray`."""
    if array.declared is not None:
        return array.declared.numba_type()
    return _types.Array(dtypes.numba_type(array.dtype), len(array.shape), "C")


@_extending.infer_getattr
class _Arrays(_templates.AttributeTemplate):  # type: ignore[misc]
    key = SharedLayoutType

    def generic_resolve(self, layout_type: Any, name: str) -> Any:
        array = layout_type.layout.find(name)
        return None if array is None else array_type(array)


_extending.register_model(SharedLayoutType)(_extending.core_models.OpaqueModel)


@_extending.lower_getattr_generic(SharedLayoutType)  # type: ignore[untyped-decorator]
def _array(context: Any, builder: Any, layout_type: Any, value: Any, name: str) -> Any:
    """The array at its offset in dynamic shared memory."""
    array = layout_type.layout.find(name)
    numba_type = array_type(array)
    start = builder.gep(
        _dynamic_memory(builder.module, layout_type.layout.align), [_INT32(0), _INT32(array.offset)]
    )
    if array.declared is not None:  # whose values are addresses in shared memory
        return builder.ptrtoint(start, _INT32)
    generic = builder.addrspacecast(start, ir.PointerType(_INT8), "generic")
    shape = [_INT64(extent) for extent in array.shape]
    strides = [
        _INT64(array.dtype.itemsize * math.prod(array.shape[axis + 1 :]))
        for axis in range(len(array.shape))
    ]
    view = context.make_array(numba_type)(context, builder)
    context.populate_array(
        view,
        data=builder.bitcast(generic, view.data.type),
        shape=shape,
        strides=strides,
        itemsize=_INT64(array.dtype.itemsize),
        meminfo=None,
    )
    return view._getvalue()


def _dynamic_memory(module: Any, align: int) -> Any:
    """The module's name for the start of dynamic shared memory: an external array of no elements.
    All such names of a kernel are one address.
    """
    memory: Any = module.globals.get(_SYMBOL)
    if memory is None:
        memory = ir.GlobalVariable(module, ir.ArrayType(_INT8, 0), _SYMBOL, _SHARED)
        memory.linkage = "external"
        memory.align = 16  # as allocations on a GPU have at least
    memory.align = max(memory.align, align)
    return memory
