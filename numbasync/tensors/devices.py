"""Tensors on several devices: moved to one, replicated, cut into parts, and gathered again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from numbasync.arguments import shown
from numbasync.device.callsite import call_site
from numbasync.device.device import (
    Device,
    checked_devices,
    chosen_device,
    default_device,
    next_stream_of,
)
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import DTypeError, OperationError, ShapeError
from numbasync.ops.context import Context
from numbasync.ops.elsewhere import join, on_stream
from numbasync.ops.home import Home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import is_op, suppress_unused_warnings
from numbasync.tensors.across import check_not_recorded, check_stream, copy_across, try_copy_across
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.copies import HostArray, copy
from numbasync.tensors.copy_ops import operands_of
from numbasync.tensors.create import from_host
from numbasync.tensors.join import Joined
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor


@overload
def to_device(t: Tensor | HostArray, device: Device) -> DeviceOp[Tensor]: ...
@overload
def to_device(t: SharedTensor, device: Device) -> DeviceOp[Tensor | SharedTensor]: ...
def to_device(t: Any, device: Device) -> DeviceOp[Any]:
    """An operation that gives a tensor on `device` with the elements of `t`: of the same shape and
    dtype, contiguous.

    The operation runs on a stream of `device`, of its policy if none is named. It starts after the
    last write of `t`, and a later write of `t`, on its own device, waits for it. A tensor of
    `device` is given as it is, without a copy: `t.dup()` makes one.

    Args:
        t: a tensor of any device; or an array, which is uploaded as by `from_host`.

    Raises:
        OperationError: `t` is an operation, or is no array.
        CallerError: `device` is no device.
        DeviceMismatchError: the operation is run on a stream of another device than `device`.
        NotAGraphNodeError: the operation is captured, and `t` is of another device.
        OutOfDeviceMemoryError: the elements do not fit on `device`.

    Examples:
        >>> first, second = na.devices("cpu")[:2]
        >>> with na.use_device(first):
        ...     t = await na.arange(3)
        >>> there = await na.to_device(t, second)
        >>> t.device.label, there.device.label
        ('cpu:0', 'cpu:1')
    """
    return ToDevice(_array(t, "to_device"), chosen_device(device, "to_device"))


def replicate(t: Tensor | SharedTensor | HostArray, devices: Sequence[Device]) -> DeviceOp[Any]:
    """An operation that gives a tuple of tensors with the elements of `t`, one on each device.

    The copies run at the same time, each on a stream of its own device. On the device of `t` it is
    `t` itself, without a copy; see `to_device`, also for the errors.

    Args:
        devices: a list or a tuple of devices.

    Examples:
        >>> copies = await na.replicate(np.arange(3), na.devices("cpu")[:2])
        >>> [t.device.label for t in copies]
        ['cpu:0', 'cpu:1']
    """
    array = _array(t, "replicate")
    return Spread(
        [(array, device) for device in checked_devices(devices, "replicate")], "replicate"
    )


def scatter(
    t: Tensor | SharedTensor | HostArray, devices: Sequence[Device], axis: int = 0
) -> DeviceOp[tuple[Tensor, ...]]:
    """An operation that gives a tuple of tensors, the parts of `t` along an axis, one on each
    device. The sizes are those of `np.array_split`: nearly equal, the larger ones first.

    The copies run at the same time, each on a stream of its own device. On the device of `t` the
    part is a view of `t`, without a copy.

    Args:
        devices: a list or a tuple of devices.
        axis: counted from the end if negative.

    Raises:
        ShapeError: `t` has no such axis.
        As `to_device`.

    Examples:
        >>> parts = await na.scatter(np.arange(5), na.devices("cpu")[:2])
        >>> [(t.device.label, t.shape) for t in parts]
        [('cpu:0', (3,)), ('cpu:1', (2,))]
    """
    targets = checked_devices(devices, "scatter")
    array = _array(t, "scatter")
    tensor: Any = array.tensor if isinstance(array, SharedTensor) else array
    rank = len(tensor.shape)
    if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
        raise ShapeError(
            f"scatter along axis {shown(axis)} of the shape {tensor.shape}: write a whole number "
            f"from {-rank} to {rank - 1}." if rank else
            "scatter of a tensor without axes: it has none to cut along; write na.replicate."
        )  # fmt: skip
    before = (slice(None),) * (axis % rank)
    size, larger = divmod(tensor.shape[axis], len(targets))
    parts, start = [], 0
    for i, device in enumerate(targets):
        end = start + size + (i < larger)
        parts.append((tensor[(*before, slice(start, end))], device))
        start = end
    return Spread(parts, "scatter")


def gather_parts(
    parts: Sequence[Tensor | SharedTensor | HostArray], axis: int = 0, device: Device | None = None
) -> DeviceOp[Tensor]:
    """An operation that gives the parts, of any devices, joined along an axis as one new tensor.

    The parts are copied at the same time, each on a stream of `device` of its own.

    Args:
        parts: a list or a tuple; all of one dtype, their other extents are equal.
        axis: counted from the end if negative.
        device: where the tensor is; None: the device of the first part.

    Raises:
        ShapeError: as `concatenate`.
        DTypeError: the dtypes differ.
        OperationError: a part is an operation, or is no array.
        CallerError and others: as `to_device`.

    Examples:
        >>> parts = await na.scatter(np.arange(5), na.devices("cpu")[:2])
        >>> whole = await na.gather_parts(parts)
        >>> await whole.to_host()
        array([0, 1, 2, 3, 4])
    """
    return Gathered(parts, axis, device)


def _array(t: Any, what: str) -> Any:
    """`t`, if it is a tensor or an array; an array as one of NumPy."""
    if isinstance(t, Tensor | SharedTensor):
        return t
    with suppress_unused_warnings((t,)):
        if is_op(t):
            raise OperationError(
                f"{what} takes a tensor or an array, not the operation {shown(t)}, which runs on a "
                f"device of its own: run it first, t = await op; then await na.{what}(t, ...)."
            )
        if isinstance(t, Partition):
            raise OperationError(f"{what} takes a tensor, not {shown(t)}: write p.unpartition().")
    upload: Any = from_host(t)  # its checks; the elements are read when the operation runs
    upload.suppress_warning()
    return upload._array


def moved(t: Any, ctx: Context) -> Steps[Any]:
    """A tensor on the device of `ctx`, on whose stream it is copied there if it is not there."""
    tensor = t.tensor if isinstance(t, SharedTensor) else t
    if not isinstance(tensor, Tensor):
        upload = from_host(tensor)
        upload.consume()
        return (yield from upload.steps(ctx))
    _ = tensor.storage  # refuses a tensor that was moved, or has no memory
    if tensor.device is ctx.device:
        return t
    check_not_recorded(ctx, tensor)
    yield from ctx.room(tensor.nbytes)
    new = Tensor.allocate(ctx, tensor.shape, tensor.dtype)
    yield from copy_across(ctx, new, tensor, is_new=True)
    return new


class _OnOneDevice(DeviceOp[Any]):
    """An operation of a device, on whose policy's streams it runs if none is named."""

    _device: Device

    @property
    def home(self) -> Home:
        return self._device


