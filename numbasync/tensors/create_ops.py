"""Operations that create a tensor: uninitialised, filled with one value, or with host elements.

The most frequent operations have a fast path: uninitialised memory, a fill, and the upload of a
host array that is small enough to be copied by one thread. The fast path requires that the pool can
reuse a free block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from sys import _getframe
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.backend.counters import counters
from numbasync.backend.formulas import Formula
from numbasync.device import access
from numbasync.device.callsite import call_site
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import DTypeError, ShapeError
from numbasync.memo import Memo
from numbasync.native import compiled, core, known
from numbasync.ops.context import Context
from numbasync.ops.op import Steps
from numbasync.ops.simple_op import SimpleOp
from numbasync.ops.unfilled import is_filled
from numbasync.tensors.array_spec import ArraySpec, known_specs
from numbasync.tensors.copies import HostArray, upload, upload_new
from numbasync.tensors.host_arrays import TIMES, plain
from numbasync.tensors.parallel_copy import LARGE
from numbasync.tensors.pinned import HostBuffer
from numbasync.tensors.staging import staged_bytes
from numbasync.tensors.tensor import Tensor

NOT_WORTH_COMPILING = 1 << 14  # bytes that the host computes, and uploads, in less time
MOST = 64  # elements that are memoised; a program has few constants


class Made(SimpleOp[Tensor]):
    """Base class of operations that return a new tensor."""

    __slots__ = ("_kind", "_name")
    _kind: ArraySpec
    _name: str

    def operands(self) -> frozenset[int] | None:
        return frozenset()

    @property
    def label(self) -> str:
        return self._kind.label(self._name)

    def _describe(self) -> str:
        return self.label


@known
class Full(Made):
    """Allocates a tensor, and fills it with one value unless that is None."""

    __slots__ = ("_value",)
    has_fast_path = True

    def __init__(self, kind: ArraySpec, value: np.generic | None, name: str) -> None:
        frame = _getframe(2)  # as in `Launch`
        self._site = frame.f_code, frame.f_lasti
        self._unused = True
        self._kind = kind
        self._value = value
        self._name = name

    @compiled
    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        spec, stream = self._kind, submission.stream
        storage = (pool or stream.device.pool).reuse(spec.nbytes)
        if storage is None:
            return False
        tensor = self._result = Tensor.of(stream.device, storage, spec)
        if self._value is None or not spec.nbytes:
            submission.is_empty = True
            return True
        submission.nbytes += spec.nbytes
        submission.keep_alive.append(storage)
        access.record_write(storage, submission)
        submission.queue = stream.backend.fill(tensor.handle, self._value, submission.queue)
        return True

    def steps(self, ctx: Context) -> Steps[Tensor]:
        spec = self._kind
        if ctx.admission is not None:
            yield from ctx.room(spec.nbytes)
        tensor = Tensor.of(ctx.device, ctx.alloc(spec.nbytes), spec)
        if self._value is not None and spec.nbytes:
            ctx.queue.fill(tensor.handle, self._value)
        return tensor


class _Making:
    """A prerequisite: elements are computed on the host. No array of the program is read."""

    array: HostArray

    def __init__(self, make: Callable[[], HostArray]) -> None:
        self._make = make

    def run(self) -> None:
        self.array = self._make()


class Computed(Made):
    """Creates a tensor of the elements that follow from a formula, which the device computes."""

    def __init__(self, kind: ArraySpec, formula: Formula, name: str) -> None:
        self._site = call_site(2)
        self._unused = True
        self._kind = kind
        self._formula = formula
        self._name = name

    def steps(self, ctx: Context) -> Steps[Tensor]:
        spec, formula, backend = self._kind, self._formula, ctx.device.backend
        if ctx.admission is not None:
            yield from ctx.room(spec.nbytes)
        tensor = Tensor.of(ctx.device, ctx.alloc(spec.nbytes), spec)
        if not spec.nbytes:
            return tensor
        size, dtype = tensor.size, spec.dtype
        flat = backend.array(tensor.storage.memory, 0, (size,), (dtype.itemsize,), dtype)
        need = backend.generate_needs(flat, formula)
        if need is not None and spec.nbytes <= NOT_WORTH_COMPILING:
            elements = np.empty(size, dtype)
            formula.write(elements)  # the same bits
            upload(ctx, tensor, elements.reshape(spec.shape))
            return tensor
        if need is not None:
            yield need
        ctx.queue.generate(flat, formula)
        return tensor


class Generated(Made):
    """Creates a tensor of the elements that `make` computes on the host when it is enqueued; of
    many, on a thread.
    """

    def __init__(self, kind: ArraySpec, make: Callable[[], HostArray], name: str) -> None:
        self._site = call_site(2)
        self._unused = True
        self._kind = kind
        self._make = make
        self._name = name

    def steps(self, ctx: Context) -> Steps[Tensor]:
        spec = self._kind
        if ctx.admission is not None:
            yield from ctx.room(spec.nbytes + staged_bytes(ctx.device, spec.nbytes))
        making = _Making(self._make)
        if spec.nbytes > LARGE:
            yield making
        else:
            making.run()
        tensor = Tensor.of(ctx.device, ctx.alloc(spec.nbytes), spec)
        yield from upload_new(ctx, tensor, making.array)
        return tensor


@known
class FromHost(Made):
    """Creates a tensor with the elements of a host array."""

    __slots__ = ("_array", "has_fast_path")

    def __init__(self, kind: ArraySpec, array: HostArray) -> None:
        frame = _getframe(2)
        self._site = frame.f_code, frame.f_lasti
        self._unused = True
        self._kind = kind
        self._name = "from_host"
        self._array = array
        # Page-locked arrays are read when the copy runs, and large ones by several threads.
        self.has_fast_path = 0 < kind.nbytes <= LARGE and not isinstance(array, HostBuffer)

    def operands(self) -> frozenset[int] | None:
        return None if isinstance(self._array, HostBuffer) else frozenset()

    @compiled
    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        spec, stream = self._kind, submission.stream
        device = stream.device
        block = device.backend.host_block(spec.nbytes)
        if block is None or self._array.shape != spec.shape:
            return False
        if not is_filled(self._array, submission):
            return False
        storage = (pool or stream.device.pool).reuse(spec.nbytes)
        if storage is None:
            return False
        tensor = Tensor.of(device, storage, spec)
        np.ndarray(spec.shape, spec.dtype, block)[...] = self._array
        submission.nbytes += 2 * spec.nbytes
        submission.copied += spec.nbytes
        submission.keep_alive += (storage, block)
        access.record_write(storage, submission)
        submission.queue = stream.backend.upload(tensor.handle, block, submission.queue)
        self._result = tensor
        return True

    def steps(self, ctx: Context) -> Steps[Tensor]:
        spec = self._kind
        if self._array.shape != spec.shape:
            raise ShapeError(
                f"the array of from_host had the shape {spec.shape}, and has {self._array.shape} "
                "now. Resize it before, or upload a copy."
            )
        if ctx.admission is not None:
            yield from ctx.room(spec.nbytes + staged_bytes(ctx.device, spec.nbytes))
        tensor = Tensor.of(ctx.device, ctx.alloc(spec.nbytes), spec)
        yield from upload_new(ctx, tensor, self._array)
        return tensor


# --- values ---

# Keyed by dtype and the value's bits: numbers that compare equal may be different elements.
_elements = Memo[tuple[np.dtype[Any], int | bytes], np.generic](MOST)


def element(value: Any, dtype: np.dtype[Any]) -> np.generic:
    """`value` as a scalar of `dtype`. Integers must fit; fractions are truncated, as in NumPy.

    Raises:
        ShapeError: `value` is an array.
        DTypeError: `value` cannot be converted to `dtype`.
    """
    if type(value) is int:
        key: int | bytes = value
    elif type(value) is float:
        key = struct.pack("d", value)
    else:
        return _element(value, dtype)
    scalar = _elements.get((dtype, key))
    if scalar is None:
        scalar = _element(value, dtype)
        _elements[dtype, key] = scalar
    return scalar


def _element(value: Any, dtype: np.dtype[Any]) -> np.generic:
    """`element` for values of any type, without the memo."""
    plain(value)  # refuses masked values
    try:
        shape = np.shape(value)
    except (TypeError, ValueError) as error:  # ragged, or no array after all
        raise DTypeError(f"{shown(value)} is no element of type {dtype}: {error}") from None
    if shape:
        raise ShapeError(f"the value must be one number, not an array of shape {shape}.")
    if isinstance(value, TIMES):
        raise DTypeError(
            f"{value!r:.60} is a time, and tensors count times in int64: write the number of its "
            "units, value.astype(dtype).astype(np.int64)."
        )
    try:
        if dtype.kind in "iu":
            element: np.generic = dtype.type(int(value))
        elif dtypes.is_float(dtype):
            with np.errstate(all="ignore"):
                element = dtype.type(float(value))  # of a complex number, a TypeError
        else:
            with np.errstate(all="ignore"):
                element = dtype.type(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(f"{shown(value)} is no element of type {dtype}: {error}") from None
    return element


if core is not None:
    core.know_memory(known_specs, np.ndarray, LARGE, counters)
