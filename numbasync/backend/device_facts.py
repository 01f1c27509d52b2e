"""Facts that a device reports: its limits, its memory, and its way to signal completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Dim3: TypeAlias = tuple[int, int, int]

TensorCores: TypeAlias = Literal["none", "warps", "warpgroups", "emulated"]

SMALL_BLOCK = 2**19  # bytes; page-locked blocks up to this size stay until the process ends


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one launch on a device, and preferences of the device.

    Attributes:
        max_shared_bytes: static shared memory of a block, in bytes.
        max_dynamic_shared_bytes: shared memory of a block in bytes, static and dynamic together.
            A launcher opts in to what exceeds `max_shared_bytes`.
        loads_in_flight: how many loads of one thread the device usefully overlaps; 1 where
            threads run one after the other, and a load has no latency worth hiding.
        tensor_cores: which operations of `numbasync.tensor_cores` kernels may use: "none", "warps"
            (`mma`, `copy_async`), "warpgroups" (all); or "emulated": all, for tests, slowly.
        max_cluster: blocks of a cluster; 1 where there are no clusters.

    Examples:
        >>> limits = na.default_device().limits
        >>> limits.max_threads_per_block, limits.max_shared_bytes, limits.warp_size
        (1024, 49152, 32)
    """

    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3
    max_shared_bytes: int
    max_dynamic_shared_bytes: int
    warp_size: int
    multiprocessors: int
    loads_in_flight: int = 1
    tensor_cores: TensorCores = "none"
    max_cluster: int = 1


@dataclass(frozen=True, slots=True)
class Peaks:
    """The highest rates of a device, computed from what its driver reports.

    Attributes:
        bytes_per_second: of the device's memory; None if it is not known.
        flops_per_second: by type of float, such as `"float32"`; a missing type is not known.
        source: the calculation, or the reason why there is none.

    Examples:
        >>> peaks = saxpy.explain(na.meta(1000), 2.0, na.meta(1000)).peaks
        >>> peaks.bytes_per_second, peaks.source
        (None, 'not known on this device')
    """

    bytes_per_second: float | None = None
    flops_per_second: Mapping[str, float] = field(default_factory=dict)
    source: str = "not known on this device"


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of one pool: allocated to users and reserved from the system, each now and at peak.

    Examples:
        >>> t = await na.zeros(1000)
        >>> stats = na.default_device().memory_stats()
        >>> stats.used_current >= t.nbytes and stats.used_high >= stats.used_current
        True
    """

    used_current: int
    used_high: int
    reserved_current: int
    reserved_high: int


@dataclass(frozen=True, slots=True)
class CompletionPath:
    """How a device signals that a stream has passed a point, and why this way was chosen."""

    name: str
    reason: str
