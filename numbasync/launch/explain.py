"""Explaining a call: the launch that it would be, planned and compiled but not enqueued, as a
frozen record with a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from numbasync import notebook
from numbasync.backend.executables import Executable, Resources
from numbasync.backend.protocols import Dim3, Peaks
from numbasync.device.device import Device, default_device
from numbasync.errors import LauncherError
from numbasync.facts.effects import values_read
from numbasync.launch.arguments import BoundArguments, flat
from numbasync.launch.call import planned
from numbasync.launch.coarsening import NotPlainError
from numbasync.launch.homes import elsewhere, home_of_bound
from numbasync.launch.kernel import KernelSpec
from numbasync.launch.parameters import Role
from numbasync.launch.plan import Config
from numbasync.ops.enqueue import run_steps
from numbasync.ops.home import device_at
from numbasync.ops.op import DeviceOp
from numbasync.tensors.expected_results import foreseen
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor

NONE = "-"  # there is no such figure on this device
UNKNOWN = "unknown"  # there is, but the driver does not tell it


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Explanation:
    """The launch that a call would be, as `kernel.explain(...)` returns it; `print` it for a table.

    On a device without multiprocessors, such as the CPU device, everything from `registers` to
    `flops_are_least` is None.

    Attributes:
        name: the kernel's name.
        device: the device's label, such as `"cuda:0"`.
        engine: by what the kernel is compiled or interpreted.
        argument_types: Numba's type of each argument, by parameter.
        grid, block: the extents of the launch, in blocks and threads.
        shared_bytes: dynamic shared memory a block.
        elements: positions that one thread computes.
        why_not_wider: why a thread computes one position only; empty if it computes several.
        max_threads_per_block: of the compiled kernel.
        multiprocessors: of the device.
        bytes_read: of the inputs, and of the outputs whose elements the kernel's own code reads;
            each array is counted whole, and once.
        bytes_written: of the outputs; each array is counted whole, and once.
        peaks: the highest rates of the device.
        registers: 32-bit registers a thread.
        local_bytes: local memory a thread, in device memory: spilled registers and local arrays.
        static_shared_bytes: shared memory a block whose size is known when compiling.
        constant_bytes: constant memory of the kernel.
        blocks_per_multiprocessor: active blocks of a multiprocessor.
        threads_per_multiprocessor: the most threads that can be active on a multiprocessor.
        block_limits: for each resource, the active blocks for which that resource alone suffices.
        flops: floating-point operations of one thread, by type, an fma counted as two: of the path
            through the compiled code that has the most, where the body of a loop counts once.
        flops_are_least: a thread may execute more: the code has loops, or calls functions that were
            compiled elsewhere.

    Examples:
        >>> e = saxpy.explain(na.meta(1000), 2.0, na.meta(1000))
        >>> e.grid, e.block, e.argument_types["a"]
        ((4, 1, 1), (256, 1, 1), 'float64')
        >>> e.bytes_read, e.bytes_written
        (8000, 4000)
        >>> print(e)
        saxpy on cpu:0
        engine                          compiled by Numba for ...
        argument z                      array(float32, 1d, C) ...
        argument a                      float64 ...
        ...
    """

    name: str
    device: str
    engine: str
    argument_types: Mapping[str, str]
    grid: Dim3
    block: Dim3
    shared_bytes: int
    elements: int
    why_not_wider: str
    max_threads_per_block: int
    multiprocessors: int
    bytes_read: int
    bytes_written: int
    peaks: Peaks
    registers: int | None = None
    local_bytes: int | None = None
    static_shared_bytes: int | None = None
    constant_bytes: int | None = None
    blocks_per_multiprocessor: int | None = None
    threads_per_multiprocessor: int | None = None
    block_limits: Mapping[str, int] | None = None
    flops: Mapping[str, int] | None = None
    flops_are_least: bool | None = None
    _executable: Executable

    @property
    def ptx(self) -> str:
        """The kernel as PTX.

        Raises:
            DeviceMismatchError: the device is not a GPU.
        """
        return self._executable.assembly("ptx")

    @property
    def sass(self) -> str:
        """The kernel as machine code of the GPU, by `nvdisasm` or `cuobjdump`.

        Raises:
            DeviceMismatchError: the device is not a GPU.
            MissingExtraError: neither program is installed, or it is too old for the GPU.
        """
        return self._executable.assembly("sass")

    @property
    def suggested_threads(self) -> int:
        """Threads a block that suit the kernel; see `na.suggest_threads`."""
        return self._executable.suggested_threads()

    @property
    def occupancy(self) -> float | None:
        """Active threads of a multiprocessor that has blocks enough, as a part of the most that
        can be active: 0.0 to 1.0.
        """
        if self.blocks_per_multiprocessor is None or not self.threads_per_multiprocessor:
            return None
        active = self.blocks_per_multiprocessor * math.prod(self.block)
        return active / self.threads_per_multiprocessor

    @property
    def occupancy_bound(self) -> str | None:
        """What keeps more blocks from being active: `"grid"` if the device could hold more blocks
        than there are, else `"threads"`, `"registers"`, `"shared memory"` or `"blocks"`, of which
        a multiprocessor has a limited number.
        """
        if self.block_limits is None or self.blocks_per_multiprocessor is None:
            return None
        if math.prod(self.grid) < self.blocks_per_multiprocessor * self.multiprocessors:
            return "grid"
        return min(self.block_limits, key=self.block_limits.__getitem__)

    @property
    def memory_seconds(self) -> float | None:
        """The least time in which the device's memory can move the bytes."""
        rate = self.peaks.bytes_per_second
        return None if rate is None else (self.bytes_read + self.bytes_written) / rate

    @property
    def arithmetic_seconds(self) -> float | None:
        """The least time for `flops` in every thread of the grid; floats of different types are
        taken to be computed at the same time.
        """
        rates = self.peaks.flops_per_second
        if self.flops is None or not self.flops.keys() <= rates.keys():
            return None
        threads = math.prod(self.grid) * math.prod(self.block)
        return max((threads * n / rates[t] for t, n in self.flops.items()), default=0.0)

    @property
    def bound(self) -> str | None:
        """Which of the two takes longer at least: `"memory"` or `"arithmetic"`."""
        memory, arithmetic = self.memory_seconds, self.arithmetic_seconds
        if memory is None or arithmetic is None:
            return None
        return "memory" if memory >= arithmetic else "arithmetic"

    def _repr_html_(self) -> str:
        columns = ("figure", "value", "source")
        return notebook.table(f"{self.name} on {self.device}", self._rows(), columns)

    def __repr__(self) -> str:
        rows = list(self._rows())
        label_width = max(len(label) for label, _, _ in rows)
        value_width = min(max(len(value) for _, value, _ in rows), 44)
        lines = [f"{self.name} on {self.device}"]
        for label, value, source in rows:
            line = f"{label:{label_width}}  {value:{value_width}}"
            lines.append(f"{line}  {source}" if source and value != NONE else line.rstrip())
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Label, value and source of each figure."""
        yield "engine", self.engine, ""
        for name, numba_type in self.argument_types.items():
            yield f"argument {name}", numba_type, "Numba"
        yield "grid", f"{self.grid} blocks", "the call"
        yield "block", f"{self.block} threads", f"at most {self.max_threads_per_block:,}"
        yield "elements a thread", str(self.elements), self.why_not_wider
        yield "registers a thread", _count(self.registers), "the driver"
        yield "local memory a thread", _bytes(self.local_bytes), "the driver; spills, local arrays"
        yield "static shared memory a block", _bytes(self.static_shared_bytes), "the driver"
        yield "dynamic shared memory a block", _bytes(self.shared_bytes), "the call"
        yield "constant memory", _bytes(self.constant_bytes), "the driver"
        yield "active blocks a multiprocessor", _count(self.blocks_per_multiprocessor), "the driver"
        yield "occupancy", self._occupancy_text(), "active blocks x threads a block"
        yield "  bounded by", self.occupancy_bound or NONE, self._limits_text()
        yield "bytes read", _bytes(self.bytes_read), "roles and shapes: each array whole, once"
        yield (
            "bytes written",
            _bytes(self.bytes_written),
            "roles and shapes: each array whole, once",
        )
        yield "FLOPs a thread", self._flops_text(), self._flops_source()
        yield "peak of memory", _rate(self.peaks.bytes_per_second, 1e9, "GB/s"), self.peaks.source
        for numba_type, rate in self.peaks.flops_per_second.items():
            yield f"peak of {numba_type}", _rate(rate, 1e12, "TFLOP/s"), "the same"
        yield "least time of memory", _time(self.memory_seconds), "bytes / peak"
        yield "least time of arithmetic", _time(self.arithmetic_seconds), "FLOPs x threads / peak"
        yield "bounded by", self.bound or UNKNOWN, "the longer of the two"

    def _occupancy_text(self) -> str:
        if self.occupancy is None or self.blocks_per_multiprocessor is None:
            return NONE
        active = self.blocks_per_multiprocessor * math.prod(self.block)
        return f"{self.occupancy:.0%}: {active:,} of {self.threads_per_multiprocessor:,} threads"

    def _limits_text(self) -> str:
        if self.block_limits is None or self.blocks_per_multiprocessor is None:
            return ""
        if self.occupancy_bound == "grid":
            held = self.blocks_per_multiprocessor * self.multiprocessors
            return f"{math.prod(self.grid):,} blocks; the device holds {held:,} at a time"
        return "blocks by " + ", ".join(f"{k}: {v:,}" for k, v in self.block_limits.items())

    def _flops_text(self) -> str:
        if self.flops is None:
            return NONE
        least = "at least " if self.flops_are_least else ""
        counts = ", ".join(f"{n:,} {numba_type}" for numba_type, n in self.flops.items())
        return least + (counts or "0")

    def _flops_source(self) -> str:
        if self.flops is None:
            return ""
        loops = ", without repetitions of loops" if self.flops_are_least else ""
        return f"PTX, the path with most{loops}"


def _count(n: int | None) -> str:
    return NONE if n is None else f"{n:,}"


def _bytes(n: int | None) -> str:
    return NONE if n is None else f"{n:,} bytes"


def _rate(rate: float | None, unit: float, name: str) -> str:
    return UNKNOWN if rate is None else f"{rate / unit:,.1f} {name}"


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds * 1e6:,.3f} us"


def explain(launcher: KernelSpec, values: tuple[Any, ...], config: Config) -> Explanation:
    """See `Launcher.explain`.

    Args:
        values: the arguments, in signature order.
    """
    known = tuple(
        _described(launcher, i, v) if isinstance(v, DeviceOp) else v for i, v in enumerate(values)
    )
    bound = launcher.bind(known)
    home = config.stream or home_of_bound(launcher, bound)
    device = device_at(home) or default_device()
    device.check()
    bound, plan = run_steps(planned(launcher, bound, config, device))
    for i, tensor in _tensors(bound):
        if tensor.device is not None and tensor.storage.pool.device not in (None, device.backend):
            raise elsewhere(launcher, i, tensor, device)
    work = plan.work
    executable: Executable = work.executable
    resources = executable.resources(work.block, work.shared_bytes)
    elements, why_not_wider = _elements(launcher, bound, config, device)
    bytes_read, bytes_written = _traffic(launcher, bound)
    return Explanation(
        name=launcher.name,
        device=device.label,
        engine=_engine(executable, device),
        argument_types=_types(launcher, bound, executable),
        grid=work.grid,
        block=work.block,
        shared_bytes=work.shared_bytes,
        elements=elements,
        why_not_wider=why_not_wider,
        max_threads_per_block=executable.max_threads_per_block,
        multiprocessors=device.limits.multiprocessors,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        peaks=device.backend.peaks,
        _executable=executable,
        **_needs(resources),
    )


def _described(launcher: KernelSpec, i: int, op: DeviceOp[Any]) -> Any:
    """The tensor of `na.meta`, or the partition of one, that an operation gives.

    Raises:
        LauncherError: the operation gives something else, which only running it could tell.
    """
    value = foreseen(op)
    tensor = value.tensor if isinstance(value, Partition) else value
    if isinstance(tensor, Tensor) and tensor.device is None:
        op.suppress_warning()  # nothing else will run it
        return value
    raise LauncherError(
        f"kernel {launcher.name}: {launcher.parameters[i].name} is an operation, {op}, and "
        "explaining a call runs nothing.\n"
        "Await the operation first and pass what it gives; or pass na.meta(shape, dtype)."
    )


def _tensors(bound: BoundArguments) -> list[tuple[int, Tensor]]:
    members = ((i, v) for i, values in bound.tuples.items() for v in flat(values))
    return bound.tensors + [(i, v) for i, v in members if isinstance(v, Tensor)]


def _engine(executable: Executable, device: Device) -> str:
    if executable.why:
        return f"{executable.engine}: {executable.why}"
    return f"compiled by Numba for {device.name}"


def _elements(
    launcher: KernelSpec, bound: BoundArguments, config: Config, device: Device
) -> tuple[int, str]:
    """The positions a thread that the planner has chosen for the call, and why only one."""
    try:
        return launcher.planner.coarse(bound, config, device).elements, ""
    except NotPlainError as error:
        return 1, str(error)


def _types(launcher: KernelSpec, bound: BoundArguments, executable: Executable) -> dict[str, str]:
    names: list[str] = []
    for i, parameter in enumerate(launcher.parameters):
        names.append(parameter.name)
        if parameter.role is Role.TILE:  # the tile's extents are arguments, too
            names += [f"{parameter.name} tile[{k}]" for k in range(len(bound.partitions[i].tile))]
    return dict(zip(names, map(str, executable.argument_types), strict=False))


def _traffic(launcher: KernelSpec, bound: BoundArguments) -> tuple[int, int]:
    """Bytes of the arrays that the call reads, and of those that it writes, each array once."""
    parameters = launcher.parameters
    reads = values_read(launcher.planner.kernel.dispatcher.py_func)
    read: dict[int, int] = {}  # by identity: x + x reads x once
    written = 0
    arrays: list[tuple[int, Any]] = [*_tensors(bound), *bound.uploads()]
    for i, array in arrays:
        if parameters[i].is_output:
            written += array.nbytes
        if not parameters[i].is_output or i in reads:
            read[id(array)] = array.nbytes
    return sum(read.values()), written


def _needs(resources: Resources | None) -> dict[str, Any]:
    if resources is None:
        return {}
    return {f.name: getattr(resources, f.name) for f in fields(resources)}
