# ruff: noqa: B905 - kernels have no `strict=`
"""What a kernel stores to, where values go through tuples, iterators, records and functions."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.launch.parameters import parameters

Point = namedtuple("Point", "value place")  # noqa: PYI024 - as kernels have them


def written(function: Callable[..., Any]) -> set[str]:
    assert isinstance(function, FunctionType)
    return {p.name for p in parameters(function) if p.is_output}


@cuda.jit(device=True)
def value_and_place(x, i):
    return x[i], i


@cuda.jit(device=True)
def row_and_number(x, i):
    return (x[i], 1), 2


@cuda.jit(device=True)
def second(pair):
    return pair[1]


@cuda.jit(device=True)
def same(pair):
    return pair


@cuda.jit(device=True)
def sum_of(pair):
    a, b = pair
    a += b
    return a


@cuda.jit(device=True)
def store_to_first(pair):
    pair[0][0] = 1


# --- of which z alone is stored to ---


def by_zip(z, x, y):
    total = 0.0
    for a, b in zip(x, y):
        total += a
        total += b
    z[0] = total


def by_zip_of_three(z, x, y):
    total = 0.0
    for a, b, c in zip(x, y, x):
        a += b * c
        total += a
    z[0] = total


def by_enumerate(z, x, y):
    total = 0.0
    for i, a in enumerate(x):
        total += a
        total += y[i]
    z[0] = total


def by_both(z, x, y):
    total = 0.0
    for i, (a, b) in enumerate(zip(x, y)):
        total += a + i
        total -= b
    z[0] = total


def of_a_pair(z, x, y):
    pair = x[0], y[0]
    total = pair[0]
    total += pair[1]
    z[0] = total


def chosen_pair(z, x, y):
    pair = (x[0], 1) if x[1] > 0 else (y[0], 2)
    a, b = pair
    a += b
    z[0] = a


def pair_in_a_loop(z, x, y):
    pair = (x[0], y[0])
    for i in range(3):
        pair = (pair[1], pair[0] + x[i])
    total = pair[0]
    total *= 2
    z[0] = total


def sums_of_pairs(z, x, y):
    joined = (x[0], 1) + (y[0],)  # noqa: RUF005 - what is tested
    total = joined[2]
    total += joined[0]
    z[0] = total


def part_of_a_tuple(z, x, y):
    part = (x[0], y[0], 3)[1:]
    total = part[0]
    total += part[1]
    z[0] = total


def returned_pair(z, x, y):
    a, i = value_and_place(x, 0)
    b, _ = value_and_place(y, i)
    a += b
    z[0] = a


def returned_nested(z, x, y):
    (a, n), m = row_and_number(x, 0)
    n += m
    a += n
    z[0] = a


def passed_pair(z, x, y):
    total = sum_of((x[0], y[0]))
    total += second((x[0], y[1]))
    total += same((x[0], y[1]))[0]
    z[0] = total


def of_a_record(z, x, y):
    total = x[0]["a"]
    total += y[0].b
    total -= getattr(x[1], "a")  # noqa: B009 - what is tested
    z[0] = total


def of_a_row_of_records(z, x, y):
    record = x[1]
    number = record["a"]
    number += y[0]
    z[0] = number


def made_named_tuple(z, x, y):
    p = Point(x[0], place=y[0])
    total = p.value
    total += p.place
    z[0] = total


def named_tuple(z, x, y):
    low = x.low
    low += y.value
    low += x.values[0]
    z[0] = low


def iterated(z, x, y):
    them = iter(x)
    total = next(them)
    total += next(them)
    for a in reversed(y):
        total += a
    z[0] = total


def unrolled(z, x, y):
    total = 0
    for a in cuda.literal_unroll((x, y)):
        total += a[0]
    z[0] = total


ONLY_Z = [
    by_zip, by_zip_of_three, by_enumerate, by_both, of_a_pair, chosen_pair, pair_in_a_loop,
    sums_of_pairs, part_of_a_tuple, returned_pair, returned_nested, passed_pair, of_a_record,
    of_a_row_of_records, made_named_tuple, named_tuple, iterated, unrolled,
]  # fmt: skip


@pytest.mark.parametrize("kernel", ONLY_Z, ids=lambda f: f.__name__)
def test_values_that_are_read_are_no_outputs(kernel: Callable[..., None]) -> None:
    assert written(kernel) == {"z"}


# --- of which y is stored to ---


def rows(x, y):
    for row in y:
        row[0] = x[0]


def rows_by_zip(x, y):
    for a, b in zip(x, y):
        b[0] = a[0]


def rows_by_enumerate(x, y):
    for i, row in enumerate(y):
        row[i] = x[i]


def rows_by_both(x, y):
    for i, (a, b) in enumerate(zip(x, y)):
        b[i] += a[i]


def row_of_a_pair(x, y):
    pair = (x[0], y[0])
    a, b = pair
    b[0] = a[0]


def returned_row(x, y):
    row, i = value_and_place(y, 0)
    row[i] = x[i]


def returned_nested_row(x, y):
    (row, n), _ = row_and_number(y, 0)
    row[n] = x[n]


def returned_item(x, y):
    second((1, y))[0] = x[0]


def passed_in_a_pair(x, y):
    store_to_first((y, 1))
    y[1] = x[0]


def field_of_records(x, y):
    y[0]["a"] = x[0]


def attribute_of_records(x, y):
    y[0].a += x[0]


def field_of_all_records(x, y):
    y["a"][0] = x[0]


def field_in_place(x, y):
    column = y["a"]
    column += x[0]


def array_of_a_named_tuple(x, y):
    y.values[0] = x.values[0]


def array_by_getattr(x, y):
    getattr(y, "values")[0] = x[0]  # noqa: B009 - what is tested


def made_named_tuple_of_arrays(x, y):
    p = Point(x, place=y)
    p.place[0] = p.value[0]


def unrolled_rows(x, y):
    for a in cuda.literal_unroll((y, y)):
        a[0] = x[0]


def by_next(x, y):
    them = iter(y)
    next(them)[0] = x[0]


def pairs_in_a_loop(x, y):
    pair = (y, 0)
    for i in range(3):
        pair = (pair[0], x[i])
    pair[0][0] = 1


def strung_with_a_number(x, y):
    them = (x[0],) + (y, 1)  # noqa: RUF005 - what is tested
    them[1][0] = 1


def atomic_on_a_row(x, y):
    for a, b in zip(x, y):
        cuda.atomic.add(b, 0, a[0])


ONLY_Y = [
    rows, rows_by_zip, rows_by_enumerate, rows_by_both, row_of_a_pair, returned_row,
    returned_nested_row, returned_item, passed_in_a_pair, field_of_records, attribute_of_records,
    field_of_all_records, field_in_place, array_of_a_named_tuple, array_by_getattr,
    made_named_tuple_of_arrays, unrolled_rows, by_next, pairs_in_a_loop, strung_with_a_number,
    atomic_on_a_row,
]  # fmt: skip


@pytest.mark.parametrize("kernel", ONLY_Y, ids=lambda f: f.__name__)
def test_stores_through_values_are_found_and_no_more(kernel: Callable[..., None]) -> None:
    assert written(kernel) == {"y"}


def test_a_growing_tuple_is_read_to_its_end() -> None:
    def kernel(x, y):
        them = (y,)
        for _ in range(9):
            them = (them, x)
        them[0][0][0][0][0][0][0] = 1

    assert "y" in written(kernel)


def test_a_value_read_twice_is_no_alias(device: na.Device) -> None:
    z = na.zeros(1, np.float64).sync()
    x = na.from_host(np.arange(32.0)).sync()
    kernel = na.launcher(cuda.jit(by_zip))
    kernel[1, 1](z, x, x).sync()
    assert z.to_host().sync()[0] == 2 * np.arange(32).sum()
    kernel[1, 1](z, np.arange(8.0), np.arange(8.0)).sync()
    assert z.to_host().sync()[0] == 56
