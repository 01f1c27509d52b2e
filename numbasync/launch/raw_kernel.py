"""Kernels in CUDA C++, compiled by NVRTC, as operations."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numbasync.arguments import shown, with_type
from numbasync.backend.protocols import Work
from numbasync.device.callsite import call_site
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.errors import DTypeError, LauncherError, LaunchError, ShapeError
from numbasync.extending import Context, DeviceOp, Home, Prerequisite, Steps, describe, first_home
from numbasync.launch.cuda_source import CParameter, parameters_of
from numbasync.launch.grid import dim3
from numbasync.launch.plan import named_stream, whole_bytes
from numbasync.ops.elsewhere import join, where_it_belongs
from numbasync.ops.operands import common_stream, is_op, suppress_unused_warnings
from numbasync.tensors.copies import check_here, order
from numbasync.tensors.tensor import SharedTensor, Tensor

__all__ = ["RawKernel", "raw_kernel"]


def raw_kernel(source: str, name: str, *, options: Sequence[str] = ()) -> RawKernel:
    """A kernel written in CUDA C++, whose calls are operations, as those of a launcher.

    Its parameters are read from the source: a pointer to `const` is an input, another pointer an
    output, and a number is converted to the declared type. It is compiled when it is first
    launched on a device, by NVRTC, on a worker thread if the operation is awaited.

    Args:
        source: with `__global__ void name(...)`, which is no template.
        name: of the kernel.
        options: of NVRTC, as "--use_fast_math".

    Returns:
        A `RawKernel`: `kernel[grid, block](*args)` is the operation.

    Raises:
        LauncherError: the source has no such kernel, or it has a parameter that is neither a
            pointer nor a number.

    The CPU device has no compiler of C++: there the operation is an `UnsupportedKernelError`. A
    kernel under `@na.launcher` runs on both.

    Examples:
        >>> double = na.raw_kernel(
        ...     r'''
        ...     extern "C" __global__ void twice(float *z, const float *x, int n) {
        ...         int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...         if (i < n) z[i] = 2 * x[i];
        ...     }''', "twice")
        >>> op = double[4, 256](na.empty(1000), na.ones(1000), 1000)
        >>> await op
        Traceback (most recent call last):
            ...
        numbasync.errors.UnsupportedKernelError: kernel twice is CUDA C++, which cpu:0 has no
            compiler for.
        Write it in Python, @na.launcher over @cuda.jit, and it runs on every device.
    """
    return RawKernel(source, name, options)


class RawKernel:
    """A kernel in CUDA C++; made by `na.raw_kernel`.

    `kernel[grid, block](*args)` is an operation, and so is
    `kernel[grid, block, stream, shared_bytes](*args)`. It gives its output, or the tuple of
    several. Arguments are tensors in C order, operations that give them, and numbers.

    Attributes:
        name: the kernel's.
        source: in CUDA C++.
        parameters: the names of its parameters.

    Examples:
        >>> kernel = na.raw_kernel('__global__ void add(float *z, const float *x) { }', "add")
        >>> kernel.parameters
        ('z', 'x')
    """

    def __init__(self, source: str, name: str, options: Sequence[str] = ()) -> None:
        if not isinstance(source, str) or not isinstance(name, str):
            raise LauncherError(
                f"raw_kernel({with_type(source)}, {with_type(name)}): write the source and the "
                "name of a kernel in it, both as text."
            )
        if not isinstance(options, list | tuple) or not all(isinstance(o, str) for o in options):
            raise LauncherError(
                f"raw_kernel {name}: options={shown(options)}: write a list of texts."
            )
        self.source = source
        self.name = name
        self.declared, self._is_c = parameters_of(source, name)
        self.parameters = tuple(p.name for p in self.declared)
        self._options = tuple(options)
        self._compiled: dict[Device, Any] = {}
        self._lock = threading.Lock()  # held while it is compiled, once for each device

    def __getitem__(self, config: Any) -> ConfiguredRaw:
        """`kernel[grid, block]`, `[grid, block, stream]`, `[..., shared_bytes]`."""
        parts = config if isinstance(config, tuple) else (config,)
        if not 2 <= len(parts) <= 4:
            raise LaunchError(
                f"kernel {self.name}: write {self.name}[grid, block], [grid, block, stream] or "
                f"[grid, block, stream, shared_bytes]; not {len(parts)} values."
            )
        return ConfiguredRaw(self, *[*parts, 0, 0][:4])

    def __call__(self, *args: Any) -> Any:
        raise LaunchError(
            f"kernel {self.name} is CUDA C++, of which no grid is known: write "
            f"{self.name}[grid, block](...)."
        )

    def find(self, device: Device) -> Any:
        """The compiled kernel of a device; None if it is not compiled yet."""
        return self._compiled.get(device)

    def compile(self, device: Device) -> None:
        """Compile it for a device, or wait for the thread that does."""
        with self._lock:
            if device not in self._compiled:
                backend: Any = device.backend
                compiled = backend.compile_source(self.source, self.name, self._is_c, self._options)
                self._compiled[device] = compiled

    def __repr__(self) -> str:
        return f"<raw kernel {self.name}({', '.join(self.parameters)})>"


class ConfiguredRaw:
    """A raw kernel with the extents of its launches."""

    def __init__(
        self, kernel: RawKernel, grid: Any, block: Any, stream: Any, shared_bytes: Any
    ) -> None:
        name = kernel.name
        self.kernel = kernel
        self.grid, self.block = dim3(grid, "the grid", name), dim3(block, "the block", name)
        self.stream = named_stream(stream, name)
        self.shared_bytes = whole_bytes(shared_bytes, name)

    def __call__(self, *args: Any) -> RawLaunch:
        """The operation that launches the kernel; nothing is enqueued yet."""
        return RawLaunch(self, args)


class _Compilation(Prerequisite):
    """A raw kernel has been compiled for a device."""

    def __init__(self, kernel: RawKernel, device: Device) -> None:
        self._kernel, self._device = kernel, device

    def run(self) -> None:
        self._kernel.compile(self._device)


class RawLaunch(DeviceOp[Any]):
    """A launch of a raw kernel; gives its output, or the tuple of several."""

    def __init__(self, configured: ConfiguredRaw, args: tuple[Any, ...]) -> None:
        self._unused = False  # a refused operation needs no warning
        self._configured = configured
        kernel = configured.kernel
        with suppress_unused_warnings(args):
            if len(args) != len(kernel.declared):
                raise LauncherError(
                    f"{kernel!r} takes {len(kernel.declared)} arguments, not {len(args)}."
                )
            self._args = tuple(
                value if is_op(value) and p.is_array else _argument(kernel.name, p, value)
                for p, value in zip(kernel.declared, args, strict=True)
            )
            ops = [value for value in self._args if is_op(value)]
            stream: Stream | None = common_stream(ops, configured.stream) or configured.stream
        if stream is not None:
            self.stream = stream
        for op in ops:
            op.consume()
        self._site = call_site(2)
        self._unused = True

    def _inner(self) -> Iterable[tuple[str, Any]]:
        named = zip(self._configured.kernel.parameters, self._args, strict=True)
        return ((name, value) for name, value in named if is_op(value))

    @property
    def home(self) -> Home:
        return first_home(self._args)

    def steps(self, ctx: Context) -> Steps[Any]:
        configured, kernel = self._configured, self._configured.kernel
        parts: list[Context] = []
        values: list[Any] = []
        for p, each in zip(kernel.declared, self._args, strict=True):
            value = each
            if is_op(value):
                given = yield from where_it_belongs(ctx, value, parts)
                value = _argument(kernel.name, p, given)
            values.append(value)
        for part in parts:
            join(ctx, part)
        executable = kernel.find(ctx.device)
        if executable is None:
            yield _Compilation(kernel, ctx.device)
            executable = kernel.find(ctx.device)
        most = executable.max_threads_per_block
        if math.prod(configured.block) > most:
            raise LaunchError(
                f"kernel {kernel.name}: a block of {configured.block} threads; at most {most:,} "
                f"on {ctx.device.label}."
            )
        if configured.shared_bytes > ctx.device.limits.max_shared_bytes:
            executable.allow_large_shared()
        tensors = [v for v in values if isinstance(v, Tensor)]
        check_here(ctx, *tensors)
        order(ctx, *tensors)
        outputs = []
        for p, value in zip(kernel.declared, values, strict=True):
            if p.is_output:
                ctx.write(value.storage, value)
                outputs.append(value)
            elif p.is_array:
                ctx.read(value.storage, value)
        work = Work(executable, configured.grid, configured.block, configured.shared_bytes)
        ctx.queue.launch(work, [v.handle if isinstance(v, Tensor) else v for v in values])
        ctx.launched((kernel.name,), by=self)
        return tuple(outputs) if len(outputs) > 1 else outputs[0] if outputs else None

    def _describe(self) -> str:
        kernel = self._configured.kernel
        return f"{kernel.name}({', '.join(kernel.parameters)})"


def _argument(kernel: str, p: CParameter, value: Any) -> Any:
    """A tensor that fits a pointer, or a number in the declared type."""
    if not p.is_array:
        return _number(kernel, p, value)
    if isinstance(value, SharedTensor) and not p.is_output:
        value = value.tensor
    if not isinstance(value, Tensor):
        raise LauncherError(
            f"kernel {kernel}: {p.name} is a pointer, and takes a tensor, not {describe(value)}."
            "\nOf an array in host memory write na.from_host(x); of another library's, "
            "na.as_tensor(x)."
        )
    if p.dtype is not None and value.dtype != p.dtype:
        raise DTypeError(
            f"kernel {kernel}: {p.name} is {value!r}, and points to {p.dtype}: write "
            f"{p.name}.astype({str(p.dtype)!r}), or another pointer."
        )
    if not value.is_contiguous:
        raise ShapeError(
            f"kernel {kernel}: {p.name} is {value!r}, not C-contiguous, and a pointer has no "
            f"strides.\nWrite a copy: await {p.name}.dup()"
        )
    return value


def _number(kernel: str, p: CParameter, value: Any) -> np.generic:
    dtype = p.dtype
    assert dtype is not None  # of void there are pointers only
    is_number = isinstance(value, int | float | np.bool_ | np.number)
    if is_number and (not isinstance(value, float | np.floating) or dtype.kind not in "biu"):
        try:
            number: Any = np.asarray(value).astype(dtype)[()]
            if dtype.kind not in "iu" or int(number) == int(value):
                return number  # type: ignore[no-any-return]
        except (OverflowError, ValueError):
            pass
    raise DTypeError(f"kernel {kernel}: {p.name} is a {dtype}, which {shown(value)} is not.")
