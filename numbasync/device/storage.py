"""Pools, and the storage that tensors share.

A `Storage` is one allocation, or memory of another library, and the record of who touched
it last. It goes back to its pool, or that library, when nothing refers to it any more. Work
in flight refers to it, so that moment is always after the device's last use.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from numbasync.backend import protocols
from numbasync.backend.protocols import MemoryStats
from numbasync.errors import OutOfDeviceMemoryError, ShapeError
from numbasync.public import Public

MANY_READERS = 8  # of a storage; then those that are done are forgotten
GRANULE = 256  # bytes; allocations are whole granules, as the driver's pools make them


class MemoryPool(Public):
    """Stream-ordered memory of one device. Made by `device.new_pool()`.

    Attributes:
        device: the backend's device that the memory is on.
        max_bytes: most bytes that may be handed out at once; None for the device's own limit.
    """

    def __init__(self, device: protocols.Device, max_bytes: int | None = None) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise ShapeError(
                f"a pool of {max_bytes} bytes can hold nothing; write a positive size."
            )
        self.device = self.fast_path_device = device
        self.max_bytes = max_bytes
        self._pool = device.new_pool()
        self._out = 0  # of a pool with `max_bytes`
        # Reentrant: a collection inside `allocate` may run finalisers that call `release`.
        self._lock = threading.RLock()
        if max_bytes is None:  # the device's own pool counts anyway
            self.release = self._pool.free  # type: ignore[method-assign]

    def allocate(self, nbytes: int, stream: protocols.Stream) -> Storage:
        """Uninitialised storage for work that is enqueued on `stream` from now on.

        Raises:
            OutOfDeviceMemoryError: `nbytes` do not fit; nothing has changed.
        """
        room = (nbytes + GRANULE - 1) // GRANULE * GRANULE or GRANULE
        if not self._admit(room):
            raise OutOfDeviceMemoryError(
                f"{nbytes:,} bytes do not fit in {self!r}.\n"
                "Drop tensors that are no longer needed, or make the pool larger."
            )
        try:
            return Storage(self, self._pool.allocate(room, stream))
        except BaseException:
            self._admit(-room)
            raise

    def reuse(self, nbytes: int) -> Storage | None:
        """Uninitialised storage for work on any stream, if memory of that size is at hand."""
        room = (nbytes + GRANULE - 1) // GRANULE * GRANULE or GRANULE
        if self.max_bytes is not None and not self._admit(room):
            return None
        memory = self._pool.reuse(room)
        if memory is not None:
            return Storage(self, memory)
        self._admit(-room)
        return None

    def _admit(self, room: int) -> bool:
        """Count so many bytes as handed out, if the pool may have as many."""
        if self.max_bytes is not None:
            with self._lock:
                if self._out + room > self.max_bytes:
                    return False
                self._out += room
        return True

    def release(self, memory: protocols.Memory) -> None:
        """Take back what `allocate` gave; called by the storage's finaliser."""
        self._admit(-memory.nbytes)
        self._pool.free(memory)

    def stats(self) -> MemoryStats:
        """Bytes that are handed out and that are held, now and at most."""
        return self._pool.stats()

    def reset_high(self) -> None:
        """Lower both high-water marks to what is current."""
        self._pool.reset_high()

    def trim(self) -> None:
        """Give unused memory back to the system."""
        self._pool.trim()

    def __repr__(self) -> str:
        label = f"{self.device.kind}:{self.device.ordinal}"
        most = "" if self.max_bytes is None else f" of {self.max_bytes:,}"
        return f"<MemoryPool {label}, {self._pool.used:,}{most} B in use>"


class Owner(Protocol):
    """Whose memory it is."""

    @property
    def device(self) -> protocols.Device: ...
    @property
    def fast_path_device(self) -> protocols.Device | None: ...
    def release(self, memory: Any) -> None: ...


class BorrowedOwner:
    """The owner of memory of other libraries: it is theirs again when nothing here holds it."""

    def __init__(self, device: protocols.Device) -> None:
        self.device = device
        self.fast_path_device: protocols.Device | None = device

    def release(self, memory: object) -> None:
        """Nothing: the memory itself holds what keeps it, and goes with its storage."""


class HostMapped(BorrowedOwner):
    """The owner of memory of the host that kernels reach. It is never plain: what copies it to the
    host at once would wait for the device. No tensor of it is given to a program.
    """

    def __init__(self, device: protocols.Device) -> None:
        super().__init__(device)
        self.fast_path_device = None


class AttachedGraph(Protocol):
    """Whose record of use stays on a storage from launch to launch: a graph's.

    Attributes:
        dirty: the storages whose record others have changed since.
    """

    stale: dict[Storage, None]


class Storage:
    """One allocation, and the submissions that last wrote and read it.

    Attributes:
        writer: the last submission that writes it; see `access`.
        readers: the latest submission of each stream that reads it.
        holders: how many tensors hold it.
        links: the storages that overlap this one, which happens to memory of other libraries only;
            None if there are none.
        identity: if it differs between two storages, they do not overlap.
        attached_graphs: the graphs that use it; None if none does.
        fast_path_device: the owner's device; None of a storage that has links, or that graphs use.
            What a launch asks of most storages is this one question.
    """

    __slots__ = (
        "__weakref__",
        "attached_graphs",
        "fast_path_device",
        "holders",
        "identity",
        "links",
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
        self.identity = id(self)
        self.fast_path_device = pool.fast_path_device

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def forget_readers(self) -> dict[Any, Any]:
        """Let those go that are done, each of whom keeps its stream; the readers that are left."""
        self.readers = {s: r for s, r in self.readers.items() if not r.done}
        return self.readers

    def add_overlap(self, other: Storage) -> None:
        """They overlap: who uses one uses the other."""
        for one, two in ((self, other), (other, self)):
            # A new tuple: another thread may be at the old one.
            alive = (ref for ref in one.links or () if ref() is not None)
            one.links = (*alive, weakref.ref(two))
            one.identity = 0
            one.fast_path_device = None
            one.invalidate_graphs()

    def overlapping(self) -> Iterator[Storage]:
        """The live storages that overlap it."""
        for ref in self.links or ():
            found = ref()
            if found is not None:
                yield found

    def attach_graph(self, standing: AttachedGraph) -> None:
        """A graph uses it, and is told when others do, as long as it is alive."""
        alive = (ref for ref in self.attached_graphs or () if ref() is not None)
        self.attached_graphs = (*alive, weakref.ref(standing))
        self.fast_path_device = None

    def invalidate_graphs(self) -> None:
        """Somebody uses it, or what overlaps it. Forgets graphs that have gone."""
        alive = False
        for ref in self.attached_graphs or ():
            found = ref()
            if found is not None:
                found.stale[self] = None
                alive = True
        if not alive:
            self.attached_graphs = None
            self.fast_path_device = None if self.links is not None else self.pool.fast_path_device

    def overlaps(self, other: Storage) -> bool:
        """Whether they have memory in common."""
        return self is other or other in self.overlapping()

    def __del__(self) -> None:
        # Absent if the constructor failed. The pool's `free` never raises.
        memory = getattr(self, "memory", None)
        if memory is not None:
            self.pool.release(memory)

    def __repr__(self) -> str:
        return f"<Storage {self.nbytes:,} B at {self.memory.address:#x}>"
