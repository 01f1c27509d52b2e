"""What bounds a function's integers: what they are the sum of, and whether they can be negative.

An index is worth something to a reader if it is a thread's coordinate, an array's extent, a
constant, or a sum of these (`Affine`); or if it is at least not negative. `guards` tells which of
them a condition compares.

An integer is not negative if everything that is assigned to it is not, provided that the other such
integers are not: by induction over the steps of a thread. Of i and j in

    i = cuda.grid(1)
    for j in range(1, n):
        i += j * 4

the first step of each loop rests on 0 <= cuda.grid(1) and 0 <= 1, each further one on the step
before it. What is multiplied by something in every turn of a loop may overflow: it counts as
unknown.
"""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from numbasync.facts.ir import NO_CONSTANT, UNKNOWN, Names

__all__ = ["SIZE", "Integers", "rank_of"]

# A parameter's position; an axis of that parameter.
Extent: TypeAlias = tuple[int, int]

SIZE = -1  # instead of an axis: the number of all elements
LETTERS = {"x": 0, "y": 1, "z": 2}  # the CUDA axes
MOST_FACTOR = 2**20  # a larger constant is taken for part of a hash, whose products overflow
_PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_ADDED = (operator.add, operator.sub)
_GROWING = (operator.mul, operator.lshift, operator.pow)
# Not negative, if neither operand is.
_KEEPING = (
    operator.add, operator.mul, operator.floordiv, operator.rshift, operator.or_, operator.xor,
)  # fmt: skip


class Affine(NamedTuple):
    """The sum of a coordinate, an extent and a constant.

    Attributes:
        coordinate: the CUDA axis of the thread's coordinate in the grid; None if none is added.
        extent: the parameter and axis whose extent is added; None if none is.
    """

    coordinate: int | None = None
    extent: Extent | None = None
    constant: int = 0


def rank_of(names: Names, call: Any) -> int:
    """The number of coordinates that `cuda.grid(n)`, or `gridsize`, returns; 3 if it cannot be
    read.
    """
    args = [*call.args, *(v for _, v in call.kws)]
    rank = names.constant(args[0]) if len(args) == 1 else NO_CONSTANT
    return rank if isinstance(rank, int) and 1 <= rank <= 3 else 3


