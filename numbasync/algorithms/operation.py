"""Algorithms as operations: what they take, and when their kernels are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, NoneType
from typing import Any, TypeVar

import numpy as np

from numbasync import dtypes
from numbasync.algorithms.launches import Launches, enqueue_part, permuted_layout
from numbasync.algorithms.prefix import Numbers, Prefix, check_prefix
from numbasync.arguments import as_wholes, shown
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import KernelCompileError, OperationError, ShapeError
from numbasync.extending import Home, describe, first_home
from numbasync.memo import Memo
from numbasync.ops.constructors import value
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import common_stream, is_op, suppress_unused_warnings
from numbasync.ops.pickling import Recipe, packed
from numbasync.tensors.create import from_host
from numbasync.tensors.host_arrays import plain
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

T = TypeVar("T")
# Of as many tensors as there are operands: what they are launched with, or what makes an operation.
Build = Launches | Callable[..., DeviceOp[T]]
Plan = partial[Any]  # of shape and dtype of each, a `Build`
OfPrefix = Callable[..., Any] | None
KINDS = "biufc"  # of dtypes that are NumPy's numbers
MOST = 1024  # builds that are kept; a program with ever new shapes starts over
_builds = Memo[Any, Any](MOST)


# Types of arguments of which those that are equal are the same, if their types are.
_PLAIN = frozenset({NoneType, str, int, bool, FunctionType})
_plain_kinds = Memo[tuple[type, ...], bool](MOST)  # whether all of these are


def _key_of(plan: Any, args: tuple[Any, ...], known: tuple[Any, ...]) -> Any:
    """The key under which a build is kept; None: of arguments that may equal others which are not
    the same, as 1, 1.0 and True are.
    """
    kinds = tuple(map(type, args))
    is_plain = _plain_kinds.get(kinds)
    if is_plain is None:
        is_plain = _plain_kinds[kinds] = _PLAIN.issuperset(kinds)
    if not is_plain:
        for arg in args:
            if type(arg) is tuple:
                if any(type(n) not in (int, str) for n in arg):
                    return None
            elif type(arg) in _PLAIN or callable(arg):
                continue
            elif type(arg) is not float or not arg:  # 0.0 and -0.0 are equal, too
                return None
    return plan, args, kinds, known


class Algorithm(DeviceOp[T]):
    """The kernels that compute something of one tensor, or of several.

    Args:
        name: of the function that was called.
        x: a tensor, an array, or an operation that gives one of these.
        plan: checks a shape and a dtype, of each operand, and gives what builds the operation of
            such tensors. It is called at once if these are known.
        more: further operands.
        of_prefix: takes the arguments of `plan`, but for a `Prefix` in the place of `x`, which is
            two operands, its elements and its extent; None: there is none.
    """

    def __init__(
        self, name: str, x: Any, plan: Plan, *more: Any, of_prefix: OfPrefix = None
    ) -> None:
        self._unused = False  # a refused operation needs no warning
        self._name = name
        self._plan = plan
        self._of_prefix = of_prefix
        self._build: Build[T] | None = None  # None: an operand is not known yet
        self._given: Any = None  # the result of the fast path
        self._operands = operands = (x, *more)
        is_one_tensor = type(x) is Tensor and not more and x.dtype.kind in KINDS  # in most calls
        if is_one_tensor or not [x for x in operands if type(x) is not Tensor and is_op(x)]:
            if not is_one_tensor:
                self._operands = operands = self._arrays(operands)
            self._build = build = self._planned(operands)
            self.has_fast_path = isinstance(build, Launches) and build.has_fast_path(operands)
            self._unused = True
            return
        with suppress_unused_warnings(operands):
            for operand in operands:
                if type(operand) is not Prefix and not is_op(operand):
                    self._array(operand)
            ops = tuple(x for x in self._operands if is_op(x))
            stream = common_stream(ops)
            for op in ops:
                op.consume()
            if stream is not None:
                self.stream = stream
        self._unused = True

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        launches: Any = self._build
        self._given = launches.try_enqueue(self._operands, submission, pool)
        return self._given is not None

    def result(self) -> T:
        given: T = self._given
        self._given = None  # its last reference is the program's
        return given

    def _planned(self, arrays: tuple[Any, ...]) -> Build[T]:
        known: tuple[Any, ...] = ()
        for array in arrays:
            known += array.shape, array.dtype
        key = _key_of(self._plan.func, self._plan.args, known)
        build: Any = None if key is None else _builds.get(key)
        if build is None:
            build = self._plan(*known)
            if key is not None:
                _builds[key] = build
        return build  # type: ignore[no-any-return]

    def _arrays(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The operands as tensors and host arrays. A prefix is two."""
        first = operands[0]
        if type(first) is not Prefix:
            return tuple([self._array(x) for x in operands])
        if self._of_prefix is None:
            raise no_prefix(self._name)
        check_prefix(first, self._name)
        self._plan = partial(self._of_prefix, *self._plan.args)
        return tuple([self._array(x) for x in (*first, *operands[1:])])

    def _array(self, x: Any) -> Any:
        if type(x) is Tensor and x.dtype.kind in KINDS:
            return x
        if isinstance(x, SharedTensor | Partition):
            x = x.tensor
        if not isinstance(x, Tensor | np.ndarray):
            raise OperationError(
                f"{self._name} takes a tensor, a NumPy array, or an operation that gives one, not "
                f"{describe(x)}.\nOf a launch, write op.output(); of another library's array, "
                "na.as_tensor(x)."
            )
        array = plain(x)
        dtypes.check_dtype(array.dtype)
        return array

    def _recipe(self) -> Recipe:
        return _unpickled, (self._name, self._plan, self._of_prefix, *packed(self._operands))

    def _inner(self) -> Iterable[tuple[str, Any]]:
        return [(f"x{i}" if i else "x", x) for i, x in enumerate(self._operands) if is_op(x)]

    @property
    def home(self) -> Home:
        first, *more = self._operands
        return first_home((*first, *more) if type(first) is Prefix else self._operands)

    def steps(self, ctx: Context) -> Steps[T]:
        given: list[Any] = list(self._operands)
        for i, operand in enumerate(given):
            if is_op(operand):
                given[i] = yield from operand.steps(ctx)
        arrays: list[Any] = list(given if self._build else self._arrays(given))
        build = self._build or self._planned(tuple(arrays))
        for i, array in enumerate(arrays):
            if isinstance(array, np.ndarray):
                arrays[i] = yield from enqueue_part(ctx, from_host(array))
        with self._attributed():
            if isinstance(build, Launches):
                result: Any = yield from build.run(ctx, arrays)
                return result  # type: ignore[no-any-return]
            value: T = yield from enqueue_part(ctx, build(*arrays))
            return value

    @contextmanager
    def _attributed(self) -> Iterator[None]:
        """Attribute the compilation errors of a kernel to the program's function in it."""
        try:
            yield
        except KernelCompileError as error:
            functions = [arg for arg in self._plan.args if callable(arg)]
            if not functions:
                raise
            name = getattr(functions[0], "__name__", functions[0])
            raise KernelCompileError(
                f"{self._name} by {name}: it takes two numbers, and gives one, and is "
                f"compiled within a kernel:\n{error}"
            ) from error

    @property
    def label(self) -> str:
        build = self._build
        if not isinstance(build, Launches):
            return self._describe()
        if build.label is None:  # a plan is of one function
            build.label = self._describe()
        return build.label

    def _describe(self) -> str:
        shown_ = (str(x) if is_op(x) else str(getattr(x, "shape", "")) for x in self._operands)
        return f"{self._name}({', '.join(shown_)})"


