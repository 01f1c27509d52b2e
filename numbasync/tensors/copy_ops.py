"""Copy operations: from a tensor to a new tensor, and between tensors and host arrays."""

from __future__ import annotations

from functools import lru_cache
from sys import _getframe
from typing import Any, Generic, TypeVar

import numpy as np

from numbasync.device import access
from numbasync.device.callsite import call_site
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import NotAGraphNodeError
from numbasync.native import compiled, known
from numbasync.ops.context import Context
from numbasync.ops.deferred_value import Later
from numbasync.ops.home import Home, first_home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.simple_op import SimpleOp
from numbasync.tensors.across import check_stream, copy_across, try_copy_across
from numbasync.tensors.array import DeviceArray
from numbasync.tensors.copies import HostArray, copy, download, upload_any
from numbasync.tensors.parallel_copy import LARGE

A = TypeVar("A", bound=DeviceArray)


def operands_of(*tensors: DeviceArray) -> frozenset[int] | None:
    """The value of `DeviceOp.operands()` for an operation that uses only these tensors and new
    memory: the ids of their storages, or None if they cannot be known before it runs.
    """
    identities = set()
    for tensor in tensors:
        storage = tensor.own_storage
        if storage is None or storage.fast_path_device is None or tensor.source is not None:
            return None
        identities.add(storage.identity)
    return frozenset(identities)


@known
class ToHost(SimpleOp[HostArray]):
    """Copies the elements of a tensor to a new NumPy array."""

    __slots__ = ("_tensor",)
    has_fast_path = True

    def __init__(self, tensor: DeviceArray) -> None:
        frame = _getframe(2)  # as in `Launch`
        self._site = frame.f_code, frame.f_lasti
        self._unused = True
        self._tensor = tensor

    @compiled
    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        tensor, stream = self._tensor, submission.stream
        device, storage, nbytes = stream.device, tensor.own_storage, tensor.nbytes
        backend = device.backend
        if (
            storage is None
            or tensor.source is not None
            or not 0 < nbytes <= LARGE
            or not tensor.is_contiguous
        ):
            return False
        block = backend.host_block(nbytes)
        if block is None:
            return False
        # All checks first, then the copy, then its record: an error leaves no access recorded.
        with device.submit_lock:
            # Under the lock, as another thread may attach a graph.
            if storage.fast_path_device is not backend or access.is_written_elsewhere(
                storage, stream
            ):
                return False
            submission.keep_alive += (storage, block)
            submission.queue = stream.backend.download(block, tensor.handle, submission.queue)
            access.record_read(storage, submission)
        submission.nbytes += nbytes
        submission.copied += nbytes
        self._result = np.ndarray(tensor.shape, tensor.dtype, block)
        return True

    @property
    def home(self) -> Home:
        return self._tensor.device

    def operands(self) -> frozenset[int] | None:
        return operands_of(self._tensor)

    def steps(self, ctx: Context) -> Steps[HostArray]:
        return (yield from download(ctx, self._tensor))

    @property
    def label(self) -> str:
        spec = self._tensor.spec
        return f"to_host({self._tensor.shape})" if spec is None else spec.label("to_host")

    def _describe(self) -> str:
        return self.label


# The name of a dtype: NumPy's `str` of one takes longer than enqueuing a copy.
_name = lru_cache(64)(str)


class Item(DeviceOp[Any]):
    """Copies the only element of a tensor to the host, as a Python number."""

    def __init__(self, tensor: DeviceArray) -> None:
        self._tensor = tensor

    @property
    def home(self) -> Home:
        return self._tensor.device

    def steps(self, ctx: Context) -> Steps[Any]:
        if ctx.records:
            raise NotAGraphNodeError(
                f"item() of {self._tensor!r} gives a number of Python's, which no replay can "
                "change.\n"
                "Give the tensor, and read it behind the replay: await t.item()"
            )
        array = yield from download(ctx, self._tensor)
        return Later(array.item)

    def _describe(self) -> str:
        return f"item({self._tensor.shape})"


class Convert(DeviceOp[A], Generic[A]):
    """Copies a tensor to a new contiguous one, converted to a dtype."""

    def __init__(self, tensor: A, dtype: np.dtype[Any]) -> None:
        self._site = call_site(2)
        self._tensor = tensor
        self._dtype = dtype

    @property
    def home(self) -> Home:
        return self._tensor.device

    def operands(self) -> frozenset[int] | None:
        return operands_of(self._tensor)

    def steps(self, ctx: Context) -> Steps[A]:
        yield from ctx.room(self._tensor.size * self._dtype.itemsize)
        tensor = type(self._tensor).allocate(ctx, self._tensor.shape, self._dtype)
        yield from copy(ctx, tensor, self._tensor)
        return tensor

    def _describe(self) -> str:
        return f"convert({self._tensor.shape})"


class Memcpy(DeviceOp[Any]):
    """Copies the elements of one array into another, in place. Between two devices the copy runs on
    a stream of the destination's.
    """

    def __init__(
        self, dst: DeviceArray | HostArray, src: DeviceArray | HostArray, given: Any
    ) -> None:
        self._site = call_site(2)
        self._dst = dst
        self._given = given  # the destination as the caller has it, which may be an array of times
        self._src = src
        self._is_across = (
            isinstance(dst, DeviceArray) and isinstance(src, DeviceArray)
            and dst.device is not src.device and None not in (dst.device, src.device)
        )  # fmt: skip
        self.has_fast_path = self._is_across

    @property
    def home(self) -> Home:
        return first_home((self._dst, self._src))

    @property
    def is_node(self) -> bool:  # type: ignore[override]
        if self._is_across:
            return False
        dst, src = self._dst, self._src
        if isinstance(dst, np.ndarray) or not dst.is_contiguous:
            return False
        if isinstance(src, np.ndarray):
            return True
        return src.is_contiguous and src.storage_id != dst.storage_id

    def operands(self) -> frozenset[int] | None:
        dst, src = self._dst, self._src
        if isinstance(dst, np.ndarray) or isinstance(src, np.ndarray):
            return None  # other code may read and write the host array
        return operands_of(dst, src)

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        dst, src = self._dst, self._src
        if submission.stream.device is not dst.device:
            return False
        return try_copy_across(submission, dst, src)  # type: ignore[arg-type]

    def result(self) -> Any:
        return self._given

    def steps(self, ctx: Context) -> Steps[Any]:
        dst, src = self._dst, self._src
        if isinstance(src, np.ndarray):
            yield from upload_any(ctx, dst, src)  # type: ignore[arg-type]  # one is a tensor
        elif isinstance(dst, np.ndarray):
            yield from download(ctx, src, dst)
        elif self._is_across:
            check_stream(ctx, dst.device, src)  # type: ignore[arg-type]
            yield from copy_across(ctx, dst, src)
        else:
            yield from copy(ctx, dst, src)
        return self._given

    def _describe(self) -> str:
        return f"memcpy({self._dst.shape}, {_name(self._dst.dtype)})"
