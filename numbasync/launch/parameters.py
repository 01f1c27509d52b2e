"""The parameters of a kernel: declared by annotation, or inferred from its code.

A parameter that is not declared is an output if anything reachable from it is stored to: by
assignment, by an atomic, through a view, or by a device function that receives it. The code is read
with Numba's own front end, so that the analysed code is the compiled code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import FunctionType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin

from numbasync.errors import LauncherError
from numbasync.facts.effects import Store, summary
from numbasync.facts.source import captured
from numbasync.ops.run import describe

if TYPE_CHECKING:
    # Inside the kernel these are arrays that are indexed; for the caller, any value that a call
    # accepts. No single type is both.
    KernelInput: TypeAlias = Any
    KernelOutput: TypeAlias = Any
    Tile: TypeAlias = Any
    Literal: TypeAlias = int
else:

    class KernelInput:
        """Annotation: an array that the kernel only reads.

        Examples:
            >>> @na.launcher
            ... @cuda.jit
            ... def negate(z: na.KernelOutput, x: na.KernelInput):
            ...     x[0] = -z[0]
            Traceback (most recent call last):
                ...
            numbasync.errors.LauncherError: kernel negate stores to x, which is declared
                na.KernelInput.
            Declare it as what it is, x: na.KernelOutput, or remove the store.
        """

    class KernelOutput:
        """Annotation: an array that the kernel may write; a partition of it determines the grid.

        Examples:
            >>> [(p.name, p.is_output) for p in saxpy.parameters]
            [('z', True), ('a', False), ('x', False)]
            >>> z = await na.zeros(10)
            >>> result = await saxpy(z.partition(4), 2.0, na.ones(10))  # blocks of 4 threads
            >>> await result.z.unpartition().to_host()
            array([2., 2., 2., 2., 2., 2., 2., 2., 2., 2.], dtype=float32)
        """

    class Tile:
        """Annotation: a partitioned output of which a block sees its own tile only.

        The tile is clipped at the edge of the tensor; its indices start at 0. For a mapped
        partition (`Partition.map`) the kernel's body is run for one tile after the other.

        Examples:
            >>> @na.launcher(threads=4)
            ... @cuda.jit
            ... def number_tiles(tile: na.Tile):
            ...     i = cuda.threadIdx.x
            ...     if i < tile.shape[0]:
            ...         tile[i] = cuda.blockIdx.x
            >>> z = await na.zeros(10, np.int32)
            >>> _ = await number_tiles(z.partition(4))
            >>> await z.to_host()
            array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2], dtype=int32)
        """

    class Literal:
        """Annotation: an integer that the kernel is compiled for, one variant for each value.

        In the kernel it is a constant, as an int of the module is: loops over `range(n)` are
        unrolled, and `cuda.local.array(n, dtype)` is an array of n elements.

        Examples:
            >>> @na.launcher
            ... @cuda.jit
            ... def sum_rows(z: na.KernelOutput, x: na.KernelInput, n: na.Literal):
            ...     i = cuda.grid(1)
            ...     if i < z.shape[0]:
            ...         for k in range(n):  # unrolled: n is a constant
            ...             z[i] += x[i, k]
            >>> x = np.arange(6, dtype=np.float32).reshape(2, 3)
            >>> result = await sum_rows(na.zeros(2), x, x.shape[1])
            >>> await result.z.to_host()
            array([ 3., 12.], dtype=float32)
        """


__all__ = ["Parameter", "Role"]


class Role(Enum):
    """The declared role of a parameter."""

    INPUT = "KernelInput"
    OUTPUT = "KernelOutput"
    TILE = "Tile"
    SCALAR = "a scalar"
    LITERAL = "Literal"
    ANY = "undeclared"


_ROLES: dict[Any, Role] = {
    KernelInput: Role.INPUT,
    KernelOutput: Role.OUTPUT,
    Tile: Role.TILE,
    Literal: Role.LITERAL,
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
        is_output: an array passed here may be written: the parameter is declared so, or is
            undeclared and the kernel's code stores to it.
        takes_tensor: a whole tensor may be passed.
        takes_number: a number may be passed, of which the kernel's variant needs the type alone.
        takes_none: None may be passed: None is the default, or the kernel's code tests for it.
        is_number: undeclared, and the kernel's code uses the parameter as a number.
        default: the value if nothing is passed; `inspect.Parameter.empty` if that is an error.
    """

    name: str
    role: Role
    is_output: bool
    takes_none: bool = False
    is_number: bool = False
    default: Any = inspect.Parameter.empty

    # Read at every call, so computed once.
    takes_tensor: bool = field(init=False)
    takes_number: bool = field(init=False)

    def __post_init__(self) -> None:
        whole = self.role in (Role.INPUT, Role.OUTPUT, Role.ANY)
        object.__setattr__(self, "takes_tensor", whole)
        object.__setattr__(self, "takes_number", self.role in (Role.SCALAR, Role.ANY))


