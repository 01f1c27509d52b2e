"""An array in device memory, as the code that copies and launches sees it: storage and layout.

`Tensor` adds the operations. A device array does no work and holds no stream.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Self

import numpy as np

from numbasync import layout
from numbasync.arguments import with_type
from numbasync.backend import protocols
from numbasync.device.device import Device
from numbasync.device.storage import Storage
from numbasync.errors import CallerError, MovedError, StateError
from numbasync.layout import Layout
from numbasync.native import compiled, known
from numbasync.ops import submission_queue
from numbasync.ops.context import Context
from numbasync.tensors.array_spec import ArraySpec, array_key


@known
class DeviceArray:
    """A typed, shaped view of a storage.

    Attributes:
        shape, dtype, ndim, size, nbytes: as in NumPy.
        strides: bytes between neighbours along each axis.
        device: the device that holds the memory; None for an array without memory (`na.meta`).
        source: the array of another library whose memory this one uses, or None.
        own_storage: `storage`; None if the array was moved, or has no memory.
        own_handle: `handle`, once it has been requested; None before.
    """

    __slots__ = (
        "__weakref__", "_fingerprint", "_former", "_key", "_kind", "_layout", "device", "dtype",
        "own_handle", "own_storage", "shape", "source",
    )  # fmt: skip

    def __init__(
        self,
        device: Device | None,
        storage: Storage | None,
        at: Layout,
        dtype: np.dtype[Any],
        source: protocols.Foreign | None = None,
    ) -> None:
        self.device = device
        self.source = source
        self.dtype = dtype
        try:
            self.shape = at.shape
        except AttributeError:
            raise CallerError(
                f"an array has a layout, not {with_type(at)}: write na.zeros(shape), say."
            ) from None
        self._layout = at
        self.own_storage = storage
        self.own_handle: protocols.Array | None = None
        self._kind: ArraySpec | None = None  # set only if the tensor fills its storage
        self._key: protocols.ArrayKey | None = None
        self._fingerprint = -1
        self._former: tuple[weakref.ref[Storage], int] | None = None
        if storage is not None:
            storage.holders += 1

    @classmethod
    def allocate(
        cls, ctx: Context, shape: layout.Shape, dtype: np.dtype[Any], scratch: bool = False
    ) -> Self:
        """An uninitialised array for work of `ctx`; `scratch`: a temporary of the operation."""
        spec = ArraySpec(shape, dtype)
        return cls.of(ctx.device, (ctx.scratch if scratch else ctx.alloc)(spec.nbytes), spec)

    @classmethod
    def of(cls, device: Device, storage: Storage, kind: ArraySpec) -> Self:
        """The array that fills the whole of a new storage."""
        array = cls(device, storage, kind.at, kind.dtype)
        array._kind = kind
        return array

    # --- properties ---

    @property
    def strides(self) -> layout.Shape:
        return self._layout.strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._kind.nbytes if self._kind else self.size * self.dtype.itemsize

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of an array that fills its storage; None of any other one."""
        return self._kind

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return bool(self._kind) or layout.is_contiguous(*self._layout[1:], self.dtype.itemsize)

    @property
    def is_readonly(self) -> bool:
        """Whether the library whose memory it is forbids writing to it."""
        return self.source is not None and self.source.export.readonly

    @property
    def storage(self) -> Storage:
        """The storage, which the tensor shares with its views.

        Raises:
            MovedError: `take()` moved it; operations that were queued before still get it.
            StateError: the tensor is one of `na.meta` and has no storage.
        """
        if self.own_storage is None:
            if self.device is None:
                raise StateError(
                    f"{self!r} has no memory: it can only describe an argument to compile()."
                )
            former = self._former
            if former is not None and submission_queue.was_submitted_before(former[1]):
                storage = former[0]()
                if storage is not None:
                    return storage
            raise MovedError(
                f"{self!r} was moved by take(); use the handle that take() returned, or what the "
                "launch it was given to returned."
            )
        return self.own_storage

    @property
    def storage_id(self) -> int:
        """Tensors of different ids share no memory; without storage, the id is the tensor's own."""
        storage = self.own_storage
        return id(self) if storage is None else storage.identity

    @property
    def handle(self) -> protocols.Array:
        """The backend's description of this array, made on first use."""
        if self.own_handle is None or self.own_storage is None:
            storage, device = self.storage, self.device
            assert device is not None  # a tensor with storage has a device
            offset, shape, strides = self._layout
            self.own_handle = device.backend.array(
                storage.memory, offset, shape, strides, self.dtype
            )
        return self.own_handle

    @property
    def key(self) -> protocols.ArrayKey:
        """This array's part of a compiled kernel's key; the extents are not in it."""
        if self._key is None:
            spec = self._kind
            self._key = array_key(self._layout, self.dtype) if spec is None else spec.key
        return self._key

    @property
    def fingerprint(self) -> int:
        """Equal for tensors of equal dtype, layout, shape and `is_aligned`."""
        if self._fingerprint < 0:
            spec = self._kind
            if spec is not None:
                self._fingerprint = spec.fingerprint
            else:
                place = () if self.is_aligned else ("unaligned",)
                self._fingerprint = layout.fingerprint((self.key, self.shape, *place))
        return self._fingerprint

    @property
    def is_aligned(self) -> bool:
        """Whether the elements start at a multiple of `VECTOR_BYTES`. New arrays do."""
        if self._kind is not None:
            return True
        return self.device is None or not self.address % protocols.VECTOR_BYTES

    @property
    def address(self) -> int:
        """Of the first element, in the memory of the array's device."""
        return self.storage.memory.address + self._layout.offset

    # --- views and ownership ---

    @compiled
    def _view(self, at: Layout, dtype: np.dtype[Any] | None = None) -> Self:
        storage = None if self.device is None else self.storage
        return type(self)(self.device, storage, at, dtype or self.dtype, self.source)

    def spread(self, shape: layout.Shape) -> Self:
        """A view of a one-element tensor, broadcast to `shape` with strides of 0."""
        return self._view(Layout(self._layout.offset, shape, (0,) * len(shape)))

    def same_elements(self, other: DeviceArray) -> bool:
        """Whether `other` is the same view of the same storage."""
        return self.storage is other.storage and self._layout == other._layout

    def _let_go(self) -> None:
        storage, self.own_storage, self.own_handle = self.own_storage, None, None
        if storage is not None:
            storage.holders -= 1

    @compiled
    def __del__(self) -> None:
        storage = getattr(self, "own_storage", None)  # absent if the constructor failed
        if storage is not None:
            storage.holders -= 1
