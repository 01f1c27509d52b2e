"""CUDA's vector types, such as `cuda.float32x4`, for the processor: Numba's named tuples."""

from __future__ import annotations

import collections
import re
from typing import Any

from numba import cuda
from numba.core import cgutils

from numbasync.backend.cpu.library.entry_points import any_intrinsic, types

_NAME = re.compile(r"(u?int\d+|float\d+)x([1-4])")
_AXES = ("x", "y", "z", "w")
_namedtuple: Any = collections.namedtuple  # noqa: PYI024 - the names are computed


def _constructor(stub: Any, element: Any, count: int) -> Any:
    """A function that creates a vector of a tuple of numbers and vectors with `count` numbers."""
    name = stub.__name__
    named = _namedtuple(name, _AXES[:count])
    vector: Any = types.NamedUniTuple(element, count, named)

    @any_intrinsic
    def construct(tyctx: Any, parts: Any):  # type: ignore[no-untyped-def]
        part_types = [types.unliteral(p) for p in parts]
        nested = [p.types if isinstance(p, types.BaseTuple) else [p] for p in part_types]
        flat = [t for members in nested for t in members]
        if len(flat) != count or not all(isinstance(t, types.Number) for t in flat):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values: list[Any] = []
            for part, t in zip(cgutils.unpack_tuple(builder, args[0]), part_types, strict=True):
                is_vector = isinstance(t, types.BaseTuple)
                values += cgutils.unpack_tuple(builder, part) if is_vector else [part]
            cast = [context.cast(builder, v, t, element) for v, t in zip(values, flat, strict=True)]
            return context.make_tuple(builder, vector, cast)

        return vector(types.BaseTuple.from_types(part_types)), codegen

    construct.__name__, construct.made_of = name, ("vector", name)
    return construct


def _all() -> dict[Any, Any]:
    constructors: dict[Any, Any] = {}
    for stub in {s for s in vars(cuda).values() if isinstance(s, type)}:
        match = _NAME.fullmatch(stub.__name__)
        if match is not None:
            constructors[stub] = _constructor(stub, getattr(types, match[1]), int(match[2]))
    return constructors


CONSTRUCTORS = _all()
