"""Numba's types of a call's arguments, and the declared signature that fits them, for kernels such
as `@cuda.jit("void(float32[:], int32)")`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.backend.executables import ArrayKey, NamedTupleKey
from numbasync.errors import DTypeError
from numbasync.kernel_names import as_dtype, types


def type_of(key: Hashable) -> Any:
    """Numba's type of an argument, by its part of a variant's key."""
    if isinstance(key, ArrayKey):
        return types.Array(dtypes.numba_type(np.dtype(key.dtype)), key.ndim, key.order)
    if isinstance(key, NamedTupleKey):
        return types.BaseTuple.from_types([type_of(k) for k in key.members], key.cls)
    if isinstance(key, tuple):
        return types.BaseTuple.from_types([type_of(k) for k in key])
    return key


def declared(dispatcher: Any) -> list[tuple[Any, ...]]:
    """The argument types of a dispatcher's declared signatures; empty if it accepts any types."""
    return [] if dispatcher._can_compile else list(dispatcher.overloads)


def results(dispatcher: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The declared argument types of a device function, each with its result type, which is None
    where it follows from the code.
    """
    compiled = {} if dispatcher._can_compile else dispatcher.overloads
    return [(a, getattr(c.signature, "return_type", None)) for a, c in compiled.items()]


def resolved(dispatcher: Any, actual: tuple[Any, ...]) -> tuple[Any, ...]:
    """The argument types for which a call with the types `actual` is compiled: `actual` itself,
    or the declared signature that fits best, by Numba's ranking of conversions.

    Raises:
        TypeError: no signature fits, or several fit equally well, or the best fit needs a lossy
            conversion, such as of a float to an integer, which Numba would not pass.
    """
    formals = declared(dispatcher)
    if not formals or actual in formals:
        return actual
    context = dispatcher.typingctx
    fitting = [f for f in formals if context.install_possible_conversions(actual, f)]
    given_types = f"({', '.join(map(str, actual))})"
    declared_text = "; ".join(f"({', '.join(map(str, f))})" for f in formals)
    if not fitting:
        raise TypeError(
            f"No matching definition for argument types {given_types}: the kernel was declared "
            f"with fixed signatures, {declared_text}; none of them fits"
        )
    try:
        best: tuple[Any, ...] = fitting[context.tm.select_overload(actual, fitting, True, False)]
    except TypeError as error:
        raise TypeError(
            f"Ambiguous overloading for argument types {given_types}: of the declared signatures, "
            f"{declared_text}, several fit equally well"
        ) from error
    for a, f in zip(actual, best, strict=True):
        if not _passes(a, f):
            raise TypeError(
                f"arguments of types {given_types} fit the declared signature "
                f"({', '.join(map(str, best))}) best, but a {a} is not passed as a {f}; convert it"
            )
    return best


def examples(dispatcher: Any) -> list[tuple[Any, ...]]:
    """Arguments that fit the declared signatures, of each: numbers as they are; of an array its
    dtype, its number of axes and its order, "C", "F" or "A". Without those signatures that take
    anything else.
    """
    found = []
    for formals in declared(dispatcher):
        values = tuple(_example(formal) for formal in formals)
        if NotImplemented not in values:
            found.append(values)
    return found


def _example(formal: Any) -> Any:
    if isinstance(formal, types.Array):
        return as_dtype(formal.dtype), formal.ndim, formal.layout
    if isinstance(formal, types.Boolean | types.Number):
        return as_dtype(formal).type(0)
    return None if isinstance(formal, types.NoneType) else NotImplemented


def _passes(actual: Any, formal: Any) -> bool:
    if isinstance(formal, types.Integer):
        return isinstance(actual, types.Integer | types.Boolean)
    if isinstance(formal, types.Float):
        return not isinstance(actual, types.Complex)
    return True


def refuse_in_tuples(argument_types: Iterable[Any]) -> None:
    """
    Raises:
        DTypeError: an argument is a tuple with a number of `dtypes.EXTENSIONS`, which Numba does
            not pass.
    """
    for numba_type in argument_types:
        if isinstance(numba_type, types.BaseTuple):
            refuse_in_tuples(numba_type)
            for name, extension in dtypes.extension_types().items():
                if extension in list(numba_type):
                    raise DTypeError(
                        f"a kernel cannot take {numba_type}, a tuple with a number of {name}.\n"
                        "Pass the number by itself, or as np.float32(x)."
                    )
