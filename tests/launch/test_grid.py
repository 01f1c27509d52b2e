"""Grids: from partitions, shapes and wishes to extents; no device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from numbasync.backend.protocols import Limits
from numbasync.errors import LaunchError, ShapeError
from numbasync.launch import grid
from numbasync.launch.grid import Geometry, Request
from numbasync.tensors.partition import Partition

LIMITS = Limits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 49152, 232448, 32, 1)


def part(shape: tuple[int, ...], tile: Any, exact: bool = True) -> Partition:
    return Partition(SimpleNamespace(shape=shape), tile, exact=exact)  # type: ignore[arg-type]


def resolve(
    *partitions: Partition, most: int = 1024, suggest: int = 256, **wishes: Any
) -> Geometry:
    named = tuple((f"p{i}", p) for i, p in enumerate(partitions))
    names = ("shape", "grid", "block", "threads", "axes", "elements")
    fields = dict.fromkeys(names)
    request = Request("k", named, **{**fields, **wishes})
    return grid.resolve(request, LIMITS, most, lambda: suggest)


@pytest.mark.parametrize(
    ("n", "blocks"), [(1, 1), (31, 1), (127, 1), (129, 2), (251, 2), (1000, 8)], ids=str
)
def test_the_grid_covers_every_element(n: int, blocks: int) -> None:
    assert resolve(part((n,), 128)) == Geometry((blocks, 1, 1), (128, 1, 1))


def test_tensor_axis_k_lies_on_cuda_axis_k() -> None:
    assert resolve(part((10, 20, 30), (5, 6, 7))) == Geometry((2, 4, 5), (5, 6, 7))


def test_axes_reorders() -> None:
    found = resolve(part((10, 20), (5, 6)), axes=(1, 0))
    assert found == Geometry((4, 2, 1), (6, 5, 1))


def test_threads_replace_the_tile_as_the_block() -> None:
    assert resolve(part((100,), 50), threads=32) == Geometry((2, 1, 1), (32, 1, 1))
    assert resolve(part((8, 8), (4, 4)), threads=(8, 2, 1)).block == (8, 2, 1)


def test_all_exact_partitions_must_agree() -> None:
    assert resolve(part((100,), 10), part((200,), 20)).grid == (10, 1, 1)
    with pytest.raises(LaunchError, match=r"p1 has.*11, 1, 1"):
        resolve(part((100,), 10), part((220,), 20))


def test_a_prefix_bounds_the_grid() -> None:
    assert resolve(part((100,), 10), part((500,), 10, exact=False)).grid == (10, 1, 1)
    with pytest.raises(LaunchError, match="larger than p1 has tiles"):
        resolve(part((100,), 10), part((50,), 10, exact=False))


def test_a_prefix_alone_needs_a_grid() -> None:
    with pytest.raises(LaunchError, match="grid must be given"):
        resolve(part((100,), 10, exact=False))
    found = resolve(part((100,), 10, exact=False), grid=(3, 1, 1), block=(10, 1, 1))
    assert found == Geometry((3, 1, 1), (10, 1, 1))


def test_a_mapped_partition_spreads_blocks_on_one_axis() -> None:
    mapped = part((10, 20, 30), (5, 6, 7)).map(9)
    assert resolve(mapped) == Geometry((9, 1, 1), (5, 6, 7))
    assert resolve(mapped, axes=(2, 1, 0)) == Geometry((9, 1, 1), (7, 6, 5))
    assert resolve(mapped, threads=64) == Geometry((9, 1, 1), (64, 1, 1))
    assert resolve(mapped, grid=(9, 1, 1), block=(32, 1, 1)).block == (32, 1, 1)
    # More tiles along y than a grid may have blocks.
    assert resolve(part((1, 70000), (1, 1)).map(132)).grid == (132, 1, 1)


def test_partitions_beside_a_mapped_one_must_agree() -> None:
    mapped = part((100,), 10).map(3)
    assert resolve(mapped, part((30,), 10), part((70,), 10, exact=False)).grid == (3, 1, 1)
    assert resolve(part((30,), 10), mapped).grid == (3, 1, 1)
    says = r"mapped launch has a grid of \(blocks, 1, 1\)"
    for other in (part((100,), 10), part((100,), 10).map(4)):
        with pytest.raises(LaunchError, match=says):
            resolve(mapped, other)
    with pytest.raises(LaunchError, match=says):
        resolve(mapped, grid=(10, 1, 1), block=(10, 1, 1))
    with pytest.raises(LaunchError, match="larger than p1 has tiles"):
        resolve(mapped, part((20,), 10, exact=False))


def test_an_explicit_grid_must_match_the_partitions() -> None:
    with pytest.raises(LaunchError, match=r"the grid has \(5, 1, 1\)"):
        resolve(part((100,), 10), grid=(5, 1, 1), block=(10, 1, 1))


def test_without_any_hint_a_grid_is_asked_for() -> None:
    with pytest.raises(LaunchError, match="no output says"):
        resolve()


@pytest.mark.parametrize(
    ("shape", "block", "blocks"),
    [
        ((1000,), (256, 1, 1), (4, 1, 1)),
        ((100, 33), (16, 16, 1), (7, 3, 1)),
        ((9, 9, 9), (8, 8, 4), (2, 2, 3)),
        ((), (256, 1, 1), (1, 1, 1)),
    ],
)
def test_a_whole_tensor_gets_one_thread_an_element(
    shape: tuple[int, ...], block: tuple[int, int, int], blocks: tuple[int, int, int]
) -> None:
    assert resolve(shape=shape) == Geometry(blocks, block)


def test_a_tensor_of_four_axes_has_no_grid() -> None:
    with pytest.raises(LaunchError, match="4 axes"):
        resolve(shape=(2, 2, 2, 2))


def test_forall_takes_elements() -> None:
    assert resolve(elements=1000) == Geometry((4, 1, 1), (256, 1, 1))
    assert resolve(elements=0).grid == (0, 1, 1)


def test_forall_must_agree_with_partitions() -> None:
    assert resolve(part((1000,), 256), elements=1000).grid == (4, 1, 1)
    with pytest.raises(LaunchError, match=r"forall\(1000\) has \(4.*p0 has \(8.*\n.*forall out"):
        resolve(part((1000,), 128), elements=1000)
    assert resolve(part((2000,), 256, exact=False), elements=1000).grid == (4, 1, 1)
    with pytest.raises(LaunchError, match="larger than p0 has tiles"):
        resolve(part((500,), 256, exact=False), elements=1000)


@pytest.mark.parametrize(
    ("wishes", "threads"),
    [
        ({"elements": 1000}, (16, 16, 1)),
        ({"shape": (1000,)}, (16, 16, 1)),
        ({"shape": ()}, (16, 16, 1)),
        ({"shape": (1000,)}, (1, 16, 1)),
        ({"shape": (32, 32)}, (8, 8, 4)),
    ],
)
def test_threads_along_axes_without_elements_are_refused(
    wishes: dict[str, Any], threads: tuple[int, int, int]
) -> None:
    with pytest.raises(LaunchError, match=r"same work again.\n.*threads=256.*\[grid, block\]"):
        resolve(**wishes, threads=threads)


def test_threads_along_axes_with_elements_are_taken() -> None:
    assert resolve(elements=1000, threads=(64, 1, 1)).grid == (16, 1, 1)
    assert resolve(shape=(1000,), threads=(64, 1, 1)).grid == (16, 1, 1)
    assert resolve(shape=(32, 32), threads=(16, 16, 1)).grid == (2, 2, 1)
    assert resolve(shape=(32, 16), threads=(16, 16, 1), axes=(1, 0)).grid == (1, 2, 1)


@pytest.mark.parametrize("threads", [1, 2, 31, 32, 100, 256, 1000, 1024])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_block_is_spread_over_axes_without_growing(threads: int, rank: int) -> None:
    x, y, z = grid.spread(threads, rank)
    assert x * y * z <= threads < 2 * max(x * y * z, threads if rank == 1 else 0)
    assert (rank > 1 or y == 1) and (rank > 2 or z == 1)


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(LaunchError, match="4096 threads.*1024 that the device"):
        resolve(part((64, 64), (64, 64)))
    with pytest.raises(LaunchError, match="512 threads.*256 that the compiled kernel"):
        resolve(part((512,), 512), most=256)


def test_a_too_large_block_names_tile_and_remedies() -> None:
    with pytest.raises(LaunchError, match=r"\(4096,\) of p0's.*\n.*smaller tile.*threads=256"):
        resolve(part((8192,), 4096))
    with pytest.raises(LaunchError, match=r"tile \(1, 1, 128\) of p1's.*\n.*smaller tile.*thr"):
        resolve(part((9, 9, 128), (9, 9, 128), exact=False), part((1, 1, 128), (1, 1, 128)))
    with pytest.raises(LaunchError, match="fewer threads") as caught:
        resolve(part((8192,), 8192), block=(2048, 1, 1))
    assert "tile" not in str(caught.value)


def test_axes_that_are_too_long_are_refused() -> None:
    with pytest.raises(LaunchError, match="65535"):
        resolve(part((1, 70000), (1, 1)))
    with pytest.raises(LaunchError, match="128 along z"):
        resolve(part((1, 1, 128), (1, 1, 128)))


@pytest.mark.parametrize("extent", [0, -1, (1, 2, 3, 4), (), 1.5, "8", None])
def test_extents_that_are_none_are_refused(extent: object) -> None:
    with pytest.raises(LaunchError, match="one to three whole numbers"):
        grid.dim3(extent, "the grid", "k")


@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (), "xy", (0, 1, 2, 3)])
def test_axes_that_are_no_permutation_are_refused(axes: object) -> None:
    with pytest.raises(LaunchError, match="permutation"):
        grid.check_axes(axes, "k")


@pytest.mark.parametrize(
    ("shape", "tile"),
    [((4,), (2, 2)), ((4, 4), 2), ((4,), 0), ((4,), -1), ((), 1), ((1, 1, 1, 1), (1, 1, 1, 1)),
     ((4,), 1.5)],
)  # fmt: skip
def test_tiles_that_do_not_fit_are_refused(shape: tuple[int, ...], tile: object) -> None:
    with pytest.raises(ShapeError):
        part(shape, tile)


def test_too_many_blocks_are_refused_with_what_helps() -> None:
    with pytest.raises(LaunchError, match="Put the longest axis on x, with axes="):
        resolve(grid=(1, 70000, 1), block=(1, 1, 1))
    with pytest.raises(
        LaunchError, match=r"over x and y, with cuda.grid\(2\); or say fewer blocks"
    ):
        resolve(grid=(2**31, 1, 1), block=(1, 1, 1))
    with pytest.raises(LaunchError, match=r"allows 2147483647.\nUse larger tiles.\n"):
        resolve(part((2**31,), 1), threads=1)
