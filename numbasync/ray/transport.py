"""The tensor transport: results stay on an actor's device, and go to other actors by `send` and
`recv` of `na.collective`. Ray chooses the transfers, and says when a result is dropped.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import get_runtime_context  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
from ray.experimental import (  # pyright: ignore[reportMissingImports]
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)
from ray.experimental.rdt.util import (  # pyright: ignore[reportMissingImports]
    transport_manager_info,
)

from numbasync.collective import Communicator, GroupKey, new_key, recv, send
from numbasync.collective.exchange import forget
from numbasync.device.device import default_device
from numbasync.errors import CallerError, StateError
from numbasync.tensors.devices import to_device
from numbasync.tensors.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "NUMBASYNC"  # Ray's names of transports are in capitals
TIMEOUT_S = 30.0  # of a transfer, and of connecting two actors


def register_transport() -> None:
    """Register the transport `"numbasync"` of tensors with Ray. Call it before actors are created,
    in the process that creates them; a second call does nothing. Ray does not register it again in
    an actor that it restarts: such an actor calls this in its `__init__`, too.

    The classes of the actors need `enable_tensor_transport=True`, and the methods whose results are
    to stay on the device `@ray.method(tensor_transport="numbasync")`. Sender and receiver are
    processes of one machine, each with a device of its own. Elsewhere a result is pickled, by
    `ray.get(result, _use_object_store=True)`.

    Examples:
        >>> import ray
        >>> na.ray.register_transport()
        >>> @ray.remote(enable_tensor_transport=True)
        ... class Worker:
        ...     @ray.method(tensor_transport="numbasync")
        ...     def make(self):
        ...         return na.ones(3).sync()
    """
    if NAME not in transport_manager_info:  # in an actor Ray has registered it
        register_tensor_transport(NAME, ["cpu", "cuda"], Transport, Tensor)


@dataclass
class Sent(TensorTransportMetadata):
    """Shapes, dtypes and the device's kind of a result's tensors, which Ray passes to the receiver.

    Attributes:
        node: Ray's identity of the sender's machine.
    """

    node: str = ""


@dataclass
class Pair(CommunicatorMetadata):
    """How a sender and a receiver meet.

    Attributes:
        key: of a group in which the sender is rank 0, and the receiver rank 1.
    """

    key: GroupKey


class Transport(TensorTransportManager):
    """Ray's interface of a transport. Each process has one: the owner of a result, which makes the
    keys of pairs, and the actors, which connect by them.
    """

    def __init__(self) -> None:
        self._keys = dict[tuple[str, str], GroupKey]()  # by the actors' identities
        self._open = dict[GroupKey, Communicator]()
        self._used_up = set[GroupKey]()  # by which a transfer has failed
        self._lock = threading.Lock()
        atexit.register(self._close)

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return False

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True  # Ray has registered it there

    # --- in the owner ---

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> Pair:
        pair = src_actor._actor_id.hex(), dst_actor._actor_id.hex()
        with self._lock:
            key = self._keys.get(pair)
            if key is None or _is_over(key):
                self._keys = {p: k for p, k in self._keys.items() if not _is_over(k)}
                key = self._keys[pair] = new_key(2)
            return Pair(key)

    # --- in the actors ---

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: Sequence[Tensor]) -> Sent:
        for tensor in rdt_object:
            if tensor.device is None:
                raise CallerError(f"{tensor!r} has nothing to send: return its shape and dtype.")
        kinds = {tensor.device.kind for tensor in rdt_object if tensor.device is not None}
        if len(kinds) > 1:
            raise CallerError(
                f"the tensors of one result are on devices of one kind, not of {sorted(kinds)}: "
                "return them one by one, or copy them with na.to_device."
            )
        described: Any = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        kind = kinds.pop() if kinds else None
        return Sent(described, kind, get_runtime_context().get_node_id())

    def send_multiple_tensors(
        self,
        tensors: Sequence[Tensor],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        with self._connected(communicator_metadata, 0) as comm:
            for tensor in tensors:
                if tensor.device is not comm.device:
                    tensor = to_device(tensor, comm.device).sync_on(comm.device.new_stream())
                send(tensor, 1, comm).sync_on(comm.device.new_stream())

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        sent: Any = tensor_transport_metadata
        if sent.node != get_runtime_context().get_node_id():
            raise CallerError(
                f"the result of node {sent.node} is on another machine, and the transport "
                "`numbasync` sends within one: leave tensor_transport out of its method."
            )
        with self._connected(communicator_metadata, 1) as comm:
            stream = comm.device.new_stream()
            received = [
                recv(shape, 0, comm, dtype).sync_on(stream) for shape, dtype in sent.tensor_meta
            ]
            if not target_buffers:
                return received
            for target, tensor in zip(target_buffers, received, strict=True):
                target.copy_from(tensor).sync_on(stream)
            return list(target_buffers)

    def garbage_collect(
        self,
        obj_id: str,
        tensor_transport_meta: TensorTransportMetadata,
        tensors: Sequence[Tensor],
    ) -> None:
        """Nothing: Ray drops the tensors."""

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        self._forget(communicator_metadata.key)

    @contextmanager
    def _connected(self, pair: Any, rank: int) -> Iterator[Communicator]:
        """The communicator of two actors, connected at their first transfer. If a transfer fails,
        those that Ray has begun with the same key fail, too; the next one has a new key.
        """
        with self._lock:
            comm = self._open.get(pair.key)
            if pair.key in self._used_up:
                raise StateError(f"an earlier transfer by {pair.key} has failed: send again.")
        try:
            if comm is None:
                self._close_lost()
                comm = Communicator(pair.key, rank, default_device(), TIMEOUT_S)
                with self._lock:
                    self._open[pair.key] = comm
            yield comm
        except BaseException:  # the two actors may be at different steps from now on
            self._forget(pair.key)
            raise

    def _close_lost(self) -> None:
        """Close the communicators whose other actor has ended."""
        with self._lock:
            lost = [key for key, comm in self._open.items() if comm.is_lost()]
        for key in lost:
            self._forget(key)

    def _forget(self, key: GroupKey) -> None:
        """Close a communicator. Its key is used up, which the owner sees by the missing folder."""
        with self._lock:
            self._used_up.add(key)
            comm = self._open.pop(key, None)
        if comm is not None:
            comm.close()
        forget(key)

    def _close(self) -> None:
        for key in {*self._open, *self._keys.values()}:
            self._forget(key)


def _is_over(key: GroupKey) -> bool:
    """Whether a transfer by this key has failed, or an actor has closed its communicator."""
    return not Path(key.folder).is_dir()
