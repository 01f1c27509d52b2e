"""Random programs of batches: what they compute, by which broadcasts, and along which axes.

Every way in which an operand of 0 to 4 axes can be broadcast meets every axis that is reduced, the
operands of one element included: a list of cases, which programs have by their seeds. What comes
behind a case is random. `trees` computes the same by NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import numbasync as na
from numbasync.batch.fusion.groups import Group
from numbasync.batch.record.nodes import Nodes, broadcast
from tests.stress.trees import Array, Value, binary, cast, chosen, clamped, exact, reduced, unary

DTYPES = [np.float16, np.float32, np.float64, np.int32, np.int64, np.bool_]
UNARY = ["neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "relu",
         "sigmoid", "swish", "gelu", "gelu_tanh", "square"]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "less", "less_equal", "greater",
          "greater_equal", "equal", "not_equal"]  # fmt: skip
JOINS = ["add", "mul", "maximum", "minimum"]
REDUCTIONS = ["sum", "mean", "max", "min", "argmax", "argmin"]
Shape = tuple[int, ...]
Kept = tuple[bool, ...]
Use = Callable[[Array], na.Tensor]
Record = Callable[..., list[Value]]


class Case(NamedTuple):
    """How an operand meets a shape, and what is reduced behind that.

    Attributes:
        rank: of the shape.
        kept: for each axis of the operand, counted from the last, whether it has the shape's
            extent; else it has 1.
        axis: that is reduced; `"all"`, or `"nothing"`.
    """

    rank: int
    kept: Kept
    axis: int | str


def broadcasts(rank: int) -> list[Kept]:
    """Every way in which an operand can be broadcast to a shape of this rank: see `Case.kept`."""
    return [k for r in range(rank + 1) for k in itertools.product((False, True), repeat=r)]


def axes(rank: int) -> list[int | str]:
    """What a kernel reduces a value of this rank along. Of one axis, it is all there is."""
    return ["nothing", "all", *(range(rank) if rank > 1 else ())]


CASES = [Case(rank, kept, axis) for rank in range(5) for axis in axes(rank)
         for kept in broadcasts(rank)]  # fmt: skip
STRIDE = 125  # of neighbouring seeds, through the cases: a few seeds have very different ones


def part(whole: Shape, kept: Sequence[bool]) -> Shape:
    """The shape of an operand that is broadcast to `whole`."""
    own = whole[len(whole) - len(kept) :]
    return tuple(n if keeps else 1 for n, keeps in zip(own, kept, strict=True))


def reached(nodes: Nodes, group: Group) -> Iterator[tuple[Case, Kept]]:
    """The cases that a kernel has, and which axes of the shape have more than one element."""
    for root in group.roots:
        node = nodes[root]
        whole = nodes[node.inputs[0]].shape if node.is_reduction else node.shape
        axis: int | str = "nothing"
        if node.is_reduction:
            axis = "all" if node.axis is None else node.axis
        for n in group.reads:
            own = nodes[n].shape
            if broadcast([own, whole]) == whole:
                case = Case(len(whole), tuple(k != 1 for k in own), axis)
                yield case, tuple(k != 1 for k in whole)


def leaf(b: na.CommandBatch, g: np.random.Generator, one: Any, shape: Shape, use: Any) -> Value:
    """An input with some NaN, infinities, zeros, and integers at the ends of their type; some of
    them are lent tensors, if there is `use`, and some have strides.
    """
    dtype = np.dtype(one(DTYPES))
    if dtype == np.bool_:
        array = g.random(shape) < 0.5
    elif dtype.kind == "i":
        array = g.integers(-9, 10, shape)
        array = np.where(g.random(shape) < 0.1, np.iinfo(dtype).max, array)
        array = np.where(g.random(shape) < 0.05, np.iinfo(dtype).min, array)
    else:
        array = g.normal(0, 2, shape)
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4])
        array = np.where(g.random(shape) < 0.1, g.choice(odd, shape), array)
    array = np.asarray(array).astype(dtype)
    how = g.random()
    if how < 0.2 and use is not None:
        return exact(b.use(use(array)), array)
    return exact(b.upload(np.asarray(array, order="F" if how > 0.8 else "C")), array)


def program(seed: int, most: int = 40, long: Sequence[int] = (33, 64, 70)) -> Record:
    """A function that records a program in a batch, the same one for each seed, and gives what is
    wanted of it: `record(batch)`, or `record(batch, use)` with what makes tensors of arrays.

    A round is `len(CASES)` seeds, from 0: it has every case; and every second one, axes of one
    element in every place.

    Args:
        most: operations behind the case.
        long: extents that a few of the shapes have, of up to two axes.
    """

    def record(b: na.CommandBatch, use: Use | None = None) -> list[Value]:
        return _record(b, seed, most, long, use)

    record.__qualname__ = f"program(seed={seed}, most={most})"
    return record


def expressions(most: int = 40) -> st.SearchStrategy[Record]:
    """Programs."""
    return st.builds(program, st.integers(0, 2**32 - 1), st.just(most))


def _whole(g: np.random.Generator, rank: int, ones: int, long: Sequence[int]) -> Shape:
    """What a program's inputs are broadcast to: sometimes a cube, in which results without an axis
    are broadcast to what they were reduced from; sometimes with a long axis.

    Args:
        ones: the axes that have one element, as bits.
        long: extents of a long axis.
    """
    extents = np.full(rank, g.integers(2, 5)) if g.random() < 0.5 else g.integers(2, 6, rank)
    if 0 < rank < 3 and g.random() < 0.5:
        extents[g.integers(rank)] = g.choice(long)
    return tuple(1 if ones >> k & 1 else int(n) for k, n in enumerate(extents))


def _record(
    b: na.CommandBatch, seed: int, most: int, long: Sequence[int], use: Use | None
) -> list[Value]:
    g = np.random.default_rng(seed)
    turn, at = seed // len(CASES), seed * STRIDE % len(CASES)
    rank, kept, axis = CASES[at]

    def one(choices: Any) -> Any:
        return choices[int(g.integers(len(choices)))]

    whole = _whole(g, rank, at + turn if turn % 2 else 0, long)
    # Either one of them has the shape, or only what they become together.
    rest = [not k for k in (*[False] * (rank - len(kept)), *kept)]
    meeting = [kept, [True] * rank if g.random() < 0.5 else rest]
    meeting += [one(broadcasts(rank)) for _ in range(int(g.integers(4)))]
    values = [leaf(b, g, one, part(whole, k), use) for k in meeting]
    first, *others = (values[int(k)] for k in g.permutation(len(values)))
    for v in others:
        first = binary(b, one(JOINS), first, v)
    ends = [first]
    if axis != "nothing":
        along = None if axis == "all" else int(axis) - rank * int(g.integers(2))
        ends = [reduced(b, one(REDUCTIONS), first, along, bool(g.integers(2)))]
    values += [first, *ends]
    left, used = int(g.integers(most + 1)), set[int]()
    while left:
        try:
            made, operands = _step(b, g, one, values)
        except (na.errors.ShapeError, na.errors.DTypeError):
            if g.random() < 0.2:
                values.append(leaf(b, g, one, part(whole, one(broadcasts(rank))), use))
            continue
        used |= {id(v) for v in operands}
        values.append(made)
        ends.append(made)
        left -= 1
    return [ends[0], *(v for v in ends[1:] if id(v) not in used and v.id.number >= 0)]


def _step(b: na.CommandBatch, g: Any, one: Any, values: list[Value]) -> tuple[Value, list[Value]]:
    """One more operation, and its operands. Raises what the batch does if they cannot have it."""
    x, y, c = one(values), one(values), one(values)
    draw = g.random()
    if draw < 0.1:
        return unary(b, one(UNARY), x), [x]
    if draw < 0.5:
        return binary(b, one(BINARY), x, y), [x, y]
    if draw < 0.6:
        return chosen(b, c, x, y), [c, x, y]
    if draw < 0.65:
        return clamped(b, x, -2, 3), [x]
    if draw < 0.7:
        return cast(b, x, one(DTYPES)), [x]
    if g.random() < 0.6:
        x = max(values, key=lambda v: v.array.size)
    rank = x.array.ndim
    axis = one([None, *range(-rank, rank)])
    return reduced(b, one(REDUCTIONS), x, axis, bool(g.integers(2))), [x]
