"""Tensors as other libraries see them: the protocols, and what their work must come behind.

What another library enqueues is not ours to order. But it names its stream, or asks for one,
when it takes an array, and then that stream is put behind everyone who uses the storage here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numbasync.backend import protocols
from numbasync.device import access, address_map, stream
from numbasync.device.submission import Submission
from numbasync.ops.reentrancy import exclusive

if TYPE_CHECKING:
    from numbasync.tensors.tensor import Tensor


def _users(tensor: Tensor, loan: protocols.Export) -> list[protocols.Stream]:
    """The streams with work that a consumer comes behind: it may write what others still read.

    What stands in line, behind a compilation, is submitted first.

    Raises:
        ReentrancyError: lending waits, and this thread is enqueuing an operation or a graph.
    """
    if loan.waits:
        exclusive.check()
    stream.before_mark()
    storage, device = tensor.storage, tensor.device
    assert device is not None  # it has storage
    with device.submit_lock:  # who finds a lease finds its work on the stream
        users: list[Submission] = []
        for each in (storage, *storage.overlapping()):
            users += access.users(each)
        streams = {s.stream: None for s in users if not s.done}
        # Another device can be waited for, if it uses the same memory; its streams have no
        # order with the consumer's.
        return [s.backend for s in streams if loan.waits or s.device is device]


def _interface(tensor: Tensor, loan: protocols.Export) -> dict[str, Any]:
    address_map.note(tensor.storage)
    return loan.interface(_users(tensor, loan), tensor.source)


def _dlpack(tensor: Tensor, loan: protocols.Export) -> Callable[..., object]:
    def lend(
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of the array, in order for work on `stream`. Of host memory, the work on it is
        done when this returns: it blocks the thread until then.

        Args:
            stream: the consumer's native handle; None or 1: the legacy default stream; -1: none,
                and no order. For host memory None or -1.
            max_version: the newest DLPack that the consumer reads.
            dl_device: only the device it is on.
            copy: None or False; for host memory also True.
        """
        address_map.note(tensor.storage)
        users = [] if stream == -1 else _users(tensor, loan)
        return loan.dlpack(users, tensor.source, stream, max_version, dl_device, copy)

    return lend


class Lending:
    """What type checkers know of a tensor's protocols, which it has if its device lends so."""

    __slots__ = ()

    __dlpack__: Callable[..., Any]
    __dlpack_device__: Callable[[], tuple[int, int]]


# What a tensor has if its device can lend: made of the tensor and its loan.
PROTOCOLS: dict[str, Callable[[Tensor, protocols.Export], Any]] = {
    "__cuda_array_interface__": _interface,
    "__dlpack__": _dlpack,
    "__dlpack_device__": lambda _, loan: loan.dlpack_device,
}
