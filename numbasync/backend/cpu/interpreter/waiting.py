"""Functions of `numba.cuda` at which threads wait for one another, in kernels that run as Python:
barriers of a block, and exchanges of the lanes of a warp. Lanes that the mask names meet at the
same place; what a lane gets from one that has not come is its own value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from numbasync.backend.cpu.interpreter.block_state import current
from numbasync.backend.cpu.interpreter.places import place_of_call
from numbasync.backend.cpu.interpreter.scheduler import Threads, Wait
from numbasync.errors import KernelError, UnsupportedKernelError

# What each thread gets, from the numbers of those that meet, in order, and what they bring.
Combine: TypeAlias = Callable[[list[int], list[Any]], Sequence[Any]]

WARP = 32
ALL = 0xFFFFFFFF
# Calls at which the threads of a block wait for each other.
BARRIERS = frozenset({"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or"})
FUNCTIONS = BARRIERS | frozenset({
    "syncwarp", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync",
    "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync",
})  # fmt: skip


def threads_that_wait(name: str) -> Threads:
    """The threads of the block, for the stand-in of a function of `numba.cuda`."""
    threads = current().threads
    if threads is None:
        raise UnsupportedKernelError(
            f"cuda.{name} has another name in this kernel. Write cuda.{name}(...)."
        )
    return threads


def meet(
    call: Wait, members: Hashable, need: int, value: Any, combine: Combine, orders: bool = True
) -> Any:
    """What `combine` gives to the thread, of what `need` threads bring to a call.

    Args:
        members: which threads, where several groups meet at one call.
        orders: what they have done to tiles before is done for all of them.
    """
    state = current()
    threads = state.threads
    assert threads is not None  # the kernel has a call at which threads wait

    def of_threads(numbers: list[int], values: list[Any]) -> Sequence[Any]:
        if orders and state.tensor_cores is not None:
            state.tensor_cores.order.join(numbers)
        return combine(numbers, values)

    return threads.meet((call.place, call.what, members), need, call, value, of_threads)


# --- blocks ---


def barrier(name: str) -> Callable[..., Any]:
    """The stand-in for a barrier of `numba.cuda`."""

    def combine(numbers: list[int], values: list[Any]) -> Sequence[Any]:
        return [_combined(name, values)] * len(values)

    def wait(predicate: Any = None) -> Any:
        call = Wait(f"cuda.{name}", place_of_call(), is_block=True)
        return meet(call, None, len(threads_that_wait(name).all), predicate, combine)

    return wait


def _combined(name: str, values: list[Any]) -> Any:
    """What a barrier gives to every thread, from what each thread has passed to it."""
    if name == "syncthreads_count":
        return sum(1 for value in values if value)
    return int(all(values) if name == "syncthreads_and" else any(values))


# --- warps ---


def _exchange(name: str, mask: Any, value: Any, combine: Combine) -> Any:
    """What `combine` gives to the thread, from the lanes that meet and what they bring."""
    threads = threads_that_wait(name)
    warp, lane = divmod(threads.current.number, WARP)
    named = int(mask) & ALL & ((1 << min(len(threads.all) - WARP * warp, WARP)) - 1)
    if not named >> lane & 1:
        raise KernelError(f"cuda.{name} of lane {lane} with a mask without it: {int(mask):#x}.")

    def of_lanes(numbers: list[int], values: list[Any]) -> Sequence[Any]:
        return combine([number % WARP for number in numbers], values)

    call = Wait(f"cuda.{name}", place_of_call(3))
    return meet(call, (warp, named), named.bit_count(), value, of_lanes, name == "syncwarp")


def _nothing(lanes: list[int], values: list[Any]) -> Sequence[Any]:
    return values


def syncwarp(mask: Any = ALL) -> None:
    _exchange("syncwarp", mask, None, _nothing)


def activemask() -> int:
    """All lanes of the warp: where they are at the moment is not known."""
    state = current()
    threads = state.threads
    count = len(threads.all) if threads is not None else WARP
    wide, high, _ = state.block_extent
    x, y, z = state.thread
    first = (x + wide * (y + high * z)) // WARP * WARP
    return (1 << min(count - first, WARP)) - 1


def _shuffle(name: str, source: Callable[[int, int], int]) -> Callable[..., Any]:
    """
    Args:
        source: the lane whose value a lane gets, from its own and the function's argument.
    """

    def values_of(lanes: list[int], given: list[Any]) -> Sequence[Any]:
        values = {lane: value for lane, (value, _) in zip(lanes, given, strict=True)}
        return [
            values.get(source(lane, int(argument)), values[lane])
            for lane, (_, argument) in zip(lanes, given, strict=True)
        ]

    def shuffle(mask: Any, value: Any, argument: Any) -> Any:
        return _exchange(name, mask, (value, argument), values_of)

    return shuffle


shfl = _shuffle("shfl_sync", lambda lane, source: source % WARP)
shfl_up = _shuffle("shfl_up_sync", lambda lane, distance: lane - distance)
shfl_down = _shuffle("shfl_down_sync", lambda lane, distance: lane + distance)
shfl_xor = _shuffle("shfl_xor_sync", lambda lane, mask: lane ^ mask)


def _bits(lanes: list[int], values: list[Any]) -> int:
    return sum(1 << lane for lane, value in zip(lanes, values, strict=True) if value)


def all_(mask: Any, predicate: Any) -> Any:
    return _exchange("all_sync", mask, predicate, lambda lanes, values: [all(values)] * len(lanes))


def any_(mask: Any, predicate: Any) -> Any:
    return _exchange("any_sync", mask, predicate, lambda lanes, values: [any(values)] * len(lanes))


def eq(mask: Any, predicate: Any) -> Any:
    return _exchange(
        "eq_sync", mask, predicate,
        lambda lanes, values: [len(set(map(bool, values))) == 1] * len(lanes),
    )  # fmt: skip


def ballot(mask: Any, predicate: Any) -> Any:
    return _exchange(
        "ballot_sync", mask, predicate,
        lambda lanes, values: [_bits(lanes, values)] * len(lanes),
    )  # fmt: skip


def match_any(mask: Any, value: Any) -> Any:
    return _exchange(
        "match_any_sync", mask, value,
        lambda lanes, values: [_bits(lanes, [v == own for v in values]) for own in values],
    )  # fmt: skip


def match_all(mask: Any, value: Any) -> Any:
    def combine(lanes: list[int], values: list[Any]) -> Sequence[Any]:
        are_equal = all(v == values[0] for v in values)
        return [(_bits(lanes, [are_equal] * len(lanes)), are_equal)] * len(lanes)

    return _exchange("match_all_sync", mask, value, combine)
