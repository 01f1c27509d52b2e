"""Every broadcast against every axis in every form of kernel; no kernel is compiled.

The texts are run as plain Python, which checks every index: see `tests.written_kernels`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch import Tuning
from numbasync.batch.codegen import columns, writer
from numbasync.batch.fusion import groups
from numbasync.batch.run import plan as prepared
from numbasync.batch.run.plan import Prepared
from tests.common import mostly_full
from tests.stress.random_batches import (
    CASES,
    Case,
    Kept,
    Shape,
    axes,
    broadcasts,
    part,
    program,
    reached,
)
from tests.stress.trees import Value, binary, check, exact, reduced
from tests.written_kernels import Memory, OutOfBoundsError, run

CPU = na.devices("cpu")[0]
SMALL = Tuning(threads=32)  # of which plain Python has not too many
LOOPS = replace(SMALL, unroll=False)
# Tunings, what else is changed, and what their texts show.
FORMS: dict[str, tuple[Tuning, str, str]] = {
    "as the CPU device has it": (LOOPS, "", r"for j in range\(lane, cols, \d+\)"),
    "written out": (SMALL, "", r"= load4\(x\d+, i"),
    "one at a time": (replace(SMALL, elements=1), "", r"i0 = first \+ cuda.threadIdx.x\n"),
    "rows of blocks": (replace(SMALL, warp_most=0), "", r"row = cuda.blockIdx.x\n"),
    "rows of blocks, in loops": (replace(LOOPS, warp_most=0), "", r"kept0 = cuda.shared.array"),
    "rows computed again": (
        replace(LOOPS, shared_bytes=600), "", r"for j in range\(lane, cols, \d+\)",
    ),
    "folds": (SMALL, "folds", r"row = cuda.blockIdx.x // shares\n"),
    "folds, in loops": (replace(LOOPS, elements=2), "folds", r"if is_last\[0\] == 1"),
    "columns of a thread": (replace(SMALL, at_once=1), "", r"lane = cuda.threadIdx.x % 32"),
    "columns of blocks": (replace(SMALL, elements=2), "folds", r"parts0\[\(k \* blocks \+ block\)"),
    "indices of 64 bits": (SMALL, "wide_indices", r"outer = q // inner"),
    "columns of blocks, in loops": (replace(LOOPS, elements=3), "folds", r"shares \* tile"),
}  # fmt: skip
EXTENTS = {0: [()], 1: [(136,), (69,)], 2: [(70, 3), (2, 136), (3, 133)], 3: [(3, 8, 8), (3, 7, 5)],
           4: [(3, 2, 4, 8), (2, 3, 3, 5)]}  # fmt: skip
DTYPES = [np.float32, np.float16, np.int32, np.float64, np.int64]


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block holds a row, and blocks share short columns, too."""
    monkeypatch.setattr(groups, "ROW_MOST", 0)
    monkeypatch.setattr(groups, "WHOLE_MOST", 0)
    monkeypatch.setattr(columns, "LEAST_TILES", 1)


@pytest.fixture
def wide_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (writer, columns):
        monkeypatch.setattr(module, "WIDE", 1)


def planned(b: na.CommandBatch, values: list[Value], tuning: Tuning) -> Prepared:
    """Its plan, which no other batch gets: some of these tests change what plans depend on."""
    wanted = sorted({v.id.number for v in values})
    return prepared._prepare(tuple(b.recorder.nodes), tuple(wanted), True, tuning)


def check_all(b: na.CommandBatch, values: list[Value], plan: Prepared, aligned: bool) -> None:
    found = run(plan, b.recorder.values, aligned)
    for value in values:
        check(value, found[value.id.number])


def every_broadcast(b: na.CommandBatch, whole: Shape, axis: int | str, r: Any) -> list[Value]:
    """What operands of every shape that is broadcast to `whole` become, reduced along an axis; and
    what is computed of such results, reduced again.
    """
    shapes = dict.fromkeys(part(whole, kept) for kept in broadcasts(len(whole)))
    operands = []
    for k, shape in enumerate(shapes):
        array = r.integers(-3, 4, shape).astype(DTYPES[k % len(DTYPES)])
        operands.append(exact(b.upload(array), array))
    halves = []
    for some in (operands[::2], operands[::-2]):  # the smallest first, and the largest
        total = some[0]
        for v in some[1:]:
            total = binary(b, "add", total, v)
        halves.append(binary(b, "add", total, operands[-1]))
    one, two = halves
    if axis == "nothing":
        return [one, two]
    along = None if axis == "all" else int(axis)
    back = None if axis == "all" else int(axis) - len(whole)
    results = [reduced(b, name, one, along, keeps) for name, keeps in
               (("sum", False), ("max", True), ("argmax", False))]  # fmt: skip
    results += [reduced(b, name, two, back, name == "mean") for name in ("mean", "min")]
    centred = binary(b, "sub", two, reduced(b, "max", two, along, True))
    lower = binary(b, "sub", one, reduced(b, "min", one, None, False))
    again = binary(b, "sub", reduced(b, "sum", centred, along, True), operands[0])
    return [*results, again, reduced(b, "argmax", centred, back, False),
            reduced(b, "sum", lower, along, False)]  # fmt: skip


