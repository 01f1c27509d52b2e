"""Partitions: a tensor cut into tiles, one per block of a launch, or several tiles per block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from numbasync import layout
from numbasync.arguments import as_whole, as_wholes, check_bool, shown, with_type
from numbasync.errors import OperationError, ShapeError
from numbasync.native import known
from numbasync.public import Public

if TYPE_CHECKING:
    from numbasync.device.device import Device
    from numbasync.ops.op import DeviceOp
    from numbasync.tensors.tensor import Tensor

MAX_RANK = 3  # a grid has three axes


@known
class Partition(Public):
    """A tensor and the tile that one block of a launch takes of it.

    Attributes:
        tensor: the tensor that is cut; the launch writes it in place.
        tile: extents of one tile, one per axis of the tensor.
        grid: number of tiles along each axis; the last tile is cut off at the tensor's edge.
        exact: the launch must cover every tile; False (`partition_prefix`): it may cover fewer.
        blocks: of a mapped partition (`map`), the blocks that share the tiles; else None.

    Examples:
        >>> z = await na.zeros((16, 17))
        >>> p = z.partition((4, 5))
        >>> p.grid, p.tile
        ((4, 4), (4, 5))
        >>> p.tensor is z
        True
    """

    __slots__ = ("_fingerprint", "blocks", "exact", "grid", "tensor", "tile")

    def __init__(self, tensor: Tensor, tile: int | tuple[int, ...], *, exact: bool = True) -> None:
        self.tensor = tensor
        shape = getattr(tensor, "shape", None)
        if type(shape) is not tuple:
            raise OperationError(
                f"a Partition is of a tensor, not {with_type(tensor)}: write t.partition(tile)."
            )
        self.tile = _check_tile(tile, shape)
        self.grid: tuple[int, ...] = tuple(
            -(-n // t) for n, t in zip(shape, self.tile, strict=True)
        )
        self.exact = exact if type(exact) is bool else check_bool(exact, "exact of a Partition")
        self.blocks: int | None = None
        self._fingerprint = -1

    @property
    def device(self) -> Device | None:
        """The device of the tensor; None for one without memory."""
        return self.tensor.device

    @property
    def fingerprint(self) -> int:
        """A number that is equal for equal tiles and blocks, of tensors of equal fingerprint."""
        if self._fingerprint < 0:
            parts = (self.tensor.fingerprint, self.tile, self.exact, self.blocks)
            self._fingerprint = layout.fingerprint(parts)
        return self._fingerprint

    def map(self, blocks: int | None = None) -> Partition:
        """The same tiles with a persistent schedule: few blocks, each of which loops over tiles.

        The launch has a grid of (blocks, 1, 1), whatever the tensor's rank. Block b takes the
        tiles b, b + blocks, b + 2 * blocks ..., counted in C order of the tile grid. A `na.Tile`
        is handed to the kernel tile after tile, with a barrier in between; a kernel with a
        `na.KernelOutput` loops itself. In both, `cuda.blockIdx.x` is the block, not the tile.

        Args:
            blocks: 1 to the number of tiles; None: one per multiprocessor of the tensor's device,
                or one per tile if there are fewer tiles.

        Raises:
            ShapeError: `blocks` is out of range or no whole number; the partition is a prefix
                or mapped already; `blocks` is None for a meta tensor.

        Examples:
            >>> z = await na.zeros(100)
            >>> z.partition(10).map(4).blocks  # four blocks share ten tiles
            4
        """
        if self.blocks is not None:
            raise ShapeError(f"{self!r} is mapped to {self.blocks} blocks already.")
        if not self.exact:
            raise ShapeError(
                f"{self!r} cannot be mapped: a partition_prefix leaves open which tiles are "
                "covered, a mapped one covers all.\n"
                "Map a view of what is to be covered: t[:n].partition(tile).map(blocks)"
            )
        partition = Partition(self.tensor, self.tile)
        partition.blocks = self._default_blocks() if blocks is None else self._check_blocks(blocks)
        return partition

    def _default_blocks(self) -> int:
        device = self.tensor.device
        if device is None:
            raise ShapeError(
                f"{self!r} is of a meta tensor, which has no device to count multiprocessors of.\n"
                "Say how many blocks: map(blocks)"
            )
        return min(device.limits.multiprocessors, math.prod(self.grid))

    def _check_blocks(self, blocks: Any) -> int:
        count = as_whole(blocks)
        if count is None:
            raise ShapeError(
                f"blocks are counted by a whole number, not {shown(blocks)}.\n"
                "Write p.map(8); of an operation, op.partition(tile).map(lambda p: p.map(8))."
            )
        tiles = math.prod(self.grid)
        if count < 1:
            raise ShapeError(f"a mapped partition has at least 1 block, not {shown(count)}.")
        if count > tiles:
            raise ShapeError(
                f"{shown(count)} blocks cannot share {tiles} tiles, which is what {self!r} has.\n"
                "Write map(), which takes as many as suit the device and at most all tiles."
            )
        return count

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.tensor, self.tile, self.exact, self.blocks)

    def unpartition(self) -> Tensor:
        """The tensor that is cut.

        Examples:
            >>> z = await na.zeros(8)
            >>> z.partition(4).unpartition() is z
            True
        """
        return self.tensor

    def to_host(self) -> DeviceOp[Any]:
        """The tensor's elements as a NumPy array.

        Examples:
            >>> z = await na.ones(4)
            >>> await z.partition(2).to_host()
            array([1., 1., 1., 1.], dtype=float32)
        """
        return self.tensor.to_host()

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise OperationError(
            f"{self!r} says how a launch writes a tensor, and has no elements of its own.\n"
            "Write: array = await p.tensor.to_host()"
        )

    def __repr__(self) -> str:
        name = "partition" if self.exact else "partition_prefix"
        mapped = "" if self.blocks is None else f", mapped to {self.blocks} blocks"
        return f"<{name} of {self.tensor!r} into tiles {self.tile}, grid {self.grid}{mapped}>"


def _restored(tensor: Tensor, tile: tuple[int, ...], exact: bool, blocks: int | None) -> Partition:
    partition = Partition(tensor, tile, exact=exact)
    return partition if blocks is None else partition.map(blocks)


def _check_tile(tile: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    extents = as_wholes(tile)
    if extents is None:
        raise ShapeError(f"a tile is a whole number or a tuple of them, not {shown(tile)}.")
    if not 1 <= len(shape) <= MAX_RANK:
        raise ShapeError(
            f"a tensor of {len(shape)} axes cannot be partitioned: a grid has 1 to {MAX_RANK}.\n"
            "Reshape it first."
        )
    if len(extents) != len(shape):
        raise ShapeError(
            f"the tile {shown(extents)} has {len(extents)} extents, the tensor of shape {shape} "
            f"has {len(shape)} axes."
        )
    if any(not 1 <= n <= layout.MOST_BYTES for n in extents):
        raise ShapeError(f"a tile has positive extents, less than 2**63: {shown(extents)}.")
    return extents
