"""Kernel calls: `@launcher` turns a `@cuda.jit` kernel into a function that gives operations.

Here arguments become roles, leases, a grid and compiled code. Everything that can be wrong
with a call is found before anything of it is enqueued.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, overload

import numpy as np

from numbasync import grid as grids
from numbasync import layout
from numbasync.backend.base import ArrayKey, Dim3
from numbasync.errors import (
    AliasError,
    DeviceMismatchError,
    InternalError,
    LauncherError,
    LaunchError,
)
from numbasync.execute import Context
from numbasync.kernel import Kernel, Keys
from numbasync.op import DeviceOp, Steps, refusing
from numbasync.partition import Partition
from numbasync.precondition import Precondition
from numbasync.signature import Parameter, Role, parameters
from numbasync.stream import Stream
from numbasync.tensor import HostArray, SharedTensor, Tensor, upload


@dataclass(frozen=True, slots=True)
class Config:
    """What a call says about its launch, besides its arguments."""

    grid: Dim3 | None = None
    block: Dim3 | None = None
    stream: Stream | None = None
    shared_bytes: int = 0
    elements: int | None = None


class Bound:
    """Arguments that are there, sorted by what they are.

    Attributes:
        values: as passed, in signature order: what the launch gives back.
        arrays: for each parameter its tensor or NumPy array, or None for a scalar.
        partitions: those that came as partitions, by position.
    """

    __slots__ = ("arrays", "partitions", "values")

    def __init__(self, launcher: Launcher, values: tuple[Any, ...]) -> None:
        self.values = values
        self.arrays: list[Tensor | HostArray | None] = []
        self.partitions: dict[int, Partition] = {}
        for i, (parameter, value) in enumerate(zip(launcher.parameters, values, strict=True)):
            if isinstance(value, Partition):
                self.partitions[i] = value
            self.arrays.append(_array(launcher.name, parameter, value))
        if not launcher.may_alias:
            self._check_aliases(launcher)

    def _check_aliases(self, launcher: Launcher) -> None:
        tensors = [
            (p, a) for p, a in zip(launcher.parameters, self.arrays, strict=True)
            if isinstance(a, Tensor) and a.device is not None
        ]  # fmt: skip
        for i, (p, a) in enumerate(tensors):
            for q, b in tensors[i + 1 :]:
                if a.storage is b.storage and (p.is_output or q.is_output):
                    out, other = (p, q) if p.is_output else (q, p)
                    raise AliasError(
                        f"kernel {launcher.name}: {out.name}, which may be written, and "
                        f"{other.name} are in the same storage: {a!r}, {b!r}.\n"
                        "Blocks run in no order, so one may read what another has written. Pass a "
                        "copy (await t.dup()), or, if the kernel is written for it, declare it "
                        "@na.launcher(may_alias=True)."
                    )


def _array(kernel: str, p: Parameter, value: Any) -> Tensor | HostArray | None:
    """The array that an argument is, None if it is a scalar; refuses what does not fit."""
    found: Tensor | HostArray | None = None
    if isinstance(value, Partition):
        if not p.is_output:
            raise LauncherError(
                f"kernel {kernel}: {p.name} is only read, so a partition of it means nothing.\n"
                f"Pass the tensor itself, or declare {p.name}: na.KernelOutput."
            )
        found = value.tensor
    elif p.role is Role.TILE:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is a na.Tile and needs tiles; pass t.partition(tile), not "
            f"{_kind(value)}."
        )
    elif isinstance(value, Tensor):
        found = value
    elif isinstance(value, SharedTensor):
        if p.is_output:
            raise LauncherError(
                f"kernel {kernel}: {p.name} may be written, but {value!r} is shared.\n"
                "Its only holder may write to it as s.partition(tile); everyone else to a copy, "
                "await s.dup()."
            )
        found = value.tensor
    elif isinstance(value, np.ndarray):
        if p.is_output:
            raise LauncherError(
                f"kernel {kernel}: {p.name} is written, but a NumPy array is copied to the device "
                "and the result would be lost.\n"
                "Keep a tensor: t = await na.from_host(array)"
            )
        layout.check_dtype(value.dtype)
        found = value
    elif isinstance(value, int | float | complex | np.generic | tuple):
        if p.role in (Role.INPUT, Role.OUTPUT):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a na.{p.role.value} and takes an array, not "
                f"{_kind(value)}."
            )
        return None
    else:
        raise LauncherError(
            f"kernel {kernel}: {p.name} cannot be {_kind(value)}.\n"
            "A kernel takes tensors, partitions, NumPy arrays, numbers, tuples of numbers, and "
            "operations that give one of these."
        )
    if p.role is Role.SCALAR:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is annotated as a number, but came as {_kind(value)}."
        )
    return found


def _kind(value: Any) -> str:
    return f"{type(value).__name__} ({value!r:.80})"


class Launch(DeviceOp[Any]):
    """One call of a kernel. Gives its arguments back, as a named tuple in signature order."""

    def __init__(self, launcher: Launcher, values: tuple[Any, ...], config: Config) -> None:
        self._free = False  # a refused call needs no warning
        self._launcher = launcher
        self._values = values
        self._config = config
        self.stream = config.stream
        self._lazy = [i for i, v in enumerate(values) if isinstance(v, DeviceOp)]
        self._bound = None if self._lazy else Bound(launcher, values)
        for i in self._lazy:
            values[i].claim()
        self._free = True

    def _arguments(self, ctx: Context) -> Steps[Bound]:
        """The arguments, once the lazy ones have been run."""
        if self._bound is not None:
            return self._bound
        values = list(self._values)
        for i in self._lazy:
            values[i] = yield from values[i].steps(ctx)
        return Bound(self._launcher, tuple(values))

    def steps(self, ctx: Context) -> Steps[Any]:
        launcher = self._launcher
        bound = yield from self._arguments(ctx)
        _check_devices(launcher, bound, ctx)
        for condition in launcher.preconditions:
            condition.check(_by_name(launcher, bound))
        kernel, keys = launcher.variant(bound, ctx.device.backend)
        executable = kernel.find(ctx.device.backend, keys)
        if executable is None:
            yield kernel.compilation(ctx.device.backend, keys)
            executable = kernel.find(ctx.device.backend, keys)
            if executable is None:
                raise InternalError(f"kernel {launcher.name} was compiled and is not there")
        geometry = grids.resolve(
            launcher.request(bound, self._config), ctx.device.limits,
            executable.max_threads_per_block, executable.suggested_threads,
        )  # fmt: skip
        self._check_shared(ctx)
        if 0 not in geometry.grid:
            args = _lease(launcher, bound, ctx)
            ctx.queue.launch(
                executable, geometry.grid, geometry.block, self._config.shared_bytes, args
            )
        return launcher.result(*bound.values)

    def _check_shared(self, ctx: Context) -> None:
        asked, most = self._config.shared_bytes, ctx.device.limits.max_shared_bytes
        if not 0 <= asked <= most:
            raise LaunchError(
                f"kernel {self._launcher.name}: {asked:,} bytes of dynamic shared memory; the "
                f"device allows 0 to {most:,} a block."
            )

    def _width(self) -> int:
        return len(self._values)

    def _describe(self) -> str:
        return self._launcher.label


class Compile(DeviceOp[None]):
    """Compiles the variant for these arguments, launches nothing."""

    def __init__(self, launcher: Launcher, values: tuple[Any, ...]) -> None:
        self._launch = Launch(launcher, values, Config())
        self._launch.claim()
        self._launcher = launcher

    def steps(self, ctx: Context) -> Steps[None]:
        bound = yield from self._launch._arguments(ctx)
        kernel, keys = self._launcher.variant(bound, ctx.device.backend)
        if kernel.find(ctx.device.backend, keys) is None:
            yield kernel.compilation(ctx.device.backend, keys)

    def _describe(self) -> str:
        return f"{self._launcher.name}.compile()"


def _check_devices(launcher: Launcher, bound: Bound, ctx: Context) -> None:
    for parameter, array in zip(launcher.parameters, bound.arrays, strict=True):
        if isinstance(array, Tensor) and array.storage.pool.device_key != ctx.device.key:
            raise DeviceMismatchError(
                f"kernel {launcher.name}: {parameter.name} is {array!r}, but the launch goes to "
                f"{ctx.device.label}.\n"
                "Run it on a stream of the tensor's device, or inside `with na.use_device(d):`."
            )


def _by_name(launcher: Launcher, bound: Bound) -> dict[str, Any]:
    pairs = zip(launcher.parameters, bound.arrays, bound.values, strict=True)
    return {p.name: v if a is None else a for p, a, v in pairs}


def _lease(launcher: Launcher, bound: Bound, ctx: Context) -> list[Any]:
    """Take every array of a launch for its stream; the arguments as the backend wants them."""
    args: list[Any] = []
    for i, (parameter, array) in enumerate(zip(launcher.parameters, bound.arrays, strict=True)):
        if array is None:
            args.append(bound.values[i])
            continue
        if isinstance(array, Tensor):
            tensor = array
            (ctx.write if parameter.is_output else ctx.read)(tensor.storage)
        else:
            tensor = Tensor.allocate(ctx, array.shape, array.dtype)
            upload(ctx, tensor, array)
        args.append(tensor.handle)
        if parameter.role is Role.TILE:
            args.extend(bound.partitions[i].tile)
    return args


class Configured:
    """A kernel with its launch extents: `kernel[grid, block]`, `kernel.forall(n)`."""

    def __init__(self, launcher: Launcher, config: Config) -> None:
        self._launcher = launcher
        self._config = config

    def __call__(self, *args: Any, **kwargs: Any) -> Launch:
        return Launch(self._launcher, self._launcher.arrange(args, kwargs), self._config)

    def __repr__(self) -> str:
        c = self._config
        extents = f"{c.elements} threads" if c.elements is not None else f"{c.grid}, {c.block}"
        return f"<{self._launcher.name}[{extents}]>"


class Launcher:
    """A kernel whose calls are operations. Made by `@launcher`.

    Attributes:
        kernel: the Numba dispatcher.
        name: the kernel's name.
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
        self._names = names
        self.preconditions = tuple(Precondition(t, self.name, names) for t in preconditions)
        self._threads: int | Dim3 | None = None
        if threads is not None:
            extents = grids.dim3(threads, "threads=", self.name)
            self._threads = extents if isinstance(threads, tuple) else extents[0]
        self._axes = grids.check_axes(axes, self.name)
        self._compiled = Kernel(dispatcher)
        self._tiled: dict[tuple[int, ...], Kernel] = {}
        # `rename` replaces names that a named tuple cannot have, such as `_x`.
        base = namedtuple(self.name, names, rename=True)  # type: ignore[misc]  # noqa: PYI024
        outputs = tuple(i for i, p in enumerate(self.parameters) if p.is_output)
        self.result: Any = type(self.name, (base,), {"__slots__": (), "_output_positions": outputs})
        self.__name__ = self.__qualname__ = self.name
        self.__doc__ = self.py_func.__doc__
        self.__module__ = self.py_func.__module__
        self.__wrapped__ = self.py_func

    # --- calling ---

    def __call__(self, *args: Any, **kwargs: Any) -> Launch:
        """The operation that launches the kernel with these arguments; nothing happens yet."""
        return Launch(self, self.arrange(args, kwargs), Config())

    def __getitem__(self, config: Any) -> Configured:
        """Numba's form: `kernel[grid, block]`, `[grid, block, stream]`, `[..., shared_bytes]`."""
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
                f"{_kind(stream)}."
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
        if n < 0:
            raise LaunchError(f"kernel {self.name}: forall({n}) threads; write 0 or more.")
        block = grids.dim3(tpb, "tpb", self.name) if tpb else None
        return Configured(self, Config(None, block, stream or None, sharedmem, n))

    def compile(self, *args: Any, **kwargs: Any) -> DeviceOp[None]:
        """An operation that compiles for such arguments and launches nothing.

        Tensors of `na.meta` suffice. The variant serves every call with the same dtypes,
        ranks and layouts on the same device.
        """
        return Compile(self, self.arrange(args, kwargs))

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
            problem = (
                f"{len(args)} arguments came" if len(args) > len(names)
                else f"{', '.join(wrong)} is unknown or came twice" if wrong
                else f"{', '.join(missing)} is missing"
            )  # fmt: skip
            with refusing((*args, *kwargs.values())):
                raise LauncherError(f"kernel {self.label}: {problem}.")
        return tuple(values[n] for n in names)

    def variant(self, bound: Bound, device: Any) -> tuple[Kernel, Keys]:
        """The kernel to compile, and the key of its variant, for these arguments."""
        keys: list[Any] = []
        ranks: list[int] = []
        for i, array in enumerate(bound.arrays):
            if array is None:
                keys.append(device.scalar_key(bound.values[i]))
            elif isinstance(array, Tensor):
                keys.append(array.key)
            else:
                keys.append(ArrayKey(array.dtype.str, array.ndim, "C"))
            if self.parameters[i].role is Role.TILE:
                tile = bound.partitions[i].tile
                ranks.append(len(tile))
                keys.extend(device.scalar_key(t) for t in tile)
        if not ranks:
            return self._compiled, tuple(keys)
        shape = tuple(ranks)
        if shape not in self._tiled:
            self._tiled[shape] = Kernel(_with_tiles(self, shape))
        return self._tiled[shape], tuple(keys)

    def request(self, bound: Bound, config: Config) -> grids.Request:
        """What these arguments and this configuration say about the launch's extents."""
        partitions = tuple((self.parameters[i].name, p) for i, p in bound.partitions.items())
        whole = [
            a.shape for p, a in zip(self.parameters, bound.arrays, strict=True)
            if p.is_output and a is not None
        ]  # fmt: skip
        return grids.Request(
            self.name, partitions, whole[0] if whole else None, config.grid, config.block,
            config.block if config.elements is not None and config.block else self._threads,
            self._axes, config.elements,
        )  # fmt: skip

    @property
    def axes(self) -> tuple[int, ...] | None:
        """CUDA axis of each tensor axis; None for the same order."""
        return self._axes

    @property
    def _numba_type_(self) -> Any:
        # So that another kernel can call this one as a device function.
        return self.kernel._numba_type_

    def __repr__(self) -> str:
        names = ", ".join(f"{p.name}: {p.role.value}" for p in self.parameters)
        return f"<launcher {self.name}({names})>"


