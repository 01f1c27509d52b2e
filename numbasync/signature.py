"""What a kernel's parameters are: declared by annotation, or found in its code.

The code is read with Numba's own front end, so that what is found is what is compiled. A
parameter is an output if anything reachable from it is stored to: by assignment, by an
atomic, through a view, or by a device function that it is handed to.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any

from numbasync.errors import LauncherError

# Attributes of an array that are not another view of it.
_PLAIN = frozenset({"shape", "size", "ndim", "strides", "dtype", "itemsize", "nbytes"})
# Functions of `numba.cuda` that store through a cache hint, to their first argument.
_HINTED_STORES = frozenset({"stcg", "stcs", "stwb", "stwt"})


class _ArrayParameter:
    """What a kernel's body may do with an array parameter; for type checkers only."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ndim: int
    size: int
    itemsize: int
    nbytes: int
    dtype: Any

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("a kernel's parameter has elements only on a device")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("a kernel's parameter has elements only on a device")


class KernelInput(_ArrayParameter):
    """Annotation: an array that the kernel only reads."""


class KernelOutput(_ArrayParameter):
    """Annotation: an array that the kernel may write; a partition of it gives the grid."""


class Tile(_ArrayParameter):
    """Annotation: a partitioned output of which a block sees its own tile only.

    The tile is clipped at the edge of the tensor; its indices start at 0.
    """


class Role(Enum):
    """What a parameter is declared to be."""

    INPUT = "KernelInput"
    OUTPUT = "KernelOutput"
    TILE = "Tile"
    SCALAR = "a scalar"
    ANY = "undeclared"


