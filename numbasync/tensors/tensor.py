"""Tensors: typed, shaped views of device storage, and the copies that move them.

A tensor holds no stream and does no work: all work on a tensor is an operation. Views of the same
memory share one storage, which holds the access record (its last writer and its latest readers).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync import dtypes, layout, notebook
from numbasync.arguments import shown, with_type
from numbasync.device.access import is_busy
from numbasync.device.device import Device
from numbasync.errors import (
    DTypeError,
    NumbasyncError,
    OperationError,
    ShapeError,
    SharedStorageError,
)
from numbasync.native import compiled, known
from numbasync.ops import submission_queue
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import suppress_unused_warnings
from numbasync.ops.pickling import Copied
from numbasync.public import Public
from numbasync.tensors.array_methods import ArrayMethods, NoOperators, no_attribute
from numbasync.tensors.copies import HostArray
from numbasync.tensors.copy_ops import Convert, Memcpy, ToHost
from numbasync.tensors.export_array import PROTOCOLS, Lending
from numbasync.tensors.host_arrays import check_destination, plain
from numbasync.tensors.partition import Partition
from numbasync.tensors.pinned import direct

_moving = threading.RLock()  # two threads must not both become the only holder of a storage


@known
class Tensor(ArrayMethods, Copied, Lending, Public):
    """An array in device memory. Operations such as `na.zeros` return tensors.

    Attributes:
        shape, dtype, ndim, size, nbytes: as in NumPy.
        strides: bytes between neighbours along each axis.
        device: the device that holds the memory; None for a tensor of `na.meta`, which has none.
        source: the array of another library whose memory the tensor uses, or None.
        own_storage: `storage`; None if the tensor was moved by `take()` or is one of `na.meta`.
        own_handle: `handle`, once it has been requested; None before.

    A tensor has `__dlpack__` and `__dlpack_device__`, on a GPU also `__cuda_array_interface__`.

    Examples:
        >>> t = await na.arange(6).reshape((2, 3))
        >>> t.shape, t.dtype.name, t.nbytes
        ((2, 3), 'float32', 24)
        >>> column = t[:, 1]  # a view: no copy
        >>> await column.to_host()
        array([1., 4.], dtype=float32)
        >>> await t.T.dup().to_host()
        array([[0., 3.],
               [1., 4.],
               [2., 5.]], dtype=float32)
    """

    __slots__ = ()

    # --- views ---

    def __getitem__(self, key: Any) -> Tensor:
        """A view, without a copy. `key` holds integers, slices, `...` and None."""
        return self._view(layout.index(self._layout, key, self.dtype.itemsize))

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a tensor of no axes has no length.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> Tensor:
        """A view with another shape of the same size; one extent may be -1.

        Examples:
            >>> t = await na.arange(6)
            >>> t.reshape(2, -1).shape
            (2, 3)
        """
        requested = shape[0] if len(shape) == 1 else shape
        return self._view(layout.reshape(self._layout, requested, self.dtype.itemsize))

    def reinterpret(self, dtype: Any) -> Tensor:
        """A view of the same bytes as elements of another type.

        Examples:
            >>> t = await na.ones(2)
            >>> t.reinterpret(np.uint32).dtype.name
            'uint32'
        """
        to = dtypes.check_dtype(dtype)
        return self._view(layout.reinterpret(self._layout, self.dtype.itemsize, to.itemsize), to)

    def partition(self, tile: int | tuple[int, ...]) -> Partition:
        """The tensor cut into tiles, one per block; a launch writes the tensor in place.

        Examples:
            >>> (await na.zeros((16, 17))).partition((4, 5)).grid
            (4, 4)
        """
        return Partition(self, tile)

    def partition_prefix(self, tile: int | tuple[int, ...]) -> Partition:
        """`partition` for a launch whose grid may cover fewer tiles; the rest is not touched.

        Examples:
            >>> z = await na.zeros(10)
            >>> _ = await saxpy[1, 4](z.partition_prefix(4), 2.0, na.ones(10))  # one block of three
            >>> await z.to_host()
            array([2., 2., 2., 2., 0., 0., 0., 0., 0., 0.], dtype=float32)
        """
        return Partition(self, tile, exact=False)

    # --- ownership ---

    def take(self) -> Tensor:
        """Move the storage to a new handle; this one then raises MovedError.

        Examples:
            >>> t = await na.zeros(3)
            >>> moved = t.take()
            >>> t, moved
            (<Tensor (3,) float32 on cpu:0, moved>, <Tensor (3,) float32 on cpu:0>)
        """
        moved = Tensor(self.device, self.storage, self._layout, self.dtype, self.source)
        moment = submission_queue.now(keep=self.storage)
        if moment is not None:  # queued operations were submitted while this was the handle
            self._former = weakref.ref(self.storage), moment
        self._let_go()
        return moved

    def shared(self) -> SharedTensor:
        """A handle for several readers; no launch may write the tensor while they hold it.

        Examples:
            >>> weights = (await na.ones(3)).shared()
            >>> weights
            <SharedTensor (3,) float32>
        """
        return SharedTensor(self._view(self._layout))

    # --- copies ---

    @compiled
    def to_host(self) -> DeviceOp[HostArray]:
        """An operation that returns the elements as a new NumPy array.

        Examples:
            >>> t = await na.arange(3)
            >>> await t.to_host()
            array([0., 1., 2.], dtype=float32)
        """
        return ToHost(self)

    def dup(self) -> DeviceOp[Tensor]:
        """An operation that returns a contiguous copy in storage of its own.

        Examples:
            >>> t = await na.arange(6).reshape((2, 3))
            >>> column = await t[:, 1].dup()
            >>> column.is_contiguous, t[:, 1].is_contiguous
            (True, False)
        """
        return Convert(self, self.dtype)

    def copy_from(self, src: Tensor | SharedTensor | HostArray) -> DeviceOp[Tensor]:
        """An operation that copies the elements of `src` into this tensor; see `memcpy`.

        Examples:
            >>> t = await na.zeros(3)
            >>> _ = await t.copy_from(np.arange(3, dtype=np.float32))
            >>> await t.to_host()
            array([0., 1., 2.], dtype=float32)
        """
        return memcpy(self, src)

    def copy_to(self, dst: Tensor | HostArray) -> DeviceOp[Any]:
        """An operation that copies the elements to `dst` and returns `dst`; see `memcpy`.

        Examples:
            >>> t = await na.arange(3)
            >>> await t.copy_to(np.empty(3, np.float32))
            array([0., 1., 2.], dtype=float32)
        """
        return memcpy(dst, self)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Of the elements, as of a NumPy array. Blocks until they are on the host."""
        from dask.tokenize import normalize_token

        if self.device is None:
            return "numbasync.meta", self.shape, str(self.dtype)
        host = self.to_host().sync_on(self.device.new_stream())
        return "numbasync.Tensor", normalize_token(host)

    if TYPE_CHECKING:  # with `__getattr__`, type checkers take every name for an attribute

        def __dlpack__(self, **options: Any) -> Any: ...
        def __dlpack_device__(self) -> tuple[int, int]: ...
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]: ...
    else:

        def __getattr__(self, name: str) -> Any:
            # Only the protocols that the device supports, so that `hasattr` is right.
            export = PROTOCOLS.get(name)
            if export is not None and self.device is not None and self.own_storage is not None:
                storage = self.own_storage
                lent = self.device.backend.lend(self.handle, storage.memory, storage)
                if name in lent.protocols:
                    return export(self, lent)
            raise no_attribute(self, name)

    def _repr_html_(self) -> str:
        """For notebooks: what is known of the tensor without waiting. Its elements are not shown:
        to read them is a copy that waits for the device, and stops the loop meanwhile.
        """
        return notebook.table("Tensor", _facts(self))

    def __repr__(self) -> str:
        where = "meta" if self.device is None else self.device.label
        state = ", moved" if self.own_storage is None and self.device is not None else ""
        return f"<Tensor {self.shape} {self.dtype} on {where}{state}>"


