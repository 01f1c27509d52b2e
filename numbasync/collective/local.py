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
from numbasync.collective.group_ops import check_rank, check_rows, rows_of
from numbasync.collective.kernels import COMBINE, divide_by
from numbasync.collective.reductions import check_reduction, plainly
from numbasync.collective.together import CollectivePlan, Group, Prepare
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
from numbasync.native import compiled, known
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.devices import to_device
from numbasync.tensors.tensor import Tensor


@known
class LocalOp(DeviceOp[tuple[Tensor, ...]]):
    """A collective of devices of this process.

    Args:
        parts: a tensor a device, of the kinds that the plan is for.
        out: the tensors of the results; None: new ones.
    """

    __slots__ = ("_plan",)  # which says the core where it runs

    def __init__(
        self, plan: CollectivePlan, parts: tuple[Tensor, ...], out: tuple[Tensor, ...] | None
    ) -> None:
        note_site(self, 3)
        self._plan = plan
        self._parts = parts
        self._out = out
        self.has_fast_path = plan.has_library

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        plan = self._plan
        if plan.group is None:  # it is made by `steps`, which may take long
            group = _groups.get(plan.devices)
            if group is None or not plan.suits(group.library):
                return False
            plan.use(group)
        results = together.enqueue_together(plan, self._parts, self._out, submission, pool)
        if results is None:
            return False
        self._result = results
        return True

    def result(self) -> tuple[Tensor, ...]:
        return self._result

    @property
    def home(self) -> Home:
        return self._plan.devices[0]

    def steps(self, ctx: Context) -> Steps[tuple[Tensor, ...]]:
        if ctx.records:
            raise NotAGraphNodeError(
                f"{self} runs on several devices, and a graph holds the work of one."
            )
        plan = self._plan
        results: list[Tensor] = []
        contexts: list[Context] = []
        if all(t.source is None for t in self._tensors()) and _has_group(plan):
            yield from self._by_library(ctx, contexts, results)
        else:
            for i, device in enumerate(plan.devices):
                steps = partial(plan.by_copies, self._parts, i)
                part, value = yield from on_stream(ctx, next_stream_of(device), plan.name, steps)
                contexts.append(part)
                results.append(value)
            if self._out is not None:
                results = yield from self._placed(ctx, contexts, results)
        for part in contexts:
            join(ctx, part)
        return tuple(results)

    def _tensors(self) -> tuple[Tensor, ...]:
        """All that it reads or writes. Those of other libraries are ordered by copies only."""
        return (*self._parts, *(self._out or ()))

    def _placed(
        self, ctx: Context, contexts: list[Context], results: Sequence[Tensor]
    ) -> Steps[list[Tensor]]:
        """Copy new results to the tensors of `out`, which may be the parts, once all are read."""
        reading = list(contexts)
        plan = self._plan
        for out, result, device in zip(self._out or (), results, plan.devices, strict=True):

            def steps(part: Context, out: Tensor = out, result: Tensor = result) -> Steps[None]:
                for other in reading:
                    part.after(other.submission)
                yield from copy(part, out, result)

            part, _ = yield from on_stream(ctx, next_stream_of(device), plan.name, steps)
            contexts.append(part)
        return list(self._out or ())

    def _by_library(
        self, ctx: Context, contexts: list[Context], results: list[Tensor]
    ) -> Steps[None]:
        """Open a part on every device; when all are open, enqueue the calls together."""
        plan = self._plan
        name, devices = plan.name, plan.devices
        opened: list[Context] = []

        def steps(part: Context) -> Steps[None]:
            number = len(opened)
            source = self._parts[number]
            if self._out is None:
                result = Tensor.allocate(part, plan.spec.shape, source.dtype)
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
                contexts.append((yield from on_stream(ctx, stream, name, steps))[0])
                return
            streams = [part.stream.backend for part in opened]
            together.make_calls(plan, streams, self._parts, results)

        if ctx.device is devices[0]:
            yield from steps(ctx)
        else:
            stream = next_stream_of(devices[0])
            contexts.append((yield from on_stream(ctx, stream, name, steps))[0])

    def _width(self) -> int | None:
        return len(self._parts)

    def _describe(self) -> str:
        return f"{self._plan.name} of {len(self._parts)} devices"


def all_reduce(
    parts: Sequence[Tensor], op: str, out: Sequence[Tensor] | None
) -> DeviceOp[tuple[Tensor, ...]]:
    def new_plan(tensors: tuple[Tensor, ...]) -> CollectivePlan:
        check_reduction(op, tensors[0].dtype)

        def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
            return rank.all_reduce(stream, send, recv, op)

        def by_copies(parts: Sequence[Tensor], i: int, ctx: Context) -> Steps[Tensor]:
            return _reduced(ctx, parts, op)

        return _plan("all_reduce", tensors, tensors[0].shape, by_copies, call, op, op)

    return _operation("all_reduce", op, parts, out, new_plan)


