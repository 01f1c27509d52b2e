"""Plans: compiled code and extents for one kernel and one kind of call.

Calls with the same types, layouts, shapes and tiles share a plan; the second one finds it
and computes nothing. What depends on values (preconditions, aliases) is checked every time,
elsewhere.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from numbasync.backend import protocols
from numbasync.backend.protocols import Dim3
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.errors import LaunchError
from numbasync.launch import grid as grids
from numbasync.launch.arguments import BoundArguments
from numbasync.launch.axes import ALL, Usage, usage
from numbasync.launch.guards import SIZE
from numbasync.launch.parameters import Parameter, Role, positional
from numbasync.launch.tile_kernels import are_mapped, with_tiles
from numbasync.launch.variants import Kernel, Keys
from numbasync.memo import Memo
from numbasync.tensors.partition import Partition

MOST_PLANS = 4096  # of one kernel; a program that launches ever new shapes starts over


@dataclass(frozen=True, slots=True)
class Config:
    """What a call says about its launch, besides its arguments.

    Attributes:
        extents: what of it a plan depends on; None if it says nothing.
    """

    grid: Dim3 | None = None
    block: Dim3 | None = None
    stream: Stream | None = None
    shared_bytes: int = 0
    elements: int | None = None
    extents: Hashable = field(init=False)

    def __post_init__(self) -> None:
        parts = (self.grid, self.block, self.shared_bytes, self.elements)
        object.__setattr__(self, "extents", None if parts == (None, None, 0, None) else parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to launch: compiled code, extents, and what of its arguments it may write; `empty` if
    there is nothing to do.
    """

    work: protocols.Work
    empty: bool