@pytest.mark.parametrize("name",
    mostly_full(FORMS, "as the CPU device has it", "written out", "rows of blocks, in loops",
                "folds", "columns of blocks, in loops", "indices of 64 bits"),
)  # fmt: skip
def test_every_broadcast_meets_every_axis(request: pytest.FixtureRequest, name: str) -> None:
    tuning, change, shown = FORMS[name]
    if change:
        request.getfixturevalue(change)
    sources = ""
    for rank, wholes in EXTENTS.items():
        for axis in axes(rank):
            for whole in wholes:
                b = na.CommandBatch(CPU)
                values = every_broadcast(b, whole, axis, np.random.default_rng(rank))
                plan = planned(b, values, tuning)
                source = "".join(text.source for text in plan.texts)
                for aligned in (True, False) if "is_aligned(" in source else (True,):
                    check_all(b, values, plan, aligned)
                sources += source
    assert re.search(shown, sources), "no text is of this form"


@pytest.mark.parametrize("change", ["", "folds"])
def test_axes_of_one_element_and_of_none(request: pytest.FixtureRequest, change: str) -> None:
    if change:
        request.getfixturevalue(change)
    for rank in range(5):
        for few in itertools.product((0, 1, 2), repeat=rank):
            whole = part((3, 2, 4, 8)[4 - rank :], [n == 2 for n in few])
            if few.count(0) == 1:
                whole = tuple(n * bool(few[k]) for k, n in enumerate(whole))
            elif 0 in few or few.count(2) == rank:
                continue
            for axis in axes(rank):
                b = na.CommandBatch(CPU)
                if 0 in whole:
                    x, y = (exact(b.upload(a), a) for a in (np.zeros(whole), np.ones((1,) * rank)))
                    total = binary(b, "add", x, y)
                    along = axis if isinstance(axis, int) else None
                    values = [total, reduced(b, "sum", total, along, False)]
                else:
                    values = every_broadcast(b, whole, axis, np.random.default_rng(rank))
                check_all(b, values, planned(b, values, LOOPS if rank % 2 else SMALL), True)


def test_random_programs_have_every_case() -> None:
    """And with axes of one element in every place. Those of the first round run here."""
    cases, places = set[Case](), set[tuple[int | str, Kept]]()
    tunings = [tuning for tuning, change, _ in FORMS.values() if not change]
    for seed in range(2 * len(CASES)):
        b = na.CommandBatch(CPU)
        values = program(seed, most=4)(b)
        plan = planned(b, values, tunings[seed % len(tunings)])
        for group in plan.fusion.groups:
            for case, more in reached(plan.nodes, group):
                places.add((case.axis, more))
                if all(more):
                    cases.add(case)
        if seed < len(CASES):
            check_all(b, values, plan, aligned=seed % 3 != 0)
    assert cases >= set(CASES)
    kept = [case.kept for case in CASES if len(case.kept) == case.rank]
    assert places >= {(axis, more) for more in kept for axis in axes(len(more))}


def test_an_index_past_the_end_is_found_anywhere() -> None:
    memory = Memory.new(8, np.float32, "x")
    for i in (-1, 8, np.uint32(9), 1.0):
        with pytest.raises(OutOfBoundsError, match="x"):
            memory[i]
    for i in (2, 8, -4):
        with pytest.raises(OutOfBoundsError, match="x"):
            memory.four(i)
    b = na.CommandBatch(CPU)
    values = every_broadcast(b, (7, 19), 0, np.random.default_rng(0))
    plan = planned(b, values, LOOPS)
    texts = [replace(t, source=t.source.replace("begin = q", "begin = q + 1")) for t in plan.texts]
    with pytest.raises(OutOfBoundsError, match="of 133 elements"):
        run(replace(plan, texts=tuple(texts)), b.recorder.values)
