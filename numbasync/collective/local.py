"""The collectives of several devices of this process: one tensor a device in, one a device out.

Where the devices have a library of collectives, such as NCCL, it runs them; else each device copies
the parts that it needs, and reduces them by kernels, in the order of the devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from numbasync.arguments import shown, with_type
from numbasync.backend.protocols import Call, Rank
from numbasync.collective import together
from numbasync.collective.kernels import COMBINE, divide_by
from numbasync.collective.reductions import check_reduction, plainly
from numbasync.collective.together import Group, Prepare
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.errors import CallerError, DTypeError, NotAGraphNodeError, ShapeError
from numbasync.extending import (
    ArraySpec,
    Home,
    Submission,
    copy,
    enqueue,
    join,
    next_stream_of,
    note_site,
    on_stream,
)
from numbasync.memo import Memo
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.devices import to_device
from numbasync.tensors.tensor import Tensor


class LocalOp(DeviceOp[tuple[Tensor, ...]]):
    """A collective of devices of this process.

    Args:
        parts: contiguous tensors of equal shape and dtype, each of another device.
        shape: of each result.
        out: the tensors of the results; None: new ones.
        by_copies: the steps that give the result on the device of a context, by its number.
        prepare: the call of the library.
        op: the reduction, if it is one.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Tensor],
        shape: tuple[int, ...],
        by_copies: Callable[[int, Context], Steps[Tensor]],
        prepare: Prepare,
        out: Sequence[Tensor] | None = None,
        op: str | None = None,
    ) -> None:
        note_site(self, 3)
        self._op = op
        self._name = name
        self._parts = parts
        self._shape = shape
        self._by_copies = by_copies
        self._prepare = prepare
        self._out = out
        self.has_fast_path = _device(parts[0]).backend.collectives is not None

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        parts = self._parts
        like, devices = parts[0], tuple([_device(part) for part in parts])
        group = _groups.get(devices)  # made by `steps`, which may take long
        if group is None or not like.size or not group.library.takes(like.dtype, self._op):
            return False
        spec = like.spec
        if spec is None or spec.shape != self._shape:
            spec = ArraySpec(self._shape, like.dtype)
        work = together.Work(self._name, parts, self._out, spec, self._prepare)
        results = together.try_enqueue(group, devices, work, submission, pool)
        if results is None:
            return False
        self._result = results
        return True

    def result(self) -> tuple[Tensor, ...]:
        return self._result

    @property
    def home(self) -> Home:
        return _device(self._parts[0])

    def steps(self, ctx: Context) -> Steps[tuple[Tensor, ...]]:
        if ctx.records:
            raise NotAGraphNodeError(
                f"{self} runs on several devices, and a graph holds the work of one."
            )
        devices = tuple(_device(part) for part in self._parts)
        is_plain = self._parts[0].size and all(t.source is None for t in self._tensors())
        group = _group(devices, self._parts[0], self._op) if is_plain else None
        results: list[Tensor] = []
        contexts: list[Context] = []
        if group is None:
            for i, device in enumerate(devices):
                part, value = yield from on_stream(
                    ctx, next_stream_of(device), self._name, partial(self._by_copies, i)
                )
                contexts.append(part)
                results.append(value)
            if self._out is not None:
                results = yield from self._placed(ctx, devices, contexts, results)
        else:
            yield from self._by_library(ctx, devices, group, contexts, results)
        for part in contexts:
            join(ctx, part)
        return tuple(results)

    def _tensors(self) -> tuple[Tensor, ...]:
        """All that it reads or writes. Those of other libraries are ordered by copies only."""
        return (*self._parts, *(self._out or ()))

    def _placed(
        self,
        ctx: Context,
        devices: Sequence[Device],
        contexts: list[Context],
        results: Sequence[Tensor],
    ) -> Steps[list[Tensor]]:
        """Copy new results to the tensors of `out`, which may be the parts, once all are read."""
        reading = list(contexts)
        for out, result, device in zip(self._out or (), results, devices, strict=True):

            def steps(part: Context, out: Tensor = out, result: Tensor = result) -> Steps[None]:
                for other in reading:
                    part.after(other.submission)
                yield from copy(part, out, result)

            part, _ = yield from on_stream(ctx, next_stream_of(device), self._name, steps)
            contexts.append(part)
        return list(self._out or ())

    def _by_library(
        self,
        ctx: Context,
        devices: Sequence[Device],
        group: Group,
        contexts: list[Context],
        results: list[Tensor],
    ) -> Steps[None]:
        """Open a part on every device; when all are open, enqueue the calls together."""
        opened: list[Context] = []

        def steps(part: Context) -> Steps[None]:
            number = len(opened)
            source = self._parts[number]
            if self._out is None:
                result = Tensor.allocate(part, self._shape, source.dtype)
            else:
                result = self._out[number]
            with part.device.submit_lock:
                part.read(source.storage, source)
                if self._out is None:  # no other operation knows its memory
                    part.retain(result.storage)
                else:
                    part.write(result.storage, result)
            opened.append(part)
            results.append(result)
            if number + 1 < len(devices):
                stream = next_stream_of(devices[number + 1])
                contexts.append((yield from on_stream(ctx, stream, self._name, steps))[0])
                return
            streams = [part.stream.backend for part in opened]
            together.call(group, streams, self._parts, results, self._prepare)

        if ctx.device is devices[0]:
            yield from steps(ctx)
        else:
            stream = next_stream_of(devices[0])
            contexts.append((yield from on_stream(ctx, stream, self._name, steps))[0])

    def _width(self) -> int | None:
        return len(self._parts)

    def _describe(self) -> str:
        return f"{self._name} of {len(self._parts)} devices"


