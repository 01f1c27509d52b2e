"""The axes that a kernel asks about, and those that a launch has: no thread does another's work."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba import cuda as aliased
from numba.cuda import grid as place
from numba.cuda import threadIdx as thread

import numbasync as na
from numbasync.backend.cpu.limits import LIMITS
from numbasync.errors import LaunchError
from numbasync.launch import grid as grids
from numbasync.launch.axes import ALL, usage
from numbasync.launch.plan import DEFAULT

SHAPES: dict[int, tuple[int, ...]] = {0: (), 1: (37,), 2: (9, 20), 3: (5, 6, 7)}
TILES: dict[int, tuple[int, ...]] = {1: (16,), 2: (4, 4), 3: (2, 4, 4)}


# --- kernels, and which elements each thread of them visits: axes are those of the output ---


def by_x(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 1


def by_x_and_y(z: na.KernelOutput):
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] += 1


def by_all(z: na.KernelOutput):
    i, j, k = cuda.grid(3)
    if i < z.shape[0] and j < z.shape[1] and k < z.shape[2]:
        z[i, j, k] += 1


def by_y(z: na.KernelOutput):
    j = cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.y
    if j < z.shape[1]:
        for i in range(z.shape[0]):
            z[i, j] += 1


def flat(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.size:
        z[i // z.shape[1], i % z.shape[1]] += 1


def flat_by_product(z: na.KernelOutput):
    i = cuda.grid(1)
    n, m = z.shape
    if i < n * m:
        z[i // m, i % m] += 1


def by_thread(z: na.KernelOutput):
    if cuda.threadIdx.x < z.shape[0]:
        z[cuda.threadIdx.x] += 1


def by_block(z: na.KernelOutput):
    if cuda.blockIdx.x < z.shape[0]:
        z[cuda.blockIdx.x] += 1


def by_nothing(z: na.KernelOutput):
    for i in range(z.shape[0]):
        z[i] += 1


def counts(z: na.KernelOutput):
    cuda.atomic.add(z, 0, 1)


Visits = Callable[[Any, Any, Any, tuple[int, ...]], Iterator[tuple[int, ...]]]


def along(*axes: int) -> Visits:
    """Visits of a kernel that asks for its place along these axes and walks along the others."""

    def visits(
        block: Any, thread: Any, size: Any, shape: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        own = [
            (block[a] * size[a] + thread[a],) if a in axes else range(n)
            for a, n in enumerate(shape)
        ]
        for at in itertools.product(*own):
            if all(i < n for i, n in zip(at, shape, strict=True)):
                yield at

    return visits


def in_order(block: Any, thread: Any, size: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    i = block[0] * size[0] + thread[0]
    if i < np.prod(shape):
        yield tuple(map(int, np.unravel_index(i, shape)))


def one_of(which: int) -> Visits:
    def visits(block: Any, thread: Any, size: Any, shape: Any) -> Iterator[tuple[int, ...]]:
        i = (block, thread)[which][0]
        if i < shape[0]:
            yield from ((i, *at) for at in itertools.product(*map(range, shape[1:])))

    return visits


# The visits of a kernel, the least rank of its output, and of a launch of the whole output,
# without a wish: ranks for which it covers every element. Others are refused.
KERNELS: dict[Callable[..., None], tuple[Visits, int, set[int]]] = {
    by_x: (along(0), 1, {1, 2, 3}),
    by_x_and_y: (along(0, 1), 2, {2, 3}),
    by_all: (along(0, 1, 2), 3, {3}),
    by_y: (along(1), 2, {2, 3}),
    flat: (in_order, 2, set()),
    flat_by_product: (in_order, 2, set()),
    by_thread: (one_of(1), 1, {1}),
    by_block: (one_of(0), 1, set()),
    by_nothing: (along(), 1, {1, 2, 3}),
    counts: (along(), 1, set()),
}
WISHES: list[dict[str, Any]] = [{}, {"threads": 8}, {"threads": (8, 2)}, {"axes": True}]
FORMS = ("whole", "partition", "prefix", "mapped")


def meta(shape: tuple[int, ...]) -> na.Tensor:
    return na.meta(shape, np.int32).sync()


def cut(z: na.Tensor, form: str) -> Any:
    if form == "whole":
        return z
    part = z.partition(TILES[z.ndim])
    return {
        "partition": part, "prefix": z.partition_prefix(part.tile), "mapped": part.map(2),
    }[form]  # fmt: skip


def launched(kernel: na.Launcher, *args: Any) -> grids.Geometry:
    """What a call would launch, without compiling it."""
    request = kernel.planner._request(kernel.bind(args), DEFAULT)
    return grids.resolve(request, LIMITS, 1024, lambda: 256)


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


def test_a_kernel_that_asks_for_one_axis_is_launched_over_it() -> None:
    kernel = na.launcher(cuda.jit(by_x))
    assert launched(kernel, meta((1000, 16))) == grids.Geometry((4, 1, 1), (256, 1, 1))
    kernel = na.launcher(threads=32)(cuda.jit(by_x_and_y))
    assert launched(kernel, meta((8, 8, 8))).block == (8, 4, 1)
    kernel = na.launcher(cuda.jit(by_nothing))
    assert launched(kernel, meta((8, 8, 8))).threads == 1
    assert launched(kernel, meta((8, 0))).grid == (1, 0, 1)


def test_where_that_is_not_certain_it_is_refused_and_told_what_to_write() -> None:
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


# --- what is read in the code ---


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


# --- an extent bounds a kernel where it stands before all that the kernel does ---


def test_an_extent_is_no_bound_of_what_it_does_not_stand_before() -> None:
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


def test_a_launch_that_leaves_threads_out_is_refused_and_told_what_to_write() -> None:
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


def test_a_mapped_partition_is_refused_for_a_kernel_that_does_not_walk() -> None:
    kernel = na.launcher(cuda.jit(by_x))
    with pytest.raises(LaunchError, match=r"with 37, but there are 32 (.|\n)*gridsize\(1\)"):
        launched(kernel, meta((37,)).partition(16).map(2))
    assert launched(kernel, meta((32,)).partition(16).map(2)).grid == (2, 1, 1)


def test_it_is_launched_where_others_may_do_their_work() -> None:
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
