"""Memory pools, and the storage that tensors share.

A `Storage` is one allocation, or memory of another library, with an access record. The memory
goes back to its pool, or its library, when nothing refers to the storage any more. Work in flight
refers to its storages, so that moment is always after the device's last use. The most bytes that a
pool hands out at a time is its `max_bytes`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from numbasync import backend as backends
from numbasync.arguments import check_whole
from numbasync.backend import protocols
from numbasync.backend.protocols import MemoryStats
from numbasync.errors import OutOfDeviceMemoryError, ShapeError
from numbasync.native import compiled, known
from numbasync.public import Public

MANY_READERS = 8  # recorded readers of a storage at which finished readers are removed
GRANULE = 256  # bytes; allocations are whole granules, as the driver's pools make them


@known
class MemoryPool(Public):
    """Stream-ordered memory of one device. Made by `device.new_pool()`.

    Attributes:
        device: the backend's device that the memory is on.
        max_bytes: most bytes that may be allocated at a time; None for the device's own limit.

    Examples:
        >>> device = na.default_device()
        >>> device.pool = pool = device.new_pool()  # operations allocate from it
        >>> t = await na.zeros(1000)
        >>> pool.stats().used_current >= t.nbytes
        True
    """

    __slots__ = (
        "__dict__", "__weakref__", "_lock", "_pool", "device", "fast_path_device", "max_bytes",
    )  # fmt: skip

    def __init__(self, device: protocols.Device, max_bytes: int | None = None) -> None:
        backends.check_backend(device, "MemoryPool")
        if max_bytes is not None:
            max_bytes = check_whole(max_bytes, "max_bytes of a pool", 1, error=ShapeError)
        self.device = self.fast_path_device = device
        self.max_bytes = max_bytes
        self._pool = device.new_pool()
        # Reentrant: a collection inside `allocate` may run finalisers that call `release`.
        self._lock = threading.RLock()
        self.release = self._pool.free  # type: ignore[method-assign]  # one call less

    def allocate(self, nbytes: int, stream: protocols.Stream) -> Storage:
        """Uninitialised storage of `nbytes` bytes for later work of `stream`.

        Raises:
            OutOfDeviceMemoryError: `nbytes` do not fit; nothing has changed.
        """
        room = (nbytes + GRANULE - 1) // GRANULE * GRANULE or GRANULE
        if self.max_bytes is None:
            return Storage(self, self._pool.allocate(room, stream))
        with self._lock:
            if not self._has_room(room):
                raise OutOfDeviceMemoryError(
                    f"{nbytes:,} bytes do not fit in {self!r}.\n"
                    "Drop tensors that are no longer needed, or make the pool larger."
                )
            return Storage(self, self._pool.allocate(room, stream))

    def reuse(self, nbytes: int) -> Storage | None:
        """Uninitialised storage for work on any stream, if the pool has a free block of that size;
        else None.
        """
        room = (nbytes + GRANULE - 1) // GRANULE * GRANULE or GRANULE
        if self.max_bytes is None:
            memory = self._pool.reuse(room)
        else:
            with self._lock:
                memory = self._pool.reuse(room) if self._has_room(room) else None
        return None if memory is None else Storage(self, memory)

    def _has_room(self, room: int) -> bool:
        """Whether `max_bytes` permits `room` bytes more. The caller holds the lock until they are
        allocated: the backend's pool counts them, and nobody else does.
        """
        return self.max_bytes is None or self._pool.used + room <= self.max_bytes

    def release(self, memory: protocols.Memory) -> None:
        """Free memory of `allocate` or `reuse`; called by the storage's finaliser."""
        self._pool.free(memory)

    def stats(self) -> MemoryStats:
        """Bytes allocated from the pool, and held by it from the system, now and at most."""
        return self._pool.stats()

    def reset_high(self) -> None:
        """Lower both high-water marks to the current values.

        Examples:
            >>> pool = na.default_device().new_pool()
            >>> pool.reset_high()
            >>> pool.stats().used_high
            0
        """
        self._pool.reset_high()

    def trim(self) -> None:
        """Give unused memory back to the system.

        Examples:
            >>> pool = na.default_device().new_pool()
            >>> pool.trim()  # gives unused memory back
            >>> pool.stats().reserved_current
            0
        """
        self._pool.trim()

    def __repr__(self) -> str:
        label = f"{self.device.kind}:{self.device.ordinal}"
        most = "" if self.max_bytes is None else f" of {self.max_bytes:,}"
        return f"<MemoryPool {label}, {self._pool.used:,}{most} B in use>"


class Owner(Protocol):
    """The owner of a storage's memory, which `release` gives the memory back to."""

    @property
    def device(self) -> protocols.Device: ...
    @property
    def fast_path_device(self) -> protocols.Device | None: ...
    def release(self, memory: Any) -> None: ...


