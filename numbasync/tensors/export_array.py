"""Tensors as exports to other libraries: the protocols, and the order of the consumer's work.

numbasync does not see the work that another library enqueues. But a consumer names its stream, or
asks for one, when it imports an array; that stream is then made to wait for all submissions here
that use the storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numbasync.backend import protocols
from numbasync.device import access, address_map, stream
from numbasync.device.submission import Submission
from numbasync.ops.reentrancy import exclusive

if TYPE_CHECKING:
    from numbasync.tensors.array import DeviceArray


def _users(tensor: DeviceArray, loan: protocols.Export) -> list[protocols.Stream]:
    """The streams whose work a consumer must wait for, readers included: it may write.

    Operations in this thread's submission queue, behind a compilation, are submitted first.

    Raises:
        ReentrancyError: the export blocks, and this thread is enqueuing an operation or a graph.
    """
    if loan.waits:
        exclusive.check()
    stream.before_signal()
    storage, device = tensor.storage, tensor.device
    assert device is not None  # a tensor with storage has a device
    with device.submit_lock:  # an access on record has its work on the stream
        users: list[Submission] = []
        for shared in (storage, *storage.overlapping()):
            users += access.users(shared)
        streams = {s.stream: None for s in users if not s.done}
        # Another device that uses the same memory can be waited for by blocking only: its streams
        # cannot be ordered with the consumer's.
        return [s.backend for s in streams if loan.waits or s.device is device]


def _interface(tensor: DeviceArray, loan: protocols.Export) -> dict[str, Any]:
    address_map.note(tensor.storage)
    return loan.interface(_users(tensor, loan), tensor.source)


def _dlpack(tensor: DeviceArray, loan: protocols.Export) -> Callable[..., object]:
    def lend(
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the array, ordered for work on `stream`.

        For host memory this blocks the thread until the work on the array is done.

        Args:
            stream: the consumer's native handle; None or 1: the legacy default stream; -1: none,
                and no order. For host memory None or -1.
            max_version: the newest DLPack version that the consumer reads.
            dl_device: None, or the device that holds the array.
            copy: None or False; for host memory also True.
        """
        address_map.note(tensor.storage)
        users = [] if stream == -1 else _users(tensor, loan)
        return loan.dlpack(users, tensor.source, stream, max_version, dl_device, copy)

    return lend


class Lending:
    """Declares a tensor's export protocols for type checkers; the device decides which exist."""

    __slots__ = ()

    __dlpack__: Callable[..., Any]
    __dlpack_device__: Callable[[], tuple[int, int]]


# Attributes that a tensor has if its device exports them, each made of the tensor and its Export.
PROTOCOLS: dict[str, Callable[[DeviceArray, protocols.Export], Any]] = {
    "__cuda_array_interface__": _interface,
    "__dlpack__": _dlpack,
    "__dlpack_device__": lambda _, loan: loan.dlpack_device,
}
