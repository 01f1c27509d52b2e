"""Launches as operations: one call of a kernel, from its arguments to work on a stream.

A call of plain arguments whose plan is known is enqueued on the fast path; any other call is run
through its steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from sys import _getframe
from types import CodeType
from typing import Any, Self

import numpy as np

from numbasync.arguments import with_type
from numbasync.backend import protocols
from numbasync.device.callsite import call_site
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import (
    DeviceMismatchError,
    InternalError,
    KernelCompileError,
    LauncherError,
    MovedError,
)
from numbasync.launch import homes
from numbasync.launch.arguments import BoundArguments, replaced
from numbasync.launch.coarse_kernels import CoarseLaunch
from numbasync.launch.coarsening import NotPlainError
from numbasync.launch.fast_calls import FastCall, Taken
from numbasync.launch.homes import at_home, check_devices, elsewhere, placed_tensors
from numbasync.launch.kernel import KernelSpec
from numbasync.launch.parameters import Role
from numbasync.launch.plan import DEFAULT, Config, Plan
from numbasync.launch.result import LaunchResult as LaunchResult
from numbasync.launch.variants import Kernel, Keys
from numbasync.native import compiled, core, known
from numbasync.ops import submission_queue
from numbasync.ops.context import Context
from numbasync.ops.home import Home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import common_stream, suppress_unused_warnings
from numbasync.ops.pickling import Recipe, packed
from numbasync.tensors.copies import download, order, upload
from numbasync.tensors.copy_ops import operands_of
from numbasync.tensors.expected_results import foreseen
from numbasync.tensors.inout import InOut, check_settled, note
from numbasync.tensors.tensor import Tensor


@known
class Launch(DeviceOp[LaunchResult]):
    """One call of a kernel. Returns its arguments, as a named tuple in signature order.

    Examples:
        >>> op = saxpy(na.zeros(3), 2.0, na.ones(3))
        >>> isinstance(op, na.Launch)
        True
        >>> result = await op
        >>> await result.z.to_host()
        array([2., 2., 2.], dtype=float32)
    """

    __slots__ = (
        "_bound", "_config", "_form", "_launcher", "_lazy", "_parts", "_plan", "_site", "_tensors",
        "_unused", "_values", "has_fast_path",
    )  # fmt: skip

    def __init__(
        self, launcher: KernelSpec, values: tuple[Any, ...], config: Config = DEFAULT
    ) -> None:
        frame = _getframe(2)  # the caller of the kernel
        self._site = frame.f_code, frame.f_lasti
        self._launcher = launcher
        self._values = values
        self._config = config
        self._unused = self.has_fast_path = True
        self._lazy: tuple[int, ...] = ()
        self._bound: BoundArguments | None = None
        self._plan: tuple[protocols.Device, Plan] | None = None
        try:
            form_of = launcher.form
            stream = config.stream
        except AttributeError:
            raise LauncherError(
                f"a Launch is of a kernel, not of {with_type(launcher)}: write kernel(...)."
            ) from None
        if stream is not None:
            self.stream = stream
        form = form_of(values)
        taken = None if form is None else form.take(values)
        if taken is not None:
            self._form: FastCall | None = form
            self._tensors: tuple[Tensor, ...]
            self._parts: tuple[Any, ...]
            self._tensors, self._parts = taken
            return
        self._form = None
        self.has_fast_path = False
        self._unused = False  # a refused call needs no warning
        self._lazy = tuple(i for i, value in enumerate(values) if isinstance(value, DeviceOp))
        if self._lazy:
            with suppress_unused_warnings(values):
                self.stream = common_stream((values[i] for i in self._lazy), config.stream)
                launcher.check(self._foreseen())
        else:
            self._bound = launcher.bind(values)
        for i in self._lazy:
            values[i].consume()
        self._unused = True

    @classmethod
    def known(
        cls,
        launcher: KernelSpec,
        values: tuple[Any, ...],
        config: Config,
        form: FastCall,
        taken: Taken,
        plan: tuple[protocols.Device, Plan] | None,
        site: tuple[CodeType, int],
    ) -> Self:
        """A call whose fast call has taken its arguments before, with its plan on one device."""
        launch = cls.__new__(cls)
        launch._site = site
        launch._launcher, launch._values, launch._config = launcher, values, config
        launch._unused = launch.has_fast_path = True
        launch._lazy = ()
        launch._bound = None
        launch._plan = plan
        if config.stream is not None:
            launch.stream = config.stream
        launch._form = form
        launch._tensors, launch._parts = taken
        return launch

    def _inner(self) -> Iterable[tuple[str, Any]]:
        return ((self._launcher.parameters[i].name, self._values[i]) for i in self._lazy)

    def _recipe(self) -> Recipe:
        return _launched, (self._launcher, packed(self._values), self._config)

    @property
    def label(self) -> str:
        return self._launcher.label

    @property
    def home(self) -> Home:
        if self._form is not None:
            return self._tensors[self._form.home].device if self._tensors else None
        if self._bound is not None:
            return homes.home_of_bound(self._launcher, self._bound)
        return homes.home_of(self._launcher, enumerate(self._values))

    @property
    def is_node(self) -> bool:  # type: ignore[override]
        return self._form is not None or (self._bound is not None and not self._bound.uploads())

    def foreseen(self) -> Any:
        """The expected result, as far as it is known before the launch; see `foreseen`."""
        values = (v.array if type(v) is InOut else v for v in self._foreseen())
        return self._launcher.result(tuple(values))

    def _foreseen(self) -> tuple[Any, ...]:
        """The arguments, as far as they are known before the lazy ones have run."""
        return tuple(foreseen(v) if isinstance(v, DeviceOp) else v for v in self._values)

    def again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        """Another call of the kernel, with the configuration of this one."""
        return Launch(self._launcher, self._launcher.arrange(args, kwargs), self._config)

    def plan_on(self, device: protocols.Device) -> Plan | None:
        """The plan of this call on a device, if its arguments are plain and an earlier call created
        it.
        """
        if self._form is None:
            return None
        return self._launcher.planner.plans.get((device, self._parts, self._config.extents))

    @compiled
    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        launcher = self._launcher
        backend = submission.stream.device.backend
        plan: Plan | None
        if self._plan is not None and self._plan[0] is backend:
            plan = self._plan[1]
        else:  # `plan_on` written out, without the function call: most launches run this line
            plan = launcher.planner.plans.get((backend, self._parts, self._config.extents))
        if self._form is None or plan is None or plan.empty:
            return False
        if submission.launched[-1:] != plan.names:  # first: a fault's message lists them
            submission.launched += plan.names
        return self._form.enqueue(plan, self._values, self._tensors, submission)

    def operands(self) -> frozenset[int] | None:
        if self._form is not None:
            return operands_of(*self._tensors)
        bound = self._bound
        if bound is None or bound.uploads() or bound.sources:
            return None
        return operands_of(*(tensor for _, tensor in bound.tensors))

    def result(self) -> LaunchResult:
        return self._launcher.result(self._values)

    def arguments(self, ctx: Context) -> Steps[BoundArguments]:
        """The arguments, once the lazy ones have run."""
        if not self._lazy:
            return self._bound or self._launcher.bind(self._values)
        values = list(self._values)
        for i in self._lazy:
            values[i] = yield from values[i].steps(ctx)
        return self._launcher.bind(tuple(values))

    def steps(self, ctx: Context) -> Steps[LaunchResult]:
        launcher, config, device = self._launcher, self._config, ctx.device
        if self._lazy:
            check_devices(launcher, placed_tensors(self._values), device)
        bound = yield from self.arguments(ctx)
        returned = bound.given()
        bound = yield from at_home(launcher, bound, ctx)
        bound, plan = yield from planned(launcher, bound, config, device)
        uploads = bound.uploads() if bound.tuples else bound.host
        if uploads and ctx.admission is not None:
            yield from ctx.room(sum(2 * array.nbytes for _, array in uploads))
        if uploads and not plan.empty:
            named_uploads = ((launcher.parameters[i].name, array) for i, array in uploads)
            check_settled(launcher.name, named_uploads, ctx.submission)
        if not plan.empty:
            if bound.sources:
                order(ctx, *bound.sources)
            with device.submit_lock:
                args, uploaded = _lease(launcher, bound, ctx)
                ctx.queue.launch(plan.work, args)
            ctx.launched(plan.names, self)
            for i, array in bound.inouts.items():
                yield from download(ctx, uploaded[i], array)
                note(ctx, array)
        return launcher.result(returned)

    def _width(self) -> int:
        return len(self._values)

    def _describe(self) -> str:
        return self._launcher.label


def _launched(launcher: KernelSpec, *made_of: Any) -> Launch:
    """A launch from a pickle; `Launch` looks up the caller of its caller, which this lacks."""
    launch: Launch = launcher.launch_class(launcher, *made_of)
    return launch


class Compile(DeviceOp[None]):
    """Compiles the variant for these arguments and launches nothing."""

    unordered = True

    def __init__(self, launcher: KernelSpec, values: tuple[Any, ...]) -> None:
        self._unused = False  # a refused compilation needs no warning
        self._site = call_site(2)
        self._launch = Launch(launcher, values, DEFAULT)
        self._unused = True
        self._launch.consume()
        self._launcher = launcher

    def steps(self, ctx: Context) -> Steps[None]:
        bound = yield from self._launch.arguments(ctx)
        if bound.unresolved_host:
            bound = self._launcher.bind(bound.resolve_on(ctx.device))
        yield from _coarse_launch(self._launcher, bound, DEFAULT, ctx.device)
        yield from _compiled(self._launcher, bound, ctx.device)

    @property
    def home(self) -> Home:
        return self._launch.home

    def _describe(self) -> str:
        return f"{self._launcher.name}.compile()"


def planned(
    launcher: KernelSpec, bound: BoundArguments, config: Config, device: Device
) -> Steps[tuple[BoundArguments, Plan]]:
    """The arguments as they are on `device`, and the plan of the call; yields the compilation of a
    new variant.

    Raises:
        LaunchError: a precondition does not hold, or the extents do not fit.
    """
    if bound.unresolved_host:
        bound = launcher.bind(bound.resolve_on(device))
    if launcher.preconditions:
        values = bound.by_name(launcher.parameters)
        for condition in launcher.preconditions:
            condition.check(values)
    plan = launcher.planner.find(bound, config, device.backend)
    if plan is None:
        coarse, executable = yield from _coarse_launch(launcher, bound, config, device)
        if executable is None:
            executable = yield from _compiled(launcher, bound, device)
        plan = launcher.planner.make(bound, config, device, executable, coarse)
    return bound, plan


def _compiled(
    launcher: KernelSpec, bound: BoundArguments, device: Device
) -> Steps[protocols.Executable]:
    """The compiled variant for these arguments; yields its compilation first if the variant
    is new.
    """
    kernel, keys = launcher.planner.variant(bound, device.backend)
    return (yield from _executable(kernel, keys, device))


def _coarse_launch(
    launcher: KernelSpec, bound: BoundArguments, config: Config, device: Device
) -> Steps[tuple[CoarseLaunch, protocols.Executable] | tuple[None, None]]:
    """The coarsened launch of a call, and its kernel once it is compiled; two Nones if the call has
    a plain launch.
    """
    planner = launcher.planner
    try:
        coarse = planner.coarse(bound, config, device)
    except NotPlainError:
        return None, None
    keys = *coarse.keys, device.backend.scalar_key(coarse.positions)
    try:
        executable = yield from _executable(coarse.kernel, keys, device)
    except KernelCompileError as error:  # if the kernel itself is wrong, the plain launch says so
        planner.coarse_kernels.refuse(coarse, f"it cannot be compiled coarsened: {error}")
        return None, None
    if coarse.geometry.threads > executable.max_threads_per_block:
        most = executable.max_threads_per_block
        why = f"its coarsened form allows blocks of {most} threads at most"
        planner.coarse_kernels.refuse(coarse, why, most + 1)
        return None, None
    return coarse, executable


def _executable(kernel: Kernel, keys: Keys, device: Device) -> Steps[protocols.Executable]:
    """A compiled variant; yields its compilation first if the variant is new."""
    executable = kernel.find(device.backend, keys)
    if executable is None:
        yield kernel.compilation(device.backend, keys)
        executable = kernel.find(device.backend, keys)
        if executable is None:
            raise InternalError(f"{kernel!r} was compiled and is not there")
    return executable


def _lease(
    launcher: KernelSpec, bound: BoundArguments, ctx: Context
) -> tuple[list[Any], dict[int, Tensor]]:
    """Register every array of a launch with its submission, and upload host arrays. The caller
    holds the device's `submit_lock`.

    Returns:
        The arguments in the form that the backend takes, and the uploaded tensors by position.
    """
    parameters = launcher.parameters
    args: list[Any] = list(bound.values)

    # Tensors come before NumPy arrays: a tensor of another device is refused before any upload.
    def handle(i: int, tensor: Tensor) -> Any:
        try:
            if parameters[i].is_output:
                ctx.write(tensor.storage, tensor)
            else:
                ctx.read(tensor.storage, tensor)
        except DeviceMismatchError:
            raise elsewhere(launcher, i, tensor, ctx.device) from None
        except MovedError as error:
            raise MovedError(f"kernel {launcher.name}, {parameters[i].name}: {error}") from None
        return tensor.handle

    def member(i: int, value: Any) -> Any:
        return handle(i, value) if isinstance(value, Tensor) else value

    def uploaded_handle(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        tensor_on_device = Tensor.allocate(ctx, array.shape, array.dtype)
        upload(ctx, tensor_on_device, array)
        return tensor_on_device.handle

    for i, tensor in bound.tensors:
        args[i] = handle(i, tensor)
    for i, values in bound.tuples.items():
        args[i] = replaced(values, partial(member, i))
    uploaded: dict[int, Tensor] = {}
    for i, array in bound.host:
        tensor = uploaded[i] = Tensor.allocate(ctx, array.shape, array.dtype)
        upload(ctx, tensor, array)
        args[i] = tensor.handle
    for i in bound.tuples:
        args[i] = replaced(args[i], uploaded_handle)
    # A tile's extents follow its array. Inserting from the back keeps the earlier positions valid.
    for i, partition in reversed(bound.partitions.items()):
        if parameters[i].role is Role.TILE:
            args[i + 1 : i + 1] = partition.tile
    return args, uploaded


if core is not None:
    core.know_operations(DEFAULT, submission_queue.queued, submission_queue._thread)
