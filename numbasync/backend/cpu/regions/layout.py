"""Where everything lies in a block's memory: the record, shared arrays, places of threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from numbasync.backend.cpu.record import RECORD_BYTES
from numbasync.backend.cpu.regions.cut import CutKernel
from numbasync.backend.cpu.regions.keep import Kept
from numbasync.backend.cpu.regions.llvm_types import elements_of, round_up, size_and_alignment
from numbasync.backend.cpu.regions.prepare import Place


def in_memory(kind: str) -> str:
    """The type that a value has in memory."""
    return "i8" if kind == "i1" else kind


@dataclass(slots=True)
class Layout:
    """A block's memory: the record, static shared arrays, dynamic shared memory, then the rest.

    Attributes:
        shared: name, offset and bytes of each static shared array.
        fixed: name and offset, behind dynamic shared memory, of what the block has once.
        threads: name and bytes before it, for each thread of the block, of what a thread has.
        renamed: names of exchanges that lie at the same place, as a name of `threads`.
        present_bytes: of `na.present`, which is zero when a block begins.
    """

    shared: list[tuple[str, int, int]] = field(default_factory=list)
    dynamic_offset: int = RECORD_BYTES
    fixed: list[tuple[str, int]] = field(default_factory=list)
    fixed_bytes: int = 0
    threads: list[tuple[str, int]] = field(default_factory=list)
    thread_bytes: int = 0
    renamed: dict[str, str] = field(default_factory=dict)
    present_bytes: int = 0

    def names(self) -> list[str]:
        """Of all addresses that the code is given."""
        return [
            *(name for name, _, _ in self.shared),
            "%na.dynamic",
            *(name for name, _ in self.fixed),
            *(name for name, _ in self.threads),
        ]


def lay_out(
    kernel: CutKernel,
    kept: Kept,
    places: dict[str, Place],
    of_threads: dict[str, str],
    saved: dict[str, str],
) -> Layout:
    """Lay out a block's memory.

    Args:
        of_threads: type by name of what each thread has besides kept values and local arrays.
        saved: type by name of what a block that meets others keeps while it waits, and of what a
            worker has for itself.
    """
    layout = Layout()
    for name, place in sorted(places.items()):
        if name.startswith("shared."):
            size, alignment = size_and_alignment(place.type)
            layout.dynamic_offset = round_up(
                layout.dynamic_offset, max(alignment, place.alignment, 16)
            )
            layout.shared.append((f"%na.{name}", layout.dynamic_offset, size))
            layout.dynamic_offset += size
    layout.dynamic_offset = round_up(layout.dynamic_offset, 64)
    if "present" in kernel.memory:
        layout.fixed.append(("%na.present", 0))
        layout.present_bytes = size_and_alignment(places["present"].type)[0]
        layout.fixed_bytes = round_up(layout.present_bytes, 64)
    for name, kind in saved.items():
        layout.fixed.append((name, layout.fixed_bytes))
        layout.fixed_bytes += round_up(size_and_alignment(in_memory(kind))[0], 64)
    layout.fixed_bytes = round_up(layout.fixed_bytes, 64)
    wanted: list[tuple[str, int]] = [
        (name, size_and_alignment(in_memory(kind))[0])
        for name, kind in [
            *((f"%na.slot.{v[1:]}", kind) for v, kind in sorted(kept.per_thread.items())),
            *((f"%na.local.{v[1:]}", kind) for v, (kind, _) in sorted(kernel.local_arrays.items())),
            *of_threads.items(),
        ]
    ]
    sizes = set()
    for name in sorted(kernel.memory):
        if name.startswith("exchange."):
            one = str(elements_of(places[name].type)[1])
            size = size_and_alignment(one)[0]
            layout.renamed[f"%na.{name}"] = f"%na.exchange_of_{size}"
            sizes.add(size)
    wanted += [(f"%na.exchange_of_{size}", size) for size in sorted(sizes)]
    # A multiple of 64 threads lies before each: all are aligned to 64 bytes.
    for name, size in wanted:
        layout.threads.append((name, layout.thread_bytes))
        layout.thread_bytes += size
    return layout
