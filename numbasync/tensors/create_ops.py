"""Operations that make a tensor: uninitialised, of one value, or of elements of the host.

What is asked for most is enqueued at once, if memory is at hand: an array of the host small enough
to be copied by one thread, or one value everywhere, in memory that was used before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from sys import _getframe
from typing import Any

import numpy as np

from numbasync.device import access
from numbasync.device.callsite import call_site
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import DTypeError, ShapeError
from numbasync.memo import Memo
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.copies import HostArray, upload_new
from numbasync.tensors.host_arrays import plain
from numbasync.tensors.parallel_copy import LARGE
from numbasync.tensors.pinned import HostBuffer
from numbasync.tensors.staging import held
from numbasync.tensors.tensor import Tensor

MOST = 64  # labels, and elements, that are known again; a program has few constants


class Made(DeviceOp[Tensor]):
    """A new tensor."""

    _kind: ArraySpec
    _name: str
    _made: Tensor | None = None

    def result(self) -> Tensor:
        made, self._made = self._made, None
        assert made is not None  # `try_enqueue` has made it, and it is asked for once
        return made

    def operands(self) -> frozenset[int] | None:
        return frozenset()

    @property
    def label(self) -> str:
        at = self._name, self._kind.shape
        found = _labels.get(at)
        if found is None:
            found = _labels[at] = f"{self._name}({self._kind.shape})"
        return found

    def _describe(self) -> str:
        return self.label


_labels = Memo[tuple[str, tuple[int, ...]], str](MOST)


class Full(Made):
    """A new tensor, uninitialised or with one value everywhere."""

    has_fast_path = True

    def __init__(self, kind: ArraySpec, value: np.generic | None, name: str) -> None:
        frame = _getframe(2)  # as in `Launch`
        self._site = frame.f_code, frame.f_lasti
        self._kind = kind
        self._value = value
        self._name = name

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        kind, stream = self._kind, submission.stream
        if stream.device.is_limited:
            return False
        storage = (pool or stream.device.pool).reuse(kind.nbytes)
        if storage is None:
            return False
        made = self._made = Tensor.of(stream.device, storage, kind)
        if self._value is None or not kind.nbytes:
            submission.is_empty = True
            return True
        submission.nbytes += kind.nbytes
        submission.kept.append(storage)
        access.record_write(storage, submission)
        submission.queue = stream.backend.fill(made.handle, self._value, submission.queue)
        return True

    def steps(self, ctx: Context) -> Steps[Tensor]:
        kind = self._kind
        if ctx.admission is not None:
            yield from ctx.room(kind.nbytes)
        made = Tensor.of(ctx.device, ctx.alloc(kind.nbytes), kind)
        if self._value is not None and kind.nbytes:
            ctx.queue.fill(made.handle, self._value)
        return made


class Generated(Made):
    """A new tensor with elements that the host computes when this is enqueued."""

    def __init__(self, kind: ArraySpec, make: Callable[[], HostArray], name: str) -> None:
        self._site = call_site(2)
        self._kind = kind
        self._make = make
        self._name = name

    def steps(self, ctx: Context) -> Steps[Tensor]:
        kind = self._kind
        if ctx.admission is not None:
            yield from ctx.room(kind.nbytes + held(ctx.device, kind.nbytes))
        made = Tensor.of(ctx.device, ctx.alloc(kind.nbytes), kind)
        yield from upload_new(ctx, made, self._make())
        return made


class FromHost(Made):
    """A new tensor with the elements of a host array."""

    _name = "from_host"

    def __init__(self, kind: ArraySpec, array: HostArray) -> None:
        self._site = call_site(2)
        self._kind = kind
        self._array = array
        # Page-locked arrays are read when the copy runs, and large ones by several threads.
        self.has_fast_path = 0 < kind.nbytes <= LARGE and not isinstance(array, HostBuffer)

    def operands(self) -> frozenset[int] | None:
        return None if isinstance(self._array, HostBuffer) else frozenset()

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        kind, stream = self._kind, submission.stream
        device = stream.device
        if device.is_limited:
            return False
        block = device.backend.host_block(kind.nbytes)
        if block is None:
            return False
        storage = (pool or stream.device.pool).reuse(kind.nbytes)
        if storage is None:
            return False
        made = Tensor.of(device, storage, kind)
        np.ndarray(kind.shape, kind.dtype, block)[...] = self._array
        submission.nbytes += 2 * kind.nbytes
        submission.kept += (storage, block)
        access.record_write(storage, submission)
        submission.queue = stream.backend.upload(made.handle, block, submission.queue)
        self._made = made
        return True

    def steps(self, ctx: Context) -> Steps[Tensor]:
        kind = self._kind
        if ctx.admission is not None:
            yield from ctx.room(kind.nbytes + held(ctx.device, kind.nbytes))
        made = Tensor.of(ctx.device, ctx.alloc(kind.nbytes), kind)
        yield from upload_new(ctx, made, self._array)
        return made


# --- values ---

# By dtype, and the value's own bits: numbers that compare equal may be different elements.
_elements = Memo[tuple[np.dtype[Any], int | bytes], np.generic](MOST)


def element(value: Any, dtype: np.dtype[Any]) -> np.generic:
    """`value` as an element; integers must fit, fractions are cut off as NumPy does.

    Raises:
        ShapeError: it is an array.
        DTypeError: it is no such element.
    """
    if type(value) is int:
        key: int | bytes = value
    elif type(value) is float:
        key = struct.pack("d", value)
    else:
        return _element(value, dtype)
    found = _elements.get((dtype, key))
    if found is None:
        found = _element(value, dtype)
        _elements[dtype, key] = found
    return found


def _element(value: Any, dtype: np.dtype[Any]) -> np.generic:
    """`element`, with care."""
    plain(value)  # not masked
    if np.shape(value):
        raise ShapeError(f"the value must be one number, not an array of shape {np.shape(value)}.")
    try:
        if dtype.kind in "iu":
            element: np.generic = dtype.type(int(value))
        elif dtype.kind == "f":
            with np.errstate(all="ignore"):
                element = dtype.type(float(value))  # of a complex number, a TypeError
        else:
            with np.errstate(all="ignore"):
                element = dtype.type(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(f"{value!r:.60} is no element of type {dtype}: {error}") from None
    return element
