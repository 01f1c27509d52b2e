"""Functions of kernels that emit LLVM's code themselves, where the compiler has LLVM's code.

numba-cuda has; numba-cuda-mlir has not, and where it alone is installed another function of the
same meaning, in the language of kernels, stands for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from numbasync.compilers import ONLY_MLIR
from numbasync.kernel_names import extending, int64


def intrinsic(instead: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """`extending.intrinsic`, of a function that emits LLVM's code.

    Args:
        instead: what is meant where numba-cuda-mlir compiles, which has other code than LLVM's: an
            overload, which takes the types of the arguments and gives a function of the same
            meaning, or None.

    Examples:
        >>> from numbasync.intrinsics import intrinsic
        >>> from numbasync.kernel_names import float32
        >>> @intrinsic(lambda value: lambda value: float32(value))
        ... def rounded(typingctx, value):
        ...     return float32(value), codegen
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if not ONLY_MLIR:
            return extending.intrinsic(function)

        def stands_for(*_: Any) -> None: ...

        update_wrapper(stands_for, instead)
        extending.overload(stands_for, prefer_literal=True)(instead)
        return stands_for

    return decorate


def elements_by_one(array: Any, index: Any, count: int, is_store: bool = False) -> Any:
    """The function ``(array, index, count)`` that gives neighbours as a tuple, element by element;
    or ``(array, index, values)``, which stores them.

    Args:
        array: the type of the array.
        index: of the place of the first: a number, or a tuple of one for each axis.
    """
    last = array.ndim - 1
    is_tuple = hasattr(index, "types")
    before = "".join(f"index[{i}], " for i in range(last))
    first = f"index[{last}]" if is_tuple else "index"
    places = [f"array[{before}first + {k}]" for k in range(count)]
    # Signed, since a sum of a uint64 and an int64 is a float64 in kernels.
    lines = [f"    first = int64({first})", f"    first += array.shape[{last}] if first < 0 else 0"]
    if is_store:
        lines += [f"    {place} = values[{k}]" for k, place in enumerate(places)]
    else:
        lines.append(f"    return ({', '.join(places)},)")
    names: dict[str, Any] = {"int64": int64}
    head = f"def by_one(array, index, {'values' if is_store else 'count'}):"
    exec("\n".join([head, *lines]), names)  # noqa: S102 - of the numbers above
    return names["by_one"]
