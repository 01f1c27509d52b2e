"""The device of a launch, and arguments that lie on another one: refused, or copied there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbasync.backend import array_protocols
from numbasync.device.device import Device
from numbasync.errors import DeviceMismatchError
from numbasync.launch.arguments import BoundArguments, flat, holds_arrays, replaced
from numbasync.launch.kernel import KernelSpec
from numbasync.ops.context import Context
from numbasync.ops.home import Home, first_home, how_to_run_on
from numbasync.ops.op import Steps
from numbasync.tensors.devices import moved
from numbasync.tensors.import_array import argument
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

Placed = list[tuple[int, Tensor]]


def placed_tensors(values: tuple[Any, ...]) -> Placed:
    """Position and tensor of each argument that is a tensor, also in a partition or a tuple."""
    placed: Placed = []
    for i, value in enumerate(values):
        for v in flat(value) if isinstance(value, tuple) else (value,):
            tensor = v.tensor if isinstance(v, Partition | SharedTensor) else v
            if isinstance(tensor, Tensor):
                placed.append((i, tensor))
    return placed


def home_of(launcher: KernelSpec, arguments: Iterable[tuple[int, Any]]) -> Home:
    """The device of the first tensor that a launch writes; if it writes none, of the first that it
    reads. Of a lazy argument, the operation's home.

    Args:
        arguments: positions and values.
    """
    parameters = launcher.parameters
    by_role = sorted(arguments, key=lambda argument: not parameters[argument[0]].is_output)
    values = [value for _, value in by_role]
    home = first_home(values)
    if home is None:  # other libraries' arrays beside lazy arguments, which are not bound yet
        home = first_home(argument(v) for v in values if array_protocols.is_foreign(v))
    return home


def home_of_bound(launcher: KernelSpec, bound: BoundArguments) -> Home:
    """`home_of` for arguments that are bound."""
    return home_of(launcher, [*bound.tensors, *bound.tuples.items()])


def tensors_elsewhere(placed: Placed, device: Device) -> Placed:
    """Those of the tensors that have memory of another device."""
    return [(i, t) for i, t in placed if t.device is not device and t.device is not None]


def check_devices(launcher: KernelSpec, placed: Placed, device: Device) -> None:
    """Refuse tensors of another device than the launch's, unless they may be copied to it.

    Raises:
        DeviceMismatchError: naming the parameter, both devices, and what to write.
    """
    for i, tensor in tensors_elsewhere(placed, device):
        if launcher.parameters[i].is_output or not launcher.move_inputs:
            raise elsewhere(launcher, i, tensor, device, placed)


def at_home(launcher: KernelSpec, bound: BoundArguments, ctx: Context) -> Steps[BoundArguments]:
    """The arguments with every tensor on the device of `ctx`, to which inputs are copied."""
    placed = bound.tensors if not bound.tuples else placed_tensors(bound.values)
    if not tensors_elsewhere(placed, ctx.device):
        return bound
    check_devices(launcher, placed, ctx.device)
    here: dict[int, Tensor] = {}
    for _, tensor in tensors_elsewhere(placed, ctx.device):
        if id(tensor) not in here:
            here[id(tensor)] = yield from moved(tensor, ctx)

    def at(value: Any) -> Any:
        tensor = value.tensor if isinstance(value, Partition | SharedTensor) else value
        return here.get(id(tensor), value)

    values = (replaced(v, at) if holds_arrays(v) else at(v) for v in bound.values)
    return launcher.bind(tuple(values))


def elsewhere(
    launcher: KernelSpec, i: int, tensor: Tensor, device: Device, placed: Iterable[Any] = ()
) -> DeviceMismatchError:
    """The error for argument `i`, which is not in memory of the device of the launch.

    Args:
        placed: position and tensor of all tensors of the call.
    """
    parameters = launcher.parameters
    placed = list(placed) or [(i, tensor)]
    outputs = [t.device for j, t in placed if parameters[j].is_output and t.device is not None]
    home = outputs[0] if outputs else device
    others = [(j, t) for j, t in placed if t.device is not tensor.device and t.device is not None]
    advice = how_to_run_on(str(tensor.device and tensor.device.label), device.label)
    if len(set(outputs)) > 1:
        advice = "A launch writes to memory of one device: launch once for each, on its own part."
    elif others or home is not tensor.device:
        moving = [j for j, t in placed if t.device is not home and t.device is not None]
        names = [parameters[j].name for j in dict.fromkeys(moving)]
        where = f"na.devices({home.kind!r})[{home.ordinal}]"
        copies = "; ".join(f"{n} = await na.to_device({n}, {where})" for n in names)
        alone = "" if home is device else ", and name no stream"
        advice = (
            f"Copy what it reads{alone}: {copies}\n"
            "A kernel of @na.launcher(move_inputs=True) does so by itself."
        )
    return DeviceMismatchError(
        f"kernel {launcher.name}: {parameters[i].name} is {tensor!r}, but the launch goes to "
        f"{device.label}.\n{advice}"
    )