def check_kernel(kernel: Any) -> FunctionType:
    """The Python function of a kernel that `cuda.jit` created.

    Raises:
        LauncherError: the object is not a kernel that can be launched.
    """
    if type(kernel).__name__ == "FakeCUDAKernel":
        raise LauncherError(
            f"kernel {getattr(kernel, '__name__', '?')}: NUMBA_ENABLE_CUDASIM is set, so cuda.jit "
            "made a kernel for Numba's simulator, which numbasync does not use.\n"
            "Unset it (unset NUMBA_ENABLE_CUDASIM) and start again; without a GPU kernels run on "
            "the CPU device, which needs no simulator: NUMBASYNC_DEVICE=cpu."
        )
    options = getattr(kernel, "targetoptions", None)
    function = getattr(kernel, "py_func", None)
    if options is None or not isinstance(function, FunctionType):
        raise LauncherError(
            f"{describe(kernel)} is no kernel.\nWrite @na.launcher above @cuda.jit, or above a "
            "plain function."
        )
    if options.get("device"):
        raise LauncherError(
            f"{function.__name__} is a device function (device=True), which a kernel "
            "calls; only kernels are launched."
        )
    return function


def parameters(function: FunctionType) -> tuple[Parameter, ...]:
    """The parameters of a kernel.

    Raises:
        LauncherError: the code contradicts an annotation, returns a value, or cannot be read by
            Numba; or the signature has `*args`, `**kwargs` or positional-only parameters.
    """
    name = function.__name__
    _check_form(name, function)
    # The copy has no annotations: each annotation is evaluated separately, and some may not
    # evaluate.
    bare = FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    bare.__kwdefaults__ = function.__kwdefaults__
    plain = inspect.signature(bare).parameters
    for p in plain.values():
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise LauncherError(
                f"kernel {name}: parameter {p} is not a plain one; kernels have neither *args, nor "
                "**kwargs, nor positional-only parameters."
            )
    body = summary(positional(function) if function.__code__.co_kwonlyargcount else function)
    if body.line:
        raise LauncherError(
            f"kernel {name} returns a value, in line {body.line} of {function.__code__.co_filename}"
            "; a kernel has many threads, and nobody to give it to.\n"
            "Store it to an output, z[i] = ..., and write `return` alone."
        )
    roles = _roles(function)
    stores = [{s for k, s in body.stores if k == i} for i in range(len(plain))]
    specs = []
    for i, (key, p) in enumerate(plain.items()):
        role, is_optional = roles.get(key, (Role.ANY, False))
        parameter = _parameter(name, key, role, stores[i])
        optional = is_optional or i in body.tested or p.default is None
        specs.append(
            replace(
                parameter,
                takes_none=optional and role is not Role.TILE,
                is_number=role is Role.ANY and i in body.numbers,
                default=p.default,
            )
        )
    return tuple(specs)