def reduce_scatter(parts: Sequence[Tensor], op: str) -> DeviceOp[tuple[Tensor, ...]]:
    def new_plan(tensors: tuple[Tensor, ...]) -> CollectivePlan:
        rows = rows_of(tensors[0], len(tensors))
        check_reduction(op, tensors[0].dtype)

        def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
            return rank.reduce_scatter(stream, send, recv, op)

        def by_copies(parts: Sequence[Tensor], i: int, ctx: Context) -> Steps[Tensor]:
            return _reduced(ctx, [part[i * rows : (i + 1) * rows] for part in parts], op)

        shape = (rows, *tensors[0].shape[1:])
        return _plan("reduce_scatter", tensors, shape, by_copies, call, op, op)

    return _operation("reduce_scatter", op, parts, None, new_plan)


def all_gather(parts: Sequence[Tensor]) -> DeviceOp[tuple[Tensor, ...]]:
    def new_plan(tensors: tuple[Tensor, ...]) -> CollectivePlan:
        check_rows(tensors[0])
        rows, dtype = tensors[0].shape[0], tensors[0].dtype
        shape = (len(tensors) * rows, *tensors[0].shape[1:])

        def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
            return rank.all_gather(stream, send, recv)

        def by_copies(parts: Sequence[Tensor], i: int, ctx: Context) -> Steps[Tensor]:
            whole = Tensor.allocate(ctx, shape, dtype)
            for j, part in enumerate(parts):
                near = yield from enqueue(ctx, to_device(part, ctx.device))
                yield from copy(ctx, whole[j * rows : (j + 1) * rows], near)
            return whole

        return _plan("all_gather", tensors, shape, by_copies, call)

    return _operation("all_gather", None, parts, None, new_plan)


def broadcast(parts: Sequence[Tensor], root: int) -> DeviceOp[tuple[Tensor, ...]]:
    def new_plan(tensors: tuple[Tensor, ...]) -> CollectivePlan:
        number = check_rank(root, len(tensors), "root of broadcast")

        def call(rank: Rank, stream: Any, send: Any, recv: Any) -> Call:
            return rank.broadcast(stream, send, recv, number)

        def by_copies(parts: Sequence[Tensor], i: int, ctx: Context) -> Steps[Tensor]:
            return _reduced(ctx, [parts[number]], "sum")

        return _plan("broadcast", tensors, tensors[0].shape, by_copies, call, None, number)

    return _operation("broadcast", root, parts, None, new_plan)


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
_plans = Memo[Hashable, CollectivePlan](1024)  # by `key_of_call` a call


def _operation(
    name: str,
    choice: Any,
    parts: Sequence[Tensor],
    out: Sequence[Tensor] | None,
    new_plan: Callable[[tuple[Tensor, ...]], CollectivePlan],
) -> LocalOp:
    """The operation of a call, which is checked unless one of tensors alike was."""
    key = key_of_call(name, choice, parts, out)
    plan = None if key is None else _plans.get(key)
    if plan is None:
        parts = checked_parts(parts, name)
        out = None if out is None else checked_out(out, parts)
        plan = new_plan(parts)
        if key is not None:
            _plans[key] = plan
    return LocalOp(plan, tuple(parts), None if out is None else tuple(out))


@compiled
def key_of_call(name: str, choice: Any, parts: Any, out: Any) -> Hashable:
    """What the checks of a call depend on; None: they have to be made.

    Args:
        choice: the reduction, or the number of a device.
    """
    if choice is not None and type(choice) is not str and type(choice) is not int:
        return None
    key: list[Hashable] = [name, choice]
    for tensors in (parts, out):
        if tensors is None:
            continue
        if type(tensors) is not list and type(tensors) is not tuple:
            return None
        key.append(len(tensors))
        for tensor in tensors:
            if type(tensor) is not Tensor or tensor.own_storage is None:
                return None
            key += (tensor.device, tensor.fingerprint)
    return tuple(key)


def _plan(
    name: str,
    parts: Sequence[Tensor],
    shape: tuple[int, ...],
    by_copies: Callable[[Sequence[Tensor], int, Context], Steps[Tensor]],
    prepare: Prepare,
    op: str | None = None,
    choice: Any = None,
) -> CollectivePlan:
    like, spec = parts[0], parts[0].spec
    if spec is None or spec.shape != shape:
        spec = ArraySpec(shape, like.dtype)
    devices = tuple([_device(part) for part in parts])
    return CollectivePlan(name, devices, like.nbytes, spec, by_copies, prepare, op, choice)


def _has_group(plan: CollectivePlan) -> bool:
    """Whether a library runs the collectives of a plan; its group is made the first time."""
    if plan.group is not None:
        return True
    devices = plan.devices
    library = devices[0].backend.collectives
    if library is None or any(d.backend.collectives is not library for d in devices):
        return False
    if not plan.suits(library):
        return False
    with _lock:
        group = _groups.get(devices)
        if group is None:
            group = _groups[devices] = Group(library, devices)
    plan.use(group)
    return True


def _device(tensor: Tensor) -> Device:
    device = tensor.device
    if device is None:
        raise CallerError(f"{tensor!r} has no elements.")
    return device


def checked_parts(parts: Sequence[Any], what: str) -> tuple[Tensor, ...]:
    """Parts of equal shape and dtype, each of another device, contiguous.

    Raises:
        DTypeError, ShapeError, CallerError: they are not.
    """
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