def all_reduce(
    parts: Sequence[Tensor], op: str, out: Sequence[Tensor] | None
) -> DeviceOp[tuple[Tensor, ...]]:
    check_reduction(op, parts[0].dtype)

    def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
        return rank.all_reduce(stream, send, recv, op)

    return LocalOp(
        "all_reduce", parts, parts[0].shape, lambda i, ctx: _reduced(ctx, parts, op), call, out, op
    )


def reduce_scatter(parts: Sequence[Tensor], op: str, rows: int) -> DeviceOp[tuple[Tensor, ...]]:
    check_reduction(op, parts[0].dtype)

    def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
        return rank.reduce_scatter(stream, send, recv, op)

    def by_copies(i: int, ctx: Context) -> Steps[Tensor]:
        return _reduced(ctx, [part[i * rows : (i + 1) * rows] for part in parts], op)

    return LocalOp("reduce_scatter", parts, (rows, *parts[0].shape[1:]), by_copies, call, op=op)


def all_gather(parts: Sequence[Tensor]) -> DeviceOp[tuple[Tensor, ...]]:
    rows = parts[0].shape[0]

    def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
        return rank.all_gather(stream, send, recv)

    def by_copies(i: int, ctx: Context) -> Steps[Tensor]:
        whole = Tensor.allocate(ctx, shape, parts[0].dtype)
        for j, part in enumerate(parts):
            near = yield from enqueue(ctx, to_device(part, ctx.device))
            yield from copy(ctx, whole[j * rows : (j + 1) * rows], near)
        return whole

    shape = (len(parts) * rows, *parts[0].shape[1:])
    return LocalOp("all_gather", parts, shape, by_copies, call)


def broadcast(parts: Sequence[Tensor], root: int) -> DeviceOp[tuple[Tensor, ...]]:
    def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
        return rank.broadcast(stream, send, recv, root)

    def by_copies(i: int, ctx: Context) -> Steps[Tensor]:
        return _reduced(ctx, [parts[root]], "sum")

    return LocalOp("broadcast", parts, parts[0].shape, by_copies, call)