class ToDevice(_OnOneDevice):
    """Copies an array to a device."""

    def __init__(self, t: Any, device: Device) -> None:
        self._site = call_site(2)
        self._source = t
        self._device = device
        self._value: Any = None
        self.has_fast_path = type(t) is Tensor and t.device not in (None, device)

    def operands(self) -> frozenset[int] | None:
        return _operands([self._source])

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        source, device = self._source, self._device
        if submission.stream.device is not device:
            return False
        spec = source.spec or ArraySpec(source.shape, source.dtype)
        storage = (pool or device.pool).reuse(spec.nbytes)
        if storage is None:
            return False
        self._value = Tensor.of(device, storage, spec)
        return try_copy_across(submission, self._value, source, is_new=True)

    def result(self) -> Any:
        value, self._value = self._value, None
        return value

    def steps(self, ctx: Context) -> Steps[Any]:
        check_stream(ctx, self._device, self._source)
        return (yield from moved(self._source, ctx))

    def _describe(self) -> str:
        return f"to_device({self._source.shape}, {self._device.label})"


class Spread(_OnOneDevice):
    """Copies arrays to one device each."""

    def __init__(self, parts: list[tuple[Any, Device]], name: str) -> None:
        self._site = call_site(2)
        self._parts = parts
        self._name = name
        first = parts[0][0]
        own = first.device if isinstance(first, Tensor | SharedTensor) else None
        self._device = own or parts[0][1]

    def home_of_element(self, index: int) -> Home:
        return self._parts[index][1] if index < len(self._parts) else self._device

    def operands(self) -> frozenset[int] | None:
        return _operands([source for source, _ in self._parts])

    def steps(self, ctx: Context) -> Steps[tuple[Any, ...]]:
        values, running = [], []
        for source, device in self._parts:
            if device is ctx.device:
                values.append((yield from moved(source, ctx)))
            else:
                name = f"{self._name} to {device.label}"
                stream = next_stream_of(device)
                part, value = yield from on_stream(ctx, stream, name, partial(moved, source))
                values.append(value)
                running.append(part)
        for part in running:
            join(ctx, part)
        return tuple(values)

    def _width(self) -> int | None:
        return len(self._parts)

    def _describe(self) -> str:
        return f"{self._name}({', '.join(device.label for _, device in self._parts)})"


