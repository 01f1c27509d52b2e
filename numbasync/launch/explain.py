"""Explaining a call: the launch that the call would be, planned and compiled but not enqueued."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from numbasync.backend.executables import Executable, Resources
from numbasync.device.device import Device, default_device
from numbasync.errors import LauncherError
from numbasync.facts.effects import values_read
from numbasync.launch.arguments import BoundArguments
from numbasync.launch.call import planned
from numbasync.launch.coarsening import NotPlainError
from numbasync.launch.explanation import Explanation
from numbasync.launch.homes import elsewhere, home_of_bound
from numbasync.launch.kernel import KernelSpec
from numbasync.launch.parameters import Role
from numbasync.launch.plan import Config
from numbasync.launch.tuple_arguments import flat
from numbasync.ops.enqueue import run_steps
from numbasync.ops.home import device_at
from numbasync.ops.op import DeviceOp
from numbasync.tensors.expected_results import foreseen
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor


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
