"""Grids and blocks: pure arithmetic from partitions, shapes and requested extents to a launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numbasync.arguments import as_wholes, shown
from numbasync.backend.protocols import Dim3, Limits
from numbasync.errors import LauncherError, LaunchError
from numbasync.facts.positions import Usage
from numbasync.launch.blocks import reaching
from numbasync.launch.blocks import spread as spread
from numbasync.tensors.partition import Partition

AXES = "xyz"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The blocks of a launch, and the threads of a block."""

    grid: Dim3
    block: Dim3

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z


def dim3(extent: Any, what: str, kernel: str) -> Dim3:
    """One to three positive extents, padded with ones to three.

    Raises:
        LaunchError: the extents are not one to three whole numbers of at least 1.
    """
    if type(extent) is int and extent > 0:  # the usual case, and the quickest
        return extent, 1, 1
    parts = as_wholes(extent) or ()
    if not 1 <= len(parts) <= 3 or any(part < 1 for part in parts):
        raise LaunchError(
            f"kernel {kernel}: {what} is one to three whole numbers of at least 1, not "
            f"{shown(extent)}."
        )
    return (*parts, *(1,) * (3 - len(parts)))  # type: ignore[return-value]  # three in all


def check_axes(axes: Any, kernel: str) -> tuple[int, ...] | None:
    """The validated `axes=` of a launcher: for each tensor axis, its CUDA axis."""
    if axes is None:
        return None
    order = as_wholes(axes) or ()
    if not order or len(order) > 3 or sorted(order) != list(range(len(order))):
        raise LaunchError(
            f"kernel {kernel}: axes= is a permutation such as (1, 0), which puts tensor axis 0 on "
            f"CUDA axis y and axis 1 on x; not {shown(axes)}."
        )
    return order


def _on_cuda_axes(
    extents: Sequence[int], axes: tuple[int, ...] | None, kernel: str, fill: int = 1
) -> Dim3:
    order = axes if axes is not None else tuple(range(len(extents)))
    if len(order) != len(extents):
        raise LaunchError(
            f"kernel {kernel}: axes={order} has {len(order)} axes, the output has {len(extents)}."
        )
    placed = [fill] * 3
    for axis, extent in zip(order, extents, strict=True):
        placed[axis] = extent
    return placed[0], placed[1], placed[2]


@dataclass(frozen=True, slots=True)
class Request:
    """The inputs of a launch that determine its extents.

    Attributes:
        kernel: the kernel's name.
        partitions: the partitions among the outputs, with parameter names, in signature order.
        shape: of the first output that is a whole tensor, if there is one.
        grid, block: as given explicitly by the call.
        threads: as given to the launcher, if given.
        axes: CUDA axis of each tensor axis; None for the same order.
        elements: launch this many threads in one dimension (`forall`).
        usage: how the kernel uses a thread's position; None if the call sets the extents.
        bounds: pairs of a CUDA axis and an extent that the kernel compares a thread's coordinate
            with.
        reach: pairs of a CUDA axis and the least number of threads along it that have work.
    """

    kernel: str
    partitions: tuple[tuple[str, Partition], ...]
    shape: tuple[int, ...] | None
    grid: Dim3 | None
    block: Dim3 | None
    threads: int | Dim3 | None
    axes: tuple[int, ...] | None
    elements: int | None = None
    usage: Usage | None = None
    bounds: frozenset[tuple[int, int]] = frozenset()
    reach: frozenset[tuple[int, int]] = frozenset()


def resolve(request: Request, limits: Limits, most: int, suggest: Callable[[], int]) -> Geometry:
    """The extents of a launch.

    Args:
        limits: of the device.
        most: threads per block that the compiled kernel allows.
        suggest: threads per block that suit the kernel; called only if nothing else sets them.

    Raises:
        LaunchError: the requested extents contradict each other, or exceed a limit.
    """
    geometry = _extents(request, limits, suggest)
    _check_distinguishable(request, geometry)
    _check_reach(request, geometry)
    _check(request, geometry, limits, most)
    return geometry


