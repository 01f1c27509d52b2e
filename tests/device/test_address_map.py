"""The address map beside a search through all storages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from numbasync.device import address_map
from numbasync.device.storage import Storage

START = 2**50  # where no memory is


@dataclass(frozen=True)
class Memory:
    address: int
    nbytes: int

    def overlaps(self, other: Memory) -> bool:
        return max(self.address, other.address) < min(
            self.address + self.nbytes, other.address + other.nbytes
        )


class Owner:
    """The owner of our own memory."""

    def __init__(self, device: Any) -> None:
        self.device = self.fast_path_device = device

    def release(self, memory: Any) -> None: ...


class Device:
    """Two devices may have memory at the same addresses."""


@pytest.mark.parametrize("seed", range(8))
def test_storages_are_found_and_linked_by_their_addresses(seed: int) -> None:
    draw = random.Random(seed)
    devices: list[Any] = [Device(), Device()]
    # Seeds apart, since entries of others may be alive.
    start = START + seed * 10_000
    alive: dict[tuple[Any, Memory], Storage] = {}
    own: dict[tuple[Any, Memory], Storage] = {}

    def add(memory: Memory, where: Any) -> None:
        """Look the memory up; a function, which keeps nothing."""
        storage = address_map.storage_of(where, memory)  # type: ignore[arg-type]
        containing = [
            s for (d, m), s in own.items() if d is where and m.address <= memory.address
            and memory.address + memory.nbytes <= m.address + m.nbytes
        ]  # fmt: skip
        if (where, memory) in alive:
            assert storage is alive[where, memory]
        elif containing:
            assert storage is containing[0]
        else:
            expected = {s for (_, m), s in [*alive.items(), *own.items()] if m.overlaps(memory)}
            assert set(storage.overlapping()) == expected
            assert all(storage in set(other.overlapping()) for other in expected)
            alive[where, memory] = storage

    for step in range(600):
        where = draw.choice(devices) if seed % 2 else devices[0]
        memory = Memory(start + draw.randrange(200), draw.choice([1, 2, 5, 20, 60]))
        if step % 40 < 39:
            add(memory, where)
        elif not any(memory.overlaps(m) for _, m in [*alive, *own]):
            own[where, memory] = Storage(Owner(where), memory)  # type: ignore[arg-type]
            address_map.note(own[where, memory])
        for key in draw.sample(list(alive), draw.randrange(min(4, len(alive) + 1))):
            del alive[key]
        if draw.random() < 0.02:
            own.clear()


def test_dead_entries_are_removed() -> None:
    where: Any = Device()
    for i in range(5000):
        address_map.storage_of(where, Memory(START + 16 * i, 16))  # type: ignore[arg-type]
    assert len(address_map._entries) < 2500
    groups = address_map._groups
    assert [g.low for g in groups] == sorted(g.low for g in groups)
    assert all(a.high <= b.low for a, b in pairwise(groups))
