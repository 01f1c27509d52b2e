"""Structures: what has been recorded, without arrays and numbers, shared by all batches.

A structure is a sequence of nodes. Batches that have recorded the same nodes are at one structure,
so what depends on nodes alone, such as the plan, is found there without a look at any of them. So
is what a call has recorded: the next batch that makes it there records the same again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numbasync.batch.record.element_ops import DType
from numbasync.batch.record.nodes import Node
from numbasync.errors import DTypeError
from numbasync.memo import Memo

MOST = 8192  # structures and calls that are known; a program with ever new ones starts over


class Call(NamedTuple):
    """What a call records at one structure.

    Attributes:
        number: the node that it gives.
        added: what it adds, in order.
        constants: those of `added` that are constants, in the order of the call's numbers.
        then: the structure behind it.
    """

    number: int
    added: tuple[Node, ...]
    constants: tuple[int, ...]
    then: Structure


class Structure:
    """A sequence of nodes.

    Attributes:
        calls: what calls record here, by all that it depends on.
        loops: the types that calls with numbers convert these to.
        plans: of batches that end here, by what they are to write, and how.
    """

    __slots__ = ("_next", "calls", "loops", "plans")

    def __init__(self) -> None:
        self.calls: dict[Any, Call] = {}
        self.loops: dict[Any, tuple[DType, ...]] = {}
        self.plans: dict[Any, Any] = {}
        self._next: dict[Node, Structure] = {}

    def then(self, node: Node) -> Structure:
        """The structure with one node more."""
        found = self._next.get(node)
        if found is None:
            _count()
            found = self._next.setdefault(node, Structure())
        return found

    def remember_plan(self, key: Any, plan: Any) -> None:
        """What a batch that ends here has planned."""
        _count()
        self.plans[key] = plan

    def remember(self, key: Any, call: Call) -> None:
        """What a call has recorded here."""
        _count()
        self.calls[key] = call


_empty = Structure()
_known = 0


def _count() -> None:
    """One more is known. Batches that are being recorded go on where they are."""
    global _empty, _known
    _known += 1
    if _known >= MOST:
        _empty, _known = Structure(), 0


def empty() -> Structure:
    """The structure of a batch that has recorded nothing."""
    return _empty


# --- constants ---------------------------------------------------------------------------


class Constant(NamedTuple):
    """A number in the type of a node.

    Attributes:
        element: of that type.
        key: equal for equal types and bits.
        mark: what of it, besides being told apart from others, a call may depend on: its type in
            Python, and whether it is 0, -0.0 or 1.
    """

    element: Any
    key: tuple[DType, bytes]
    mark: str


MOST_CONSTANTS = 256

_constants = Memo[tuple[DType, type, Any], Constant](MOST_CONSTANTS)


def constant(value: float, dtype: DType) -> Constant:
    """A Python number (`int` or `float`) in a type.

    Raises:
        DTypeError: it does not fit.
    """
    # Of a zero, the text: 0.0 and -0.0 are equal.
    key = dtype, type(value), value or str(value)
    found = _constants.get(key)
    if found is None:
        element = converted(value, dtype)
        same = element.item()
        mark = f"{type(value).__name__} {same if same in (0, 1) else 'other'}"
        found = Constant(element, (dtype, element.tobytes()), mark)
        _constants[key] = found
    return found


def converted(value: Any, dtype: DType) -> Any:
    """A number as an element of a type.

    Raises:
        DTypeError: it does not fit.
    """
    try:
        if dtype.kind == "i" and isinstance(value, float | np.floating):
            raise OverflowError(f"{value!r} is no integer")  # noqa: TRY301
        with np.errstate(all="ignore"):
            return dtype.type(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise DTypeError(
            f"{value!r:.60} is no {dtype}: {error}.\n"
            "NumPy's rule: a Python number takes the other operand's type. Write "
            f"np.float64({value!r:.20}), or cast the operand."
        ) from None