def _reduced(ctx: Context, parts: Sequence[Tensor], op: str) -> Steps[Tensor]:
    """The reduction of the parts, as a new tensor of the context's device."""
    result = Tensor.allocate(ctx, parts[0].shape, parts[0].dtype)
    first = yield from enqueue(ctx, to_device(parts[0], ctx.device))
    yield from copy(ctx, result, first)
    if not result.size:
        return result
    name, dtype = plainly(op, result.dtype)
    flat = result.reshape(-1).reinterpret(dtype)
    for part in parts[1:]:
        near = yield from enqueue(ctx, to_device(part, ctx.device))
        yield from enqueue(ctx, COMBINE[name](flat, near.reshape(-1).reinterpret(dtype)))
    if op == "avg":
        yield from enqueue(ctx, divide_by(flat, len(parts)))
    return result


_groups: dict[tuple[Device, ...], Group] = {}
_lock = threading.Lock()  # of `_groups`


def _group(devices: tuple[Device, ...], like: Tensor, op: str | None) -> Group | None:
    """The group of these devices; None where they have no library, or not for this work."""
    library = devices[0].backend.collectives
    if library is None or any(d.backend.collectives is not library for d in devices):
        return None
    if not library.takes(like.dtype, op):
        return None
    with _lock:
        group = _groups.get(devices)
        if group is None:
            group = _groups[devices] = together.group_of(library, devices)
    return group


def _device(tensor: Tensor) -> Device:
    device = tensor.device
    if device is None:
        raise CallerError(f"{tensor!r} has no elements.")
    return device


# Devices and fingerprints of parts that fit: to look again takes as long as half of a collective's
# submission.
_fitting = Memo[Hashable, bool](1024)


def _kinds(parts: Any) -> Hashable:
    """What the checks of parts depend on; None: parts that have to be looked at."""
    if type(parts) is not list and type(parts) is not tuple:
        return None
    kinds: list[Hashable] = []
    for part in parts:
        if type(part) is not Tensor or part.own_storage is None:
            return None
        kinds += (part.device, part.fingerprint)
    return tuple(kinds)


def checked_parts(parts: Sequence[Any], what: str) -> tuple[Tensor, ...]:
    """Parts of equal shape and dtype, each of another device, contiguous.

    Raises:
        DTypeError, ShapeError, CallerError: they are not.
    """
    kinds = _kinds(parts)
    if kinds is None or kinds not in _fitting:
        parts = _checked(parts, what)
        if kinds is not None:
            _fitting[kinds] = True
    return tuple(parts)


def _checked(parts: Sequence[Any], what: str) -> tuple[Tensor, ...]:
    if not isinstance(parts, Sequence) or isinstance(parts, Tensor | str):
        raise DTypeError(f"{what} takes a list of one tensor a device, not {with_type(parts)}.")
    tensors = tuple(p if type(p) is Tensor else getattr(p, "tensor", p) for p in parts)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"{what} takes one tensor a device, not {shown(tensor)} among them.")
    if not tensors:
        raise CallerError(f"{what} of no tensors: pass one a device.")
    first, devices = tensors[0], [_device(t) for t in tensors]
    for tensor, device in zip(tensors, devices, strict=True):
        if tensor.shape != first.shape:
            raise ShapeError(f"{what} of {first!r} and {tensor!r}, whose shapes differ.")
        if tensor.dtype != first.dtype:
            raise DTypeError(f"{what} of {first!r} and {tensor!r}, whose dtypes differ.")
        if not tensor.is_contiguous:
            raise ShapeError(f"{what} of {tensor!r}, which is not contiguous: await t.dup()")
        if devices.count(device) > 1:
            raise CallerError(
                f"{what} takes one tensor a device, and {device.label} has several: reduce those "
                "by a kernel, or copy one: await na.to_device(t, device)."
            )
    return tensors


def checked_out(out: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors like the parts, on their devices.

    Raises:
        DTypeError, ShapeError, CallerError: they are not.
    """
    tensors = checked_parts(out, "out of a collective")
    for tensor, part in zip(tensors, parts, strict=False):
        if (tensor.shape, tensor.dtype, tensor.device) != (part.shape, part.dtype, part.device):
            raise ShapeError(f"a result like {part!r} cannot be written to {tensor!r}.")
    if len(tensors) != len(parts):
        raise CallerError(f"out has {len(tensors)} tensors for {len(parts)} devices.")
    return tensors
