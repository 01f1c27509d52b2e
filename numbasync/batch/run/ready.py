"""Plans on a device on which everything is compiled: a batch is enqueued by one call, without
steps.

The parts that do not depend on arrays are computed when a plan has been run for the first time: the
arguments of each kernel, and the specs of new tensors. All memory of a batch except the tensors
that it uses in place is new, so that no other submission accesses it and no order is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numbasync.backend.protocols import Work
from numbasync.batch.codegen.writer import KernelText, argument_value
from numbasync.batch.run.fast_path import COUNTER, FastPath, FlatArray, New, Parts, Scratch
from numbasync.batch.run.plan import Prepared, partial_key
from numbasync.device.device import Device
from numbasync.extending import contiguous
from numbasync.memo import Memo

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun

# per plan; the memo restarts when a program that keeps reading other results exceeds it
MOST_PATHS = 64


class Ready:
    """A plan on one device."""

    @staticmethod
    def of(prepared: Prepared, device: Device, works: Sequence[Work | None]) -> Ready | None:
        """The plan, given the work launched for each kernel; None if some kernel launches nothing,
        or an array has no elements.
        """
        nodes = (prepared.nodes[n] for n in (*prepared.inputs, *prepared.outputs))
        all_work = [work for work in works if work is not None]
        if not works or len(all_work) < len(works) or any(node.size == 0 for node in nodes):
            return None
        return Ready(prepared, device, all_work)

    def __init__(self, prepared: Prepared, device: Device, works: Sequence[Work]) -> None:
        self._device = device
        self._paths = Memo[Any, FastPath](MOST_PATHS)
        nodes, texts, offsets = prepared.nodes, prepared.texts, prepared.arena.offsets

        def new(n: int) -> New:
            dtype = nodes[n].dtype
            kind = contiguous(nodes[n].shape, dtype.type)
            return New(n, f"h{n}", kind, FlatArray.of(nodes[n].size, dtype))

        # Buffers between kernels, and partial results of one kernel.
        between = {
            f"h{n}": FlatArray.of(nodes[n].size, nodes[n].dtype, start)
            for n, start in offsets.items()
            if n >= 0
        }
        for group, text in enumerate(texts):
            for k, part in enumerate(text.partials):
                offset = offsets[partial_key(group, k)]
                between[_partial(group, k)] = FlatArray.of(part.extent, part.dtype, offset)
        scratch: list[Scratch] = []
        if between:
            scratch.append(Scratch(between, prepared.arena.nbytes))
        if prepared.counters > 0:
            counters = FlatArray.of(prepared.counters, COUNTER)
            scratch.append(Scratch({"counters": counters}, prepared.counters * COUNTER.itemsize))
        constants = {a.value for text in texts for a in text.arguments if a.role == "constant"}
        self._parts = Parts(
            inputs=[new(n) for n in prepared.inputs],
            outputs=[new(n) for n in prepared.outputs],
            scratch=scratch,
            # Converting a number that already has its type takes a microsecond.
            constants=[
                (n, f"v{n}", type(argument_value(0, nodes[n].dtype))) for n in sorted(constants)
            ],
            counters="counters" if prepared.counters > 0 else "",
            names=tuple(text.name for text in texts),
            launches=[
                (work, _arguments(text, group))
                for group, (text, work) in enumerate(zip(texts, works, strict=True))
            ],
            small=prepared.is_small,
        )

    def path(self, batch: BatchRun, reads: tuple[int, ...]) -> FastPath:
        """How such a batch is enqueued.

        Args:
            reads: results that are copied back, too.
        """
        key = tuple(batch.tensors), reads
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = FastPath(self._device, self._parts, key[0], reads)
        return path


def _partial(group: int, number: int) -> str:
    return f"p{group}_{number}"


def _arguments(text: KernelText, group: int) -> list[Any]:
    """A kernel's arguments: the names that fast paths use, and numbers."""
    arguments: list[Any] = []
    for role, value in text.arguments:
        if role in ("read", "write"):
            arguments.append(f"h{value}")
        elif role == "constant":
            arguments.append(f"v{value}")
        elif role == "partial":
            arguments.append(_partial(group, value))
        else:
            arguments.append("counters" if role == "counter" else value)
    return arguments
