"""Memory that more than one library knows: which live storage lies where.

The same memory must have one record of its last use, however often and through whichever
library it comes. So what comes in is looked up here by its addresses: memory of other
libraries, and tensors that were handed to them. An allocation of the driver would say nothing:
other libraries cut theirs up into arrays that have nothing to do with each other.
"""

from __future__ import annotations

import threading
import weakref

from numbasync.backend import protocols
from numbasync.device.storage import BorrowedOwner, Storage

# Addresses are unique in a process, on the host and all GPUs together; but several virtual
# devices may use the same host memory.
_live: weakref.WeakValueDictionary[tuple[protocols.Device, int, int], Storage] = (
    weakref.WeakValueDictionary()
)
# Reentrant: a finaliser of another library's array may come back here.
_lock = threading.RLock()


def _key(device: protocols.Device, memory: protocols.Memory) -> tuple[protocols.Device, int, int]:
    return device, memory.address, memory.address + memory.nbytes


def note(storage: Storage) -> None:
    """`storage` is handed to another library, and may come back."""
    with _lock:
        _live.setdefault(_key(storage.pool.device, storage.memory), storage)


def storage_of(device: protocols.Device, memory: protocols.Memory) -> Storage:
    """The storage of memory that comes from another library.

    The one of a tensor of ours that contains it, or of the same memory that came before; else a
    new one, linked with those that it overlaps: two halves of an array have nothing to do with
    each other, whether or not the whole of it is in use as well.
    """
    if memory.nbytes == 0:
        return Storage(BorrowedOwner(device), memory)
    key = _, low, high = _key(device, memory)
    with _lock:
        found = _live.get(key)
        if found is not None:
            return found
        overlapping = []
        for ref in _live.valuerefs():
            owner, first, end = ref.key
            if first < high and low < end:
                other = ref()
                if other is None:
                    continue
                if owner is device and first <= low and high <= end and _is_own(other):
                    return other
                overlapping.append(other)
        made = Storage(BorrowedOwner(device), memory)
        for other in overlapping:
            made.add_overlap(other)
        _live[key] = made
        return made


def _is_own(storage: Storage) -> bool:
    return not isinstance(storage.pool, BorrowedOwner)
