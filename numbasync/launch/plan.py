"""Plans: compiled code and launch extents for one kernel and one class of calls.

Calls with the same types, layouts, shapes and tiles share a plan; the second such call looks the
plan up and computes nothing. Aliases, and preconditions on numbers, are checked at every call,
elsewhere; preconditions on arrays alone are, too, before the call that makes the plan.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from numbasync.arguments import as_whole, shown
from numbasync.backend import protocols
from numbasync.backend.protocols import Dim3
from numbasync.backend.shared_layout import SharedLayout
from numbasync.device import stream as streams
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.device.submission import LaunchedName
from numbasync.errors import LaunchError
from numbasync.facts.bounds import SIZE
from numbasync.facts.positions import ALL, Usage, usage
from numbasync.launch import grid as grids
from numbasync.launch.arguments import BoundArguments
from numbasync.launch.coarse_kernels import CoarseKernels, CoarseLaunch
from numbasync.launch.coarsening import NotPlainError
from numbasync.launch.grid import ONE_BLOCK, check_grid
from numbasync.launch.own_tiles import OwnTile, grid_of, in_a_row, without_bounds
from numbasync.launch.parameters import Parameter, Role, positional
from numbasync.launch.shared_memory import dynamic_bytes, layout_of
from numbasync.launch.tile_kernels import are_mapped, with_tiles
from numbasync.launch.variants import Kernel, Keys
from numbasync.memo import Memo
from numbasync.native import known
from numbasync.ops.run import describe
from numbasync.tensors.partition import Partition

# Per kernel; the memo is cleared when a program that keeps launching new shapes exceeds it.
MOST_PLANS = 4096


@known
@dataclass(frozen=True, slots=True)
class Config:
    """The launch configuration of a call, apart from its arguments.

    Attributes:
        extents: the part of the configuration that a plan depends on; None if the call sets none.
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


