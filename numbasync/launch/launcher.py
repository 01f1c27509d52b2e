"""Kernel calls: `@launcher` turns a `@cuda.jit` kernel into a function that returns operations.

Every error of a call is raised before any part of the call is enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from inspect import Signature
from types import FunctionType
from typing import Any, Generic, Literal, overload

from numbasync.arguments import check_whole, is_one_of, shown, with_type
from numbasync.backend.protocols import Dim3
from numbasync.compilers import chosen
from numbasync.device.stream import AnyStream
from numbasync.errors import LauncherError, LaunchError
from numbasync.facts.source import hold_source
from numbasync.launch import grid as grids
from numbasync.launch import mlir_kernels
from numbasync.launch.arguments import BoundArguments, is_open
from numbasync.launch.call import Compile, Launch
from numbasync.launch.callers_launch import launch_class_of
from numbasync.launch.coarse_kernels import CoarseKernels
from numbasync.launch.configured import CallSignature, Configured, P, is_plain
from numbasync.launch.explain import Explanation, explain
from numbasync.launch.fast_calls import FastCall, Kinds, is_described
from numbasync.launch.grid import ONE_BLOCK, check_cluster
from numbasync.launch.own_tiles import OwnTile, check_own_tile
from numbasync.launch.parameters import check_kernel, parameters
from numbasync.launch.plan import (
    DEFAULT,
    Config,
    Planner,
    as_device_function,
    compiled_apart,
    in_order,
    named_stream,
    whole_bytes,
)
from numbasync.launch.preconditions import conditions
from numbasync.launch.prepared import PreparedLaunch
from numbasync.launch.registry import known_launcher, remember, unpickled
from numbasync.launch.result import ResultType, register_reducers, result_type
from numbasync.launch.token import Tokenized
from numbasync.launch.variants import CpuEngine
from numbasync.memo import Memo
from numbasync.native import compiled, known
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import suppress_unused_warnings
from numbasync.public import Public

MOST_CONFIGURED = 256  # per kernel; the memo is cleared when new extents exceed it


@known
class Launcher(Public, Tokenized, Generic[P]):
    """A kernel whose calls are operations; created by `@launcher`.

    Attributes:
        kernel: the Numba dispatcher.
        name: the kernel's name.
        names: `(name,)`, which submissions list.
        label: the name with its parameters, `"saxpy(z, a, x)"`, as messages have it.
        py_func: the kernel as a Python function.
        parameters: the kernel's parameters and their roles.
        preconditions: the conditions on the arguments, as they were written.
        may_alias: outputs may share storage with other arguments.
        move_inputs: inputs on other devices are copied to the device of the outputs.
        Result: the type of the kernel's results, a named tuple.

    A launcher is pickled by its name, or by value with cloudpickle.

    Examples:
        >>> saxpy.name, [p.name for p in saxpy.parameters]
        ('saxpy', ['z', 'a', 'x'])
        >>> z = await na.zeros(1000)
        >>> _ = await saxpy(z, 2.0, na.ones(1000))  # a thread an element
        >>> _ = await saxpy(z.partition(128), 2.0, na.ones(1000))  # 8 blocks of 128 threads
        >>> _ = await saxpy[4, 250](z, 2.0, na.ones(1000))  # Numba's form: 4 blocks of 250 threads
        >>> await z[999].item()
        6.0
    """

    __slots__ = (
        "Result", "__dict__", "__weakref__", "_forms", "_latest", "_plain_count", "label",
        "launch_class", "move_inputs", "names", "planner",
    )  # fmt: skip
    __signature__ = CallSignature()

    def __init__(
        self,
        dispatcher: Any,
        threads: int | tuple[int, ...] | None,
        axes: tuple[int, ...] | None,
        preconditions: Iterable[str],
        may_alias: bool,
        elements: int | None = None,
        cluster: int | tuple[int, ...] | None = None,
        move_inputs: bool = False,
        tile: OwnTile | int | None = None,
        stream: Literal["caller"] | None = None,
        result: ResultType | None = None,
    ) -> None:
        if not hasattr(dispatcher, "py_func"):
            raise LauncherError(
                f"a Launcher is of a kernel, not of {with_type(dispatcher)}: write @na.launcher."
            )
        self.py_func: FunctionType = dispatcher.py_func
        hold_source(self.py_func)
        self.name = self.py_func.__name__
        self.parameters = parameters(self.py_func)
        keyword_only = self.py_func.__code__.co_kwonlyargcount
        given = dispatcher
        blocks = check_cluster(cluster, self.name)
        if keyword_only:
            dispatcher = in_order(dispatcher)
        elif blocks != ONE_BLOCK:  # a launcher without clusters may have the same kernel
            dispatcher = compiled_apart(dispatcher, self.py_func)
        self.kernel = dispatcher
        self.may_alias = may_alias
        if not isinstance(move_inputs, bool):
            raise LauncherError(f"kernel {self.name}: move_inputs={shown(move_inputs)} is no bool.")
        self.move_inputs = move_inputs
        self.launch_class = launch_class_of(stream, self.name)
        names = [p.name for p in self.parameters]
        self.label = f"{self.name}({', '.join(names)})"
        self.names = (self.name,)
        self._names = names
        self._positional = len(names) - keyword_only
        self._plain_count = -1 if keyword_only else len(names)  # arguments that need no sorting
        self._forms: dict[Kinds, FastCall | None] = {}
        self._latest: Any = None  # of the core: its fast call of the latest call
        self._configured = Memo[Any, Configured[P]](MOST_CONFIGURED)
        self.preconditions = conditions(preconditions, self.name, names)
        block: int | Dim3 | None = None
        if threads is not None:
            extents = grids.dim3(threads, "threads=", self.name)
            block = extents if isinstance(threads, tuple) else extents[0]
        coarse = CoarseKernels(dispatcher, elements, may_alias)
        coarse.check(self.name)
        order = grids.check_axes(axes, self.name)
        own = check_own_tile(tile, axes, self.parameters, self.name)
        self.planner = Planner(dispatcher, self.parameters, block, order, coarse, blocks, own)
        outputs = tuple(i for i, p in enumerate(self.parameters) if p.is_output)
        texts = tuple(p.text for p in self.preconditions)
        recipe = (
            given,
            threads,
            axes,
            texts,
            may_alias,
            elements,
            cluster,
            move_inputs,
            tile,
            stream,
        )
        cls: Any = result or result_type(self.py_func, names, outputs, recipe)
        self.Result = cls
        remember(cls, self)
        register_reducers()
        # Converts a tuple to the named tuple; `Result(*values)` takes twice as long.
        self.result: Any = partial(tuple.__new__, cls)
        self.__name__, self.__qualname__ = self.name, self.py_func.__qualname__
        self.__doc__, self.__module__ = self.py_func.__doc__, self.py_func.__module__
        self.__wrapped__ = self.py_func

    # --- calling ---

    @compiled
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Launch:
        """The operation that launches the kernel with these arguments; nothing is enqueued yet."""
        values: tuple[Any, ...] = args
        if kwargs or len(args) != self._plain_count:  # the common case saves this call
            values = self.arrange(args, kwargs)
        launch: Launch = self.launch_class(self, values, DEFAULT)
        return launch

    def __getitem__(self, config: Any) -> Configured[P]:
        """Numba's syntax: `kernel[grid, block]`, `[grid, block, stream]`, `[..., shared_bytes]`."""
        if not is_plain(config):
            return self._configure(config)
        configured = self._configured.get(config)
        if configured is None:
            configured = self._configured[config] = self._configure(config)
        return configured

    def _configure(self, config: Any) -> Configured[P]:
        parts: tuple[Any, ...] = config if isinstance(config, tuple) else (config,)
        if not 2 <= len(parts) <= 4:
            raise LaunchError(
                f"kernel {self.name}: write {self.name}[grid, block], [grid, block, stream] or "
                f"[grid, block, stream, shared_bytes]; not {len(parts)} values."
            )
        grid, block, stream, shared_bytes = [*parts, 0, 0][:4]
        parsed = Config(
            grids.dim3(grid, "the grid", self.name),
            grids.dim3(block, "the block", self.name),
            named_stream(stream, self.name),
            whole_bytes(shared_bytes, self.name),
        )
        return Configured(self, parsed)

    def with_extents(
        self, grid: Any = None, block: Any = None, shared_bytes: int = 0
    ) -> Configured[P]:
        """`kernel[grid, block]`, in which the launcher chooses what is None."""
        config = Config(
            None if grid is None else grids.dim3(grid, "the grid", self.name),
            None if block is None else grids.dim3(block, "the block", self.name),
            None,
            whole_bytes(shared_bytes, self.name),
        )
        return Configured(self, config)

    def forall(
        self, n: int, tpb: int = 0, stream: AnyStream | int | None = None, sharedmem: int = 0
    ) -> Configured[P]:
        """Numba's syntax: `n` threads in one dimension, `tpb` per block or as many as suit.

        Examples:
            >>> z = await na.zeros(1000)
            >>> _ = await saxpy.forall(500, tpb=100)(z, 2.0, na.ones(1000))  # 5 blocks
            >>> await z[499].item(), await z[500].item()
            (2.0, 0.0)
        """
        n = check_whole(n, f"kernel {self.name}: n of forall, threads,", 0, error=LaunchError)
        block = None if is_one_of(tpb, (0,)) else grids.dim3(tpb, "tpb", self.name)
        shared = whole_bytes(sharedmem, self.name)
        stream = 0 if stream is None else stream
        return Configured(self, Config(None, block, named_stream(stream, self.name), shared, n))

    def compile(self, /, *args: P.args, **kwargs: P.kwargs) -> DeviceOp[None]:
        """An operation that compiles the variant for these arguments and launches nothing.

        Tensors of `na.meta` suffice. The variant serves every call with the same dtypes, ranks and
        layouts on the same device. On a GPU, calls whose threads compute several positions have a
        variant of their own: it is compiled for arguments as large as theirs.

        Examples:
            >>> await saxpy.compile(na.meta(1), 2.0, na.meta(1))  # for all shapes; launches nothing
        """
        return Compile(self, self.arrange(args, kwargs))

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """The launch that this call would be, for the author of the kernel: its extents, what the
        compiled code needs, and what bounds it. `kernel[grid, block].explain` and
        `kernel.forall(n).explain` explain those calls.

        Launches nothing, uploads nothing, and blocks while a new variant is compiled. Tensors of
        `na.meta` suffice; operations must be awaited first. Raises what launching the call would.

        Examples:
            >>> saxpy.explain(na.meta(1000), 2.0, na.meta(1000)).bytes_written
            4000
        """
        return explain(self, self.arrange(args, kwargs), DEFAULT)

    def prepare(self, /, *args: P.args, **kwargs: P.kwargs) -> PreparedLaunch:
        """The call, checked once, to be launched often: `run = kernel.prepare(z, a, x)`, then
        `run()`, `run(a=3.0)`, `run.sync_on(stream)`. An operation as an argument is refused.

        Examples:
            >>> z, x = await na.gather(na.zeros(3), na.ones(3))
            >>> run = saxpy.prepare(z, 2.0, x)
            >>> _ = await run
            >>> await z.to_host()
            array([2., 2., 2.], dtype=float32)
        """
        return PreparedLaunch(self, self.arrange(args, kwargs), DEFAULT)

    def cpu_engine(self) -> CpuEngine:
        """The engine that runs this kernel on the CPU device, and why, for the variants compiled
        there so far: `name` is `"compiled"`, `"interpreted"` or `"none yet"`.

        Examples:
            >>> _ = await saxpy(na.zeros(3), 2.0, na.ones(3))
            >>> saxpy.cpu_engine().name
            'compiled'
        """
        engines = self.planner.engines()
        return CpuEngine(*(engines or [("none yet", "no call has needed it")])[0])

    # --- used by the operations ---

    def arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call, in signature order."""
        names = self._names
        if not kwargs and len(args) == self._plain_count:
            return args
        values = dict(zip(names[: self._positional], args, strict=False))
        unknown = [k for k in kwargs if k not in names]
        twice = [k for k in kwargs if k in values]
        values |= kwargs
        for p in self.parameters:
            if p.name not in values and p.default is not Signature.empty:
                values[p.name] = p.default
        missing = [n for n in names if n not in values]
        too_many = len(args) > self._positional
        if too_many or unknown or twice or missing:
            problems = (
                f"{len(args)} arguments came without a name" if too_many else "",
                f"there is no parameter {' or '.join(unknown)}" if unknown else "",
                f"{' and '.join(twice)} came by place and by name"
                if twice and not too_many else "",
                f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
                if missing and not too_many else "",
            )  # fmt: skip
            with suppress_unused_warnings((*args, *kwargs.values())):
                raise LauncherError(f"kernel {self.label}: {'; '.join(filter(None, problems))}.")
        return tuple(values[n] for n in names)

    def form(self, values: tuple[Any, ...]) -> FastCall | None:
        """The fast call for arguments of these Python types; None if such calls must be bound."""
        types = tuple(map(type, values))
        try:
            return self._forms[types]
        except KeyError:
            fast_call = None
            kinds = dict(zip(self._names, types, strict=True))
            # A call with a plan has met the conditions on its fingerprint; numbers are not in it.
            if not self.move_inputs and all(
                is_described(kinds[name]) for c in self.preconditions for name in c.used
            ):
                fast_call = FastCall.of(self.parameters, types, self.may_alias)
            self._forms[types] = fast_call
            return fast_call

    def bind(self, values: tuple[Any, ...]) -> BoundArguments:
        """The arguments, classified and checked as far as no device is needed for that."""
        bound = BoundArguments(self.name, self.parameters, values)
        if not self.may_alias and not bound.storages_differ():
            bound.check_aliases(self.name, self.parameters)
        return bound

    def check(self, values: tuple[Any, ...]) -> None:
        """Refuse as `bind` does, of the arguments known before the lazy ones have run."""
        pairs = zip(self.parameters, values, strict=True)
        available = [(p, v) for p, v in pairs if not is_open(v)]
        parameters = tuple(p for p, _ in available)
        bound = BoundArguments(self.name, parameters, tuple(v for _, v in available))
        if not self.may_alias and not bound.storages_differ():
            bound.check_aliases(self.name, parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        return _launcher_of, (self.Result,)

    @property
    def _numba_type_(self) -> Any:
        # Lets another kernel call this one as a device function.
        return self._device_function._numba_type_

    @cached_property
    def _device_function(self) -> Any:
        return as_device_function(self.kernel)

    def __repr__(self) -> str:
        names = ", ".join(f"{p.name}: {p.role.value}" for p in self.parameters)
        engine = self.cpu_engine()
        how = f", interpreted: {engine.why}" if engine.name == "interpreted" else ""
        return f"<launcher {self.name}({names}){how}>"


def _launcher_of(result: ResultType) -> Launcher:
    recipe: Any = (*result._made_of, result)
    launcher: Launcher = known_launcher(result) or unpickled(Launcher(*recipe))
    return launcher


@overload
def launcher(function: Callable[P, Any], /) -> Launcher[P]: ...
@overload
def launcher(
    *,
    threads: int | tuple[int, ...] | None = None,
    axes: tuple[int, ...] | None = None,
    preconditions: Iterable[str] = (),
    may_alias: bool = False,
    elements: int | None = None,
    cluster: int | tuple[int, ...] | None = None,
    move_inputs: bool = False,
    tile: tuple[int | None, ...] | int | None = None,
    stream: Literal["caller"] | None = None,
    **jit_options: Any,
) -> Callable[[Callable[P, Any]], Launcher[P]]: ...
def launcher(
    function: Any = None,
    /,
    *,
    threads: int | tuple[int, ...] | None = None,
    axes: tuple[int, ...] | None = None,
    preconditions: Iterable[str] = (),
    may_alias: bool = False,
    elements: int | None = None,
    cluster: int | tuple[int, ...] | None = None,
    move_inputs: bool = False,
    tile: tuple[int | None, ...] | int | None = None,
    stream: Literal["caller"] | None = None,
    **jit_options: Any,
) -> Any:
    """Turn a kernel into a function that returns lazy operations.

    Write the decorator above `@cuda.jit`; on a plain function the decorator applies
    `cuda.jit(**jit_options)` itself. Calling the launcher with tensors, partitions, arrays of NumPy
    or other libraries, numbers, or operations that return these, builds a launch; awaiting the
    launch returns the arguments.

    Args:
        threads: threads per block, where a partition's tile should not determine the block.
        axes: CUDA axis of each tensor axis; default: axis 0 on x, 1 on y, 2 on z.
        preconditions: conditions on the arguments, such as `"x.shape[0] % 64 == 0"`.
        may_alias: allow an output in the same storage as another argument.
        elements: positions that one thread of a GPU computes, of a kernel without loops; 1: as
            written; default: as many as are fastest, where the kernel allows more than one.
        cluster: blocks that run at the same time, as a cluster of `numbasync.tensor_cores`: 2, or
            (2, 1, 1), 8 in all at most. Grids are multiples of it.
        move_inputs: copy inputs that are on other devices to the device of the outputs, at each
            call, as `na.to_device` does; else such a call is refused.
        tile: of an output that is passed whole, what a block computes: an extent for each axis,
            or None for all of it. The kernel counts its blocks, x first: those that are too many
            for y or z lie in a row.
        stream: "caller": a launch whose arrays are all of one other library, such as PyTorch, goes
            onto the current stream of that library. `kernel(...).async_on()` enqueues it there, in
            order with the library's own calls, and also where the library captures a graph.

    Raises:
        LauncherError: the annotations contradict the kernel's code, or the object is not a kernel.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def double(z: na.KernelOutput, x: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     if i < z.shape[0]:
        ...         z[i] = 2 * x[i]
        >>> result = await double(na.zeros(4), np.arange(4, dtype=np.float32))
        >>> await result.z.to_host()
        array([0., 2., 4., 6.], dtype=float32)
    """

    def decorate(kernel: Any) -> Launcher:
        if isinstance(kernel, Launcher):
            raise LauncherError(f"{kernel.name} has a launcher already; write @na.launcher once.")
        if isinstance(kernel, FunctionType):
            from numbasync.kernel_names import cuda

            kernel = cuda.jit(**jit_options)(kernel)
        elif jit_options:
            raise LauncherError(
                f"{', '.join(jit_options)}: no option of na.launcher. The kernel is compiled by "
                "@cuda.jit below it; write the option there."
            )
        if mlir_kernels.is_kernel(kernel):
            kernel = mlir_kernels.as_numba_cuda(kernel)
        check_kernel(kernel)
        if chosen() == "numba-cuda-mlir":
            mlir_kernels.compile_by_mlir(kernel)
        return Launcher(
            kernel, threads, axes, preconditions, may_alias, elements, cluster, move_inputs, tile,
            stream,
        )  # fmt: skip

    return decorate if function is None else decorate(function)