_ROLES: dict[Any, Role] = {
    KernelInput: Role.INPUT,
    KernelOutput: Role.OUTPUT,
    Tile: Role.TILE,
    int: Role.SCALAR,
    float: Role.SCALAR,
    bool: Role.SCALAR,
    complex: Role.SCALAR,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        name: as in the signature.
        role: as annotated.
        is_output: an array passed here may be written: it is declared so, or, undeclared,
            the kernel's code stores to it.
        takes_tensor: a whole tensor may be passed.
        takes_number: a number may be passed.
    """

    name: str
    role: Role
    is_output: bool

    # Asked at every call, so worked out once.
    takes_tensor: bool = field(init=False)
    takes_number: bool = field(init=False)

    def __post_init__(self) -> None:
        whole = self.role in (Role.INPUT, Role.OUTPUT, Role.ANY)
        object.__setattr__(self, "takes_tensor", whole)
        object.__setattr__(self, "takes_number", self.role in (Role.SCALAR, Role.ANY))


def parameters(function: FunctionType) -> tuple[Parameter, ...]:
    """The parameters of a kernel.

    Raises:
        LauncherError: the code stores to a KernelInput, Numba cannot read the code, or the
            signature has defaults, `*args` or keyword-only parameters.
    """
    name = function.__name__
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # an annotation that does not evaluate declares nothing here
        signature = inspect.signature(function)
    stored = _stored(function)
    found = []
    for i, (key, p) in enumerate(signature.parameters.items()):
        if p.kind is not p.POSITIONAL_OR_KEYWORD or p.default is not p.empty:
            raise LauncherError(
                f"kernel {name}: parameter {p} is not a plain one; Numba kernels have neither "
                "defaults, nor *args, nor keyword-only parameters."
            )
        role = _ROLES.get(p.annotation, Role.ANY)
        if role is Role.INPUT and i in stored:
            raise LauncherError(
                f"kernel {name} stores to {key}, which is declared na.KernelInput.\n"
                f"Declare it as what it is, {key}: na.KernelOutput, or remove the store."
            )
        is_output = role in (Role.OUTPUT, Role.TILE) or (role is Role.ANY and i in stored)
        found.append(Parameter(key, role, is_output))
    return tuple(found)


_cache: dict[FunctionType, frozenset[int]] = {}


def _stored(function: FunctionType) -> frozenset[int]:
    """Positions of the parameters that `function` stores to."""
    found = _cache.get(function)
    if found is None:
        _cache[function] = frozenset()  # while it is being read: it may call itself
        try:
            found = _cache[function] = frozenset(_Reader(function).stored())
        except BaseException:
            del _cache[function]
            raise
    return found


class _Reader:
    """Follows arrays through one function's Numba IR.

    Statements are taken in any order and as often as it takes for nothing to change, so a
    loop or a branch cannot hide a store. What is not understood counts as a store: a false
    output costs an ordering, a missed one a race.
    """

    def __init__(self, function: FunctionType) -> None:
        from numba.core import ir
        from numba.core.compiler import run_frontend

        self._ir = ir
        try:
            self._code: Any = run_frontend(function)
        except Exception as error:
            raise LauncherError(f"Numba cannot read {function.__name__}: {error}") from error
        # Variable -> positions of the parameters that it may be, or be a view of.
        self._roots: dict[str, set[int]] = {}

    def stored(self) -> set[int]:
        statements = [s for block in self._code.blocks.values() for s in block.body]
        changed = True
        while changed:
            news = [self._flow(s) for s in statements if isinstance(s, self._ir.Assign)]
            changed = any(news)
        found: set[int] = set()
        for statement in statements:
            found |= self._stores(statement)
        return found

    def _of(self, *variables: Any) -> set[int]:
        return set().union(*(self._roots.get(v.name, set()) for v in variables))

    def _flow(self, statement: Any) -> bool:
        """What the target of an assignment may be; whether that is news."""
        ir, value = self._ir, statement.value
        if isinstance(value, ir.Arg):
            new = {value.index}
        elif isinstance(value, ir.Var):
            new = self._of(value)
        elif isinstance(value, ir.Expr):
            new = self._of_expression(value)
        else:
            return False
        known = self._roots.setdefault(statement.target.name, set())
        if new <= known:
            return False
        known |= new
        return True

    def _of_expression(self, value: Any) -> set[int]:
        if value.op == "getattr":
            return set() if value.attr in _PLAIN else self._of(value.value)
        if value.op in ("binop", "inplace_binop", "unary"):
            return set()
        # A view, an element of a tuple, an iteration, a method such as reshape, or a
        # device function that may hand its argument back.
        return self._of(*value.list_vars())

    def _stores(self, statement: Any) -> set[int]:
        ir = self._ir
        if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr):
            return self._of(statement.target)
        value: Any = statement.value if isinstance(statement, ir.Assign) else None
        if isinstance(value, ir.Expr) and value.op == "call":
            return self._stored_by_call(value)
        return set()

    def _stored_by_call(self, call: Any) -> set[int]:
        from numba import cuda

        known, callee = self._resolve(call.func)
        if not known:
            # A method of an array makes a view or a number; anything else is unknown.
            return set() if self._of(call.func) else self._of(*call.list_vars())
        inner = getattr(callee, "py_func", None)
        if isinstance(inner, FunctionType):
            names = list(inspect.signature(inner).parameters)
            stored = _stored(inner)
            passed = dict(enumerate(call.args))
            passed |= {names.index(k): v for k, v in call.kws if k in names}
            found = self._of(*(v for i, v in passed.items() if i in stored))
            if call.vararg is not None:
                found |= self._of(call.vararg)
            return found
        if any(callee is f for f in vars(cuda.atomic).values()):
            return self._of(*call.args[:1])
        if getattr(callee, "__name__", "") in _HINTED_STORES:
            return self._of(*call.args[:1])
        if type(callee).__name__ == "ExternFunction":  # cuda.declare_device: code we cannot see
            return self._of(*call.list_vars())
        module = getattr(callee, "__module__", None) or ""
        harmless = module.split(".")[0] in ("builtins", "math", "operator", "numpy", "numba")
        return set() if harmless or module == "" else self._of(*call.list_vars())

    def _resolve(self, variable: Any) -> tuple[bool, Any]:
        """The global object that a variable stands for; whether there is one."""
        ir = self._ir
        for value in self._definitions(variable):
            if isinstance(value, ir.Global | ir.FreeVar):
                return True, value.value
            if isinstance(value, ir.Expr) and value.op == "getattr":
                known, owner = self._resolve(value.value)
                if known and hasattr(owner, value.attr):
                    return True, getattr(owner, value.attr)
        return False, None

    def _definitions(self, variable: Any) -> Iterator[Any]:
        for block in self._code.blocks.values():
            for statement in block.body:
                if isinstance(statement, self._ir.Assign) and (
                    statement.target.name == variable.name
                ):
                    yield statement.value