@known
class SharedTensor(NoOperators, Public):
    """A tensor that several tasks read. A kernel call with it as an input returns this object.

    Attributes:
        tensor: the tensor, whose storage is shared.
        shape, dtype, device: those of the tensor.

    Examples:
        >>> weights = (await na.ones(3)).shared()
        >>> z = await na.zeros(3)
        >>> result = await saxpy(z, 2.0, weights)
        >>> result.x is weights
        True
        >>> await weights.to_host()
        array([1., 1., 1.], dtype=float32)
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise OperationError(
                f"a SharedTensor is of a tensor, not {with_type(tensor)}: write t.shared()."
            )
        self.tensor = tensor

    @property
    def shape(self) -> layout.Shape:
        return self.tensor.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.dtype

    @property
    def device(self) -> Device | None:
        return self.tensor.device

    def __getitem__(self, key: Any) -> SharedTensor:
        """A shared view; the view counts as one more holder of the storage."""
        return SharedTensor(self.tensor[key])

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[SharedTensor]:
        return (self[i] for i in range(len(self)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def to_host(self) -> DeviceOp[HostArray]:
        """An operation that returns the elements as a new NumPy array."""
        return ToHost(self.tensor)

    def dup(self) -> DeviceOp[Tensor]:
        """An operation that returns an unshared copy.

        Examples:
            >>> weights = (await na.ones(3)).shared()
            >>> await (await weights.dup()).to_host()
            array([1., 1., 1.], dtype=float32)
        """
        return self.tensor.dup()

    def partition(self, tile: int | tuple[int, ...]) -> Partition:
        """A partition to write to. The partition becomes the only holder of the storage, and this
        handle is moved.

        Raises:
            MovedError: this handle was moved before.
            SharedStorageError: other tensors or views of the same storage are alive.

        Examples:
            >>> only = (await na.ones(4)).shared()
            >>> only.partition(2).grid
            (2,)
        """
        with _moving:
            storage = self.tensor.storage
            others = storage.holders - 1 + sum(other.holders for other in storage.overlapping())
            if others:
                raise SharedStorageError(
                    f"{others} other tensors or views hold the storage of {self!r}.\n"
                    "Drop them first, or write to a copy: (await s.dup()).partition(...)"
                )
            partition = Partition(self.tensor, tile)
            partition.tensor = self.tensor.take()  # only now: a wrong tile changes nothing
            return partition

    def _repr_html_(self) -> str:
        return notebook.table("SharedTensor", _facts(self.tensor))

    def __repr__(self) -> str:
        return f"<SharedTensor {self.shape} {self.dtype}>"


def _facts(t: Tensor) -> list[tuple[str, object]]:
    """What is known of a tensor without waiting: names and values."""
    where = "none, of na.meta" if t.device is None else t.device.label
    return [
        ("shape", t.shape), ("dtype", t.dtype), ("bytes", f"{t.nbytes:,}"), ("device", where),
        ("state", _state(t)),
    ]  # fmt: skip


def _state(t: Tensor) -> str:
    if t.device is None:
        return "no memory"
    if t.own_storage is None:
        return "moved by take()"
    writer = t.own_storage.writer
    with suppress(NumbasyncError):  # of a device that is lost: then it is not known
        if writer is not None and not writer.done and is_busy(writer):
            return "being written by work in flight"
        return "ready"
    return "not known"


def writable(t: Tensor, what: str) -> Tensor:
    """`t`, checked to be writable.

    Raises:
        OperationError: the library that owns the memory lends it for reading only.
    """
    if t.is_readonly:
        raise OperationError(
            f"{what} would write to {t!r}, in memory that its library lends for reading only; "
            "write to a copy: await t.dup()."
        )
    return t


def memcpy(dst: Tensor | HostArray, src: Tensor | HostArray | SharedTensor) -> DeviceOp[Any]:
    """An operation that copies elements between tensors, or between a tensor and a NumPy array.

    The operation returns `dst`. A NumPy source is read when the operation is enqueued; a NumPy
    destination is written when the operation is done. Times are copied as int64, in their own unit.

    Raises:
        ShapeError, DTypeError: the shapes or the dtypes differ; raised by this call.

    Examples:
        >>> t = await na.zeros(3)
        >>> t = await na.memcpy(t, np.arange(3, dtype=np.float32))  # an upload
        >>> array = np.empty(3, np.float32)
        >>> await na.memcpy(array, t)  # a download
        array([0., 1., 2.], dtype=float32)
    """
    src = src.tensor if isinstance(src, SharedTensor) else plain(src)
    given = dst
    for name, side in (("dst", dst), ("src", src)):
        if not isinstance(side, Tensor | np.ndarray):
            with suppress_unused_warnings((dst, src)):
                raise OperationError(
                    f"{name} of memcpy is a tensor or a NumPy array, not {type(side).__name__} "
                    f"({shown(side)}).\n"
                    "Run an operation first, t = await op; make an array of numbers by np.asarray."
                )
    if isinstance(dst, Tensor):
        writable(dst, "memcpy")
    else:
        check_destination(dst)
        given, dst = dst, plain(dst) if dst.dtype.kind in "mM" else dst  # times as integers
        if not isinstance(src, Tensor):
            raise OperationError("memcpy between two NumPy arrays: write np.copyto(dst, src).")
    for side in (dst, src):
        direct(side)  # refuses views of page-locked buffers that no device can copy from
    if dst.shape != src.shape:
        raise ShapeError(f"memcpy from shape {src.shape} to shape {dst.shape}: they must agree.")
    if dst.dtype != src.dtype:
        raise DTypeError(
            f"memcpy from {src.dtype} to {dst.dtype}: they must agree; na.convert() changes types."
        )
    return Memcpy(dst, src, given)
