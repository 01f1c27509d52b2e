"""One launch of a kernel under test, with guard zones and records of its writes."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from numbasync.arguments import shown
from numbasync.backend.protocols import Checks, Writers
from numbasync.device.device import Device, use_device
from numbasync.dtypes import check_dtype
from numbasync.errors import CallerError, DTypeError
from numbasync.launch.configured import Configured
from numbasync.launch.launcher import Launcher, launcher
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor
from numbasync.testing.check.block_map import Owners, tiles_of
from numbasync.testing.check.closeness import Array
from numbasync.testing.check.guard_zones import Guarded, OutsideWrite

Tile: TypeAlias = int | tuple[int, ...] | Mapping[str, int | tuple[int, ...]]

_launchers: weakref.WeakKeyDictionary[Any, Launcher] = weakref.WeakKeyDictionary()


def _check_array(name: str, array: Array) -> None:
    try:
        check_dtype(array.dtype, records=True)
    except DTypeError as error:
        raise DTypeError(f"check_kernel: {name}: {error}") from None


def launcher_of(kernel: Any) -> Launcher:
    """The launcher of a kernel, which may be a Numba dispatcher."""
    if isinstance(kernel, Launcher):
        return kernel
    if isinstance(kernel, Configured):
        raise CallerError(
            f"{kernel!r} has its extents already, and check_kernel gives them to each launch. "
            "Pass the kernel alone, and its extents by name: check_kernel(kernel, args, reference, "
            "grid=2, block=256). For kernel.forall(n) that is grid=(n + 255) // 256, block=256."
        )
    if not callable(kernel):
        raise CallerError(
            f"{shown(kernel)} is no kernel; pass what @na.launcher or @cuda.jit made."
        )
    made_launcher = _launchers.get(kernel)
    if made_launcher is None:
        made_launcher = _launchers[kernel] = launcher(kernel)
    return made_launcher


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents of a launch; the launcher chooses those that are None.

    Attributes:
        tile: tile of all outputs, or tiles by output name.
        grid, block: blocks of the launch, threads of a block.
        shared_bytes: of dynamic shared memory.
    """

    tile: Tile | None = None
    grid: Any = None
    block: Any = None
    shared_bytes: int = 0

    def tile_of(self, name: str) -> int | tuple[int, ...] | None:
        return self.tile.get(name) if isinstance(self.tile, Mapping) else self.tile

    def __str__(self) -> str:
        parts = (("tile", self.tile), ("grid", self.grid), ("block", self.block))
        shared = f"shared_bytes={self.shared_bytes}" if self.shared_bytes else None
        return ", ".join(
            [f"{k}={v}" for k, v in parts if v is not None] + ([shared] if shared else [])
        )


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The results of a launch.

    Attributes:
        arrays: the content of each array, by parameter.
        outside_writes: writes outside of an array, by parameter.
        writers: the last writers of all elements; None if accesses were not checked.
    """

    arrays: dict[str, Array]
    outside_writes: dict[str, OutsideWrite]
    writers: Writers | None


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel under test with its arguments.

    Attributes:
        kernel: the kernel's launcher.
        values: the arguments, in signature order.
        filled: outputs that were filled with values that the kernel must overwrite.
    """

    kernel: Launcher
    values: tuple[Any, ...]
    filled: frozenset[str] = frozenset()
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(p.name for p in self.kernel.parameters)
        if len(names) != len(self.values):
            raise CallerError(
                f"check_kernel: {self.kernel.label} takes {len(names)} arguments, and "
                f"{len(self.values)} came. Pass them all in signature order, the outputs' arrays "
                "with what they hold before."
            )
        object.__setattr__(self, "names", names)
        for name, value in zip(names, self.values, strict=True):
            if isinstance(value, np.ndarray):
                _check_array(name, value)
            elif isinstance(value, Tensor | Partition):
                raise CallerError(
                    f"check_kernel: {name} is {shown(value)}; pass NumPy arrays, of which every "
                    "device "
                    "gets copies. Tiles are said by tile=."
                )

    @property
    def outputs(self) -> tuple[str, ...]:
        """The arrays that the kernel may write."""
        return tuple(
            p.name for p in self.kernel.parameters if p.is_output and p.name in self.arrays
        )

    @property
    def arrays(self) -> dict[str, Array]:
        arguments = zip(self.names, self.values, strict=True)
        return {name: value for name, value in arguments if isinstance(value, np.ndarray)}

    @property
    def shared(self) -> frozenset[str]:
        """Parameters whose array is also passed for another parameter."""
        times = Counter(id(a) for a in self.arrays.values())
        return frozenset(name for name, a in self.arrays.items() if times[id(a)] > 1)

    def filled_with(self, changed: Mapping[str, Any]) -> Subject:
        """The same subject with other values in some outputs."""
        arguments = zip(self.names, self.values, strict=True)
        values = tuple(changed.get(name, value) for name, value in arguments)
        return Subject(self.kernel, values, self.filled | frozenset(changed))

    def check_tile(self, tile: Tile | None) -> None:
        """Refuse tiles of parameters that are not outputs."""
        unknown = sorted(set(tile) - set(self.outputs)) if isinstance(tile, Mapping) else []
        if unknown:
            raise CallerError(
                f"check_kernel: tile={shown(tile)}: {unknown[0]} is no output of "
                f"{self.kernel.label}; "
                f"its outputs are {', '.join(self.outputs) or 'none'}."
            )

    def run(self, device: Device, extents: Extents, checks: Checks | None = None) -> Result:
        """Launch the kernel once, on copies of its arguments.

        Raises:
            The errors of the launch.
        """
        writers: list[Writers] = []
        if checks is not None and checks.watches:
            checks = Checks(checks.order, checks.seed, writers=writers)
        checking = nullcontext() if checks is None else device.backend.checked(checks)
        with use_device(device), checking:
            guarded: dict[int, Guarded] = {}  # by identity: an array passed twice is copied once
            arguments = [self._given(guarded, value) for value in self.values]
            launched = [
                self._cut(name, value.tensor, extents) if isinstance(value, Guarded) else value
                for name, value in zip(self.names, arguments, strict=True)
            ]
            kernel = self.kernel.with_extents(extents.grid, extents.block, extents.shared_bytes)
            kernel(*launched).sync()
            arrays, outside_writes = {}, {}
            for name, value in zip(self.names, arguments, strict=True):
                if isinstance(value, Guarded):
                    arrays[name], write = value.read()
                    if write is not None:
                        outside_writes[name] = write
        return Result(arrays, outside_writes, writers[-1] if writers else None)

    def _given(self, guarded: dict[int, Guarded], value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if id(value) not in guarded:
            guarded[id(value)] = Guarded(value)
        return guarded[id(value)]

    def _cut(self, name: str, tensor: Any, extents: Extents) -> Any:
        if name not in self.outputs:
            return tensor
        tile = extents.tile_of(name)
        return tensor if tile is None else tensor.partition(tile)

    def owners(self, name: str, extents: Extents, writers: Writers) -> Owners | None:
        """The owners of an output's elements; None if they are not known."""
        last = writers.last[list(self.arrays).index(name)]
        shape = self.arrays[name].shape
        if last is None or last.size != self.arrays[name].size:
            return None
        if self.arrays[name].dtype.names is not None:
            return None  # accesses to fields are not checked
        tile = extents.tile_of(name)
        tiles = None
        if tile is not None:
            cut = tile if isinstance(tile, tuple) else (tile,)
            axes = self.kernel.planner.axes or tuple(range(len(cut)))
            tiles = tiles_of(shape, cut, axes, writers.grid)
        return Owners(writers.grid, writers.block, last.reshape(shape), tiles)
