"""The axes that a kernel asks about, and those that a launch has: no thread does another's work."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.backend.cpu.limits import LIMITS
from numbasync.errors import LaunchError
from numbasync.launch import grid as grids
from tests.launch.visits import (
    KERNELS,
    Visits,
    by_nothing,
    by_thread,
    by_x,
    by_x_and_y,
    flat,
    flat_by_product,
    launched,
    meta,
)

SHAPES: dict[int, tuple[int, ...]] = {0: (), 1: (37,), 2: (9, 20), 3: (5, 6, 7)}
TILES: dict[int, tuple[int, ...]] = {1: (16,), 2: (4, 4), 3: (2, 4, 4)}


# --- kernels, and which elements each thread of them visits: axes are those of the output ---


WISHES: list[dict[str, Any]] = [{}, {"threads": 8}, {"threads": (8, 2)}, {"axes": True}]
FORMS = ("whole", "partition", "prefix", "mapped")


def cut(z: na.Tensor, form: str) -> Any:
    if form == "whole":
        return z
    part = z.partition(TILES[z.ndim])
    return {
        "partition": part, "prefix": z.partition_prefix(part.tile), "mapped": part.map(2),
    }[form]  # fmt: skip


def visited(visits: Visits, found: grids.Geometry, shape: tuple[int, ...]) -> Counter[Any]:
    threads = itertools.product(*map(range, (*found.grid, *found.block)))
    return Counter(
        at for n in threads for at in visits(n[:3], n[3:], found.block, shape)
    )  # fmt: skip


@pytest.mark.parametrize("wish", WISHES, ids=str)
@pytest.mark.parametrize("body", KERNELS, ids=lambda body: body.__name__)
def test_no_element_is_visited_twice(body: Callable[..., None], wish: dict[str, Any]) -> None:
    visits, least, covered = KERNELS[body]
    for rank, form in itertools.product(range(least, 4), FORMS):
        if body in (flat, flat_by_product) and rank > 2:
            continue
        options = dict(wish)
        if "axes" in options:
            options["axes"] = tuple(reversed(range(rank)))
        shape = SHAPES[rank]
        kernel = na.launcher(**options)(cuda.jit(body))
        refused, found = "", None
        try:
            found = launched(kernel, cut(meta(shape), form))
        except LaunchError as error:
            refused = str(error)
        if found is None:
            assert kernel.name in refused and "\n" in refused  # and what to write
            assert form != "whole" or wish or rank not in covered, (rank, refused)
            continue
        # With other axes, its indices are of a tensor that is turned.
        turned = shape[::-1] if "axes" in wish and body is not by_nothing else shape
        counted = visited(visits, found, turned)
        walks = form == "mapped"  # and this kernel does not
        assert max(counted.values(), default=0) <= 1, (rank, form, found)
        if form != "prefix" and not walks and not wish and body is not by_thread:
            assert len(counted) == np.prod(shape), (rank, form, found)
        assert form != "whole" or wish or rank in covered, (rank, found)


def test_a_kernel_of_one_axis_launches_over_it() -> None:
    kernel = na.launcher(cuda.jit(by_x))
    assert launched(kernel, meta((1000, 16))) == grids.Geometry((4, 1, 1), (256, 1, 1))
    kernel = na.launcher(threads=32)(cuda.jit(by_x_and_y))
    assert launched(kernel, meta((8, 8, 8))).block == (8, 4, 1)
    kernel = na.launcher(cuda.jit(by_nothing))
    assert launched(kernel, meta((8, 8, 8))).threads == 1
    assert launched(kernel, meta((8, 0))).grid == (1, 0, 1)


def test_uncertain_axes_are_refused_with_what_to_write() -> None:
    for body in (flat, flat_by_product):
        kernel = na.launcher(cuda.jit(body))
        with pytest.raises(LaunchError) as error:
            launched(kernel, meta((4, 16)))
        for said in ("(4, 16)", "along x, y", "along x only", "forall(n)", "[grid, block]"):
            assert said in str(error.value)
        assert launched(kernel, meta((40, 1))).block == (256, 1, 1)  # all is on one axis
    with pytest.raises(LaunchError, match=r"\(4, 4, 1\) threads a block.*threadIdx.y"):
        launched(na.launcher(cuda.jit(by_x)), meta((4, 16)).partition((4, 4)))
    with pytest.raises(LaunchError, match=r"\(1, 16, 1\) blocks.*blockIdx.y"):
        launched(na.launcher(cuda.jit(by_x)), meta((4, 16)).partition((4, 1)))


# --- threads that would have something to do are not left out ---


def by_column_and_row(z):
    x, y = cuda.grid(2)
    height, width = z.shape
    if x < width and y < height:
        z[y, x] += 1


def histogram(counts, x):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, x[i], 1)


def tally(total, x):
    i = cuda.grid(1)
    if i >= len(x) - 1:
        return
    cuda.atomic.add(total, 0, x[i + 1] - x[i])


def test_a_launch_leaving_threads_out_is_refused() -> None:
    kernel = na.launcher(cuda.jit(by_column_and_row))
    for z in (meta((300, 20)), meta((20, 300)), meta((300, 20)).partition((16, 16))):
        with pytest.raises(LaunchError, match=r"with 300, but there are 32 (.|\n)*axes=\(1, 0\)"):
            launched(kernel, z)
    turned = na.launcher(axes=(1, 0))(cuda.jit(by_column_and_row))
    assert launched(turned, meta((300, 20))).grid == (2, 19, 1)
    assert launched(kernel, meta((300, 300))).grid == (19, 19, 1)
    for body in (histogram, tally):
        kernel = na.launcher(cuda.jit(body))
        with pytest.raises(LaunchError, match=r"along x(.|\n)*forall\(n\)\(...\); or .*\[grid, "):
            launched(kernel, meta((4,)), meta((1000,)))
        assert launched(kernel, meta((4,)), meta((100,))).threads == 256
        request = kernel.planner._request(
            kernel.bind((meta((4,)), meta((1000,)))), kernel.forall(1000)._config
        )
        assert grids.resolve(request, LIMITS, 1024, lambda: 256).grid == (4, 1, 1)


def test_mapped_partitions_are_refused_by_kernels_without_walks() -> None:
    kernel = na.launcher(cuda.jit(by_x))
    with pytest.raises(LaunchError, match=r"with 37, but there are 32 (.|\n)*gridsize\(1\)"):
        launched(kernel, meta((37,)).partition(16).map(2))
    assert launched(kernel, meta((32,)).partition(16).map(2)).grid == (2, 1, 1)


def test_it_launches_where_others_may_do_work() -> None:
    def strided(total: Any, x: Any) -> None:
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            cuda.atomic.add(total, 0, x[i])

    def by_steps(total: Any, x: Any, step: int) -> None:
        i = cuda.grid(1)
        while i < x.shape[0]:
            cuda.atomic.add(total, 0, x[i])
            i += step

    def at_most(total: Any, x: Any, n: int) -> None:
        i = cuda.grid(1)
        if i < x.shape[0] and i < n:
            cuda.atomic.add(total, 0, x[i])

    def of_both(z: Any, x: Any) -> None:
        i = cuda.grid(1)
        if i < x.shape[0] and i < z.shape[0]:
            z[i] = x[i]

    for body in (strided, by_steps, at_most, of_both):
        more = [4] if body in (by_steps, at_most) else []
        found = launched(na.launcher(cuda.jit(body)), meta((4,)), meta((1000,)), *more)
        assert found.threads == 256
