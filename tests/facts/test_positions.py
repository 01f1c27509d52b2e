"""What is read in a kernel's code: the axes that it asks about, and the extents that bound it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba import cuda as aliased
from numba.cuda import grid as place
from numba.cuda import threadIdx as thread

import numbasync as na
from numbasync.errors import LaunchError
from numbasync.facts.positions import ALL, usage
from tests.launch.visits import (
    by_x_and_y,
    by_y,
    flat,
    launched,
    meta,
)


@cuda.jit(device=True)
def column():
    return cuda.grid(2)[1]


def through_aliases(z):
    here = thread
    i = place(1) + aliased.blockIdx.y * here.y
    z[i] = 1


def through_a_device_function(z):
    z[cuda.blockIdx.x, column()] = 1


def through_a_closure(z):
    def at():
        return cuda.threadIdx.z

    z[at()] = 1


def passed_on(z):
    here = (cuda.threadIdx, 1)
    z[here[0].x] = 1


def by_lane(z):
    z[cuda.laneid] = cuda.blockIdx.x


def by_turn(z, turns):
    z[cuda.atomic.add(turns, 0, 1)] = 1


def by_vote(z):
    z[0] = cuda.syncthreads_count(1)


def of_extents(z):
    z[0] = cuda.gridDim.x * cuda.blockDim.y + cuda.gridsize(1)


def of_any_rank(z, n):
    z[0] = cuda.grid(n)


def by_one_of_two(z):
    i, _ = cuda.grid(2)
    z[i] = 1


def by_an_item(z):
    at = cuda.grid(3)
    z[at[2]] = 1


def as_a_whole(z):
    z[cuda.grid(2)] = 1


def for_nothing(z):
    j = cuda.threadIdx.y
    k = j + 1  # noqa: F841 - nothing comes of it
    z[cuda.blockIdx.x] = 1


def in_a_loop(z):
    i, j = cuda.grid(2)
    while i < 10:
        z[i] = 1
        i += j


@pytest.mark.parametrize(
    ("body", "blocks", "threads", "is_counting"),
    [
        (through_aliases, {0, 1}, {0, 1}, False),
        (through_a_device_function, {0, 1}, {1}, False),
        (through_a_closure, set(), {2}, False),
        (passed_on, ALL, ALL, False),
        (by_lane, {0}, ALL, False),
        (by_turn, ALL, ALL, True),
        (by_vote, set(), set(), True),
        (of_extents, set(), set(), False),
        (of_any_rank, ALL, ALL, False),
        (by_one_of_two, {0}, {0}, False),
        (by_an_item, {2}, {2}, False),
        (as_a_whole, {0, 1}, {0, 1}, False),
        (for_nothing, {0}, set(), False),
        (in_a_loop, {0, 1}, {0, 1}, False),
    ],
)
def test_what_a_kernel_asks_about(body: Any, blocks: Any, threads: Any, is_counting: bool) -> None:
    found = usage(body)
    assert (found.blocks, found.threads, found.counts) == (blocks, threads, is_counting)


def shifted(z):
    for i in range(cuda.grid(1) + 0 * cuda.gridsize(1), z.shape[0], cuda.gridsize(1)):
        z[i] = 1


def inner(z, x):
    i, j = cuda.grid(2)
    if 0 < i < z.shape[0] - 1 and j < len(x):
        z[i, j] = 1


def strided(z):
    for i in range(cuda.grid(1), len(z), cuda.gridsize(1)):
        z[i] = 1


@pytest.mark.parametrize(
    ("body", "bounded"),
    [
        (by_x_and_y, {(0, 0, 0), (1, 0, 1)}), (by_y, {(1, 0, 1)}), (flat, set()),
        (inner, {(0, 0, 0), (1, 1, 0)}), (strided, {(0, 0, 0)}), (shifted, set()),
    ],
)  # fmt: skip
def test_the_extents_that_bound_it(body: Any, bounded: Any) -> None:
    assert usage(body).bounded == bounded


def test_an_extent_is_no_bound_beside_another_comparison() -> None:
    def rows(z: Any) -> None:
        i = cuda.grid(1)
        if 0 < i < z.shape[0] - 1:
            z[i, 0] = 1

    def flat(z: Any) -> None:
        i = cuda.grid(1)
        if i < z.size:
            z[i // z.shape[1], i % z.shape[1]] = 1
            if i < z.shape[0]:
                z[i, 0] = 2

    assert usage(rows).bounded and not usage(flat).bounded


def test_an_extent_bounds_only_what_it_precedes() -> None:
    @cuda.jit(device=True)
    def is_inside(i: int, z: Any) -> bool:
        return i < z.size

    def beside(z: Any) -> None:
        i = cuda.grid(1)
        if is_inside(i, z):
            z[i // z.shape[1], i % z.shape[1]] += 1
            if i < z.shape[0]:
                z[i, 0] = 2

    def by_quotient(z: Any) -> None:
        i = cuda.grid(1)
        if i // z.shape[1] < z.shape[0]:
            z[i // z.shape[1], i % z.shape[1]] += 1
        if i < z.shape[0]:
            z[i, 0] = 2

    def of_two(z: Any, x: Any) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i, 0] = 0
        if i < x.shape[0]:
            z[i // z.shape[1], i % z.shape[1]] = x[i]

    def by_number(z: Any) -> None:
        i = cuda.grid(1)
        if i < 64:
            z[i // 16, i % 16] = 1
            if i < z.shape[0]:
                z[i, 0] = 2

    def beyond(z: Any) -> None:
        i = cuda.grid(1)
        if 0 < i < z.shape[0] + 1:
            z[i - 1, 0] = 1

    for body in (beside, by_quotient, of_two, by_number, beyond):
        assert not usage(body).bounded
        with pytest.raises(LaunchError, match=r"along x only"):
            others = [meta((64,))] if body is of_two else []
            launched(na.launcher(cuda.jit(body)), meta((4, 16)), *others)


def test_the_forms_of_a_bound() -> None:
    def turned(z: Any) -> None:
        i = cuda.grid(1)
        if not z.shape[0] > i:
            return
        z[i, 0] = 1

    def in_one_expression(z: Any) -> None:
        i, j = cuda.grid(2)
        if (i < z.shape[0]) & (j <= z.shape[1] - 1):
            z[i, j] = 1

    def edges(z: Any) -> None:
        i = cuda.grid(1)
        if i == 0:
            z[i, 0] = 1
        elif i == len(z) - 1:
            z[i, 0] = 2
        elif i < len(z):
            z[i, 0] = 3

    def with_shared(z: Any) -> None:
        own = cuda.shared.array(256, np.int32)
        i, t = cuda.grid(1), cuda.threadIdx.x
        own[t] = t
        cuda.syncthreads()
        while i < z.shape[0]:
            z[i, 0] = own[t]
            i += cuda.gridsize(1)

    for body in (turned, edges, with_shared):
        assert usage(body).bounded == {(0, 0, 0)}
        assert launched(na.launcher(cuda.jit(body)), meta((4, 16))).block == (256, 1, 1)
    assert usage(in_one_expression).bounded == {(0, 0, 0), (1, 0, 1)}