def _with_tiles(launcher: Launcher, ranks: tuple[int, ...]) -> Any:
    """A kernel that hands the launcher's kernel its block's tile of each `Tile` parameter."""
    from numba import cuda

    taken, passed = [], []
    remaining = iter(ranks)
    for i, p in enumerate(launcher.parameters):
        taken.append(f"p{i}")
        if p.role is not Role.TILE:
            passed.append(f"p{i}")
            continue
        cuts = []
        for axis in range(next(remaining)):
            at = grids.AXES[launcher.axes[axis] if launcher.axes else axis]
            tile = f"p{i}_{axis}"
            taken.append(tile)
            cuts.append(f"cuda.blockIdx.{at} * {tile} : (cuda.blockIdx.{at} + 1) * {tile}")
        passed.append(f"p{i}[{', '.join(cuts)}]")
    name = f"{launcher.name}_on_tiles"
    source = f"def {name}({', '.join(taken)}):\n    body({', '.join(passed)})\n"
    names: dict[str, Any] = {"cuda": cuda, "body": launcher.kernel}
    exec(source, names)  # noqa: S102 - built from parameter positions alone
    kept = ("debug", "opt", "lineinfo", "fastmath", "max_registers")
    options = {k: v for k, v in launcher.kernel.targetoptions.items() if k in kept}
    return cuda.jit(**options)(names[name])


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
    itself. Calling the result with tensors, partitions, NumPy arrays, numbers, or operations
    that give these, builds a launch; awaiting that gives the arguments back.

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
        options = getattr(kernel, "targetoptions", None)
        if options is None or not isinstance(getattr(kernel, "py_func", None), FunctionType):
            raise LauncherError(
                f"{_kind(kernel)} is no kernel.\nWrite @na.launcher above @cuda.jit, or above a "
                "plain function."
            )
        if options.get("device"):
            raise LauncherError(
                f"{kernel.py_func.__name__} is a device function (device=True), which a kernel "
                "calls; only kernels are launched."
            )
        return Launcher(kernel, threads, axes, preconditions, may_alias)

    return decorate if function is None else decorate(function)
