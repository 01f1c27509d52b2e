"""Of which parameters a function reads elements, and to which it only stores."""

from __future__ import annotations

from typing import Any

import pytest
from numba import cuda

from numbasync import vectors
from numbasync.facts.effects import only_stored_to, values_read


@cuda.jit(device=True)
def put(array: Any, i: Any, value: Any) -> None:
    array[i] = value


@cuda.jit(device=True)
def put_if_zero(array: Any, i: Any, value: Any) -> None:
    if array[i] == 0:
        array[i] = value


def elements(out, also, x):
    out[x.shape[0] - 1] = x[also.shape[0]] + len(out)


def through_others(out, by_name, read, x):
    put(out, 0, x[0])
    put(i=1, array=by_name, value=x[0])
    put_if_zero(read, 0, x[0])


def rows_and_fields(out, records, columns, x):
    row = out[1]
    row[2] = x[0]
    records[0].a = x[0]
    records[0]["b"] = x[0]
    columns[:, 1] = x[0]
    again = columns
    again[0, 0] = x[0]


def reads(added, row, field, value, swapped, atomic, given, x):
    added[0] += 1
    part = row[0]
    part[0] = 1
    part[1] += 1
    field[0].a = field[0].b
    value[0] = 1
    x[0] = value[1]
    swapped[0], swapped[1] = swapped[1], swapped[0]
    cuda.atomic.add(atomic, 0, 1)
    given[0] = x
    other = given if x[0] else atomic
    other[0] = 1
    x[1] = other[0]


def again_and_again(out, n):
    out[n] = 1
    if n > 0:
        recursing(out, n - 1)


recursing: Any = cuda.jit(device=True)(again_and_again)


def by_functions(vectors_of, atomic, x):
    vectors.store(vectors_of, 0, vectors.load(x, 0, 4))
    cuda.atomic.exch(atomic, 0, 1)
    x.fill(0)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (by_functions, {"vectors_of"}),
        (elements, {"out"}),
        (through_others, {"out", "by_name"}),
        (rows_and_fields, {"out", "records", "columns"}),
        (reads, set()),
        (again_and_again, {"out"}),
    ],
)
def test_outputs_that_are_never_read(function: Any, found: set[str]) -> None:
    assert only_stored_to(function) == found


def test_a_function_without_a_source() -> None:
    names: dict[str, Any] = {}
    exec("def f(out, x):\n    out[0] = x[0]\n", names)
    assert only_stored_to(names["f"]) == {"out"}


def test_reads_are_found_in_the_code() -> None:
    def reads(a, b, c, d, e, n):
        row = a[0]
        row[1] = b[n, 2]
        c[0][1] = 3
        d[:] = 1
        e[0] += n

    assert values_read(reads) == {1, 4, 5}


def test_reads_of_device_functions_are_found() -> None:
    def calls(out, read, x, n):
        put(out, n, 1)
        put_if_zero(read, n, x.shape[0])

    assert values_read(calls) == {1, 3}
