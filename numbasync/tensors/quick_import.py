"""Arrays of other libraries as arguments of a launch, by quick readers: made into tensors for that
launch alone.

What follows from dtype, shape and strides is computed once, and shared by all arrays of that kind.
An array that the reader does not read, or no tensor can have, is left to `import_array`, which says
why.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from numbasync import dtypes, layout
from numbasync.backend import array_protocols, protocols
from numbasync.backend.array_readers import Reader
from numbasync.backend.borrowed import Borrowed
from numbasync.device import address_map
from numbasync.device.device import Device, devices
from numbasync.errors import DTypeError
from numbasync.layout import Layout, Shape
from numbasync.memo import Memo
from numbasync.native import compiled, core, known
from numbasync.tensors.array_spec import array_key
from numbasync.tensors.tensor import Tensor

MOST_KINDS = 4096
MOST_HANDLES = 256  # of one kind


@known
class ArrayKind:
    """The dtype, shape and strides of an array of another library, and what follows from them.

    Attributes:
        at: the layout in memory that is the array's own.
        low: bytes from the first element to the lowest one: 0, or negative.
        nbytes: from the lowest byte to the highest.
        alignment: the addresses of elements are multiples of that.
        key: the array's part of a compiled kernel's key.
        fingerprint, unaligned: as of a tensor that starts at a multiple of `VECTOR_BYTES`, or does
            not.
        handles: what kernels take of such arrays, by address; it has no hold on the memory.
    """

    __slots__ = (
        "alignment", "at", "dtype", "fingerprint", "handles", "key", "low", "nbytes", "shape",
        "unaligned",
    )  # fmt: skip

    def __init__(self, dtype: np.dtype[Any], shape: Shape, strides: Shape) -> None:
        low, high = layout.span(shape, strides, dtype.itemsize)
        self.dtype = dtype
        self.shape = shape
        self.low = low
        self.nbytes = high - low
        self.at = Layout(-low, shape, strides)
        self.alignment = dtype.alignment
        self.key = array_key(self.at, dtype)
        self.fingerprint = layout.fingerprint((self.key, shape))
        self.unaligned = layout.fingerprint((self.key, shape, "unaligned"))
        self.handles = Memo[int, protocols.Array](MOST_HANDLES)


_kinds = Memo[tuple[Any, Shape, Shape], ArrayKind | None](MOST_KINDS)
_gpus: dict[int, Device] = {}  # by ordinal


def kind_of(dtype: np.dtype[Any], shape: Shape, strides: Shape) -> ArrayKind | None:
    """The kind of an array; None if no tensor can be like that, or it has no bytes."""
    key = dtype, shape, strides
    try:
        return _kinds[key]
    except KeyError:
        return _kinds.setdefault(key, _new_kind(dtype, shape, strides))


def _new_kind(dtype: np.dtype[Any], shape: Shape, strides: Shape) -> ArrayKind | None:
    try:
        dtypes.check_dtype(dtype)
    except DTypeError:
        return None
    size = dtype.itemsize
    is_whole = all(n < 2 or not stride % size for n, stride in zip(shape, strides, strict=True))
    return ArrayKind(dtype, shape, strides) if is_whole and 0 not in shape else None


def kind_of_bytes(description: bytes) -> ArrayKind | None:
    """The kind of an array that DLPack describes: its type of elements, its rank, and as many
    extents and strides in elements.
    """
    code, bits, lanes, ndim = struct.unpack_from("=BBHi", description)
    numbers = struct.unpack_from(f"={2 * ndim}q", description, 8)
    try:
        dtype = array_protocols.dtype_of(None, code, bits, lanes)
    except DTypeError:
        return None
    return kind_of(dtype, numbers[:ndim], tuple(n * dtype.itemsize for n in numbers[ndim:]))


def gpu_with(ordinal: int) -> Device | None:
    """The GPU of that ordinal, None if it is none of the devices."""
    device = _gpus.get(ordinal)
    if device is None:
        device = next((d for d in devices("cuda") if d.ordinal == ordinal), None)
        if device is not None:
            _gpus[ordinal] = device
    return device


@compiled
def imported(x: Any, reader: Reader) -> Tensor | None:
    """A tensor in the memory of `x`, for one launch; None: `import_array.argument` decides."""
    reading = reader.read(x)
    if reading is None:
        return None
    device = gpu_with(reading.ordinal)
    kind = kind_of(reading.dtype, reading.shape, reading.strides)
    address = reading.address
    if device is None or kind is None or not address or address % kind.alignment:
        return None
    low = address + kind.low
    memory = Borrowed(reader, reading, low, kind.nbytes, reader.library.keep(x))
    storage = address_map.storage_of(device.backend, memory)
    at = kind.at
    if storage.memory.address != low:  # a part of a tensor that was lent
        at = Layout(address - storage.memory.address, at.shape, at.strides)
    tensor = Tensor(device, storage, at, kind.dtype, memory)
    if at is kind.at:
        tensor._key = kind.key
        is_aligned = not address % protocols.VECTOR_BYTES
        tensor._fingerprint = kind.fingerprint if is_aligned else kind.unaligned
    return tensor


if core is not None:
    core.know_readers(
        kind_of_bytes, _kinds, _gpus, address_map._entries, address_map._lock, address_map._owners
    )
