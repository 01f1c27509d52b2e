"""`numbasync bench interop`: launches of other libraries' arrays, beside those of our own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, timed
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.backend.array_readers import reader_of
from numbasync.device.device import Device
from numbasync.tensors.quick_import import imported

SIZE = 4096
CALLS = 300
OWN = "numbasync: own tensors"
IN_TILES = "numbasync: own tensors, the output in tiles"
TORCH = "numbasync: PyTorch's tensors as they are"
TORCH_EVENT = "numbasync: PyTorch's tensors as they are, behind its work of another stream"
TORCH_INPUTS = "numbasync: PyTorch's tensors, inputs imported once"
TORCH_ONCE = "numbasync: PyTorch's tensors, imported once"
TORCH_CALLER = 'numbasync: PyTorch\'s tensors, stream="caller"'
TORCH_ADD = "PyTorch: add(out=)"
CUPY = "numbasync: CuPy's arrays as they are"
CUPY_ONCE = "numbasync: CuPy's arrays, imported once"
CUPY_CALLER = 'numbasync: CuPy\'s arrays, stream="caller"'
CUPY_ADD = "CuPy: add(out=)"
NUMBA = "numbasync: Numba's arrays as they are"
NUMBA_LAUNCH = "Numba: launch of its own arrays"
CORE = "numbasync: cuda.core's buffers as they are, bytes"
CORE_ONCE = "numbasync: cuda.core's buffers, imported once, bytes"
RMM = "numbasync: RMM's buffers as they are, bytes"
RMM_ONCE = "numbasync: RMM's buffers, imported once, bytes"
JAX = "numbasync: JAX's arrays as they are, inputs"
JAX_ONCE = "numbasync: JAX's arrays, inputs imported once"
JAX_ADD = "JAX: compiled x + y, a new array"
NOTHING = "a call of Python that does nothing"
READ = "numbasync: a tensor of {}"
READING = (
    "An array of 4,096 elements that another library has made: its address, shape, strides and "
    "dtype, the library's current stream, and a tensor of it, as each launch of it makes one while "
    "an earlier one is in flight. {calls} calls a round, each from Python."
)
METHOD = (
    "z = x + y of 4,096 float32, three arrays of one library; each round is {calls} calls, on one "
    "stream of numbasync unless the name says otherwise, and the device is waited for outside of "
    "the timed part. The library's current stream is its default one, without work. Buffers of "
    "bytes are added byte by byte, 4,096 too; JAX's arrays cannot be written, so the output is our "
    "own."
)
TARGETS = (
    Target("PyTorch's tensors / own, without an event", TORCH, OWN, 1.5, 1.3),
    Target("PyTorch's tensors / own, with an event", TORCH_EVENT, OWN, 1.8, 1.6),
    Target("PyTorch's tensors, its stream / own", TORCH_CALLER, OWN, 1.5, 1.2),
    Target("PyTorch's tensors / its add", TORCH, TORCH_ADD, 2, 1.5),
    Target("PyTorch's tensors imported once / own", TORCH_ONCE, OWN, 1.15, 1.1),
    Target("CuPy's arrays / own", CUPY, OWN, 1.5, 1.3),
)


@na.launcher
@cuda.jit
def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


@na.launcher(stream="caller")
@cuda.jit
def add_there(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


READING_TARGETS = (
    Target("PyTorch's tensor, read", READ.format("PyTorch's tensor"), None, 0.5, 0.4),
    Target("CuPy's array, read", READ.format("CuPy's array"), None, 0.5, 0.4),
)


def numbers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return rng.random(SIZE, np.float32), rng.random(SIZE, np.float32)


def bytes_of_numbers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes whose sums fit a byte, signed or not."""
    x, y = numbers()
    return (60 * x).astype(np.uint8), (60 * y).astype(np.uint8)


def case(
    name: str,
    call: Callable[[], object],
    wait: Callable[[], object],
    result: Callable[[], Any],
    inside: AbstractContextManager[Any] | None = None,
    terms: Callable[[], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = numbers,
) -> Case:
    """A case of calls that write the sum of `terms` to what `result` gives."""

    async def check() -> None:
        call()
        wait()
        x, y = terms()
        np.testing.assert_array_equal(result(), x + y)

    return Case(name, timed(call, wait, inside), check)


def reading(what: str, array: Any, numbers: np.ndarray[Any, Any]) -> Case:
    """A case of reading an array that has these numbers."""
    reader = reader_of(type(array))
    if reader is None:
        raise TypeError(f"{type(array).__name__} has no reader")

    tensor = imported(array, reader)  # which lives as long as the case
    if tensor is None:
        raise TypeError(f"{type(array).__name__} is left to the protocols")

    async def check() -> None:
        elements = await tensor.to_host()
        np.testing.assert_array_equal(elements.view(numbers.dtype), numbers)

    return Case(READ.format(what), timed(lambda: imported(array, reader), _nothing), check)


def _nothing() -> None:
    pass


def launch(stream: na.Stream, *arrays: Any) -> Callable[[], object]:
    """A launch of `add` with these arrays, on this stream."""
    return lambda: add(*arrays).async_on(stream)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    stream = device.new_stream()
    x, y = (na.from_host(a).sync_on(stream) for a in numbers())
    z = na.zeros(SIZE).sync_on(stream)

    def result() -> Any:
        return z.to_host().sync_on(stream)

    own = [
        case(OWN, lambda: add(z, x, y).async_on(stream), stream.synchronize, result),
        case(
            IN_TILES, lambda: add(z.partition(128), x, y).async_on(stream), stream.synchronize,
            result,
        ),
    ]  # fmt: skip
    return [
        await table(
            device, rounds, "interop", "three arrays of another library", own,
            calls=CALLS, method=METHOD, base=OWN, targets=TARGETS,
        ),
        await table(
            device, rounds, "reading", "an array of another library, read",
            [Case(NOTHING, timed(_nothing, _nothing), _is_nothing)],
            calls=CALLS, method=READING, base=NOTHING, targets=READING_TARGETS,
        ),
    ]  # fmt: skip


async def _is_nothing() -> None:
    pass
