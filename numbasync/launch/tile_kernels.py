"""Generated kernels that pass a kernel's body the tiles of its block.

A body with `na.Tile` parameters is compiled as a device function; the launched kernel takes whole
arrays, each followed by the extents of its tile, and calls the body with slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbasync.backend.protocols import GENERATED
from numbasync.errors import LaunchError
from numbasync.facts.source import SOURCE_ATTR
from numbasync.launch.grid import AXES
from numbasync.launch.parameters import Parameter, Role
from numbasync.tensors.partition import MAX_RANK, Partition


def are_mapped(kernel: str, tiles: Sequence[tuple[str, Partition]]) -> bool:
    """Whether blocks walk through the tiles, one tile of every parameter at each visit.

    Args:
        kernel: the kernel's name.
        tiles: name and partition of each `na.Tile` parameter.

    Raises:
        LaunchError: some are mapped and some not, or not to equal blocks, or the grids differ.
    """
    name, first = next((t for t in tiles if t[1].blocks is not None), tiles[0])
    if first.blocks is None:
        return False
    for parameter, p in tiles:
        mapped = f"the tiles of {name} are mapped to {first.blocks} blocks, those of {parameter}"
        if p.blocks is None:
            problem, remedy = (
                f"{mapped} are not",
                f"{parameter}.partition(tile).map({first.blocks})",
            )
        elif p.blocks != first.blocks:
            problem, remedy = f"{mapped} to {p.blocks}", "the same number of blocks for all"
        elif _in_three_axes(p.grid) != _in_three_axes(first.grid):
            problem = f"{name} has a grid of {first.grid} tiles, {parameter} one of {p.grid}"
            remedy = "tiles that give equal grids"
        else:
            continue
        raise LaunchError(
            f"kernel {kernel}: {problem}; but a block visits one tile of each at a time.\n"
            f"Write {remedy}."
        )
    return True


def _in_three_axes(grid: tuple[int, ...]) -> tuple[int, ...]:
    return grid + (1,) * (MAX_RANK - len(grid))


def with_tiles(
    body: Any,
    parameters: Sequence[Parameter],
    ranks: Sequence[int],
    axes: tuple[int, ...] | None,
    mapped: bool,
    options: dict[str, Any],
) -> Any:
    """A Numba kernel that calls `body` with its block's tile of each `na.Tile` parameter.

    Args:
        body: the kernel as a device function.
        parameters: the kernel's parameters.
        ranks: of the tiles, in the order of the parameters that take one.
        axes: CUDA axis of each tensor axis; None for the same order.
        mapped: the body is called for tile after tile, as `Partition.map` describes.
        options: of `cuda.jit`.
    """
    from numbasync.kernel_names import cuda

    signature, body_arguments = [], []
    remaining = iter(ranks)
    widest = ""  # the first array of the highest rank: its tile grid has all axes
    for i, p in enumerate(parameters):
        signature.append(f"p{i}")
        if p.role is not Role.TILE:
            body_arguments.append(f"p{i}")
            continue
        rank = next(remaining)
        if rank == max(ranks):
            widest = widest or f"p{i}"
        slices = []
        for axis in range(rank):
            coordinate = (
                f"at{axis}" if mapped else f"cuda.blockIdx.{AXES[axes[axis] if axes else axis]}"
            )
            tile = f"p{i}_{axis}"
            signature.append(tile)
            slices.append(f"{coordinate} * {tile} : ({coordinate} + 1) * {tile}")
        body_arguments.append(f"p{i}[{', '.join(slices)}]")
    call = f"body({', '.join(body_arguments)})"
    lines = _walk(widest, max(ranks), call) if mapped else [call]
    source = "\n    ".join([f"def kernel({', '.join(signature)}):", *lines])
    names: dict[str, Any] = {"cuda": cuda, "body": body}
    # Built from parameter positions alone.
    exec(compile(source, GENERATED, "exec"), names)  # noqa: S102
    kernel = names["kernel"]
    setattr(kernel, SOURCE_ATTR, source)
    kernel.__name__ = kernel.__qualname__ = body.py_func.__name__  # the name in messages
    return cuda.jit(**options)(kernel)


def _walk(array: str, rank: int, call: str) -> list[str]:
    """The source that makes `call` for every tile of a block, with its coordinates `at0`, `at1` ...

    The barrier lets the body reuse its shared memory. Every thread reaches the barrier: all threads
    of a block make equally many visits, and a `return` in the body leaves the body alone.
    """
    extents = [f"n{axis}" for axis in range(rank)]
    lines = [
        f"{n} = ({array}.shape[{axis}] + {array}_{axis} - 1) // {array}_{axis}"
        for axis, n in enumerate(extents)
    ]
    lines.append(f"for t in range(cuda.blockIdx.x, {' * '.join(extents)}, cuda.gridDim.x):")
    for axis, n in enumerate(extents):
        within = " * ".join(extents[axis + 1 :])
        index = f"t // ({within})" if within else "t"
        lines.append(f"    at{axis} = {index}" + (f" % {n}" if axis else ""))
    return [*lines, f"    {call}", "    cuda.syncthreads()"]
