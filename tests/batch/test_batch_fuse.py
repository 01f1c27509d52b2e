"""Fusing, on plain data: what becomes one kernel, what does not, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numbasync.batch.codegen.choose import form, write
from numbasync.batch.fusion.groups import MOST_ARRAYS, MOST_NODES, Fusion, fuse
from numbasync.batch.fusion.tuning import GPU, SERIAL
from numbasync.batch.record import element_ops
from numbasync.batch.record.nodes import live
from numbasync.batch.record.recorder import Of, Recorder


class Recording:
    """Nodes by short calls."""

    def __init__(self) -> None:
        self.recorder = Recorder()

    def input(self, *shape: int, dtype: Any = element_ops.F32) -> Of:
        return Of(self.recorder.source(shape, np.dtype(dtype), None).number)

    def __call__(self, name: str, *operands: Any) -> Of:
        return Of(self.recorder.compute(name, *operands))

    def reduce(self, name: str, x: Of, axis: int | None = None, keepdims: bool = False) -> Of:
        return Of(self.recorder.reduce(name, x.number, axis, keepdims))

    def fuse(self, *wanted: Of, fused: bool = True) -> Fusion:
        return fuse(self.recorder.nodes, [w.number for w in wanted], fused)

    def forms(self, *wanted: Of) -> list[str]:
        return [form(g) for g in self.fuse(*wanted).groups]


@pytest.fixture
def r() -> Recording:
    return Recording()


def test_a_tree_of_elementwise_operations_is_one_kernel(r: Recording) -> None:
    a, b = r.input(8, 5), r.input(5)
    y = r("add", r("mul", a, b), r("exp", b))
    found = r.fuse(y)
    assert [form(g) for g in found.groups] == ["elementwise"]
    assert found.groups[0].reads == [a.number, b.number]
    assert found.written == {y.number}


def test_several_results_come_from_one_pass(r: Recording) -> None:
    a = r.input(100)
    x = r("exp", a)
    assert r.forms(r("add", x, 1.0), r("mul", x, 2.0), r.reduce("sum", x)) == ["row"]


def test_a_reduction_absorbs_what_it_is_computed_from(r: Recording) -> None:
    a, b, c = (r.input(1 << 20) for _ in range(3))
    total = r.reduce("sum", r("add", r("mul", a, b), c))
    found = r.fuse(r("sqrt", total))
    assert [form(g) for g in found.groups] == ["fold"]
    assert found.groups[0].reads == [a.number, b.number, c.number]


def test_softmax_is_one_kernel_if_rows_fit_blocks(r: Recording) -> None:
    def softmax(x: Of) -> Of:
        e = r("exp", r("sub", x, r.reduce("max", x, -1, True)))
        return r("div", e, r.reduce("sum", e, -1, True))

    assert r.forms(softmax(r.input(64, 4096))) == ["row"]
    assert r.forms(softmax(r.input(4, 1 << 16))) == ["fold", "fold", "elementwise"]


def test_results_of_other_rows_are_waited_for(r: Recording) -> None:
    x = r.input(6, 6)
    rows = r.reduce("sum", x, 1)  # of shape (6,), so it lies along the columns
    found = r.fuse(r("add", x, rows))
    assert [form(g) for g in found.groups] == ["row", "elementwise"]
    assert ["other rows" in a.why for a in found.apart] == [True]
    assert r.forms(r("add", x, r.reduce("sum", x, 1, True))) == ["row"]


def test_reductions_along_different_axes_are_apart(r: Recording) -> None:
    x = r.input(60, 50)
    found = r.fuse(r.reduce("sum", x, 0), r.reduce("sum", x, 1))
    assert sorted(form(g) for g in found.groups) == ["column", "row"]
    assert [a.why for a in found.apart] == ["it is reduced along another axis"]


def test_a_value_is_written_where_that_reads_less(r: Recording) -> None:
    def forms(count: int) -> tuple[int, int]:
        s = Recording()
        inputs = [s.input(300, 200) for _ in range(count)]
        x = inputs[0]
        for other in inputs[1:]:
            x = s("add", x, other)
        found = s.fuse(s.reduce("sum", x, 0), s.reduce("sum", x, 1))
        return len(found.groups), sum(len(g.reads) for g in found.groups)

    assert forms(1) == (2, 2)
    assert forms(2) == (2, 4)  # two reads each, instead of two, a write and one
    assert forms(4) == (2, 5)  # the first kernel writes it, the second reads it


def test_no_kernel_is_larger_than_one_can_be(r: Recording) -> None:
    x = r.input(10)
    for _ in range(3 * MOST_ARRAYS):
        x = r("add", x, r.input(10))
    found = r.fuse(x)
    assert len(found.groups) > 1
    assert all(len(g.reads) < MOST_ARRAYS for g in found.groups)


def test_a_long_chain_takes_the_fewest_kernels(r: Recording) -> None:
    x = r.input(10)
    for _ in range(5 * MOST_NODES):
        x = r("sqrt", x)
    found = r.fuse(x)
    assert [len(g.inside) for g in found.groups] == [MOST_NODES] * 5
    assert all(len(g.reads) == 1 for g in found.groups)


def test_a_wide_tree_is_few_kernels(r: Recording) -> None:
    leaves = [r("exp", r.input(10)) for _ in range(200)]
    while len(leaves) > 1:
        pairs = zip(leaves[::2], leaves[1::2], strict=False)
        leaves = [r("add", a, b) for a, b in pairs] + leaves[len(leaves) & ~1 :]
    assert len(r.fuse(leaves[0]).groups) <= 2 * 200 / MOST_ARRAYS


def test_without_fusion_every_operation_is_a_kernel(r: Recording) -> None:
    x = r.input(10)
    y = r("add", r("mul", x, 2.0), r.reduce("sum", x))
    assert len(r.fuse(y, fused=False).groups) == 3


def random_nodes(seed: int) -> tuple[Recording, list[Of]]:
    g = np.random.default_rng(seed)
    r = Recording()
    shapes = [(6,), (1,), (), (4, 6), (4, 1), (6, 6), (3, 4, 6), (3, 1, 1), (9000,), (4, 20000)]
    values = [r.input(*shapes[int(g.integers(len(shapes)))]) for _ in range(4)]
    while len(values) < 24:
        x, y = (values[int(g.integers(len(values)))] for _ in range(2))
        try:
            if g.random() < 0.3:
                rank = len(r.recorder.nodes[x.number].shape)
                axis = [None, *range(rank)][int(g.integers(rank + 1))]
                values.append(r.reduce("sum", x, axis, bool(g.integers(2))))
            else:
                values.append(r("add", x, y))
        except na_error():
            values.append(r("neg", x))
    wanted = [values[int(k)] for k in g.integers(4, len(values), 3)]
    return r, wanted


def na_error() -> type[Exception]:
    from numbasync.errors import ShapeError

    return ShapeError


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1), st.booleans())
@example(243237, True)  # a value that meets results alone, of more axes than what is reduced
def test_groups_can_run_in_their_order(seed: int, fused: bool) -> None:
    r, wanted = random_nodes(seed)
    nodes = r.recorder.nodes
    found = r.fuse(*wanted, fused=fused)
    there = {n for n, node in enumerate(nodes) if node.op == "input"}
    for group in found.groups:
        assert set(group.reads) <= there, "it is written by an earlier group"
        known = set(group.reads)
        for n in sorted(group.inside):
            assert all(i in known or i in group.inside or nodes[i].op == "constant"
                       for i in nodes[n].inputs)  # fmt: skip
        assert {n for n in group.roots if n in found.written} or group.roots
        there |= {n for n in group.roots if n in found.written}
        for tuning in (GPU, SERIAL):
            compile(write(nodes, group, found.written, tuning).source, "<kernel>", "exec")
    computed = {w.number for w in wanted if not nodes[w.number].is_source}
    assert computed <= there
    assert sum(len(g.roots) for g in found.groups) == len(
        {n for g in found.groups for n in g.roots}
    )
    alive = live(nodes, computed)
    assert {n for g in found.groups for n in g.inside} <= alive
