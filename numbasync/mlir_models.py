"""What kernels of this package pass between functions and numba-cuda has a representation of, in
numba-cuda-mlir, which has none of it, or a wrong one.
"""

from __future__ import annotations

import importlib
from typing import Any

from numbasync.compilers import MLIR

descriptor, models = (
    importlib.import_module(f"{MLIR}.{name}") for name in ("descriptor", "models")
)
types = importlib.import_module(f"{MLIR}.numba_cuda.types")

# A function that is an argument of another: its type says which, and nothing is passed.
models.register_model(descriptor.MLIRDispatcherType)(models.OpaqueModel)


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
