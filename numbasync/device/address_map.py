"""The address map: which live storage, known to more than one library, lies at which addresses.

The same memory must have one access record, however often and through whichever library it
arrives. So every imported array is looked up here by its addresses, among the memory of other
libraries and the tensors that were exported to them. The driver's allocations would be no key:
other libraries cut their allocations up into unrelated arrays.
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
# Reentrant: a finaliser of another library's array may call this module again.
_lock = threading.RLock()


def _key(device: protocols.Device, memory: protocols.Memory) -> tuple[protocols.Device, int, int]:
    return device, memory.address, memory.address + memory.nbytes


def note(storage: Storage) -> None:
    """Register `storage`, which is exported to another library and may be imported again."""
    with _lock:
        _live.setdefault(_key(storage.pool.device, storage.memory), storage)


def storage_of(device: protocols.Device, memory: protocols.Memory) -> Storage:
    """The storage for memory that comes from another library.

    The result is the storage of a numbasync tensor that contains the memory, or the storage of the
    same memory imported before; else a new storage, linked with all storages that it overlaps. The
    new storage has its own record: two halves of an array do not conflict with each other, whether
    or not the whole array is in use as well.
    """
    if memory.nbytes == 0:
        return Storage(BorrowedOwner(device), memory)
    key = _, low, high = _key(device, memory)
    with _lock:
        known = _live.get(key)
        if known is not None:
            return known
        overlapping = []
        for ref in _live.valuerefs():
            owner, first, end = ref.key
            if first >= high or low >= end:
                continue
            other = ref()
            if other is None:
                continue
            if owner is device and first <= low and high <= end and _is_own(other):
                return other
            overlapping.append(other)
        storage = Storage(BorrowedOwner(device), memory)
        for other in overlapping:
            storage.add_overlap(other)
        _live[key] = storage
        return storage


def _is_own(storage: Storage) -> bool:
    return not isinstance(storage.pool, BorrowedOwner)
