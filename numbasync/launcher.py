"""Kernel calls: `@launcher` turns a `@cuda.jit` kernel into a function that gives operations.

Everything that can be wrong with a call is found before anything of it is enqueued.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from types import FunctionType
from typing import Any, NamedTuple, overload

import numpy as np

from numbasync import grid as grids
from numbasync.arguments import Bound
from numbasync.backend.base import Dim3
from numbasync.errors import LauncherError, LaunchError
from numbasync.execute import describe
from numbasync.forms import Form, Kinds
from numbasync.launch import Compile, Launch
from numbasync.op import DeviceOp
from numbasync.parts import refusing
from numbasync.plan import DEFAULT, Config, Planner, as_device_function
from numbasync.precondition import Precondition
from numbasync.signature import check_kernel, parameters
from numbasync.stream import Stream


class Configured:
    """A kernel with its launch extents: `kernel[grid, block]`, `kernel.forall(n)`."""

    def __init__(self, launcher: Launcher, config: Config) -> None:
        self._launcher = launcher
        self._config = config

    def __call__(self, /, *args: Any, **kwargs: Any) -> Launch:
        return Launch(self._launcher, self._launcher.arrange(args, kwargs), self._config)

    def __repr__(self) -> str:
        c = self._config
        extents = f"{c.elements} threads" if c.elements is not None else f"{c.grid}, {c.block}"
        return f"<{self._launcher.name}[{extents}]>"


MOST_CONFIGURED = 256  # of one kernel; a program that launches ever new extents starts over


def _is_plain(config: Any) -> bool:
    """Whether it is of whole numbers only: 1.0 and True equal 1 and may be refused, a stream is not
    to be kept.
    """
    if type(config) is not tuple:
        return False
    for part in config:
        if type(part) is tuple:
            for n in part:
                if type(n) is not int:
                    return False
        elif type(part) is not int:
            return False
    return True


class CpuEngine(NamedTuple):
    """What runs a kernel on the CPU device.

    Attributes:
        name: `"compiled"`, `"interpreted"` or `"none yet"`.
        why: what cannot be compiled, and its line; empty if all can.
    """

    name: str
    why: str


class Launcher:
    """A kernel whose calls are operations. Made by `@launcher`.

    Attributes:
        kernel: the Numba dispatcher.
        name: the kernel's name.
        names: that alone, as a submission lists what it has launched.
        parameters: its parameters and their roles.
        may_alias: the kernel is written for outputs that share storage with other arguments.
    """

    def __init__(
        self,
        dispatcher: Any,
        threads: int | tuple[int, ...] | None,
        axes: tuple[int, ...] | None,
        preconditions: Iterable[str],
        may_alias: bool,
    ) -> None:
        self.kernel = dispatcher
        self.py_func: FunctionType = dispatcher.py_func
        self.name = self.py_func.__name__
        self.parameters = parameters(self.py_func)
        self.may_alias = may_alias
        names = [p.name for p in self.parameters]
        self.label = f"{self.name}({', '.join(names)})"
        self.names = (self.name,)
        self._names = names
        self._forms: dict[Kinds, Form | None] = {}
        self._configured: dict[Any, Configured] = {}
        if isinstance(preconditions, str):
            raise LauncherError(
                f"kernel {self.name}: preconditions= is a list of conditions, not one text; write "
                f"preconditions=[{preconditions!r:.60}]."
            )
        self.preconditions = tuple(Precondition(t, self.name, names) for t in preconditions)
        block: int | Dim3 | None = None
        if threads is not None:
            extents = grids.dim3(threads, "threads=", self.name)
            block = extents if isinstance(threads, tuple) else extents[0]
        self.planner = Planner(
            dispatcher, self.parameters, block, grids.check_axes(axes, self.name)
        )
        # `rename` replaces names that a named tuple cannot have, such as `_x`.
        named = namedtuple(self.name, names, rename=True)  # type: ignore[misc]  # noqa: PYI024
        outputs = tuple(i for i, p in enumerate(self.parameters) if p.is_output)
        kind = type(self.name, (named,), {"__slots__": (), "_output_positions": outputs})
        # Makes the named tuple of a tuple; `kind(*values)` takes twice as long.
        self.result: Callable[[tuple[Any, ...]], Any] = partial(tuple.__new__, kind)
        self.__name__ = self.__qualname__ = self.name
        self.__doc__ = self.py_func.__doc__
        self.__module__ = self.py_func.__module__
        self.__wrapped__ = self.py_func

    # --- calling ---

    def __call__(self, /, *args: Any, **kwargs: Any) -> Launch:
        """The operation that launches the kernel with these arguments; nothing happens yet."""
        return Launch(self, self.arrange(args, kwargs), DEFAULT)

    def __getitem__(self, config: Any) -> Configured:
        """Numba's form: `kernel[grid, block]`, `[grid, block, stream]`, `[..., shared_bytes]`."""
        if not _is_plain(config):
            return self._configure(config)
        found = self._configured.get(config)
        if found is None:
            if len(self._configured) >= MOST_CONFIGURED:
                self._configured.clear()
            found = self._configured[config] = self._configure(config)
        return found

    def _configure(self, config: Any) -> Configured:
        parts: tuple[Any, ...] = config if isinstance(config, tuple) else (config,)
        if not 2 <= len(parts) <= 4:
            raise LaunchError(
                f"kernel {self.name}: write {self.name}[grid, block], [grid, block, stream] or "
                f"[grid, block, stream, shared_bytes]; not {len(parts)} values."
            )
        grid, block, stream, shared_bytes = [*parts, 0, 0][:4]
        if not isinstance(stream, Stream) and (not isinstance(stream, int) or stream):
            raise LaunchError(
                f"kernel {self.name}: the stream is a na.Stream, or 0 for the policy's; not "
                f"{describe(stream)}."
            )
        found = Config(
            grids.dim3(grid, "the grid", self.name),
            grids.dim3(block, "the block", self.name),
            stream if isinstance(stream, Stream) else None,
            int(shared_bytes),
        )
        return Configured(self, found)

    def forall(
        self, n: int, tpb: int = 0, stream: Stream | None = None, sharedmem: int = 0
    ) -> Configured:
        """Numba's form: `n` threads in one dimension, `tpb` a block or as many as suit."""
        if not isinstance(n, int | np.integer) or n < 0:
            raise LaunchError(
                f"kernel {self.name}: forall({n!r:.60}) threads; write a whole number, 0 or more."
            )
        block = grids.dim3(tpb, "tpb", self.name) if tpb else None
        return Configured(self, Config(None, block, stream or None, sharedmem, n))

    def compile(self, /, *args: Any, **kwargs: Any) -> DeviceOp[None]:
        """An operation that compiles for such arguments and launches nothing.

        Tensors of `na.meta` suffice. The variant serves every call with the same dtypes,
        ranks and layouts on the same device.
        """
        return Compile(self, self.arrange(args, kwargs))

    def cpu_engine(self) -> CpuEngine:
        """What runs this kernel on the CPU device, and why, as far as it has been compiled there
        (by a call, or by `compile`): `name` is `"compiled"`, `"interpreted"` or `"none yet"`. If
        only some argument types can be compiled, it is about one that cannot.
        """
        found = self.planner.engines()
        slow = [e for e in found if e[0] != "compiled"]
        return CpuEngine(*(slow or found or [("none yet", "no call has needed it")])[0])

    # --- used by the operations ---

    def arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in signature order."""
        names = self._names
        if not kwargs and len(args) == len(names):
            return args
        values = dict(zip(names, args, strict=False))
        wrong = [k for k in kwargs if k not in names or k in values]
        values |= kwargs
        missing = [n for n in names if n not in values]
        if len(args) > len(names) or wrong or missing:
            named = wrong or missing
            these = f"{', '.join(named)} {'is' if len(named) == 1 else 'are'}"
            problem = (
                f"{len(args)} arguments came" if len(args) > len(names)
                else f"{these} unknown or came twice" if wrong
                else f"{these} missing"
            )  # fmt: skip
            with refusing((*args, *kwargs.values())):
                raise LauncherError(f"kernel {self.label}: {problem}.")
        return tuple(values[n] for n in names)

    def form(self, values: tuple[Any, ...]) -> Form | None:
        """The form of calls with arguments of these types; None if they need a closer look."""
        kinds = tuple(map(type, values))
        try:
            return self._forms[kinds]
        except KeyError:
            found = None
            if not self.preconditions:
                found = Form.of(self.parameters, kinds, self.may_alias)
            self._forms[kinds] = found
            return found

    def bind(self, values: tuple[Any, ...]) -> Bound:
        """The arguments, sorted and checked as far as that needs no device."""
        bound = Bound(self.name, self.parameters, values)
        if not self.may_alias and not bound.storages_differ():
            bound.check_aliases(self.name, self.parameters)
        return bound

    @property
    def _numba_type_(self) -> Any:
        # So that another kernel can call this one as a device function.
        return self._device_function._numba_type_

    @cached_property
    def _device_function(self) -> Any:
        return as_device_function(self.kernel)

    def __repr__(self) -> str:
        names = ", ".join(f"{p.name}: {p.role.value}" for p in self.parameters)
        engine = self.cpu_engine()
        how = f", interpreted: {engine.why}" if engine.name == "interpreted" else ""
        return f"<launcher {self.name}({names}){how}>"


@overload
def launcher(function: Callable[..., Any], /) -> Launcher: ...
@overload
def launcher(
    *,
    threads: int | tuple[int, ...] | None = None,
    axes: tuple[int, ...] | None = None,
    preconditions: Iterable[str] = (),
    may_alias: bool = False,
    **jit_options: Any,
) -> Callable[[Callable[..., Any]], Launcher]: ...
def launcher(
    function: Any = None,
    /,
    *,
    threads: int | tuple[int, ...] | None = None,
    axes: tuple[int, ...] | None = None,
    preconditions: Iterable[str] = (),
    may_alias: bool = False,
    **jit_options: Any,
) -> Any:
    """Turn a kernel into a function that gives lazy operations.

    Put it above `@cuda.jit`; on a plain function it applies `cuda.jit(**jit_options)`
    itself. Calling the result with tensors, partitions, arrays of NumPy or other libraries,
    numbers, or operations that give these, builds a launch; awaiting that gives the
    arguments back.

    Args:
        threads: threads a block, where a partition's tile should not say it.
        axes: CUDA axis of each tensor axis; default: axis 0 on x, 1 on y, 2 on z.
        preconditions: conditions on the arguments, such as `"x.shape[0] % 64 == 0"`.
        may_alias: allow an output in the same storage as another argument.

    Raises:
        LauncherError: the annotations contradict the kernel's code, or it is no kernel.
    """

    def decorate(kernel: Any) -> Launcher:
        if isinstance(kernel, Launcher):
            raise LauncherError(f"{kernel.name} has a launcher already; write @na.launcher once.")
        if isinstance(kernel, FunctionType):
            from numba import cuda

            kernel = cuda.jit(**jit_options)(kernel)
        elif jit_options:
            raise LauncherError(
                f"{', '.join(jit_options)}: no option of na.launcher. The kernel is compiled by "
                "@cuda.jit below it; write the option there."
            )
        check_kernel(kernel)
        return Launcher(kernel, threads, axes, preconditions, may_alias)

    return decorate if function is None else decorate(function)
