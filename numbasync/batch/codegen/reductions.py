"""The common part of kernels with reductions: how threads combine their parts, and its source.

A reduction is held in one or two variables: the value, and for `argmax` and `argmin` also its
index. The threads of a warp exchange them by shuffles, the warps of a block through shared memory,
in an order that does not depend on the timing of threads: the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from numbasync.batch.codegen.expressions import carried, combined, identity, register, typed
from numbasync.batch.codegen.writer import FEW_THREADS, Emitter, indented
from numbasync.batch.fusion.tuning import WARP as WARP
from numbasync.batch.record import element_ops
from numbasync.batch.record.element_ops import BOOL, I64, DType
from numbasync.batch.record.nodes import PLACES, Nodes


class Reduction(NamedTuple):
    """One reduction of a kernel, and the variables that hold it.

    Attributes:
        node: the number of its node.
        op: the operation.
        ty: the type in which the reduction is computed.
        names: of the value, and of its index.
    """

    node: int
    op: str
    ty: DType
    names: tuple[str, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The types of the variables."""
        value_dtype = carried(self.ty)
        return (value_dtype, I64) if self.op in PLACES else (value_dtype,)


def reductions(nodes: Nodes, numbers: list[int]) -> dict[int, Reduction]:
    """The reductions of a group, by number."""
    by_node = {}
    for k, n in enumerate(numbers):
        node = nodes[n]
        accumulator = element_ops.accumulator(node.op, nodes[node.inputs[0]].dtype)
        names = (f"s{k}", f"at{k}") if node.op in PLACES else (f"s{k}",)
        by_node[n] = Reduction(n, node.op, accumulator, names)
    return by_node


def begin(r: Reduction) -> list[str]:
    """Statements that initialise a reduction."""
    if r.op in PLACES:
        return [f"{r.names[0]} = {identity(r.op[3:], r.ty)}", f"{r.names[1]} = np.int64({2**62})"]
    return [f"{r.names[0]} = {identity(r.op, r.ty)}"]


def take(emitter: Emitter, r: Reduction, value: str, place: str) -> list[str]:
    """Add one element. `value` is of the operand's type."""
    old = emitter.nodes[emitter.nodes[r.node].inputs[0]].dtype
    new = emitter.formulas.cast(value, old, r.ty)
    if r.ty == BOOL:
        new = typed(element_ops.I32, new)
    if r.op in PLACES:
        return [
            f"if {_is_ahead(emitter, r)}({new}, {place}, {', '.join(r.names)}):",
            f"    {r.names[0]} = {new}",
            f"    {r.names[1]} = {place}",
        ]
    return [f"{r.names[0]} = {combined(emitter.formulas, r.op, r.ty, r.names[0], new)}"]


def merge(emitter: Emitter, r: Reduction, others: tuple[str, ...]) -> list[str]:
    """Add the part of another thread."""
    if r.op in PLACES:
        value, position = others
        return [
            f"if {_is_ahead(emitter, r)}({value}, {position}, {', '.join(r.names)}):",
            f"    {r.names[0]} = {value}",
            f"    {r.names[1]} = {position}",
        ]
    return [f"{r.names[0]} = {combined(emitter.formulas, r.op, r.ty, r.names[0], others[0])}"]


def _is_ahead(emitter: Emitter, r: Reduction) -> str:
    """The function that says whether one value and its index go before another."""
    return emitter.formulas.use("beats" if r.op == "argmax" else "undercuts")


def across_warp(emitter: Emitter, own: Iterable[Reduction], lanes: int = WARP) -> list[str]:
    """Combine the parts of `lanes` neighbouring threads in a warp, a power of two; every one of
    them gets the result. One loop serves all reductions: each synchronisation costs the CPU
    device's compiler much time.
    """
    if lanes == 1:
        return []
    lines = []
    for r in own:
        others = tuple(f"{name}_there" for name in r.names)
        lines += [
            f"{other} = cuda.shfl_xor_sync(0xFFFFFFFF, {name}, step)"
            for other, name in zip(others, r.names, strict=True)
        ]
        lines += merge(emitter, r, others)
    return [f"step = {lanes // 2}", "while step > 0:", *indented(lines), "    step = step // 2"]


def rooms(r: Reduction, count: int, suffix: str = "") -> tuple[list[str], tuple[str, ...]]:
    """Shared memory for `count` of the reduction's variables: statements and names."""
    names = tuple(f"room_{name}{suffix}" for name in r.names)
    return [
        f"{room} = cuda.shared.array({count}, np.{dtype.name})"
        for room, dtype in zip(names, r.dtypes, strict=True)
    ], names


def nbytes(own: Mapping[int, Reduction]) -> int:
    """Bytes of the variables of all these reductions, once."""
    return sum(dtype.itemsize for r in own.values() for dtype in r.dtypes)


def across_block(
    emitter: Emitter,
    own: Mapping[int, Reduction],
    room: Mapping[int, tuple[str, ...]],
    threads: int,
) -> list[str]:
    """Combine the parts of a block's threads; every thread gets the result. A `room` has one
    element per warp.
    """
    lines = across_warp(emitter, own.values())
    if threads == WARP:
        return lines
    pairs = [pair for n, r in own.items() for pair in zip(room[n], r.names, strict=True)]
    lines.append(f"if cuda.threadIdx.x % {WARP} == 0:")
    lines += [
        f"    {shared_element}[cuda.threadIdx.x // {WARP}] = {name}"
        for shared_element, name in pairs
    ]
    lines.append("cuda.syncthreads()")
    lines += [f"{name} = {shared_element}[0]" for shared_element, name in pairs]
    # Many rounds, unrolled by a compiler, take the CPU device's compiler up to a minute.
    warps = threads // WARP if threads <= FEW_THREADS else f"cuda.blockDim.x // {WARP}"
    lines.append(f"for w in range(1, {warps}):")
    for n, r in own.items():
        lines += indented(
            merge(emitter, r, tuple(f"{shared_element}[w]" for shared_element in room[n]))
        )
    return lines


def result(emitter: Emitter, r: Reduction, count: str) -> str:
    """The reduction's value, in the type of its result."""
    out = emitter.nodes[r.node].dtype
    if r.op in PLACES:
        return r.names[1]
    value = r.names[0]
    if r.op == "mean":
        value = f"{value} / {typed(r.ty, count)}"
    if r.ty == BOOL:
        return f"({value} != 0)"
    if r.op in ("sum", "mean"):
        return emitter.formulas.cast(f"({value})" if r.op == "mean" else value, r.ty, out)
    return value


def power_of_two(n: int) -> int:
    """The least power of two that is not less than `n`."""
    return 1 << (max(n, 1) - 1).bit_length()


def power_of_two_below(n: int) -> int:
    """The largest power of two that is not more than `n`; 1 if there is none."""
    return 1 << (max(n, 1).bit_length() - 1)


def shared_dtype(dtype: DType) -> DType:
    """The type in which shared memory keeps a value of this type."""
    return np.dtype(np.int8) if dtype == BOOL else register(dtype)