class Gathered(_OnOneDevice, Joined):
    """Joins parts of several devices into a new tensor of one."""

    def __init__(self, parts: Any, axis: Any, device: Device | None) -> None:
        if device is not None:
            chosen_device(device, "gather_parts")
        listed = parts if isinstance(parts, list | tuple) else ()
        with suppress_unused_warnings(listed):
            for i, part in enumerate(listed):
                if is_op(part):
                    raise OperationError(
                        f"gather_parts: number {i} is the operation {shown(part)}, which runs on a "
                        "device of its own: run it first, t = await op."
                    )
        Joined.__init__(self, parts, axis, is_new=False, name="gather_parts")
        self._site = call_site(2)
        dtypes = list(dict.fromkeys(part.dtype for part in self._parts))
        if len(dtypes) > 1:
            self._unused = False
            raise DTypeError(
                f"gather_parts of {', '.join(map(str, dtypes))}: the parts are of one dtype; "
                "convert them first, where they are: await t.astype(dtype)."
            )
        first = self._parts[0]
        own = first.device if isinstance(first, Tensor) else None
        self._device = device or own or default_device()

    def operands(self) -> frozenset[int] | None:
        return _operands(list(self._parts))

    def steps(self, ctx: Context) -> Steps[Tensor]:
        check_stream(ctx, self._device, self._parts[0])
        shape, dtype, axis, starts = self._plan(self._parts)
        yield from ctx.room(math.prod(shape) * dtype.itemsize)
        joined = Tensor.allocate(ctx, shape, dtype)
        before = (slice(None),) * axis
        near, running = [], []
        for start, part in zip(starts, self._parts, strict=True):
            target = joined[(*before, slice(start, start + part.shape[axis]))]
            if not isinstance(part, Tensor) or part.device is ctx.device:
                near.append((target, part))
            elif part.size:
                stream = next_stream_of(ctx.device)
                steps = partial(_placed, target, part, ctx)
                running.append((yield from on_stream(ctx, stream, "gather_parts", steps))[0])
        for target, part in near:
            yield from copy(ctx, target, (yield from moved(part, ctx)))
        for copying in running:
            join(ctx, copying)
        return joined

    def _describe(self) -> str:
        return f"gather_parts({len(self._parts)} parts, {self._device.label})"


def _placed(target: Tensor, source: Tensor, whole: Context, part: Context) -> Steps[None]:
    """Copy `source` into a view of memory that `whole` has allocated."""
    part.after(whole.submission)
    yield from copy_across(part, target, source, is_new=True)


def _operands(sources: list[Any]) -> frozenset[int] | None:
    tensors = [s.tensor if isinstance(s, SharedTensor) else s for s in sources]
    return operands_of(*tensors) if all(isinstance(t, Tensor) for t in tensors) else None