@known
@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a launch: compiled code, extents, and which arguments the kernel may write.
    `empty` says that the grid has no blocks; `names` is the kernel's, with the arrays' shapes.
    """

    work: protocols.Work
    empty: bool
    names: tuple[LaunchedName]


class Planner:
    """The plans of one kernel, and the options of its launcher that enter them.

    Attributes:
        tile: by which the kernel has outputs cut that are passed whole; see `own_tiles`.
    """

    def __init__(
        self,
        dispatcher: Any,
        parameters: tuple[Parameter, ...],
        threads: int | Dim3 | None,
        axes: tuple[int, ...] | None,
        coarse_kernels: CoarseKernels,
        cluster: Dim3 = ONE_BLOCK,
        tile: OwnTile | None = None,
    ) -> None:
        self.kernel = Kernel(dispatcher)
        self.coarse_kernels = coarse_kernels
        self._parameters = parameters
        self._threads = threads
        self.axes = axes
        self.tile = tile
        self._cluster = cluster
        self._has_tiles = any(p.role is Role.TILE for p in parameters)
        self._on_tiles: dict[tuple[tuple[int, ...], bool], Kernel] = {}
        # The key: the device, the fingerprint of the arguments, the extents that the call sets.
        self.plans = Memo[tuple[protocols.Device, Hashable, Hashable], Plan](MOST_PLANS)

    def share(self, other: Planner) -> None:
        """Use what `other`, a planner of the same kernel and axes, has compiled or will compile."""
        self.kernel, self._on_tiles = other.kernel, other._on_tiles
        self.coarse_kernels.share(other.coarse_kernels)

    def find(self, bound: BoundArguments, config: Config, device: protocols.Device) -> Plan | None:
        """The plan for such a call, if an earlier call has created it."""
        return self.plans.get((device, bound.fingerprint(device), config.extents))

    def engines(self) -> list[tuple[str, str]]:
        """See `Kernel.engines`; includes the kernels generated around a body with tiles."""
        return [e for k in [self.kernel, *self._on_tiles.values()] for e in k.engines()]

    def variant(self, bound: BoundArguments, device: protocols.Device) -> tuple[Kernel, Keys]:
        """The kernel to compile for such a call, and the key of the variant.

        Raises:
            LaunchError: some tiles are mapped and others not, or tiles are mapped differently.
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
        shape = tuple(len(p.tile) for _, p in tiles), are_mapped(self.kernel.name, tiles)
        kernel = self._on_tiles.get(shape)
        if kernel is None:  # if two threads create one, both use the first
            kernel = self._on_tiles.setdefault(shape, Kernel(self._with_tiles(*shape)))
        return kernel, tuple(extended)

    def coarse(self, bound: BoundArguments, config: Config, device: Device) -> CoarseLaunch:
        """The coarsened launch of such a call, to be compiled and made into a plan.

        Raises:
            NotPlainError: the call has one position a thread, for the reason that the error says.
        """
        coarsener = device.backend.coarsener
        if coarsener is None:
            raise NotPlainError("threads of this device gain nothing")
        if self._has_tiles:
            raise NotPlainError("it takes tiles")
        if self._cluster != ONE_BLOCK:
            raise NotPlainError("its blocks are in clusters")
        limits = device.limits
        request = self._request(bound, config)
        is_block_open = config.extents is None and self._threads is None and not bound.partitions
        if is_block_open and request.shape:
            request = replace(request, threads=self.coarse_kernels.block(limits, request.shape))
        try:
            geometry = grids.resolve(
                request, limits, limits.max_threads_per_block, lambda: self.coarse_kernels.threads
            )
        except LaunchError as error:  # the plain launch raises the error
            raise NotPlainError(str(error)) from None
        aligned = all(tensor.is_aligned for _, tensor in bound.tensors)
        return self.coarse_kernels.choose(
            bound.keys(device.backend), aligned, geometry, limits, coarsener
        )

    def make(
        self,
        bound: BoundArguments,
        config: Config,
        device: Device,
        executable: protocols.Executable,
        coarse: CoarseLaunch | None = None,
    ) -> Plan:
        """Create the plan for such a call, and keep it for later calls.

        Args:
            coarse: the coarsened launch whose kernel `executable` is; None: the plain launch.

        Raises:
            LaunchError: the extents contradict each other, or exceed what the device allows.
        """
        name, layout = self.kernel.name, self._shared_layout
        shared = dynamic_bytes(name, config.shared_bytes, layout, executable, device.limits)
        if self._has_tiles and config.elements is not None:
            name = next(p.name for p in self._parameters if p.role is Role.TILE)
            raise LaunchError(
                f"kernel {self.kernel.name}: forall({config.elements}) counts threads, but {name} "
                "is a na.Tile: its tiles say the grid.\n"
                f"Write {self.kernel.name}(...) without forall."
            )
        if coarse is not None:
            geometry, is_in_a_row = coarse.geometry, False
        else:
            limits = device.limits if self.tile is None else without_bounds(device.limits)
            asked = geometry = grids.resolve(
                self._request(bound, config), limits, executable.max_threads_per_block,
                executable.suggested_threads,
            )  # fmt: skip
            if self.tile is not None:
                geometry = in_a_row(asked, device.limits, name)
            is_in_a_row = geometry.grid != asked.grid
        if self._cluster != ONE_BLOCK:
            check_grid(self._cluster, geometry.grid, name, device.limits)
            executable.launch_in_clusters(self._cluster)
        work = protocols.Work(
            executable,
            geometry.grid,
            geometry.block,
            shared,
            self._argument_access(bound, is_in_a_row),
            () if coarse is None else (coarse.positions,),
        )
        key = device.backend, bound.fingerprint(device.backend), config.extents
        shapes = sorted((i, array.shape) for i, array in bound.arrays().items())
        named = tuple((self._parameters[i].name, shape) for i, shape in shapes)
        names = (LaunchedName(self.kernel.name, named),)
        return self.plans.setdefault(key, Plan(work, 0 in geometry.grid, names))

    def _argument_access(
        self, bound: BoundArguments, is_in_a_row: bool
    ) -> tuple[protocols.ArgumentAccess | None, ...]:
        argument_access: list[protocols.ArgumentAccess | None] = []
        for i, parameter in enumerate(self._parameters):
            partition = bound.partitions.get(i)
            is_tile = parameter.role is Role.TILE
            # Of blocks in a row, the device does not know which tile is whose.
            if partition is None or partition.blocks is not None or is_tile or is_in_a_row:
                argument_access.append(protocols.ArgumentAccess(parameter.is_output))
            else:
                axes = self.axes or tuple(range(len(partition.tile)))
                argument_access.append(
                    protocols.ArgumentAccess(parameter.is_output, partition.tile, axes)
                )
            if partition is not None and is_tile:
                # the tile's extents are arguments, too
                argument_access += [None] * len(partition.tile)
        return tuple(argument_access)

    def _request(self, bound: BoundArguments, config: Config) -> grids.Request:
        partitions = tuple((self._parameters[i].name, p) for i, p in bound.partitions.items())
        arrays = bound.arrays()
        outputs = [i for i, p in enumerate(self._parameters) if p.is_output and i in arrays]
        shape = arrays[outputs[0]].shape if outputs else None
        threads = config.block if config.elements is not None and config.block else self._threads
        tile, is_open = self.tile, config.grid is None and config.elements is None
        if tile and is_open and not partitions and shape is not None:
            config = replace(config, grid=grid_of(shape, tile, self.axes, self.kernel.name))
        return grids.Request(
            self.kernel.name, partitions, shape, config.grid, config.block,
            threads, self.axes, config.elements, *self._place(arrays, config),
        )  # fmt: skip

    def _place(
        self, arrays: dict[int, Any], config: Config
    ) -> tuple[Usage | None, frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
        """How the kernel uses a thread's position, and the extents that it compares the position
        with: `usage`, `bounds` and `reach` of a request.
        """
        if config.grid is not None or config.elements is not None:
            return None, frozenset(), frozenset()  # the call sets the number of threads
        axis_usage = self._usage
        shapes = {i: array.shape for i, array in arrays.items()}
        bounds = (
            (a, shapes[i][n]) for a, i, n in axis_usage.bounded if 0 <= n < len(shapes.get(i, ()))
        )
        reach = {
            (a, (math.prod(shapes[i]) if n == SIZE else shapes[i][n]) + offset)
            for (a, i, n), offset in axis_usage.reach
            if i in shapes and n < len(shapes[i])
        }
        return axis_usage, frozenset(bounds), frozenset() if self._has_tiles else frozenset(reach)

    @cached_property
    def _shared_layout(self) -> SharedLayout | None:
        return layout_of(self.kernel.dispatcher.py_func)

    @cached_property
    def _usage(self) -> Usage:
        axis_usage = usage(self.kernel.dispatcher.py_func)
        # The kernel generated around a body with tiles reads blockIdx along every axis.
        return replace(axis_usage, blocks=ALL) if self._has_tiles else axis_usage

    def _with_tiles(self, ranks: tuple[int, ...], mapped: bool) -> Any:
        dispatcher = self.kernel.dispatcher
        body, options = as_device_function(dispatcher), jit_options(dispatcher)
        return with_tiles(body, self._parameters, ranks, self.axes, mapped, options)


DEFAULT = Config()


def whole_bytes(value: Any, kernel: str) -> int:
    """The dynamic shared memory that a call requests, in bytes.

    Raises:
        LaunchError: the value is not a whole number.
    """
    number = as_whole(value)
    if number is None:
        raise LaunchError(
            f"kernel {kernel}: dynamic shared memory is a whole number of bytes, not "
            f"{shown(value)}."
        )
    return number


def named_stream(value: Any, kernel: str) -> Stream | None:
    """The stream in a call's brackets; None for 0, the policy's choice.

    Raises:
        LaunchError: the value is no stream.
    """
    if isinstance(value, int) and not value:
        return None
    stream = value if isinstance(value, Stream) else streams.of_another_library(value, None)
    if stream is None:
        raise LaunchError(
            f"kernel {kernel}: the stream is a na.Stream or one of another library, or 0 "
            f"for the policy's; not {describe(value)}."
        )
    return stream


def jit_options(dispatcher: Any) -> dict[str, Any]:
    """The options that another function compiled for the same purpose must have, too."""
    kept = ("debug", "opt", "lineinfo", "fastmath", "max_registers")
    return {k: v for k, v in dispatcher.targetoptions.items() if k in kept}


def in_order(dispatcher: Any) -> Any:
    """The same kernel with all of its parameters positional; see `positional`."""
    return compiled_apart(dispatcher, positional(dispatcher.py_func))


def compiled_apart(dispatcher: Any, function: Any) -> Any:
    """A kernel of `function` with the options of `dispatcher`, and compiled variants of its own."""
    kernel = type(dispatcher)(function, dispatcher.targetoptions)
    if type(dispatcher._cache).__name__ != "NullCache":
        kernel.enable_caching()
    return kernel


def as_device_function(dispatcher: Any) -> Any:
    """The same function, for kernels to call.

    One Numba dispatcher cannot be both: Numba does not compile a dispatcher that was compiled as a
    kernel as a device function.
    """
    from numbasync.kernel_names import cuda

    options = {k: v for k, v in jit_options(dispatcher).items() if k != "max_registers"}
    return cuda.jit(device=True, **options)(dispatcher.py_func)


def with_parameters(dispatcher: Any, count: int) -> Any:
    """A kernel of `count` parameters, which calls one that has `*args`."""
    names = ", ".join(f"p{i}" for i in range(count))
    scope: dict[str, Any] = {"body": as_device_function(dispatcher)}
    exec(f"def kernel({names}):\n    body({names})\n", scope)  # noqa: S102 - of numbers alone
    return compiled_apart(dispatcher, scope["kernel"])