class Planner:
    """One kernel's plans, and the launcher's wishes that go into them."""

    def __init__(
        self,
        dispatcher: Any,
        parameters: tuple[Parameter, ...],
        threads: int | Dim3 | None,
        axes: tuple[int, ...] | None,
    ) -> None:
        self.kernel = Kernel(dispatcher)
        self._parameters = parameters
        self._threads = threads
        self.axes = axes
        self._has_tiles = any(p.role is Role.TILE for p in parameters)
        self._on_tiles: dict[tuple[tuple[int, ...], bool], Kernel] = {}
        # By device, what the arguments are, and what the call says about extents.
        self.plans = Memo[tuple[protocols.Device, Hashable, Hashable], Plan](MOST_PLANS)

    def find(self, bound: BoundArguments, config: Config, device: protocols.Device) -> Plan | None:
        """The plan for such a call, if one has been made."""
        return self.plans.get((device, bound.fingerprint(device), config.extents))

    def engines(self) -> list[tuple[str, str]]:
        """See `Kernel.engines`; also of the kernels around a body that has tiles."""
        return [e for k in [self.kernel, *self._on_tiles.values()] for e in k.engines()]

    def variant(self, bound: BoundArguments, device: protocols.Device) -> tuple[Kernel, Keys]:
        """The kernel to compile for such a call, and its variant's key.

        Raises:
            LaunchError: some tiles are mapped and others not, or otherwise.
        """
        keys = bound.keys(device)
        if not self._has_tiles:
            return self.kernel, tuple(keys)
        tiles: list[tuple[str, Partition]] = []
        extended: list[Hashable] = []
        for i, key in enumerate(keys):
            extended.append(key)
            if self._parameters[i].role is Role.TILE:
                partition = bound.partitions[i]
                tiles.append((self._parameters[i].name, partition))
                extended.extend(device.scalar_key(t) for t in partition.tile)
        kind = tuple(len(p.tile) for _, p in tiles), are_mapped(self.kernel.name, tiles)
        found = self._on_tiles.get(kind)
        if found is None:  # of two threads that make one, both take the first
            found = self._on_tiles.setdefault(kind, Kernel(self._with_tiles(*kind)))
        return found, tuple(extended)

    def make(
        self,
        bound: BoundArguments,
        config: Config,
        device: Device,
        executable: protocols.Executable,
    ) -> Plan:
        """The plan for such a call, kept for the next one.

        Raises:
            LaunchError: the extents contradict each other, or exceed what the device allows.
        """
        most = device.limits.max_shared_bytes
        if not 0 <= config.shared_bytes <= most:
            raise LaunchError(
                f"kernel {self.kernel.name}: {config.shared_bytes:,} bytes of dynamic shared "
                f"memory; the device allows 0 to {most:,} a block."
            )
        if self._has_tiles and config.elements is not None:
            name = next(p.name for p in self._parameters if p.role is Role.TILE)
            raise LaunchError(
                f"kernel {self.kernel.name}: forall({config.elements}) counts threads, but {name} "
                "is a na.Tile: its tiles say the grid.\n"
                f"Write {self.kernel.name}(...) without forall."
            )
        found = grids.resolve(
            self._request(bound, config), device.limits, executable.max_threads_per_block,
            executable.suggested_threads,
        )  # fmt: skip
        work = protocols.Work(
            executable, found.grid, found.block, config.shared_bytes, self._argument_access(bound)
        )
        key = device.backend, bound.fingerprint(device.backend), config.extents
        return self.plans.setdefault(key, Plan(work, 0 in found.grid))

    def _argument_access(
        self, bound: BoundArguments
    ) -> tuple[protocols.ArgumentAccess | None, ...]:
        argument_access: list[protocols.ArgumentAccess | None] = []
        for i, parameter in enumerate(self._parameters):
            partition = bound.partitions.get(i)
            is_tile = parameter.role is Role.TILE
            if partition is None or partition.blocks is not None or is_tile:
                argument_access.append(protocols.ArgumentAccess(parameter.is_output))
            else:
                axes = self.axes or tuple(range(len(partition.tile)))
                argument_access.append(
                    protocols.ArgumentAccess(parameter.is_output, partition.tile, axes)
                )
            if partition is not None and is_tile:
                argument_access += [None] * len(partition.tile)  # its extents are arguments, too
        return tuple(argument_access)

    def _request(self, bound: BoundArguments, config: Config) -> grids.Request:
        partitions = tuple((self._parameters[i].name, p) for i, p in bound.partitions.items())
        arrays = bound.arrays()
        outputs = [i for i, p in enumerate(self._parameters) if p.is_output and i in arrays]
        shape = arrays[outputs[0]].shape if outputs else None
        threads = config.block if config.elements is not None and config.block else self._threads
        return grids.Request(
            self.kernel.name, partitions, shape, config.grid, config.block,
            threads, self.axes, config.elements, *self._place(arrays, config),
        )  # fmt: skip

    def _place(
        self, arrays: dict[int, Any], config: Config
    ) -> tuple[Usage | None, frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
        """What the kernel asks about a thread's place, and the extents that it compares it with:
        `usage`, `bounds` and `reach` of a request.
        """
        if config.grid is not None or config.elements is not None:
            return None, frozenset(), frozenset()  # the call says how many threads there are
        found = self._usage
        shapes = {i: array.shape for i, array in arrays.items()}
        bounds = ((a, shapes[i][n]) for a, i, n in found.bounded if 0 <= n < len(shapes.get(i, ())))
        reach = {
            (a, (math.prod(shapes[i]) if n == SIZE else shapes[i][n]) + more)
            for (a, i, n), more in found.reach
            if i in shapes and n < len(shapes[i])
        }
        return found, frozenset(bounds), frozenset() if self._has_tiles else frozenset(reach)

    @cached_property
    def _usage(self) -> Usage:
        found = usage(self.kernel.dispatcher.py_func)
        # The kernel around a body with tiles asks for its block along every axis.
        return replace(found, blocks=ALL) if self._has_tiles else found

    def _with_tiles(self, ranks: tuple[int, ...], mapped: bool) -> Any:
        dispatcher = self.kernel.dispatcher
        body, options = as_device_function(dispatcher), jit_options(dispatcher)
        return with_tiles(body, self._parameters, ranks, self.axes, mapped, options)


DEFAULT = Config()


def whole_bytes(value: Any, kernel: str) -> int:
    """The dynamic shared memory that a call asks for.

    Raises:
        LaunchError: it is no whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise LaunchError(
            f"kernel {kernel}: dynamic shared memory is a whole number of bytes, not {value!r:.60}."
        ) from None


def jit_options(dispatcher: Any) -> dict[str, Any]:
    """The options that another function compiled for the same purpose should have."""
    kept = ("debug", "opt", "lineinfo", "fastmath", "max_registers")
    return {k: v for k, v in dispatcher.targetoptions.items() if k in kept}


def in_order(dispatcher: Any) -> Any:
    """The same kernel with all of its parameters positional; see `positional`."""
    made = type(dispatcher)(positional(dispatcher.py_func), dispatcher.targetoptions)
    if type(dispatcher._cache).__name__ != "NullCache":
        made.enable_caching()
    return made


def as_device_function(dispatcher: Any) -> Any:
    """The same function for kernels to call.

    One Numba dispatcher cannot be both: what it compiled as a kernel, it does not compile as
    a device function.
    """
    from numba import cuda

    options = {k: v for k, v in jit_options(dispatcher).items() if k != "max_registers"}
    return cuda.jit(device=True, **options)(dispatcher.py_func)
