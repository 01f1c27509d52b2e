"""The nodes of a batch, as plain data, in the order in which they were recorded.

A node's operands have smaller numbers than the node. Every stage after recording (fusion,
placement, code generation) works on the nodes alone and needs no device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbasync.layout import Shape

INPUT, CONSTANT = "input", "constant"
PLACES = frozenset({"argmax", "argmin"})  # the reductions that give an index
REDUCTIONS = PLACES | {"sum", "mean", "max", "min"}


class Whole(NamedTuple):
    """What gives the operation of a node that no kernel of the batch computes: of the operands'
    tensors, `build` with these keywords.
    """

    build: Callable[..., Any]
    keywords: tuple[tuple[str, Hashable], ...]


class Node(NamedTuple):
    """One value of a batch.

    Attributes:
        op: `"input"`, `"constant"`, one of `REDUCTIONS`, or the name of an elementwise operation or
            of a whole one.
        inputs: the numbers of its operands.
        shape: of the value.
        dtype: of the value.
        loops: the types that an elementwise operation converts its operands to.
        axis: of a reduction: the axis, counted from 0, or None for all.
        extra: a further key of the operation, such as a user's function; a `Whole`.
    """

    op: str
    inputs: tuple[int, ...]
    shape: Shape
    dtype: np.dtype[np.generic]
    loops: tuple[np.dtype[np.generic], ...] = ()
    axis: int | None = None
    extra: Hashable = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_reduction(self) -> bool:
        return self.op in REDUCTIONS

    @property
    def is_whole(self) -> bool:
        """Whether the node is an operation on whole tensors, with kernels of its own."""
        return type(self.extra) is Whole

    @property
    def is_source(self) -> bool:
        """Whether the node is an input or a constant, with nothing to compute."""
        return self.op in (INPUT, CONSTANT)


Nodes = Sequence[Node]


def live(nodes: Nodes, wanted: Iterable[int]) -> set[int]:
    """The nodes that the values `wanted` depend on, `wanted` included."""
    needed: set[int] = set()
    waiting = list(wanted)
    while waiting:
        n = waiting.pop()
        if n not in needed:
            needed.add(n)
            waiting += nodes[n].inputs
    return needed


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape of several shapes, by NumPy's rules; None if they do not broadcast."""
    first = shapes[0]
    for shape in shapes:
        if shape != first:
            break
    else:
        return first
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None
