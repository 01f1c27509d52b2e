"""What a GPU's compiler refuses of the arrays that a kernel makes, which is refused here, too.

The CPU device could make them: it computes a shape that is an expression, and has elements of any
type. But a kernel that runs here is to compile on a GPU, so that both take the same.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda
from numba.core.errors import TypingError
from numba.np.numpy_support import from_dtype

from numbasync.backend.cpu.compiler.literals import OPEN, Code, Computed, Fact, Items, Known, items
from numbasync.backend.cpu.compiler.names import device_function
from numbasync.backend.cpu.library.entry_points import types as numba_types
from numbasync.errors import KernelCompileError

_MAKERS = {cuda.shared.array: "cuda.shared.array", cuda.local.array: "cuda.local.array"}
_LITERAL = (
    "an int that is written there, or a global or a variable of an enclosing function that is one"
)
_INSTEAD = {float: "float64", int: "int64", bool: "boolean", complex: "complex128"}
_NO_ELEMENTS = (
    numba_types.BaseTuple, numba_types.Array, numba_types.RawPointer, numba_types.CPointer,
    numba_types.NPDatetime, numba_types.NPTimedelta, numba_types.CharSeq,
    numba_types.UnicodeCharSeq, numba_types.NestedArray, numba_types.NoneType,
    numba_types.Literal, numba_types.UnicodeType,
)  # fmt: skip
_POINTER = 8  # bytes


class _RefusedError(Exception):
    """What is wrong with a call, and what to write.

    Args:
        cause: what Numba raises then.
    """

    def __init__(self, said: str, cause: type[Exception] = TypingError) -> None:
        super().__init__(said)
        self.cause = cause


def check(kernel: types.FunctionType, kinds: Sequence[Any]) -> None:
    """Look at the arrays that a kernel makes, and those that functions make that it calls.

    Args:
        kinds: Numba's types of its arguments.

    Raises:
        KernelCompileError: a GPU's compiler would refuse one.
    """
    names = kernel.__code__.co_varnames
    arguments = [
        Known(None) if isinstance(k, numba_types.NoneType) else Computed(n)
        for n, k in zip(names, kinds, strict=False)
    ]
    _Check(kernel.__name__).function(kernel, arguments, kinds)


class _Check:
    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: list[tuple[types.FunctionType, Sequence[Fact]]] = []

    def function(
        self, function: types.FunctionType, arguments: Sequence[Fact], kinds: Sequence[Any]
    ) -> None:
        if not _may_make(function, set()):
            return
        if any(f is function and list(a) == list(arguments) for f, a in self._seen):
            return
        self._seen.append((function, arguments))
        try:
            calls = list(Code(function, arguments, kinds).calls())
        except Exception:  # Numba has many; and says itself what it does not have
            return
        for call in calls:
            inner = device_function(call.callee)
            try:
                if inner is not None:
                    self._inner(inner, call.callee, call.positional, call.keywords)
                elif call.callee is cuda.const.array_like:
                    _check_constant(call.positional, call.keywords)
                elif _is_maker(call.callee):
                    _check_made(call.callee, call.positional, call.keywords)
            except _RefusedError as refused:
                where = f"{_MAKERS.get(call.callee, 'cuda.const.array_like')}, line {call.line}"
                within = "" if function.__name__ == self._name else f" of {function.__name__}"
                what = f"{where}{within}: {refused}"
                raise KernelCompileError(
                    f"kernel {self._name} cannot be compiled: {what}"
                ) from refused.cause(what)

    def _inner(
        self, function: types.FunctionType, dispatcher: Any, positional: Sequence[Fact],
        keywords: dict[str, Fact],
    ) -> None:  # fmt: skip
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        given: dict[str, Fact] = {
            n: Known(v) for n, v in zip(names[::-1], defaults[::-1], strict=False)
        }
        given |= dict(zip(names, positional, strict=False)) | keywords
        if set(given) != set(names) or code.co_kwonlyargcount or code.co_flags & _STAR_STAR:
            return
        arguments = [_passed(n, given[n]) for n in names]
        if code.co_flags & _STAR:
            arguments.append(Items(tuple(positional[len(names) :])))
        if not dispatcher._can_compile:  # whose declared types are no literals
            arguments = [Computed(n) for n in names]
        nothing = Known(None)
        kinds = [numba_types.none if a == nothing else numba_types.unknown for a in arguments]
        self.function(function, arguments, kinds)


_STAR, _STAR_STAR = 4, 8  # flags of code


def _passed(name: str, fact: Fact) -> Fact:
    """What a function knows of its parameter; the caller's names mean nothing to it."""
    return Computed(name) if isinstance(fact, Computed) and not fact.is_static else fact


