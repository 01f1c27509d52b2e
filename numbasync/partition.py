"""Partitions: a tensor cut into tiles, one for each block of a launch."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from numbasync import layout
from numbasync.errors import ShapeError

if TYPE_CHECKING:
    from numbasync.op import DeviceOp
    from numbasync.tensor import Tensor

MAX_RANK = 3  # a grid has three axes


class Partition:
    """A tensor and the tile that one block of a launch takes of it.

    Attributes:
        tensor: what is cut; the launch writes it in place.
        tile: extents of one tile, as many as the tensor has axes.
        grid: tiles along each axis, the last one cut off at the edge.
        exact: the launch covers every tile; else (`partition_prefix`) at most all of them.
    """

    __slots__ = ("_fingerprint", "exact", "grid", "tensor", "tile")

    def __init__(self, tensor: Tensor, tile: int | tuple[int, ...], *, exact: bool = True) -> None:
        self.tensor = tensor
        self.tile = _check_tile(tile, tensor.shape)
        self.grid = tuple(-(-n // t) for n, t in zip(tensor.shape, self.tile, strict=True))
        self.exact = exact
        self._fingerprint = -1

    @property
    def fingerprint(self) -> int:
        """Equal for equal tiles of tensors of equal dtype, layout and shape."""
        if self._fingerprint < 0:
            parts = (self.tensor.fingerprint, self.tile, self.exact)
            self._fingerprint = layout.fingerprint(parts)
        return self._fingerprint

    def unpartition(self) -> Tensor:
        """The tensor."""
        return self.tensor

    def to_host(self) -> DeviceOp[Any]:
        """The tensor's elements as a NumPy array."""
        return self.tensor.to_host()

    def __repr__(self) -> str:
        kind = "partition" if self.exact else "partition_prefix"
        return f"<{kind} of {self.tensor!r} into tiles {self.tile}, grid {self.grid}>"


def _check_tile(tile: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        extents = tuple(map(operator.index, tile if isinstance(tile, tuple | list) else (tile,)))
    except TypeError:
        raise ShapeError(f"a tile is a whole number or a tuple of them, not {tile!r}.") from None
    if not 1 <= len(shape) <= MAX_RANK:
        raise ShapeError(
            f"a tensor of {len(shape)} axes cannot be partitioned: a grid has 1 to {MAX_RANK}.\n"
            "Reshape it first."
        )
    if len(extents) != len(shape):
        raise ShapeError(
            f"the tile {extents} has {len(extents)} extents, the tensor of shape {shape} has "
            f"{len(shape)} axes."
        )
    if any(n < 1 for n in extents):
        raise ShapeError(f"a tile has positive extents: {extents}.")
    return extents
