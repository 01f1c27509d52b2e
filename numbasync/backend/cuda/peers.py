"""Copies between two GPUs, and the direct access that makes them fast."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

from numbasync.backend.cuda.driver import cu, enter, fail

if TYPE_CHECKING:
    from numbasync.backend.cuda.arrays import CudaArray
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.memory import CudaPool

ENABLED_ALREADY = int(cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
_lock = threading.RLock()  # of all GPUs: to enable access changes two of them


class Peers:
    """The GPUs that one GPU copies from. Direct access is enabled once for each; where the two have
    none, the driver copies through the host.

    Attributes:
        readers: the ordinals of the GPUs that may read this GPU's pools directly.
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._known: dict[int, bool] = {device.ordinal: True}  # ordinal -> access is direct
        self._pools: weakref.WeakSet[CudaPool] = weakref.WeakSet()
        self.readers: set[int] = set()

    def enable(self, other: Gpu) -> bool:
        """Whether this GPU reads the memory of `other` directly, which the first call enables."""
        direct = self._known.get(other.ordinal)
        if direct is not None:
            return direct
        with _lock:
            direct = bool(self._device.core.can_access_peer(other.core))
            if direct:
                enter(self._device)
                (result,) = cu.cuCtxEnablePeerAccess(other.context, 0)
                if result and int(result) != ENABLED_ALREADY:
                    fail(result, "cuCtxEnablePeerAccess")
                other.peers.admit(self._device.ordinal)
            self._known[other.ordinal] = direct
            return direct

    def admit(self, reader: int) -> None:
        """Let the GPU with the ordinal `reader` read this GPU's pools, of now and later."""
        with _lock:
            self.readers.add(reader)
            for pool in list(self._pools):
                self._allow(pool.handle, reader)

    def add_pool(self, pool: CudaPool) -> None:
        """Note a new pool of this GPU."""
        with _lock:
            self._pools.add(pool)
            for reader in self.readers:
                self._allow(pool.handle, reader)

    @staticmethod
    def _allow(pool: Any, reader: int) -> None:
        # The access of contexts does not reach memory of pools. Without a pool's own, the driver
        # copies through the host: slower, but right.
        access = cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = reader
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        with contextlib.suppress(Exception):  # cuda.bindings and the driver may both refuse
            cu.cuMemPoolSetAccess(pool, [access], 1)


def copy_peer(dst: CudaArray, to: Gpu, src: CudaArray, source: Gpu, stream: Any) -> None:
    """Enqueue a copy of a contiguous array of the GPU `source` on a stream of the GPU `to`, whose
    context is current.
    """
    (result,) = cu.cuMemcpyPeerAsync(
        dst.pointer, to.context, src.pointer, source.context, dst.nbytes, stream
    )
    if result:
        fail(result, "cuMemcpyPeerAsync")
