"""Kernels whose signatures are declared, as in `@cuda.jit("void(float32[:], int32)")`: which of
them a call means.
"""

from __future__ import annotations

from typing import Any

from numba.cuda import types


def declared(dispatcher: Any) -> list[tuple[Any, ...]]:
    """The types of arguments that a dispatcher is declared for; none if it takes any."""
    return [] if dispatcher._can_compile else list(dispatcher.overloads)


def results(dispatcher: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Of a device function: the types that it is declared for, and that of each result; None
    where that follows from its code.
    """
    compiled = {} if dispatcher._can_compile else dispatcher.overloads
    return [(a, getattr(c.signature, "return_type", None)) for a, c in compiled.items()]


def resolved(dispatcher: Any, actual: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types that a call with arguments of the types `actual` is made for: these, or those
    declared that fit best, by the ranks that Numba gives conversions.

    Raises:
        TypeError: none fits, or several fit equally well; or one fits by a conversion that
            loses what an argument is, such as of a float to an integer: Numba would not pass it.
    """
    formals = declared(dispatcher)
    if not formals or actual in formals:
        return actual
    context = dispatcher.typingctx
    fitting = [f for f in formals if context.install_possible_conversions(actual, f)]
    given = f"({', '.join(map(str, actual))})"
    have = "; ".join(f"({', '.join(map(str, f))})" for f in formals)
    if not fitting:
        raise TypeError(
            f"No matching definition for argument types {given}: the kernel was declared with "
            f"fixed signatures, {have}; none of them fits"
        )
    try:
        found: tuple[Any, ...] = fitting[context.tm.select_overload(actual, fitting, True, False)]
    except TypeError as error:
        raise TypeError(
            f"Ambiguous overloading for argument types {given}: of the declared signatures, "
            f"{have}, several fit equally well"
        ) from error
    for a, f in zip(actual, found, strict=True):
        if not _passes(a, f):
            raise TypeError(
                f"arguments of types {given} fit the declared signature "
                f"({', '.join(map(str, found))}) best, but a {a} is not passed as a {f}; convert it"
            )
    return found


def _passes(actual: Any, formal: Any) -> bool:
    if isinstance(formal, types.Integer):
        return isinstance(actual, types.Integer | types.Boolean)
    if isinstance(formal, types.Float):
        return not isinstance(actual, types.Complex)
    return True
