"""Names in a function's Numba IR, and the effects of functions whose code cannot be read.

A variable is traced back to the objects that it may stand for. Among objects other than device
functions, the effects of those listed here are known; any other may do anything with its arguments.
"""

from __future__ import annotations

import builtins
import operator
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from numbasync.errors import LauncherError

# --- known functions ---

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
    return (name if isinstance(name, str) else ""), package


def _known_of_numba(callee: Any, name: str) -> tuple[Collection[int], bool] | None:
    from numba.core import types
    from numba.extending import is_jitted

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
    return (), callee.__module__.startswith("numba.cuda.") and name != "literal_unroll"


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
    from numba import cuda

    return any(callee is f for f in vars(cuda.atomic).values())


def function_of(callee: Any) -> FunctionType | None:
    """The Python function of a device function, a kernel, or a launcher; None for other objects."""
    function = getattr(callee, "py_func", None)
    # A ufunc created by Numba has `py_func`, too, and an output parameter besides.
    return function if isinstance(function, FunctionType) and not hasattr(callee, "nin") else None


def gives_value(callee: Any) -> bool:
    """Whether a known function returns a value other than None."""
    name, package = _named(callee)
    return package in ("builtins", "math", "cmath", "numpy", "operator") and name != "print"


# --- names ---

UNKNOWN = object()  # stands for a callee of which nothing is known
NO_CONSTANT = object()
MOST_DOTS = 8  # in the name of a callee; `node = node.next` in a loop has no end


@dataclass(frozen=True, slots=True)
class Method:
    """A call of an attribute of an object that is not a global name."""

    name: str
    owner: Any


class Names:
    """The variables of one function's IR, and the values assigned to them.

    Attributes:
        statements: all statements of the function, in no meaningful order.
        blocks: the same statements, by the labels of their basic blocks.
    """

    def __init__(self, function: FunctionType) -> None:
        from numba.core import ir

        self._ir = ir
        code = _read(function)
        self.blocks: dict[int, Any] = code.blocks
        self.statements: list[Any] = [s for block in self.blocks.values() for s in block.body]
        self._definitions: dict[str, list[Any]] = defaultdict(list)
        for s in self.statements:
            if isinstance(s, ir.Assign):
                self._definitions[s.target.name].append(s.value)
        self._origins: dict[str, list[Any]] = {}
        self._constants = (ir.Const, ir.Global, ir.FreeVar)

    def origins(self, variable: Any) -> list[Any]:
        """The values that a variable may have been assigned, traced through other names for it."""
        origins = self._origins.get(variable.name)
        if origins is None:
            ir = self._ir
            origins = []
            seen, waiting = {variable.name}, [variable.name]
            while waiting:
                for value in self._definitions.get(waiting.pop(), []):
                    is_name = isinstance(value, ir.Var)
                    if not is_name and getattr(value, "op", "") not in ("phi", "cast"):
                        origins.append(value)
                        continue
                    aliases = {v.name for v in ([value] if is_name else value.list_vars())} - seen
                    seen |= aliases
                    waiting += aliases
            self._origins[variable.name] = origins
        return origins

    def one(self, variable: Any) -> Any:
        """The value that a variable certainly was assigned, None if that is not certain."""
        origins = self.origins(variable)
        return origins[0] if len(origins) == 1 else None

    def constant(self, variable: Any) -> Any:
        """The constant that a variable certainly is, or NO_CONSTANT."""
        origins = self.origins(variable)
        if len(origins) == 1 and isinstance(origins[0], self._constants):
            return origins[0].value
        return NO_CONSTANT

    def index(self, item: Any) -> Any:
        """The index of an expression that takes an item of an object, or NO_CONSTANT."""
        return item.index if item.op == "static_getitem" else self.constant(item.index)

    def items(self, variable: Any) -> list[Any] | None:
        """The variables of which a tuple was built, if that is certain."""
        origins = self.origins(variable)
        value: Any = origins[0] if len(origins) == 1 else None
        if not isinstance(value, self._ir.Expr):
            return None
        if value.op == "build_tuple":
            return list(value.items)
        if value.op == "exhaust_iter":
            return self.items(value.value)
        # f(x, *pair) is f(*((x,) + tuple(pair))).
        if value.op == "call" and self.callees(value.func) == [tuple] and len(value.args) == 1:
            return self.items(value.args[0])
        if value.op == "binop" and value.fn is operator.add:
            left, right = self.items(value.lhs), self.items(value.rhs)
            return None if left is None or right is None else left + right
        return None

    def slices(self, variable: Any) -> bool:
        """Whether an index may be, or contain, a slice: the result is then a view, not a number."""
        for value in self.origins(variable):
            parts = value.items if getattr(value, "op", "") == "build_tuple" else ()
            if self._is_slice(value) or any(
                self._is_slice(v) for part in parts for v in self.origins(part)
            ):
                return True
        return False

    def _is_slice(self, value: Any) -> bool:
        if isinstance(value, self._constants):
            return is_slice(value.value)
        op = getattr(value, "op", "")
        if op == "call":
            return slice in self.callees(value.func)
        return op == "getattr" and None in self._callees_of(value, 0)  # np.newaxis

    def callees(self, variable: Any, depth: int = 0) -> list[Any]:
        """The objects that a variable may stand for: global objects, `Method`s, `UNKNOWN`."""
        callees = [c for value in self.origins(variable) for c in self._callees_of(value, depth)]
        return callees or [UNKNOWN]

    def _callees_of(self, value: Any, depth: int) -> Iterator[Any]:
        ir = self._ir
        if isinstance(value, ir.Global | ir.FreeVar):
            yield UNKNOWN if value.value is ir.UNDEFINED else value.value
        elif getattr(value, "op", "") == "getattr" and depth < MOST_DOTS:
            for owner in self.callees(value.value, depth + 1):
                if owner is UNKNOWN or isinstance(owner, Method):
                    yield Method(value.attr, value.value)
                else:
                    yield getattr(owner, value.attr, UNKNOWN)
        else:
            yield UNKNOWN


def is_slice(index: Any) -> bool:
    """Whether such an index of an array returns a view of the array."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(p is None or p is Ellipsis or isinstance(p, slice | str) for p in parts)


def _read(function: FunctionType) -> Any:
    """Numba's IR, with closures inlined where they are called, and each variable assigned once."""
    from numba.core.compiler import run_frontend
    from numba.core.ssa import reconstruct_ssa

    try:
        return reconstruct_ssa(run_frontend(function, inline_closures=True))
    except Exception:  # a closure that cannot be inlined, for example, stays
        try:
            return run_frontend(function)
        except Exception as error:
            raise LauncherError(f"Numba cannot read {function.__name__}: {error}") from error