def _unpickled(name: str, plan: Plan, of_prefix: OfPrefix, x: Any, *more: Any) -> Algorithm[Any]:
    return Algorithm(name, x, plan, *more, of_prefix=of_prefix)


def no_prefix(name: str) -> OperationError:
    """The error of a function that takes no `Prefix`."""
    return OperationError(
        f"{name} takes no Prefix, of which only the device knows how long it is.\n"
        "Write await p.trimmed(), which awaits that; or await p.filled(value), as long as all that "
        "there could be."
    )


class InTwoParts(DeviceOp[T]):
    """Launches whose first result the host awaits, and the operation that follows of its numbers.

    Args:
        name: of the function that was called.
        launches: of the tensors `operands`.
        follow: gives that operation, of the numbers and the launches' other results.
    """

    def __init__(
        self, name: str, launches: Launches, operands: tuple[Tensor, ...],
        follow: Callable[..., DeviceOp[T]],
    ) -> None:  # fmt: skip
        self._name = name
        self._launches = launches
        self._tensors = operands
        self._follow = follow

    @property
    def home(self) -> Home:
        return first_home(self._tensors)

    def steps(self, ctx: Context) -> Steps[T]:
        first, *others = yield from self._launches.run(ctx, self._tensors)
        numbers = yield from enqueue_part(ctx, Numbers(first, self._name))
        value: T = yield from enqueue_part(ctx, self._follow(*numbers, *others))
        return value

    def _describe(self) -> str:
        return self._name


def permuted(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A view with the axes in this order."""
    return x._view(permuted_layout(x._layout, axes))


def contiguous(x: Tensor) -> DeviceOp[Tensor]:
    """The tensor, or a contiguous copy."""
    return value(x) if x.is_contiguous else x.dup()


def axes_of(name: str, axis: Any, rank: int) -> tuple[int, ...]:
    """The axes to reduce, ascending.

    Raises:
        ShapeError: one of them does not exist, or comes twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = as_wholes(axis)
    if given is None or isinstance(axis, bool):
        raise ShapeError(f"{name} along axis={shown(axis)}: write a whole number, or a tuple.")
    for a in given:
        if not -rank <= a < rank:
            which = f"one from {-rank} to {rank - 1}" if rank else "axis=None"
            raise ShapeError(f"{name} along axis {shown(a)}, of {rank} axes: write {which}.")
    axes = sorted(a % rank for a in given)
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{name} along axis={shown(axis)}: an axis comes twice; write it once.")
    return tuple(axes)


def one_axis(name: str, axis: Any, rank: int) -> int:
    """The one axis that `axis` names.

    Raises:
        ShapeError: it does not exist, or is not one.
    """
    axes = axes_of(name, axis, rank)
    if len(axes) != 1:
        raise ShapeError(f"{name} along axis={shown(axis)}: write one axis.")
    return axes[0]
