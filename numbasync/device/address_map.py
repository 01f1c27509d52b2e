"""The address map: which live storage, known to more than one library, lies at which addresses.

The same memory must have one access record, however often and through whichever library it
arrives. So every imported array is looked up here by its addresses, among the memory of other
libraries and the tensors that were exported to them. The driver's allocations would be no key:
other libraries cut their allocations up into unrelated arrays.

Entries that may overlap are in one group, so that a new array is compared with those alone. Nothing
runs when a storage ends: its entry is used again by the next array at the same addresses, and else
removed when its group is looked at, or when half of the entries are dead. The core looks up
entries, and uses a dead one again, without the lock, if nobody holds it.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from numbasync.backend import protocols
from numbasync.device.storage import BorrowedOwner, Storage
from numbasync.native import known, new_lock

FEW = 64
Key = tuple[protocols.Device, int, int]


@known
class Entry:
    """A storage at some addresses.

    Attributes:
        key: its device, first address and end.
        ref: a weak reference to the storage.
        is_alone: it is in the map, and no other entry is in its group.
    """

    __slots__ = ("is_alone", "key", "ref")

    def __init__(self, key: Key, storage: Storage) -> None:
        self.key = key
        self.ref = weakref.ref(storage)
        self.is_alone = True


class _Group:
    """Entries of a range of addresses, each of which overlaps others of them."""

    def __init__(self, entry: Entry) -> None:
        self.entries = [entry]
        _, self.low, self.high = entry.key


# Addresses are unique in a process, on the host and all GPUs together; but several virtual
# devices may use the same host memory.
_entries: dict[Key, Entry] = {}
_groups: list[_Group] = []  # by address; they do not overlap
_most = FEW  # entries at which dead ones are removed
# Entries ever added. While it stays, memory that has no entry gets none: what uses a dead entry
# again has the addresses of that.
additions = 0
# Reentrant: a finaliser of another library's array may call this module again.
_lock = new_lock()


def _key(device: protocols.Device, memory: protocols.Memory) -> Key:
    return device, memory.address, memory.address + memory.nbytes


def note(storage: Storage) -> None:
    """Register `storage`, which is exported to another library and may be imported again."""
    with _lock:
        key = _key(storage.pool.device, storage.memory)
        entry = _entries.get(key)
        if entry is None or entry.ref() is None:
            _add(Entry(key, storage))


def is_shared(low: int, high: int) -> bool:
    """Whether a live storage that another library knows has some of these addresses. If not, that
    holds until `additions` changes: dead entries there are removed.
    """
    with _lock:
        groups = _groups[slice(*_touched(low, high))]
        refs = [
            entry.ref
            for group in groups
            for entry in group.entries
            for _, first, end in (entry.key,)
            if first < high and low < end
        ]
        found = any(ref() is not None for ref in refs)
        if refs and not found:
            _regroup(low, high, None)
        return found


def storage_of(device: protocols.Device, memory: protocols.Memory) -> Storage:
    """The storage for memory that comes from another library.

    The result is the storage of a numbasync tensor that contains the memory, or the storage of the
    same memory imported before; else a new storage, linked with all storages that it overlaps. The
    new storage has its own record: two halves of an array do not conflict with each other, whether
    or not the whole array is in use as well.
    """
    if memory.nbytes == 0:
        return Storage(owner_of(device), memory)
    key = _, low, high = _key(device, memory)
    with _lock:
        entry = _entries.get(key)
        if entry is not None:
            storage = entry.ref()
            if storage is not None:
                return storage
            if entry.is_alone:
                storage = Storage(owner_of(device), memory)
                entry.ref = weakref.ref(storage)
                return storage
        overlapping = []
        for group in _groups[slice(*_touched(low, high))]:
            for known_entry in group.entries:
                owner, first, end = known_entry.key
                other = known_entry.ref()
                if other is None or first >= high or low >= end:
                    continue
                if owner is device and first <= low and high <= end and _is_own(other):
                    return other
                overlapping.append(other)
        storage = Storage(owner_of(device), memory)
        for other in overlapping:
            storage.add_overlap(other)
        _add(Entry(key, storage))
        return storage


def forget_overlaps(storage: Storage) -> None:
    """Forget the storages that overlapped this one if all were freed: its uses are its own then."""
    with _lock:
        if storage.links is not None and not any(storage.overlapping()):
            storage.links = None
            storage.identity = id(storage)
            if storage.attached_graphs is None:
                storage.fast_path_device = storage.pool.fast_path_device


def _is_own(storage: Storage) -> bool:
    return not isinstance(storage.pool, BorrowedOwner)


_owners: dict[protocols.Device, BorrowedOwner] = {}


def owner_of(device: protocols.Device) -> BorrowedOwner:
    """The owner of all memory of other libraries on a device."""
    owner = _owners.get(device)
    return _owners.setdefault(device, BorrowedOwner(device)) if owner is None else owner


# --- groups; the caller holds the lock -------------------------------------------------------


def _touched(low: int, high: int) -> tuple[int, int]:
    """The positions of the groups that have addresses of a range, as of a slice."""
    first = bisect_right(_groups, low, key=_first_address)
    if first and _groups[first - 1].high > low:
        first -= 1
    return first, max(first, bisect_left(_groups, high, key=_first_address))


def _first_address(group: _Group) -> int:
    return group.low


def _add(entry: Entry) -> None:
    """Add an entry, in the place of a dead one of the same key."""
    global _most, additions
    _, low, high = entry.key
    _regroup(low, high, entry)
    _entries[entry.key] = entry  # after its group: ^C between leaves an entry that is dead
    additions += 1
    if len(_entries) > _most:
        _regroup(0, 2**64, None)
        _most = 2 * len(_entries) + FEW


def _regroup(low: int, high: int, new: Entry | None) -> None:
    """Divide the living entries of a range of addresses, and a new one, into groups again."""
    while True:
        first, end = _touched(low, high)
        old = _groups[first:end]
        entries = _living(entry for group in old for entry in group.entries)
        groups = _divided(entries if new is None else [*entries, new])
        # A collection may have called this module meanwhile; between these two lines none can.
        if _groups[first:end] == old:
            _groups[first:end] = groups
            return


def _living(entries: Iterable[Entry]) -> list[Entry]:
    """Those whose storage is there; the others are removed."""
    alive = []
    for entry in entries:
        if entry.ref() is not None:
            alive.append(entry)
        else:
            entry.is_alone = False
            if _entries.get(entry.key) is entry:
                del _entries[entry.key]
    return alive


def _divided(entries: list[Entry]) -> list[_Group]:
    """Groups of entries, by address."""
    groups: list[_Group] = []
    for entry in sorted(entries, key=lambda e: e.key[1]):
        _, low, high = entry.key
        if groups and low < groups[-1].high:
            group = groups[-1]
            group.entries.append(entry)
            group.high = max(group.high, high)
        else:
            groups.append(_Group(entry))
    for group in groups:
        for entry in group.entries:
            entry.is_alone = len(group.entries) == 1
    return groups
