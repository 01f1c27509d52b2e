"""Prepared launches: calls of a kernel whose arguments were checked and looked up once."""

from __future__ import annotations

from collections.abc import Generator
from sys import _getframe
from typing import Any, Never, NoReturn

from numbasync.arguments import shown, with_type
from numbasync.backend import protocols
from numbasync.device.stream import AnyStream
from numbasync.errors import LauncherError
from numbasync.launch.arguments import TYPED
from numbasync.launch.call import Launch, LaunchResult
from numbasync.launch.fast_calls import FastCall
from numbasync.launch.kernel import KernelSpec
from numbasync.launch.parameters import Role
from numbasync.launch.plan import Config, Plan
from numbasync.native import compiled, known
from numbasync.ops.operands import is_op, suppress_unused_warnings
from numbasync.public import Public
from numbasync.tensors.tensor import Tensor


@known
class PreparedLaunch(Public):
    """A call of a kernel, checked once; created by `kernel.prepare(...)`.

    `run()` is an operation that launches the kernel with the prepared arguments, and
    `run(a=3.0)` one with other arguments in the places of those names. Each is an operation like
    `kernel(...)`: it runs once, and can be awaited, zipped, chained and captured. `await run`,
    `run.sync()`, `run.sync_on(stream)` and `run.async_on(stream)` run such an operation with the
    prepared arguments, any number of times; the last three also take changes by name.
    (`asyncio.gather` awaits one object once, however often it is passed: pass `run()`.)

    A number of the same Python type is taken as it is; a tensor or partition that is the prepared
    object needs no check, and any other argument is checked as in `kernel(...)`. With a NumPy
    array, or an array of another library, among the arguments every run is checked, and a NumPy
    array is uploaded by each. The prepared launch keeps its arguments alive. Any number of threads
    may use it.

    Examples:
        >>> z, x = await na.gather(na.zeros(3), na.ones(3))
        >>> run = saxpy.prepare(z, 1.0, x)  # checked; nothing is launched
        >>> for _ in range(3):
        ...     _ = await run
        >>> _ = await run(a=10.0)  # another number
        >>> await z.to_host()
        array([13., 13., 13.], dtype=float32)
    """

    __slots__ = (
        "_config", "_form", "_launch_class", "_launcher", "_numbers", "_parts", "_plan",
        "_positions", "_tensors", "_values",
    )  # fmt: skip

    def __init__(self, launcher: KernelSpec, values: tuple[Any, ...], config: Config) -> None:
        known = getattr(launcher, "parameters", None)
        if not known or type(values) is not tuple or len(known) != len(values):
            raise LauncherError(
                "a PreparedLaunch is of a kernel and all its arguments, not of "
                f"{with_type(launcher)} and {with_type(values)}: write kernel.prepare(...)."
            )
        with suppress_unused_warnings(values):
            lazy = [p.name for p, v in zip(launcher.parameters, values, strict=True) if is_op(v)]
            if lazy:
                raise LauncherError(
                    f"kernel {launcher.label}: prepare takes values, and {', '.join(lazy)} is an "
                    "operation, which runs once. Await it first, and prepare its value."
                )
        self._launch_class: Any = Launch if config.stream is not None else launcher.launch_class
        launch = self._launch_class(launcher, values, config)
        launch.suppress_warning()
        self._launcher = launcher
        self._values = values
        self._config = config
        self._form: FastCall | None = launch._form
        self._tensors: tuple[Tensor, ...] = ()
        self._parts: tuple[Any, ...] = ()
        if self._form is not None:
            self._tensors, self._parts = launch._tensors, launch._parts
        # Of the device of the arguments, once an operation has compiled the kernel and planned it.
        self._plan: tuple[protocols.Device, Plan] | None = None
        self._positions = {p.name: i for i, p in enumerate(launcher.parameters)}
        self._numbers = {
            p.name: type(value)
            for p, value in zip(launcher.parameters, values, strict=True)
            if p.role is not Role.LITERAL and (type(value) in TYPED or type(value) is int)
        }

    @compiled
    def __call__(self, /, *unnamed: Never, **changes: Any) -> Launch:
        """An operation that launches the kernel, with some arguments changed.

        Args:
            changes: arguments by the names of the kernel's parameters.

        Raises:
            LauncherError: the kernel has no parameter of that name, or an argument has no name.
            The errors of calling the kernel with these arguments.
        """
        frame = _getframe(1)  # the caller
        site = frame.f_code, frame.f_lasti
        values = self._values
        form, is_known = self._form, True
        if unnamed:
            self._refuse_unnamed(unnamed, changes)
        if changes:
            changed = list(values)
            for name, value in changes.items():
                i = self._positions.get(name, -1)
                if i < 0:
                    self._refuse(name, changes)
                if value is not changed[i]:
                    cls = type(value)
                    if self._numbers.get(name) is not cls or (
                        cls is int and not -(2**63) <= value < 2**63
                    ):
                        is_known = False
                    changed[i] = value
            values = tuple(changed)
        if form is None or not is_known:
            launch: Launch = self._launch_class(self._launcher, values, self._config)
            launch._site = site
            return launch
        known: Launch = self._launch_class.known(
            self._launcher, values, self._config, form, (self._tensors, self._parts),
            self._plan or self._find_plan(), site,
        )  # fmt: skip
        return known

    def _find_plan(self) -> tuple[protocols.Device, Plan] | None:
        """The plan for the device of the arguments, if an operation has made it."""
        device = self._tensors[0].device if self._tensors else None
        if device is None:
            return None
        key = device.backend, self._parts, self._config.extents
        plan = self._launcher.planner.plans.get(key)
        if plan is not None:
            self._plan = device.backend, plan
        return self._plan

    def _refuse_unnamed(self, unnamed: tuple[Any, ...], changes: dict[str, Any]) -> NoReturn:
        with suppress_unused_warnings((*unnamed, *changes.values())):
            names = ", ".join(f"{name}=..." for name in self._positions)
            raise LauncherError(
                f"kernel {self._launcher.label}: a prepared launch has its arguments. Changes are "
                f"by name, of those that change: run({names})."
            )

    def _refuse(self, name: str, changes: dict[str, Any]) -> NoReturn:
        with suppress_unused_warnings(changes.values()):
            raise LauncherError(
                f"kernel {self._launcher.label} has no parameter {shown(name)}: write one of "
                f"{', '.join(self._positions)}."
            )

    # --- running an operation with the prepared arguments ---

    def __await__(self) -> Generator[Any, None, LaunchResult]:
        return self().__await__()

    def sync(self, /, **changes: Any) -> LaunchResult:
        """`run(**changes).sync()`.

        Examples:
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> _ = saxpy.prepare(z, 2.0, x).sync(a=5.0)
            >>> await z.to_host()
            array([5., 5., 5.], dtype=float32)
        """
        launch = self(**changes)
        try:
            return launch.sync()
        except BaseException:
            launch.suppress_warning()  # the operation was refused
            raise

    @compiled
    def sync_on(self, stream: AnyStream, /, **changes: Any) -> LaunchResult:
        """`run(**changes).sync_on(stream)`; with the compiled core no operation is built.

        Examples:
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> _ = saxpy.prepare(z, 2.0, x).sync_on(na.default_device().new_stream())
            >>> await z.to_host()
            array([2., 2., 2.], dtype=float32)
        """
        launch = self(**changes)
        try:
            return launch.sync_on(stream)
        except BaseException:
            launch.suppress_warning()
            raise

    @compiled
    def async_on(self, stream: AnyStream, /, **changes: Any) -> LaunchResult:
        """`run(**changes).async_on(stream)`; with the compiled core no operation is built.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> run = saxpy.prepare(z, 2.0, x)
            >>> for _ in range(3):
            ...     _ = run.async_on(stream)  # builds no operation
            >>> z.to_host().sync_on(stream)
            array([6., 6., 6.], dtype=float32)
        """
        launch = self(**changes)
        try:
            return launch.async_on(stream)
        except BaseException:
            launch.suppress_warning()
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled.\n"
            "Pickle the operation run(), or the kernel, and prepare it there."
        )

    def __repr__(self) -> str:
        if self._form is None:
            state = "checked at each run"
        else:
            state = "planned" if self._plan or self._find_plan() else "not planned yet"
        return f"<PreparedLaunch {self._launcher.label}, {state}>"