def _extents(request: Request, limits: Limits, suggest: Callable[[], int]) -> Geometry:
    r = request
    if r.elements is not None:
        block = _threads(r, 1, suggest)
        _check_axes_of_block(r, block, {0}, "forall counts its threads")
        grid = (-(-r.elements // block[0]), 1, 1)
        _check_partitions(r, grid)
        return Geometry(grid, block)
    exact = [(name, p) for name, p in r.partitions if p.exact]
    if r.grid is None and exact:
        name, first = exact[0]
        grid = _launched_for(r, first)
    elif r.grid is not None:
        grid = r.grid
    elif r.partitions:
        name, first = r.partitions[0]
        raise LaunchError(
            f"kernel {r.kernel}: the grid must be given, because {name} is a partition_prefix, "
            f"which only bounds it ({first.grid} at most).\n"
            f"Write {r.kernel}[grid, block](...), or use partition() to cover all of it."
        )
    elif r.shape is not None:
        return _one_thread_an_element(r, r.shape, limits, suggest)
    else:
        raise LaunchError(
            f"kernel {r.kernel}: the grid must be given, because no output says what it is.\n"
            f"Pass an output as t.partition(tile), or write {r.kernel}[grid, block](...)."
        )
    _check_partitions(r, grid)
    if r.block is not None:
        return Geometry(grid, r.block)
    source = _tiled_by(r)
    if source is None:
        return Geometry(grid, _threads(r, 1, suggest))
    return Geometry(grid, _on_cuda_axes(source[1].tile, r.axes, r.kernel))


def _launched_for(r: Request, partition: Partition) -> Dim3:
    """The grid that a partition requires, or, for a partition_prefix, the largest that it
    allows.
    """
    if partition.blocks is not None:
        return partition.blocks, 1, 1
    return _on_cuda_axes(partition.grid, r.axes, r.kernel)


def _tiled_by(r: Request) -> tuple[str, Partition] | None:
    """The partition whose tile becomes the block, if no explicit block or thread count does."""
    if r.block is not None or r.threads is not None or r.elements is not None:
        return None
    exact = (named for named in r.partitions if named[1].exact)
    return next(exact, r.partitions[0] if r.partitions else None)


def _check_partitions(r: Request, grid: Dim3) -> None:
    for name, partition in r.partitions:
        own = _launched_for(r, partition)
        if partition.exact and own != grid:
            blocks = "" if partition.blocks is None else f", mapped to {partition.blocks} blocks"
            raise LaunchError(
                f"kernel {r.kernel}: {_origin(r)} has {grid} blocks, but the partition of {name} "
                f"has {own}: shape {partition.tensor.shape} in tiles of {partition.tile}{blocks}.\n"
                f"{_grid_remedy(r)}"
            )
        if not partition.exact and any(a > b for a, b in zip(grid, own, strict=True)):
            raise LaunchError(
                f"kernel {r.kernel}: a grid of {grid} blocks is larger than {name} has tiles: "
                f"{own}."
            )


def _grid_remedy(r: Request) -> str:
    """The remedy for a grid and a partition that differ, or for two partitions that differ."""
    if r.elements is not None:
        return "Leave forall out, since the partition says the grid; or pass the tensor whole."
    if any(p.blocks is not None for _, p in r.partitions):
        return (
            "A mapped launch has a grid of (blocks, 1, 1): map all partitions to as many blocks, "
            "and pass outputs that the kernel does not walk through whole."
        )
    return "Choose tiles that give equal grids, or partition_prefix() for the larger one."


def _origin(r: Request) -> str:
    """The source of the grid, for messages."""
    if r.elements is not None:
        return f"forall({r.elements})"
    return "the grid" if r.grid is not None else f"the partition of {_first(r)}"


def _check_axes_of_block(r: Request, block: Dim3, used: set[int], what: str) -> None:
    """Refuse threads along an axis without elements: each of them would do the same work."""
    if any(n > 1 for axis, n in enumerate(block) if axis not in used):
        along = ", ".join(AXES[axis] for axis in sorted(used))
        raise LaunchError(
            f"kernel {r.kernel}: a block of {block} threads, but {what} along {along} only, so "
            "threads along the other axes would do the same work again.\n"
            f"Write threads=256, or give the block explicitly: {r.kernel}[grid, block](...)."
        )


def _first(r: Request) -> str:
    return next(name for name, p in r.partitions if p.exact)


def _threads(r: Request, rank: int, suggest: Callable[[], int]) -> Dim3:
    if isinstance(r.threads, tuple):
        return r.threads
    return spread(r.threads if r.threads is not None else suggest(), rank)


def _one_thread_an_element(
    r: Request, shape: tuple[int, ...], limits: Limits, suggest: Callable[[], int]
) -> Geometry:
    if len(shape) > 3:
        raise LaunchError(
            f"kernel {r.kernel}: an output of {len(shape)} axes has no grid of its own.\n"
            f"Write {r.kernel}[grid, block](...), or reshape it to three axes at most."
        )
    extents = _on_cuda_axes(shape, r.axes, r.kernel)
    order = r.axes or tuple(range(len(shape)))
    used = _used_axes(r, shape, order)
    if r.block is not None or isinstance(r.threads, tuple):
        block = r.block or _threads(r, 1, suggest)
    elif used:
        block = _on_cuda_axes(_threads(r, len(used), suggest)[: len(used)], tuple(used), r.kernel)
        block = reaching(block, extents, limits)
    else:
        block = r.threads or 1, 1, 1
    lies_on = set(order) or {0}
    _check_axes_of_block(r, block, lies_on, f"the output of shape {shape} has elements")
    grid = tuple(
        -(-n // t) if axis in used or not n else 1
        for axis, (n, t) in enumerate(zip(extents, block, strict=True))
    )
    return Geometry(grid, block)  # type: ignore[arg-type]  # three, as both operands


def _used_axes(r: Request, shape: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """The CUDA axes along which a launch of one thread per element has threads: the axes with
    elements whose coordinate the kernel reads.

    Raises:
        LaunchError: the kernel leaves out an axis with elements, and does not compare its
            coordinates with the extents of the others.
    """
    sizes = dict(zip(order, shape, strict=False))
    if r.usage is None or 0 in shape:
        return sorted(sizes) or [0]
    used = [axis for axis in sorted(sizes) if axis in r.usage.axes]
    if not sizes and 0 in r.usage.axes:
        return [0]
    left_out = [axis for axis in sorted(sizes) if axis not in used and sizes[axis] > 1]
    if used:
        is_certain = all((axis, sizes[axis]) in r.bounds for axis in used)
    else:
        is_certain = not (r.usage.axes or r.usage.counts)
    if left_out and not is_certain:
        asked = _letters(sorted(r.usage.axes)) or "no axis"
        raise LaunchError(
            f"kernel {r.kernel}: the output of shape {shape} has elements along "
            f"{_letters(sorted(sizes))}, but the kernel asks for its place along {asked} only, so "
            f"threads along {_letters(left_out)} would do the same work again.\n"
            f"Say how many threads there are, {r.kernel}.forall(n)(...) or "
            f"{r.kernel}[grid, block](...); or compare each index with the output's extent: "
            "i < z.shape[0]."
        )
    return used


def _letters(axes: Sequence[int]) -> str:
    return ", ".join(AXES[axis] for axis in axes)


def _check_distinguishable(r: Request, geometry: Geometry) -> None:
    """Refuse blocks, or threads of a block, that the kernel cannot distinguish, unless the call
    requests them by numbers.
    """
    if r.usage is None or r.usage.repeats or 0 in geometry.grid:
        return
    for what, extents, read, name in (
        ("threads a block", geometry.block, r.usage.threads, "threadIdx"),
        ("blocks", geometry.grid, r.usage.blocks, "blockIdx"),
    ):
        for axis, extent in enumerate(extents):
            if extent > 1 and axis not in read:
                index = f"cuda.{name}.{AXES[axis]}"
                raise LaunchError(
                    f"kernel {r.kernel}: {extents} {what}, but the kernel does not ask for {index}"
                    f", so that those along {AXES[axis]} would do the same work again.\n"
                    + _repeat_remedy(r, name)
                )


def _check_reach(r: Request, geometry: Geometry) -> None:
    """Refuse a launch of one thread per element that leaves out threads with work."""
    if 0 in geometry.grid or (r.partitions and r.threads is not None):
        return
    for axis, letter in enumerate(AXES):
        launched = geometry.grid[axis] * geometry.block[axis]
        needed = min((n for a, n in r.reach if a == axis), default=0)
        if needed > launched:
            raise LaunchError(
                f"kernel {r.kernel}: it compares its index along {letter} with {needed}, but there "
                f"are {launched} threads along {letter}; nobody would do the work of the others.\n"
                f"{_reach_remedy(r)}; or {r.kernel}[grid, block](...)."
            )


def _reach_remedy(r: Request) -> str:
    """The remedy where a launch has too few threads."""
    if any(p.blocks is not None for _, p in r.partitions):
        return (
            "Blocks of a mapped partition visit its tiles in turn: walk through the elements, for i"
            " in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)); or leave out map()"
        )
    rank = len(r.shape or ())
    if r.usage is not None and len(r.usage.axes) > 1 and rank > 1:
        turned = tuple(reversed(range(rank)))
        return f"If x is the output's last axis, write @na.launcher(axes={turned})"
    return f"Say how many threads there are: {r.kernel}.forall(n)(...)"


def _repeat_remedy(r: Request, name: str) -> str:
    explicit = f"say both explicitly: {r.kernel}[grid, block](...)."
    if name == "blockIdx":
        return f"Use tiles that leave one block on that axis, or {explicit}"
    return (
        "Use cuda.grid(n), say how many threads a block has, @na.launcher(threads=1), or "
        f"{explicit}"
    )


def _check(r: Request, geometry: Geometry, limits: Limits, most: int) -> None:
    tiled = _tiled_by(r)
    if tiled is None:
        of, fewer = "", "Use fewer threads a block, such as 256"
    else:
        name, partition = tiled
        of = f", the tile {partition.tile} of {name}'s partition"
        fewer = "Use a smaller tile, or say how many threads: @na.launcher(threads=256)"
    allowed = min(most, limits.max_threads_per_block)
    if geometry.threads > allowed:
        why = "the device" if allowed == limits.max_threads_per_block else "the compiled kernel"
        raise LaunchError(
            f"kernel {r.kernel}: {geometry.threads} threads a block ({geometry.block}{of}) are "
            f"more than the {allowed} that {why} allows.\n{fewer}."
        )
    for axis, extent, bound in zip(AXES, geometry.block, limits.max_block, strict=True):
        if extent > bound:
            raise LaunchError(
                f"kernel {r.kernel}: a block of {geometry.block}{of} has {extent} along {axis}, "
                f"where the device allows {bound}.\n"
                f"{fewer}; or put the longest axis on x, with axes=."
            )
    for axis, extent, bound in zip(AXES, geometry.grid, limits.max_grid, strict=True):
        if extent > bound:
            raise LaunchError(
                f"kernel {r.kernel}: a grid of {geometry.grid} has {extent} along {axis}, where "
                f"the device allows {bound}.\n{_fewer_blocks(axis, bool(r.partitions))}"
            )


def _fewer_blocks(axis: str, is_tiled: bool) -> str:
    """What to do about a grid with too many blocks along an axis."""
    if axis != "x":
        return "Put the longest axis on x, with axes=, or use larger tiles."
    if is_tiled:
        return "Use larger tiles."
    return (
        "Launch it over x and y, with cuda.grid(2); or say fewer blocks, such as "
        "kernel[1024, 256](...), and let each thread go through several elements: "
        "for i in range(cuda.grid(1), n, cuda.gridsize(1))."
    )


ONE_BLOCK: Dim3 = (1, 1, 1)
MOST = 8  # blocks of a cluster that every device with clusters allows


# --- clusters of blocks ---


def check_cluster(cluster: Any, kernel: str) -> Dim3:
    """The validated `cluster=` of a launcher; None stands for one block.

    Raises:
        LaunchError: it is not one to three whole numbers of at least 1.
        LauncherError: it has more than `MOST` blocks.
    """
    if cluster is None:
        return ONE_BLOCK
    extents = dim3(cluster, "cluster=", kernel)
    if math.prod(extents) > MOST:
        raise LauncherError(
            f"kernel {kernel}: cluster={cluster} has {math.prod(extents)} blocks, and not every "
            f"device has clusters of more than {MOST}.\nWrite 2, 4 or 8 blocks, such as cluster=2."
        )
    return extents


def check_grid(cluster: Dim3, grid: Dim3, kernel: str, limits: Limits) -> None:
    """
    Raises:
        LaunchError: the device has no clusters, or no whole number of them makes up the grid.
    """
    if math.prod(cluster) > limits.max_cluster:
        raise LaunchError(
            f"kernel {kernel}: cluster={cluster}, and this device has no clusters of blocks, which "
            "need compute capability 9.0 or higher.\nWrite a kernel without cluster= for it, whose "
            "blocks load all of their tiles themselves."
        )
    for letter, blocks, extent in zip(AXES, grid, cluster, strict=True):
        if blocks % extent:
            whole = tuple(-(-n // c) * c for n, c in zip(grid, cluster, strict=True))
            raise LaunchError(
                f"kernel {kernel}: a grid of {grid} has {blocks} blocks along {letter}, and "
                f"cluster={cluster} needs a multiple of {extent}.\n"
                f"Write {kernel}[grid, block](...) with a grid such as {whole}; blocks beyond the "
                "work have to skip it."
            )