@known
class BorrowedOwner:
    """The owner of memory of other libraries, which own it again when no storage refers to it."""

    def __init__(self, device: protocols.Device) -> None:
        self.device = device
        self.fast_path_device: protocols.Device | None = device

    def release(self, memory: object) -> None:
        """Do nothing: the memory object holds the other library's owner, and is freed with its
        storage.
        """


class HostMapped(BorrowedOwner):
    """The owner of host memory that kernels access (zero copy). Fast paths must not use it: a fast
    path that copies it to the host would wait for the device. No program gets a tensor of it.
    """

    def __init__(self, device: protocols.Device) -> None:
        super().__init__(device)
        self.fast_path_device = None


class AttachedGraph(Protocol):
    """A graph, whose access records stay on its storages from launch to launch.

    Attributes:
        stale: the storages whose access record has been changed by others since.
    """

    stale: dict[Storage, None]


@known
class Storage:
    """One allocation, and the submissions that last wrote and read it. `ctx.alloc(nbytes)` gives a
    new one, and each tensor has one, which views share.

    Examples:
        >>> from numbasync.extending import Storage
        >>> t = await na.zeros(4)
        >>> storage: Storage = t.storage
        >>> t[2:].storage is storage, storage.writer.done
        (True, True)

    Attributes:
        writer: the last submission that writes the storage; see `access`.
        readers: for each stream, the latest submission that reads the storage.
        holders: the number of tensors that hold the storage.
        links: the storages that overlap this one, which happens to memory of other libraries only;
            None if there are none.
        identity: two storages whose identities differ do not overlap; 0 with links.
        attached_graphs: the graphs that use the storage; None if there are none.
        maps: what tensor maps of the storage launches have used, by array and box; None: none.
        fast_path_device: the owner's device; None for a storage with links or attached graphs.
            For most storages a launch checks this attribute only.
    """

    __slots__ = (
        "__weakref__",
        "attached_graphs",
        "fast_path_device",
        "holders",
        "identity",
        "links",
        "maps",
        "memory",
        "pool",
        "readers",
        "writer",
    )  # fmt: skip

    def __init__(self, pool: Owner, memory: protocols.Memory) -> None:
        self.pool = pool
        self.memory = memory
        self.writer: Any = None
        self.readers: dict[Any, Any] = {}
        self.holders = 0
        self.links: tuple[weakref.ref[Storage], ...] | None = None
        self.attached_graphs: tuple[weakref.ref[AttachedGraph], ...] | None = None
        self.maps: dict[Any, Any] | None = None
        self.identity = id(self)
        self.fast_path_device = pool.fast_path_device

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def forget_readers(self) -> dict[Any, Any]:
        """Remove finished readers, each of which keeps its stream alive; the readers left."""
        self.readers = {s: r for s, r in self.readers.items() if not r.done}
        return self.readers

    def add_overlap(self, other: Storage) -> None:
        """Note that the two storages overlap, so that a use of one is a use of the other."""
        for storage, overlapped in ((self, other), (other, self)):
            # A new tuple, because another thread may be iterating over the old one.
            alive = (ref for ref in storage.links or () if ref() is not None)
            storage.links = (*alive, weakref.ref(overlapped))
            storage.identity = 0
            storage.fast_path_device = None
            storage.invalidate_graphs()

    def overlapping(self) -> Iterator[Storage]:
        """The live storages that overlap this one."""
        for ref in self.links or ():
            other = ref()
            if other is not None:
                yield other

    def attach_graph(self, standing: AttachedGraph) -> None:
        """Register a graph that uses the storage. While alive, the graph is notified, by its
        `stale`, when others use the storage.
        """
        alive = (ref for ref in self.attached_graphs or () if ref() is not None)
        self.attached_graphs = (*alive, weakref.ref(standing))
        self.fast_path_device = None

    def invalidate_graphs(self) -> None:
        """Notify the attached graphs of a use of this or an overlapping storage, and remove the
        graphs that were freed.
        """
        alive = False
        for ref in self.attached_graphs or ():
            graph = ref()
            if graph is not None:
                graph.stale[self] = None
                alive = True
        if not alive:
            self.attached_graphs = None
            self.fast_path_device = None if self.links is not None else self.pool.fast_path_device

    def overlaps(self, other: Storage) -> bool:
        """Whether the two storages have memory in common."""
        return self is other or other in self.overlapping()

    @compiled
    def __del__(self) -> None:
        # Absent if the constructor failed. The pool's `free` never raises.
        memory = getattr(self, "memory", None)
        if memory is not None:
            self.pool.release(memory)

    def __repr__(self) -> str:
        return f"<memory of {self.nbytes:,} bytes>"