def _may_make(function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
    """Whether a function, or one that it may call, names what makes an array: most do not, and
    are not looked at.
    """
    if function in seen:
        return False
    seen.add(function)
    used = _names(function.__code__)
    if used & {"array", "array_like"}:
        return True
    cells = [c for c in function.__closure__ or () if c != types.CellType()]
    held = [c.cell_contents for c in cells] + [
        function.__globals__[n] for n in used & function.__globals__.keys()
    ]
    homes = [vars(h) for h in held if isinstance(h, types.ModuleType)]
    held += [home[n] for home in homes for n in used & home.keys()]
    return any(_is_maker(h) or _calls_maker(h, seen) for h in held)


def _calls_maker(value: Any, seen: set[types.FunctionType]) -> bool:
    function = device_function(value)
    return function is not None and _may_make(function, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)


def _is_maker(callee: Any) -> bool:
    return isinstance(callee, types.FunctionType) and callee in _MAKERS


def _check_constant(positional: Sequence[Fact], keywords: dict[str, Fact]) -> None:
    passed = [*positional, *keywords.values()]
    if len(passed) != 1 or set(keywords) - {"ndarray"}:
        raise _RefusedError("it takes one argument, an array")
    (found,) = passed
    if isinstance(found, Items) or (isinstance(found, Known) and _is_plain(found.value)):
        raise _RefusedError("it takes an array, such as a global one; write np.array(...) there")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float | complex | str | tuple | list)


def _check_made(callee: Any, positional: Sequence[Fact], keywords: dict[str, Fact]) -> None:
    names = ("shape", "dtype", "alignment")
    given = dict(zip(names, positional, strict=False)) | keywords
    twice = set(names[: len(positional)]) & set(keywords)
    if len(positional) > 3 or twice or set(given) - set(names) or {"shape", "dtype"} - set(given):
        raise _RefusedError("it takes a shape, a dtype and perhaps an alignment, once each")
    _check_shape(given["shape"], callee is cuda.shared.array)
    _check_elements(given["dtype"])
    _check_alignment(given.get("alignment", Known(None)))


# --- the shape ---


def _check_shape(shape: Fact, is_shared: bool) -> None:
    parts = items(shape)
    extents = [_extent(f, is_shared) for f in ((shape,) if parts is None else parts)]
    if None in extents:
        return
    known = [e for e in extents if e is not None]
    count = math.prod(known)
    if count > 0 and min(known, default=1) > 0:
        return
    if not (is_shared and known == [0]):
        text = f"({', '.join(map(str, known))})" if parts is not None else f"{known[0]}"
        more = "; of one axis, 0 means: as many as the launch brings" if is_shared else ""
        raise _RefusedError(f"the shape {text} has no elements{more}", ValueError)


def _extent(fact: Fact, is_shared: bool) -> int | None:
    """One of a shape; None if it is not known which."""
    if isinstance(fact, Computed):
        raise _RefusedError(_no_literal(fact, is_shared))
    if isinstance(fact, Items):
        raise _RefusedError("a shape is an int, or a tuple of ints")
    if not isinstance(fact, Known):
        return None
    value = fact.value
    if type(value) is int:
        return value
    if isinstance(value, np.integer | enum.Enum):
        how = ", as SIZE = int(...) at module level" if isinstance(value, int | np.integer) else ""
        raise _RefusedError(f"the shape is of type {_type(value)}, and is to be a plain int{how}")
    if isinstance(value, tuple):
        raise _RefusedError(f"the shape is of type {_type(value)}; write tuple(...) of it there")
    raise _RefusedError(f"the shape is of type {_type(value)}, not an int or a tuple of ints")


def _no_literal(fact: Computed, is_shared: bool) -> str:
    said = f"in the shape, {fact.text} is no literal: a GPU's compiler takes {_LITERAL}."
    if fact.is_static:
        return (
            f"{said} Compute it before:\n    SIZE = {fact.text}  # at module level\n"
            "and write SIZE in the kernel."
        )
    if is_shared:
        return (
            f"{said} As large as a launch says is dynamic shared memory:\n"
            "    cuda.shared.array(0, dtype)"
        )
    return said


# --- the elements ---


def _check_elements(dtype: Fact) -> None:
    if isinstance(dtype, Computed):
        raise _RefusedError(f"the dtype is computed: {dtype.text}; write a type, such as float32")
    if isinstance(dtype, Items):
        raise _RefusedError("the dtype is a tuple; write a type, such as float32")
    if not isinstance(dtype, Known):
        return
    value: Any = dtype.value
    if isinstance(value, type) and not issubclass(value, np.generic):
        instead = _INSTEAD.get(value)
        how = f"; write {instead}, of numba" if instead else ""
        if instead or value is object:
            raise _RefusedError(f"the dtype is Python's {value.__name__}{how}")
        return
    if value is None or isinstance(value, int | float | complex | np.generic | tuple | list):
        raise _RefusedError(f"the dtype is {value!r}; write a type, such as float32")
    if not isinstance(value, str | type | np.dtype | numba_types.Type):
        return
    try:
        kind = value if isinstance(value, numba_types.Type) else _of_numpy(value)
    except Exception:  # NumPy and Numba have several
        raise _RefusedError(f"the dtype is {value!r}, of which a GPU has no arrays") from None
    if isinstance(kind, _NO_ELEMENTS):
        raise _RefusedError(f"the dtype is {kind}, of which a GPU has no arrays", TypeError)


def _of_numpy(dtype: Any) -> Any:
    return from_dtype(np.dtype(dtype))


def _check_alignment(alignment: Fact) -> None:
    if alignment in (OPEN, Known(None)):
        return
    value = alignment.value if isinstance(alignment, Known) else None
    if type(value) is not int:
        raise _RefusedError(f"the alignment is to be {_LITERAL}")
    if value <= 0 or value & (value - 1) or value % _POINTER:
        raise _RefusedError(
            f"the alignment is {value}. Alignment must be a power of two, of at least {_POINTER}",
            ValueError,
        )


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
