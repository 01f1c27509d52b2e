"""A call of an operation: who calls it, in which line, and meetings of warps and warpgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numbasync.backend.cpu.interpreter.block_state import current
from numbasync.backend.cpu.interpreter.places import place_of_call, text_of
from numbasync.backend.cpu.interpreter.scheduler import Wait
from numbasync.backend.cpu.interpreter.tensor_cores.block import TensorCoreBlock
from numbasync.errors import KernelError

WARP, WARPGROUP = 32, 128
Combine = Callable[[list[int], list[Any]], Sequence[Any]]


class Call:
    """A call that the running thread makes; created by the function that the kernel calls.

    Attributes:
        block: what the block's tiles and barriers are.
        number: of the thread in its block.
    """

    __slots__ = ("block", "name", "number", "place")

    def __init__(self, name: str) -> None:
        block = current().tensor_cores
        assert block is not None  # the engine makes one for a kernel with such operations
        self.block: TensorCoreBlock = block
        self.name = name
        self.number = block.threads.current.number
        self.place = place_of_call(3)

    def __str__(self) -> str:
        return text_of(self.name, self.place)

    @property
    def warp(self) -> int:
        return self.number // WARP

    def wait(self, detail: Callable[[], str] | None = None) -> Wait:
        return Wait(f"tensor_cores.{self.name}", self.place, detail)

    def with_warp(self, value: Any, combine: Combine) -> Any:
        """What `combine` gives to the thread, when all lanes of its warp have come."""
        return self._together(WARP, "warp", value, combine)

    def with_warpgroup(self, value: Any, combine: Combine) -> Any:
        """What `combine` gives to the thread, when all threads of its warpgroup have come."""
        return self._together(WARPGROUP, "warpgroup", value, combine)

    def _together(self, count: int, name: str, value: Any, combine: Combine) -> Any:
        threads = self.block.threads
        first = self.number // count * count
        if len(threads.all) < first + count:
            raise KernelError(
                f"{self}: the {name} of thread {self.number} has "
                f"{len(threads.all) - first} threads, not {count}. Launch whole {name}s."
            )
        return threads.meet((self.place, count, first), count, self.wait(), value, combine)
