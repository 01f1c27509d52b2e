"""Structures: recorded operations without arrays and numbers, shared by all batches.

A structure is a sequence of nodes, and the structures form a trie. Batches that have recorded the
same nodes are at one structure, which caches every result that depends on nodes alone, such as the
plan, without a comparison of nodes. A structure also caches the nodes that a call has recorded
there: the next batch that makes the same call there records the same nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numbasync.arguments import shown
from numbasync.batch.record.element_ops import DType
from numbasync.batch.record.nodes import Node
from numbasync.errors import DTypeError
from numbasync.memo import Memo

MOST = 8192  # cached structures and calls; the cache restarts above this


class Call(NamedTuple):
    """The nodes that a call records at one structure.

    Attributes:
        number: the node of the call's result.
        added: the nodes that the call adds, in order.
        constants: the constants among `added`, in the order of the call's numbers.
        then: the structure after the call.
    """

    number: int
    added: tuple[Node, ...]
    constants: tuple[int, ...]
    then: Structure


class Structure:
    """A sequence of nodes.

    Attributes:
        calls: the records of calls made here, by everything that they depend on.
        loops: the types that calls convert their numbers to.
        plans: of batches that end here, by the values to write, and the options.
    """

    __slots__ = ("_next", "calls", "loops", "plans")

    def __init__(self) -> None:
        self.calls: dict[Any, Call] = {}
        self.loops: dict[Any, tuple[DType, ...]] = {}
        self.plans: dict[Any, Any] = {}
        self._next: dict[Node, Structure] = {}

    def then(self, node: Node) -> Structure:
        """The structure with one node more."""
        successor = self._next.get(node)
        if successor is None:
            _count()
            successor = self._next.setdefault(node, Structure())
        return successor

    def remember_plan(self, key: Any, plan: Any) -> None:
        """Cache the plan of a batch that ends here."""
        _count()
        self.plans[key] = plan

    def remember(self, key: Any, call: Call) -> None:
        """Cache the nodes that a call has recorded here."""
        _count()
        self.calls[key] = call


_empty = Structure()
_known = 0


def _count() -> None:
    """Count one more cache entry, and restart the cache above `MOST`. Batches that are being
    recorded keep their structures.
    """
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
        element: the number as an element of that type.
        key: equal for equal types and bits.
        mark: the facts about the number, besides its identity, that a call may depend on: its type
            in Python, and whether it is 0, -0.0 or 1.
    """

    element: Any
    key: tuple[DType, bytes]
    mark: str


MOST_CONSTANTS = 256

_constants = Memo[tuple[DType, type, Any], Constant](MOST_CONSTANTS)


def constant(value: float, dtype: DType) -> Constant:
    """A Python number (`int` or `float`) in a type.

    Raises:
        DTypeError: the number does not fit.
    """
    # A zero is keyed by its text: 0.0 and -0.0 are equal.
    key = dtype, type(value), value or str(value)
    cached = _constants.get(key)
    if cached is None:
        element = converted(value, dtype)
        plain = element.item()
        mark = f"{type(value).__name__} {plain if plain in (0, 1) else 'other'}"
        cached = Constant(element, (dtype, element.tobytes()), mark)
        _constants[key] = cached
    return cached


def converted(value: Any, dtype: DType) -> Any:
    """A number as an element of a type.

    Raises:
        DTypeError: the number does not fit.
    """
    try:
        if dtype.kind == "i" and isinstance(value, float | np.floating):
            raise OverflowError(f"{shown(value)} is no integer")  # noqa: TRY301
        with np.errstate(all="ignore"):
            return dtype.type(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise DTypeError(
            f"{shown(value)} is no {dtype}: {error}.\n"
            "NumPy's rule: a Python number takes the other operand's type. Write "
            f"np.float64({shown(value, 20)}), or cast the operand."
        ) from None
