"""Recording: calls become nodes, whose shapes and types are known immediately.

Types and broadcasting follow NumPy. Equal operations on equal operands share a node, and results
that constants alone determine are computed here. Every error of a call is raised here.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from numbasync.arguments import shown, with_type
from numbasync.batch.record import element_ops
from numbasync.batch.record.buffer_id import BufferId, Operand, how_to_pass
from numbasync.batch.record.call_cache import Call, Constant, constant, converted, empty
from numbasync.batch.record.element_ops import DType, Kind
from numbasync.batch.record.nodes import CONSTANT, INPUT, Node, Whole, broadcast
from numbasync.dtypes import EXTENSIONS
from numbasync.errors import (
    BatchStateError,
    DTypeError,
    ForeignBufferError,
    OperationError,
    ShapeError,
)
from numbasync.layout import Shape

# The numbers of a call that are new in its batch, by their types and bits: index and constant.
New = dict[Any, tuple[int, Constant]]
_NONE: New = {}


class Recorder:
    """The nodes of one batch, and the values of its inputs and constants.

    Attributes:
        nodes: in the order in which they were recorded.
        values: of inputs (host arrays and tensors) and constants (NumPy scalars), by node.
        operations: the number of calls that have recorded an operation.
        is_closed: the batch has run, or is running.
        structure: of the nodes recorded so far.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: dict[int, Any] = {}
        self.operations = 0
        self.is_closed = False
        self.structure = empty()
        self._computed: dict[Node, int] = {}  # covers the first `_listed` nodes
        self._listed = 0
        self._constants: dict[tuple[DType, bytes], int] = {}
        self._held: list[tuple[int, weakref.ref[BufferId]]] = []

    @property
    def label(self) -> str:  # for messages
        return f"batch {id(self):#x}"

    # --- ids ---

    def _id(self, number: int) -> BufferId:
        buffer = BufferId(self, number)
        self._held.append((number, weakref.ref(buffer)))
        return buffer

    def give(self, number: int) -> BufferId:
        """The id of one more recorded operation. An operation that leaves its operand unchanged
        (`x * 1`) becomes a copy: a result has memory of its own, whatever its operands are.
        """
        self.operations += 1
        node = self.nodes[number]
        if node.op == INPUT:
            number = self.add(Node("copy", (number,), node.shape, node.dtype, (node.dtype,)))
        return self._id(number)

    def again(self, number: int) -> BufferId:
        """Another id of a node; `held` and `ids` do not count it."""
        return BufferId(self, number)

    def held(self) -> tuple[int, ...]:
        """The nodes whose ids the program still holds, in the order of the ids."""
        return tuple([number for number, ref in self._held if ref() is not None])

    @property
    def ids(self) -> int:
        """The number of ids created."""
        return len(self._held)

    def check(self, value: Any, what: str) -> BufferId:
        """`value`, if it is an id of this batch.

        Raises:
            ForeignBufferError: the id belongs to another batch.
            OperationError: the value is not an id.
        """
        if not isinstance(value, BufferId):
            raise OperationError(
                f"{what} takes ids of this batch, not {with_type(value)}; {how_to_pass(value)}."
            )
        if value.recorder is not self:
            raise ForeignBufferError(
                f"{what}: {value!r} is of {value.recorder.label}, not of {self.label}.\n"
                "Read it there and upload it here, or hand its tensor over: b.use(other.tensor(id))"
            )
        return value

    # --- nodes ---

    def add(self, node: Node) -> int:
        """The node's number; that of an equal node, if one was recorded before."""
        nodes, computed = self.nodes, self._computed
        for n in range(self._listed, len(nodes)):
            if not nodes[n].is_source:
                computed[nodes[n]] = n
        self._listed = len(nodes)
        number = computed.get(node)
        return self._append(node) if number is None else number

    def _append(self, node: Node) -> int:
        self.nodes.append(node)
        self.structure = self.structure.then(node)
        return len(self.nodes) - 1

    def check_open(self, what: str) -> None:
        """Raises BatchStateError if the batch has run."""
        if self.is_closed:
            raise BatchStateError(
                f"{what} on {self.label}, which has been executed: a batch runs once.\n"
                "Make another na.CommandBatch(); b.graph() makes one that runs many times."
            )

    def source(self, shape: Shape, dtype: DType, value: Any) -> BufferId:
        """An input: a host array, or a tensor."""
        structure, number = self.structure, len(self.nodes)
        key = INPUT, shape, dtype
        call = structure.calls.get(key)
        if call is None:
            self._append(Node(INPUT, (), shape, dtype))
            structure.remember(key, Call(number, (self.nodes[-1],), (), self.structure))
        else:
            self.nodes += call.added
            self.structure = call.then
        self.values[number] = value
        return self._id(number)

    def constant(self, value: Any, dtype: DType) -> int:
        """The node of a number in a type.

        Raises:
            DTypeError: the number does not fit.
        """
        element = converted(value, dtype)
        key = dtype, element.tobytes()
        number = self._constants.get(key)
        if number is None:
            number = self._constants[key] = self._append(Node(CONSTANT, (), (), dtype))
            self.values[number] = element
        return number

    # --- operations ---

    def elementwise(self, name: str, *operands: Operand) -> BufferId:
        """Record an operation of `element_ops.OPS`.

        Raises:
            ShapeError: the operands' shapes do not broadcast.
            DTypeError: NumPy has no such operation for these types.
        """
        if self.is_closed:
            self.check_open(name)
        key: list[Any] = [name]
        numbers: list[float] = []
        for x in operands:
            cls = type(x)
            if cls is BufferId and x.recorder is self:
                key.append(x.number)
            elif cls is float or cls is int:
                key.append(cls)
                numbers.append(x)
            else:  # any other operand takes the full checks
                return self.give(self.compute(name, *operands))
        call_key: Any = tuple(key)
        structure = self.structure
        if not numbers:
            call, new = structure.calls.get(call_key), _NONE
        else:
            loops = structure.loops.get(call_key)
            if loops is None:
                loops = structure.loops[call_key] = self._loops(name, operands)
            new = {}
            call_key = self._told_apart(call_key, numbers, loops, new)
            call = structure.calls.get(call_key)
        if call is None:
            return self._first(call_key, new, name, operands)
        for position, number in new.values():
            n = call.constants[position]
            self._constants[number.key] = n
            self.values[n] = number.element
        self.nodes += call.added
        self.structure = call.then
        self.operations += 1
        return self._id(call.number)

    def _loops(self, name: str, operands: tuple[Operand, ...]) -> tuple[DType, ...]:
        """The types that an operation converts the numbers among its operands to."""
        kinds = tuple([self._kind(x, name) for x in operands])
        loops, _ = element_ops.resolve(name, kinds)
        pairs = zip(operands, loops, strict=True)
        return tuple([loop for x, loop in pairs if not isinstance(x, BufferId)])

    def _told_apart(self, key: Any, given: list[float], loops: tuple[DType, ...], new: New) -> Any:
        """The full cache key of a call: the key without numbers, and the identities and marks of
        the numbers. Numbers that are new in the batch are added to `new`.
        """
        parts = [key]
        for i, x in enumerate(given):
            number = constant(x, loops[i])
            identity = self._constants.get(number.key)
            if identity is None:
                identity = -1 - new.setdefault(number.key, (len(new), number))[0]
            parts += identity, number.mark
        if key[0] == "pow":  # pow depends on the number itself, which seldom varies
            parts += given
        return tuple(parts)

    def _first(self, key: Any, new: New, name: str, operands: tuple[Operand, ...]) -> BufferId:
        """Record a call with all checks. Cache its nodes, unless they depend on the values of
        constants, which structures do not contain.
        """
        structure, before = self.structure, len(self.nodes)
        ids = [x.number for x in operands if isinstance(x, BufferId)]
        result = self.give(self.compute(name, *operands))
        added = tuple(self.nodes[before:])
        constants = tuple([before + i for i, n in enumerate(added) if n.op == CONSTANT])
        varies = not ids or any(self.nodes[n].op == CONSTANT for n in ids)
        if not varies and len(constants) == len(new):
            structure.remember(key, Call(result.number, added, constants, self.structure))
        return result

    def compute(self, name: str, *operands: Operand) -> int:
        """The node of an operation, given ids, node numbers (`Of`) and Python numbers."""
        kinds = tuple([self._kind(x, name) for x in operands])
        loops, out = element_ops.resolve(name, kinds)
        if name == "pow":
            name, operands, loops = self._power(operands, loops)
        inputs = tuple([self._place(x, dtype) for x, dtype in zip(operands, loops, strict=True)])
        return self._record(name, inputs, loops, out)

    def cast(self, number: int, dtype: DType) -> int:
        """The node of a value in another type."""
        if self.nodes[number].dtype == dtype:
            return number
        return self._record("cast", (number,), (self.nodes[number].dtype,), dtype)

    def apply(self, function: Any, operands: tuple[Operand, ...]) -> BufferId:
        """Record a user's function, an `Elementwise`."""
        name = function.name
        self.check_open(name)
        kinds = tuple([self._kind(x, name) for x in operands])
        common = element_ops.common(kinds)
        # A Python float takes the common type; an int stays an int, as it may be a count.
        weak = {float: common, int: element_ops.I64}
        loops = tuple([weak[k] if isinstance(k, type) else k for k in kinds])
        inputs = tuple([self._place(x, dtype) for x, dtype in zip(operands, loops, strict=True)])
        dtype = common if function.dtype is None else function.dtype
        node = Node(f"call {name}", inputs, self._shape(name, inputs), dtype, loops, None, function)
        return self.give(self.add(node))

    def reduce(self, name: str, number: int, axis: int | None, keepdims: bool) -> int:
        """The node of a reduction along `axis`, or over all elements.

        Raises:
            ShapeError: the axis does not exist, or a maximum of no elements is requested.
        """
        node = self.nodes[number]
        shape, rank = node.shape, len(node.shape)
        if axis is not None:
            axis = self.axis_of(name, axis, shape)
        count = node.size if axis is None else shape[axis]
        if count == 0 and name not in ("sum", "mean"):
            raise ShapeError(f"{name} of no elements, of shape {shape}: there is none.")
        if axis is None:
            out: Shape = (1,) * rank if keepdims else ()
        else:
            kept = (1,) if keepdims else ()
            out = shape[:axis] + kept + shape[axis + 1 :]
        # Reducing the only axis reduces all elements.
        dtype = element_ops.reduced(name, node.dtype)
        return self.add(
            Node(name, (number,), out, dtype, (node.dtype,), None if rank <= 1 else axis)
        )

    @staticmethod
    def axis_of(name: str, axis: Any, shape: Shape) -> int:
        """The axis, counted from 0.

        Raises:
            ShapeError: it does not exist, or is not one.
        """
        rank = len(shape)
        if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
            raise ShapeError(
                f"{name}: axis={shown(axis, 40)} of shape {shape}; write one whole number, or "
                "None for all elements."
            )
        if not -rank <= axis < rank:
            raise ShapeError(f"{name}: shape {shape} has no axis {axis}.")
        return int(axis) % rank

    def whole(
        self, name: str, inputs: tuple[int, ...], shape: Shape, dtype: DType, build: Any,
        **keywords: Any,
    ) -> BufferId:  # fmt: skip
        """Record an operation that `build` gives of the inputs' tensors and of these keywords, with
        a result of this shape and dtype.
        """
        operation = Whole(build, tuple(keywords.items()))
        return self.give(self.add(Node(name, inputs, shape, dtype, (), None, operation)))

    # --- how ---

    def _record(
        self, name: str, inputs: tuple[int, ...], loops: tuple[DType, ...], dtype: DType
    ) -> int:
        simpler = self._simpler(name, inputs, loops, dtype)
        if simpler is not None:
            return simpler
        return self.add(Node(name, inputs, self._shape(name, inputs), dtype, loops))

    def _shape(self, name: str, inputs: tuple[int, ...]) -> Shape:
        shapes = [self.nodes[n].shape for n in inputs]
        shape = broadcast(shapes)
        if shape is None:
            raise ShapeError(
                f"{name} of shapes {', '.join(map(str, shapes))}: they do not broadcast.\n"
                "NumPy's rule: aligned at the last axis, extents are equal, or one of them is 1."
            )
        return shape

    def _kind(self, x: Operand, name: str) -> Kind:
        if isinstance(x, BufferId):
            return self.check(x, name).dtype
        if isinstance(x, Of):
            return self.nodes[x.number].dtype
        if type(x) is bool:
            return element_ops.BOOL
        if type(x) in (int, float):
            return type(x)
        if isinstance(x, np.bool_ | np.number) or type(x).__name__ in EXTENSIONS:
            return element_ops.check_dtype(x.dtype, name)
        if isinstance(x, int | float):
            return int if isinstance(x, int) else float
        self.check(x, name)
        raise AssertionError  # `check` has raised

    def _place(self, x: Operand, kind: DType) -> int:
        if isinstance(x, BufferId | Of):
            return x.number
        return self.constant(x, kind)

    def _power(
        self, operands: tuple[Operand, ...], loops: tuple[DType, ...]
    ) -> tuple[str, tuple[Operand, ...], tuple[DType, ...]]:
        """Refuse negative powers of integers, and turn squares into one multiplication."""
        exponent = operands[1]
        if isinstance(exponent, BufferId | Of):
            return "pow", operands, loops
        if element_ops.is_integer(loops[1]) and exponent < 0:
            raise DTypeError(
                f"pow: an integer to the power of {exponent} has a fraction; cast it to a float."
            )
        if exponent == 2 and (element_ops.is_integer(loops[0]) or element_ops.is_float(loops[0])):
            return "square", operands[:1], loops[:1]
        return "pow", operands, loops

    def _simpler(
        self, name: str, inputs: tuple[int, ...], loops: tuple[DType, ...], dtype: DType
    ) -> int | None:
        """An existing or cheaper node with the same value, where constants determine one; else
        None.
        """
        nodes, values = self.nodes, self.values
        constants = [values[n] if nodes[n].op == CONSTANT else None for n in inputs]
        if all(c is None for c in constants):
            return None
        if all(c is not None for c in constants):
            with np.errstate(all="ignore"):
                if name == "cast":
                    return self.constant(values[inputs[0]].astype(dtype), dtype)
                cast = [values[n].astype(t) for n, t in zip(inputs, loops, strict=True)]
                return self.constant(dtype.type(element_ops.OPS[name].numpy(*cast)), dtype)
        unchanged = None
        if name == "mul" and dtype != element_ops.BOOL and 1 in (constants[0], constants[1]):
            unchanged = inputs[0] if constants[1] is not None else inputs[1]
        elif (name == "div" and constants[1] == 1) or (name == "sub" and _is_plain_zero(constants)):
            unchanged = inputs[0]
        elif name == "where" and constants[0] is not None:
            taken, dropped = (inputs[1], inputs[2]) if constants[0] else (inputs[2], inputs[1])
            if nodes[dropped].size == 1:
                unchanged = taken
        if unchanged is None or nodes[unchanged].shape != self._shape(name, inputs):
            return None
        return unchanged if nodes[unchanged].dtype == dtype else self.cast(unchanged, dtype)


def _is_plain_zero(constants: list[Any]) -> bool:
    """Whether subtracting the constant changes nothing: 0.0, and not -0.0."""
    zero = constants[1]
    return zero is not None and zero == 0 and not np.signbit(np.float64(zero))


class Of:
    """A node without an id: a step of a composite operation."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number