def positional(function: FunctionType) -> FunctionType:
    """The same function with its keyword-only parameters behind the others: Numba supports none."""
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    copy = FunctionType(
        code.replace(co_argcount=count, co_kwonlyargcount=0), function.__globals__,
        function.__name__, None, function.__closure__,
    )  # fmt: skip
    copy.__doc__, copy.__module__ = function.__doc__, function.__module__
    copy.__qualname__ = function.__qualname__
    return copy


def _parameter(name: str, key: str, role: Role, stores: set[Store]) -> Parameter:
    # A possible store does not contradict a declaration: declarations exist to settle such cases.
    if role is Role.INPUT and not stores.isdisjoint({Store.ELEMENTS, Store.IN_PLACE}):
        raise LauncherError(
            f"kernel {name} stores to {key}, which is declared na.KernelInput.\n"
            f"Declare it as what it is, {key}: na.KernelOutput, or remove the store."
        )
    if role in (Role.SCALAR, Role.LITERAL) and Store.ELEMENTS in stores:
        raise LauncherError(
            f"kernel {name} stores to elements of {key}, which is declared a number; a number has "
            f"no elements.\nDeclare an array as {key}: na.KernelOutput, or remove the store."
        )
    # `x += 1` is a store if x is an array; for a number, being an output has no effect.
    stored = not stores.isdisjoint({Store.ELEMENTS, Store.IN_PLACE, Store.UNKNOWN})
    is_output = role in (Role.OUTPUT, Role.TILE) or (role is Role.ANY and stored)
    return Parameter(key, role, is_output)


def _check_form(name: str, function: FunctionType) -> None:
    if not name.isidentifier():
        raise LauncherError(
            f"a kernel needs a name, for its results and messages; {name} is none.\n"
            "Write it with def, or set f.__name__ = '...' before @na.launcher."
        )
    if function.__code__.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    ):
        is_generator = bool(function.__code__.co_flags & inspect.CO_GENERATOR)
        what = "has a yield" if is_generator else "is an async def"
        raise LauncherError(
            f"kernel {name} {what}; a kernel runs on the device from its first line to its last.\n"
            f"Write a plain `def {name}(...)`; what is awaited is its launch: await {name}(...)."
        )


# --- annotations ---

# The endings by which an annotation is recognised although its names cannot be resolved when it is
# read: imported for type checkers alone, or local to the function around the kernel.
_OR_NONE = re.compile(r"\s*\|\s*None$")
_DECLARES = re.compile(r"(?:^|\.)(KernelInput|KernelOutput|Tile|Literal)$")


def _roles(function: FunctionType) -> dict[str, tuple[Role, bool]]:
    """The declared role of each annotated parameter, and whether None may be passed."""
    return {key: _role(value, function) for key, value in _annotations(function).items()}


def _annotations(function: FunctionType) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):  # annotations are evaluated lazily
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return function.__annotations__


def _role(annotation: Any, function: FunctionType) -> tuple[Role, bool]:
    text = annotation
    for _ in range(2):  # in a module of string annotations, a quoted one is nested twice
        text = getattr(annotation, "__forward_arg__", annotation)
        if not isinstance(text, str):
            break
        annotation = _evaluate(text, function)
    if annotation is text and isinstance(text, str):  # the annotation does not evaluate
        bare = _OR_NONE.sub("", text.strip())
        declared = _DECLARES.search(bare)
        return (Role(declared[1]) if declared else Role.ANY), bare != text.strip()
    others = [a for a in get_args(annotation) if a is not NoneType]
    is_optional = get_origin(annotation) in (Union, UnionType) and len(others) == 1
    try:
        role = _ROLES.get(others[0] if is_optional else annotation, Role.ANY)
    except TypeError:  # annotations may be any object, some without a hash
        role = Role.ANY
    return role, is_optional


def _evaluate(text: str, function: FunctionType) -> Any:
    """The value of an annotation, or its text if the text does not evaluate."""
    try:
        return eval(text, function.__globals__, captured(function))  # noqa: S307 - the kernel's own annotation
    except Exception:
        return text