class Integers:
    """What is known of the integers of one function."""

    def __init__(self, names: Names) -> None:
        from numba.core import ir

        from numbasync.kernel_names import cuda

        self._ir, self._cuda, self._names = ir, cuda, names
        self._sums: dict[str, Affine | None] = {}

    # --- sums ---

    def affine(self, variable: Any) -> Affine | None:
        """The sum that a variable certainly is; None if that is not certain."""
        if variable.name not in self._sums:
            self._sums[variable.name] = None  # while it is computed: of itself it is no sum
            self._sums[variable.name] = self._sum_of(variable)
        return self._sums[variable.name]

    def _sum_of(self, variable: Any) -> Affine | None:
        constant = self._names.constant(variable)
        if type(constant) is int:
            return Affine(constant=constant)
        if (axis := self._coordinate(variable)) is not None:
            return Affine(axis)
        value = self._names.one(variable)
        if (extent := self._extent(value)) is not None:
            return Affine(extent=extent)
        if getattr(value, "op", "") != "binop" or value.fn not in _ADDED:
            return None
        left, right = self.affine(value.lhs), self.affine(value.rhs)
        if left is None or right is None:
            return None
        if value.fn is operator.sub:
            is_constant = right.coordinate is None and right.extent is None
            return left._replace(constant=left.constant - right.constant) if is_constant else None
        has_two = None not in (left.coordinate, right.coordinate)
        if has_two or None not in (left.extent, right.extent):
            return None
        return Affine(
            right.coordinate if left.coordinate is None else left.coordinate,
            left.extent or right.extent,
            left.constant + right.constant,
        )

    def coordinate_in(self, variable: Any) -> int | None:
        """The axis of the thread's coordinate that a variable is, up to an added number."""
        axis = self._coordinate(variable)
        value = self._names.one(variable)
        if axis is None and getattr(value, "op", "") == "binop" and value.fn in _ADDED:
            for term in (value.lhs, value.rhs):
                if axis is None:
                    axis = self.coordinate_in(term)
        return axis

    def _coordinate(self, variable: Any) -> int | None:
        """The axis along which a variable is the thread's coordinate in the grid."""
        value = self._names.one(variable)
        item = self._item(value)
        if item is not None:
            whole, index = item
            if self._calls(whole, self._cuda.grid) and 0 <= index < rank_of(self._names, whole) > 1:
                return index
            return None
        if self._calls(value, self._cuda.grid):
            return 0 if rank_of(self._names, value) == 1 else None
        if getattr(value, "op", "") != "binop" or value.fn is not operator.add:
            return None
        for left, right in ((value.lhs, value.rhs), (value.rhs, value.lhs)):
            product = self._names.one(left)
            if getattr(product, "op", "") != "binop" or product.fn is not operator.mul:
                continue
            axis = self._axis_of(right, self._cuda.threadIdx)
            for a, b in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
                block_axis = self._axis_of(a, self._cuda.blockIdx)
                if axis is not None and axis == block_axis == self._axis_of(b, self._cuda.blockDim):
                    return axis
        return None

    def _extent(self, value: Any) -> Extent | None:
        """The parameter and axis whose extent a value is."""
        op = getattr(value, "op", "")
        item = self._item(value)
        if item is not None:
            whole, axis = item
            if getattr(whole, "op", "") != "getattr" or whole.attr != "shape":
                return None
            array = self._names.one(whole.value)
        elif self._calls(value, len):
            array, axis = self._names.one(value.args[0]), 0
        elif op == "getattr" and value.attr == "size":
            array, axis = self._names.one(value.value), SIZE
        else:
            return None
        return (array.index, axis) if isinstance(array, self._ir.Arg) else None

    def _item(self, value: Any) -> tuple[Any, int] | None:
        """For `tuple[2]`, by index or by unpacking: the expression assigned to the tuple, and 2."""
        if getattr(value, "op", "") not in ("static_getitem", "getitem"):
            return None
        index = self._names.index(value)
        whole = self._names.one(value.value)
        if getattr(whole, "op", "") == "exhaust_iter":
            whole = self._names.one(whole.value)
        return (whole, index) if type(index) is int else None

    def _axis_of(self, variable: Any, place: Any) -> int | None:
        value = self._names.one(variable)
        if getattr(value, "op", "") != "getattr" or self._names.callees(value.value) != [place]:
            return None
        return LETTERS.get(value.attr)

    def _calls(self, value: Any, *functions: Any) -> bool:
        """Whether a value is certainly the result of one of these functions."""
        if getattr(value, "op", "") != "call":
            return False
        callees = self._names.callees(value.func)
        return len(callees) == 1 and any(callees[0] is f for f in functions)

    # --- signs ---

    def is_nonnegative(self, variable: Any) -> bool:
        """Whether a variable is certainly an integer that is not negative."""
        return variable.name in self._nonnegative

    def is_array(self, variable: Any) -> bool:
        """Whether a variable is certainly a parameter, or an array of the block or the thread."""
        allocators = self._cuda.shared.array, self._cuda.local.array
        origins = self._names.origins(variable)
        return bool(origins) and all(
            isinstance(v, self._ir.Arg) or self._calls(v, *allocators) for v in origins
        )

    @cached_property
    def _nonnegative(self) -> set[str]:
        """The greatest set of variables each of which is not negative if the others are not."""
        definitions = self._names.definitions
        found = set(definitions) - self._growing()
        changed = True
        while changed:
            unknown = {
                name
                for name in found
                if not all(self._holds(value, found) for value in definitions[name])
            }
            found -= unknown
            changed = bool(unknown)
        return found

    def _growing(self) -> set[str]:
        """Variables that are computed from themselves by a multiplication."""
        sources: dict[str, set[str]] = {}
        factors: dict[str, set[str]] = {}
        for name, values in self._names.definitions.items():
            for value in values:
                used = [value] if isinstance(value, self._ir.Var) else []
                if isinstance(value, self._ir.Expr):
                    used = value.list_vars()
                written = {self._names.as_written(v.name) for v in used}
                sources.setdefault(self._names.as_written(name), set()).update(written)
                if _operation(value) in _GROWING:
                    factors.setdefault(name, set()).update(written)
        growing = set()
        for name, written in factors.items():
            reached, waiting = set[str](), list(written)
            while waiting:
                source = waiting.pop()
                if source not in reached:
                    reached.add(source)
                    waiting += sources.get(source, ())
            if self._names.as_written(name) in reached:
                growing.add(name)
        return growing

    def _holds(self, value: Any, known: set[str]) -> bool:
        """Whether a value is not negative, if the known variables are not."""
        ir = self._ir
        if isinstance(value, ir.Var):
            return value.name in known
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            is_place = any(value.value is p for p in (self._cuda.laneid, self._cuda.warpsize))
            return is_place or (type(value.value) is int and value.value >= 0)
        op = getattr(value, "op", "")
        if op in ("phi", "cast"):
            return all(v.name in known for v in value.list_vars())
        if op in ("binop", "inplace_binop"):
            return self._holds_of(value, known)
        if op in ("getitem", "static_getitem"):
            return self._holds_item(value, known)
        if op == "getattr":
            return self._is_place(value)
        if op == "pair_first":  # what an iteration yields
            numbers = value
            for step in ("iternext", "getiter"):
                numbers = self._names.one(numbers.value)
                if getattr(numbers, "op", "") != step:
                    return False
            return self._holds_range(self._names.one(numbers.value), known)
        return op == "call" and self._holds_call(value, known)

    def _holds_of(self, value: Any, known: set[str]) -> bool:
        operation = _operation(value)
        left, right = value.lhs.name in known, value.rhs.name in known
        if operation is operator.and_:
            return left or right
        if operation is operator.mod:
            return right  # the sign of the divisor
        if operation is operator.mul and any(map(self._is_large, (value.lhs, value.rhs))):
            return False
        return left and right and operation in _KEEPING

    def _is_large(self, variable: Any) -> bool:
        value = self._names.one(variable)
        number = value.value if isinstance(value, self._ir.Const) else None
        return isinstance(number, int) and number > MOST_FACTOR

    def _holds_item(self, value: Any, known: set[str]) -> bool:
        """Of a shape, of `cuda.grid(2)`, or of a tuple of which the item is known."""
        index = self._names.index(value)
        items = self._names.items(value.value)
        if items is not None and type(index) is int and -len(items) <= index < len(items):
            return items[index].name in known
        whole = self._names.one(value.value)
        if getattr(whole, "op", "") == "exhaust_iter":
            whole = self._names.one(whole.value)
        if isinstance(whole, self._ir.Const | self._ir.Global | self._ir.FreeVar):
            numbers = whole.value if type(whole.value) is tuple else (None,)
            return all(type(n) is int and n >= 0 for n in numbers)
        is_shape = getattr(whole, "op", "") == "getattr" and whole.attr == "shape"
        is_tuple = is_shape or self._calls(whole, self._cuda.grid, self._cuda.gridsize)
        is_slice = isinstance(index, slice) or (
            index is NO_CONSTANT and self._names.slices(value.index)
        )
        return is_tuple and not is_slice

    def _is_place(self, value: Any) -> bool:
        if value.attr in ("size", "ndim"):
            return self.is_array(value.value)
        owners = self._names.callees(value.value)
        if value.attr in LETTERS:
            places = [getattr(self._cuda, name) for name in _PLACES]
            return all(any(owner is p for p in places) for owner in owners)
        named = [UNKNOWN if o is UNKNOWN else getattr(o, value.attr, UNKNOWN) for o in owners]
        return all(any(n is p for p in (self._cuda.laneid, self._cuda.warpsize)) for n in named)

    def _holds_call(self, call: Any, known: set[str]) -> bool:
        if call.kws or call.vararg is not None or not call.args:
            return False
        if self._calls(call, self._cuda.grid, self._cuda.gridsize):
            rank: object = self._names.constant(call.args[0])
            return rank == 1
        if self._calls(call, max):
            return any(v.name in known for v in call.args)
        if self._calls(call, min, int):
            return all(v.name in known for v in call.args)
        return self._calls(call, len)

    def _holds_range(self, call: Any, known: set[str]) -> bool:
        """Whether a value is a range of numbers that are not negative."""
        if not self._calls(call, range) or call.kws or call.vararg is not None:
            return False
        args = call.args
        if len(args) == 1:
            return True
        if args[0].name not in known:
            return False
        stop = self._names.constant(args[1])
        is_upward = len(args) == 2 or args[2].name in known
        return is_upward or (type(stop) is int and stop >= -1)


def _operation(value: Any) -> Any:
    """The operator of an expression: `operator.add` for `a + b` and for `a += b`; else None."""
    op = getattr(value, "op", "")
    if op == "inplace_binop":
        return value.immutable_fn
    return value.fn if op == "binop" else None
