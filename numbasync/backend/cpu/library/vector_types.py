"""CUDA's vector types, such as `cuda.float32x4`, for the processor: named tuples of Numba's."""

from __future__ import annotations

import collections
import re
from typing import Any

from numba import cuda
from numba.core import cgutils

from numbasync.backend.cpu.library.entry_points import any_intrinsic, types

_NAME = re.compile(r"(u?int\d+|float\d+)x([1-4])")
_AXES = ("x", "y", "z", "w")
_namedtuple: Any = collections.namedtuple  # noqa: PYI024 - with names that are computed


def _constructor(stub: Any, kind: Any, count: int) -> Any:
    """What makes a vector of a tuple of numbers and vectors, as many numbers as it has in all."""
    name = stub.__name__
    named = _namedtuple(name, _AXES[:count])
    made: Any = types.NamedUniTuple(kind, count, named)

    @any_intrinsic
    def construct(tyctx: Any, parts: Any):  # type: ignore[no-untyped-def]
        given = [types.unliteral(p) for p in parts]
        inner = [p.types if isinstance(p, types.BaseTuple) else [p] for p in given]
        flat = [k for of_one in inner for k in of_one]
        if len(flat) != count or not all(isinstance(k, types.Number) for k in flat):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values: list[Any] = []
            for part, k in zip(cgutils.unpack_tuple(builder, args[0]), given, strict=True):
                is_vector = isinstance(k, types.BaseTuple)
                values += cgutils.unpack_tuple(builder, part) if is_vector else [part]
            cast = [context.cast(builder, v, k, kind) for v, k in zip(values, flat, strict=True)]
            return context.make_tuple(builder, made, cast)

        return made(types.BaseTuple.from_types(given)), codegen

    construct.__name__, construct.made_of = name, ("vector", name)
    return construct


def _all() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for stub in {s for s in vars(cuda).values() if isinstance(s, type)}:
        parts = _NAME.fullmatch(stub.__name__)
        if parts is not None:
            found[stub] = _constructor(stub, getattr(types, parts[1]), int(parts[2]))
    return found


CONSTRUCTORS = _all()
