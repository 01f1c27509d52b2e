"""Recording: shapes and types as NumPy's, equal operations once, constants folded."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch.record import call_cache, element_ops
from numbasync.batch.record.buffer_id import BufferId
from numbasync.batch.record.nodes import CONSTANT
from numbasync.batch.record.recorder import Recorder
from numbasync.errors import DTypeError

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow,
             operator.lt, operator.eq]  # fmt: skip


@pytest.fixture
def r() -> Recorder:
    return Recorder()


def input_of(r: Recorder, shape: tuple[int, ...] = (3,), dtype: Any = np.float32) -> BufferId:
    return r.source(shape, element_ops.check_dtype(dtype, "a test"), None)


@pytest.mark.parametrize("apply", OPERATORS, ids=lambda f: f.__name__)
def test_types_are_those_of_numpy(r: Recorder, apply: Any) -> None:
    compared = 0
    operands: list[tuple[Any, Any]] = [
        (input_of(r, (3,), t), np.ones(3, t)) for t in element_ops.DTYPES
    ]
    operands += [(v, v) for v in (2, 2.5, True, np.float64(2), np.int32(3), np.float16(1))]
    for (a, x), (b, y) in itertools.product(operands, operands):
        if not isinstance(a, BufferId) and not isinstance(b, BufferId):
            continue
        try:
            # bool ** 2 is an int8 as an operator, and an int64 as a function
            want = np.power(x, y) if apply is operator.pow else apply(x, y)
        except TypeError:
            want = None
        if want is None or want.dtype not in element_ops.DTYPES:
            with pytest.raises(DTypeError):
                apply(a, b)
            continue
        have = apply(a, b)
        assert have.dtype == want.dtype, (a, b)
        compared += 1
    assert compared > 80


def test_numbers_do_not_widen_users_functions_results(r: Recorder) -> None:
    f = na.elementwise(lambda x, y: x * y)
    numbers = (2, 2.5, True, np.float64(2), np.int32(3), np.float16(1))
    for dtype, number in itertools.product(element_ops.DTYPES, numbers):
        have = f(input_of(r, (3,), dtype), number)
        assert have.dtype == np.result_type(dtype, number), (dtype, number)
    passed = [r.nodes[f(input_of(r), k).number].loops[1] for k in (2.5, 2)]
    assert passed == [element_ops.F32, element_ops.I64]  # an int may be a count


def test_shapes_are_those_of_numpy(r: Recorder) -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (2, 1), (4, 1, 3), (0,), (1, 0)]
    for one, two in itertools.product(shapes, shapes):
        try:
            want = np.broadcast_shapes(one, two)
        except ValueError:
            continue
        assert (input_of(r, one) + input_of(r, two)).shape == want


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_have_the_shape_and_type_of_numpys(
    r: Recorder, name: str, keepdims: bool
) -> None:
    for dtype, axis in itertools.product(element_ops.DTYPES, [None, 0, 1, -1]):
        want = np.asarray(getattr(np, name)(np.ones((2, 3), dtype), axis=axis, keepdims=keepdims))
        x = input_of(r, (2, 3), dtype)
        node = r.nodes[r.reduce(name, x.number, axis, keepdims)]
        assert (node.shape, node.dtype) == (want.shape, want.dtype)


def test_equal_operations_are_one_node(r: Recorder) -> None:
    x = input_of(r)
    one, two = x * 2.0 + 1, x * 2 + 1.0
    assert one is not two
    assert one.number == two.number
    assert (x + 1).number != (x + 2).number
    assert r.operations == 6


def test_what_constants_decide_is_computed_at_once(r: Recorder) -> None:
    x = r.elementwise("exp", input_of(r))
    assert (x * 1).number == x.number
    assert (x / 1.0).number == x.number
    assert (x - 0).number == x.number
    assert (x + 0).number != x.number  # -0.0 + 0 is 0.0
    assert r.elementwise("where", True, x, 3).number == x.number
    assert r.cast(x.number, element_ops.F32) == x.number
    two = r.elementwise("exp", r.again(r.constant(0.0, element_ops.F64))) + np.float64(1)
    assert r.nodes[two.number].op == CONSTANT
    assert r.values[two.number] == 2.0


def test_an_input_left_unchanged_is_copied(r: Recorder) -> None:
    x = input_of(r)
    one, two = x * 1, x - 0.0
    assert one.number == two.number != x.number
    assert r.nodes[one.number].op == "copy"
    assert (one * 1).number == one.number


def test_a_factor_of_one_keeps_shape_and_type(r: Recorder) -> None:
    x = input_of(r, (3,), np.int32)
    assert (x * np.float64(1)).dtype == np.float64
    wide = r.elementwise("where", True, input_of(r, (1,)), input_of(r, (3,)))
    assert wide.shape == (3,)


def test_constants_are_told_apart_by_their_bits(r: Recorder) -> None:
    x = input_of(r)
    assert (x + 0.0).number != (x + -0.0).number
    assert (x + 1).number == (x + 1.0).number


def test_ids_that_nobody_holds_are_known(r: Recorder) -> None:
    x = input_of(r)
    y = x + 1
    _ = x + 2
    assert r.held() == (x.number, y.number, _.number)
    del _
    assert r.held() == (x.number, y.number)


# --- what was recorded before is recorded again ---


def calls(numbers: tuple[Any, ...], r: Recorder) -> list[BufferId]:
    """Calls whose nodes depend on which of the numbers are equal, and on what some of them are."""
    x, y, n = input_of(r), input_of(r, (2, 3), np.float64), input_of(r, (3,), np.int32)
    a, b, c = numbers
    ids = [x * a, x * b + a, a - x, y / c, n + 1, n * a, x - b, x**c, (x * 2) ** a]
    ids += [r.elementwise("clamp", x, a, b), r.elementwise("where", c, x, y), x + x * a, x * True]
    ids += [r.elementwise("add", a, b), r.elementwise("add", a, b) * x, x + np.float32(b), y + a]
    return ids


def test_known_calls_are_recorded_as_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0, 1, 2, 3.5, 0.0, -0.0, 1.0, 2.0, -1.5, np.pi, float("inf"), float("nan"), 1e-50]
    random = np.random.default_rng(5)
    choices = [tuple(values[i] for i in random.integers(0, len(values), 3)) for _ in range(300)]
    # Equal in float32, and not in float64.
    choices += [(0.1, 0.1 + 1e-12, 0.1), (0.1, 0.3, 0.1), (0.1, 0.1, 0.1 + 1e-12)] * 2
    for numbers in choices:
        known = Recorder()
        have = calls(numbers, known)
        with monkeypatch.context() as patch:
            patch.setattr(call_cache, "_empty", call_cache.Structure())
            new = Recorder()
            want = calls(numbers, new)
        assert known.nodes == new.nodes, numbers
        assert [id.number for id in have] == [id.number for id in want], numbers
        assert [(id.shape, id.dtype) for id in have] == [(id.shape, id.dtype) for id in want]
        assert known.operations == new.operations
        shown = [{n: repr(v) for n, v in r.values.items()} for r in (known, new)]
        assert shown[0] == shown[1], numbers


def test_equal_calls_share_a_structure_whatever_their_numbers() -> None:
    def recorded(k: float) -> Recorder:
        r = Recorder()
        _ = input_of(r) * k + 5.25
        return r

    first = recorded(0.5).structure
    assert all(recorded(k + 0.125).structure is first for k in range(2, 40))
    assert recorded(1.0).structure is not first
    assert recorded(5.25).structure is not first


def test_ever_new_structures_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_cache, "MOST", 20)
    monkeypatch.setattr(call_cache, "_empty", call_cache.Structure())
    first, seen = call_cache.empty(), set[int]()
    for n in range(1, 60):
        r = Recorder()
        y = input_of(r, (n,)) * 2 + 1
        assert y.shape == (n,) and len(r.nodes) == 5
        seen.add(id(call_cache.empty()))
    assert len(seen) > 5 or call_cache.empty() is not first
