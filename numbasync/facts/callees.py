"""The effects of functions whose code cannot be read: those of Numba, NumPy and Python.

Of the objects other than device functions, the effects of those listed here are known; any other
may do anything with its arguments.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Collection
from types import FunctionType
from typing import Any

import numpy as np

__all__ = ["function_of"]

METHODS_THAT_STORE = frozenset({"fill", "sort", "partition", "itemset", "put", "byteswap"})
METHODS_THAT_VIEW = frozenset(
    {"reshape", "view", "ravel", "flatten", "transpose", "astype", "squeeze", "swapaxes",
     "diagonal", "conj", "conjugate"}
)  # fmt: skip
# The results are numbers or new arrays. An array argument may be the `out=` of the method.
METHODS_THAT_REDUCE = frozenset(
    {"copy", "item", "sum", "prod", "min", "max", "mean", "var", "std", "any", "all", "argmin",
     "argmax", "tolist", "nonzero"}
)  # fmt: skip

_GIVE_NUMBERS = frozenset(
    {"abs", "all", "any", "bin", "bool", "chr", "complex", "divmod", "float", "hash", "hex", "int",
     "isinstance", "len", "oct", "ord", "pow", "print", "range", "repr", "round", "slice", "str",
     "sum", "type"}
)  # fmt: skip
_HAND_ON = frozenset(
    {"dict", "enumerate", "frozenset", "getattr", "hasattr", "iter", "list", "max", "min", "next",
     "reversed", "set", "sorted", "tuple", "zip"}
)  # fmt: skip
_OPERATORS = frozenset(
    {"abs", "add", "and_", "concat", "contains", "countOf", "eq", "floordiv", "ge", "getitem", "gt",
     "index", "indexOf", "inv", "invert", "is_", "is_not", "le", "lshift", "lt", "matmul", "mod",
     "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "truth", "xor"}
)  # fmt: skip
_VECTORS = "numbasync.vectors"  # not imported here: that takes long
_OF_GROUPS = ("numbasync.block", "numbasync.warp")
# Functions of `numba.cuda` that store with a cache hint, to their first argument.
_HINTED_STORES = frozenset({"stcg", "stcs", "stwb", "stwt"})


def known(callee: Any, count: int) -> tuple[Collection[int], bool] | None:
    """The effects of a function on `count` positional arguments; None if they are not known.

    Returns:
        Positions of the arguments that the function stores to; whether the result is new, that is
            neither an argument nor a view of one.
    """
    name, package = _named(callee)
    if is_vector_access(callee):
        return (0,) if name == "store" else (), True
    if combines_threads(callee):
        return (0,) if name == "store" else (), True
    if isinstance(callee, np.ufunc):
        return range(callee.nin, count), True
    if isinstance(callee, type) and issubclass(callee, np.generic):
        return (), True
    if package == "numpy" and getattr(np, name, None) is callee:
        # NumPy stores to no lone argument; behind others may be an `out`.
        is_new = name in METHODS_THAT_REDUCE or name.endswith("_like")
        return ((), is_new) if count == 1 else None
    if package in ("math", "cmath"):
        return (), True
    if package == "builtins" and getattr(builtins, name, None) is callee:
        if name in _HAND_ON:
            return (), False
        return ((), True) if name in _GIVE_NUMBERS else None
    if package in ("operator", "_operator") and getattr(operator, name, None) is callee:
        return ((), False) if name in _OPERATORS else None
    return _known_of_numba(callee, name) if package == "numba" else None


def is_vector_access(callee: Any) -> bool:
    """Whether a function is one of `numbasync.vectors`."""
    return getattr(callee, "__module__", "") == _VECTORS


def combines_threads(callee: Any) -> bool:
    """Whether a function is one of `numbasync.block` or `numbasync.warp`, of values that all
    threads of a group give, or of the elements that they have.
    """
    return getattr(callee, "__module__", "") in _OF_GROUPS


def _named(callee: Any) -> tuple[str, str]:
    """Name and top-level package, each empty if the callee has none."""
    module = getattr(callee, "__module__", None)
    name = getattr(callee, "__name__", "")
    package = module.split(".")[0] if isinstance(module, str) else ""
    package = "numba" if package == "numba_cuda_mlir" else package
    return (name if isinstance(name, str) else ""), package


def _known_of_numba(callee: Any, name: str) -> tuple[Collection[int], bool] | None:
    from numba.extending import is_jitted

    from numbasync.kernel_names import types

    if is_atomic(callee):
        return (0,), True
    if name in _HINTED_STORES or "atomic" in name.lower():
        return (0,), True
    if type(callee).__name__ == "ExternFunction":  # of cuda.declare_device
        plain = types.Number | types.Boolean  # which are copied
        return ((), True) if all(isinstance(t, plain) for t in callee.sig.args) else None
    if isinstance(callee, type | types.Type):  # cuda.popc and similar; a cast
        return (), True
    of_numba = isinstance(callee, FunctionType) or type(callee).__name__ == "_Intrinsic"
    if not of_numba or is_jitted(callee):
        return None
    return (), callee.__module__.startswith(
        ("numba.cuda.", "numba_cuda_mlir.")
    ) and name != "literal_unroll"


def is_named_tuple(callee: Any) -> bool:
    """Whether a function makes a named tuple."""
    is_type = isinstance(callee, type) and issubclass(callee, tuple)
    return is_type and isinstance(getattr(callee, "_fields", None), tuple)


def is_unrolled(callee: Any) -> bool:
    """Whether a function is `literal_unroll`, which gives its argument."""
    name, package = _named(callee)
    return name == "literal_unroll" and package == "numba"


def is_atomic(callee: Any) -> bool:
    """Whether a function is one of `cuda.atomic`."""
    from numbasync.kernel_names import cuda

    return any(callee is f for f in vars(cuda.atomic).values())


def overwrites(callee: Any) -> bool:
    """Whether a known function uses no value of what it stores to: it is no atomic operation."""
    return not is_atomic(callee) and "atomic" not in _named(callee)[0].lower()


def function_of(callee: Any) -> FunctionType | None:
    """The Python function of a device function, a kernel, or a launcher; None for other objects."""
    function = getattr(callee, "py_func", None)
    # A ufunc created by Numba has `py_func`, too, and an output parameter besides.
    return function if isinstance(function, FunctionType) and not hasattr(callee, "nin") else None


def gives_value(callee: Any) -> bool:
    """Whether a known function returns a value other than None."""
    name, package = _named(callee)
    return package in ("builtins", "math", "cmath", "numpy", "operator") and name != "print"


def is_slice(index: Any) -> bool:
    """Whether such an index of an array returns a view of the array."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(p is None or p is Ellipsis or isinstance(p, slice | str) for p in parts)
