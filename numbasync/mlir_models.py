"""What kernels of this package use and numba-cuda compiles, in numba-cuda-mlir, which lacks it:
representations of values that functions pass to each other, and comparisons with None.
"""

from __future__ import annotations

import importlib
import operator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from numbasync.compilers import MLIR

dispatchers: Any = importlib.import_module(f"{MLIR}.descriptor")
models: Any = importlib.import_module(f"{MLIR}.models")
types: Any = importlib.import_module(f"{MLIR}.numba_cuda.types")
utilities: Any = importlib.import_module(f"{MLIR}.lowering_utilities")
registry: Any = importlib.import_module(f"{MLIR}.extending").lowering_registry


class _OfAFunction(models.PrimitiveModel):  # type: ignore[misc]
    """The representation of a function that is an argument of another: its type says which it is,
    and a byte is passed that nobody reads.
    """

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, utilities.to_mlir_type(np.int8))

    def as_argument(self, builder: Any, value: Any) -> Any:
        return utilities.convert(value, self.get_value_type())

    def from_argument(self, builder: Any, value: Any) -> Any:
        kind = self.fe_type
        return kind.typing_key if isinstance(kind, types.Function) else kind.dispatcher


def _byte(value: Any, target_type: Any, **_: Any) -> Any:
    return utilities.constant(0, target_type)


for function in (dispatchers.MLIRDispatcher, FunctionType, BuiltinFunctionType, type):
    utilities.unverified_convert.register(function)(_byte)
models.register_model(dispatchers.MLIRDispatcherType)(_OfAFunction)
models.register_model(types.Function)(_OfAFunction)


def _of_one(model: Any) -> Any:
    """The representation of tuples, also of those that a function returns and that have one item:
    the compiler gives the item for the tuple.
    """

    class Model(model):  # type: ignore[misc]
        def from_return(self, builder: Any, value: Any) -> Any:
            return super().from_return(builder, value if isinstance(value, tuple) else (value,))

    return Model


models.register_model(types.UniTuple)(_of_one(models.UniTupleModel))
models.register_model(types.Tuple)(_of_one(models.TupleModel))


def _known(answer: bool) -> Any:
    """The code of a comparison whose answer the types give."""

    def lower(builder: Any, target: Any, args: Any, kwargs: Any) -> None:
        made = utilities.constant(answer, builder.get_mlir_type(types.boolean))
        builder.store_var(target, made)

    return lower


for is_same, kind in ((False, types.Any), (True, types.NoneType)):
    registry.lower(operator.is_, kind, types.NoneType)(_known(is_same))
    registry.lower(operator.is_not, kind, types.NoneType)(_known(not is_same))


latest: list[Any] = [None]  # the device function that was compiled, or found, last


def _noting(own: Any) -> Any:
    def compile_callee(self: Any, sig: Any, abi_name: Any = None) -> Any:
        latest[0] = own(self, sig, abi_name)
        return latest[0]

    return compile_callee


def _with_shared_arrays(own: Any) -> Any:
    """The lowering of a call of a device function, which takes over the function and its constants,
    but not its shared arrays.
    """

    def call(self: Any, target: Any, fn: Any, args: Any, kws: Any = None) -> Any:
        result = own(self, target, fn, args, kws)
        module = lowering.ir.Module.parse(lowering.get_mlir_module_str(latest[0].metadata))
        block = self.mlir_gpu_module.regions[0].blocks[0]
        there = {op.sym_name.value for op in block if isinstance(op, GlobalOp)}
        for op in next(iter(module.body)).regions[0].blocks[0].operations:
            if isinstance(op, GlobalOp) and op.sym_name.value not in there:
                block.append(op.clone())
        return result

    return call


lowering: Any = importlib.import_module(f"{MLIR}.mlir_lowering")
GlobalOp = lowering.memref.GlobalOp
dispatchers.MLIRDispatcher._compile_as_device_callee = _noting(
    dispatchers.MLIRDispatcher._compile_as_device_callee
)
lowering.MLIRLower.build_user_defined_function_call = _with_shared_arrays(
    lowering.MLIRLower.build_user_defined_function_call
)
# An overload's code is taken over by what this says.
link: Any = importlib.import_module(f"{MLIR}.lowering_utilities.link")
own_linkable = link._is_linkable_op
link._is_linkable_op = lambda op: own_linkable(op) or isinstance(op, GlobalOp)
