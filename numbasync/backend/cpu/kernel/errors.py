"""Errors, with their texts, from the record that a compiled kernel leaves when it stops.

What an access is called in the source, such as the array of an index, comes with its site, which
`target/source_text.py` has named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numbasync import vectors
from numbasync.backend.cpu.kernel.artifact import Artifact
from numbasync.backend.cpu.races import words
from numbasync.backend.cpu.races.shadow_memory import ShadowMemory
from numbasync.backend.cpu.record import (
    DIVERGED,
    INPUT_WRITTEN,
    LANES_MISSING,
    MISALIGNED,
    NO_SITE,
    OUT_OF_RANGE,
    OUTSIDE_TILE,
    OVERFLOWN,
    RACE,
    RAISED,
    UNWRITTEN,
    WAITS_FOR_EVER,
    Site,
)
from numbasync.errors import (
    BarrierDivergenceError,
    DataRaceError,
    EndlessWaitError,
    IndexOverflowError,
    InputModifiedError,
    KernelError,
    MisalignedAccessError,
    OutOfBoundsError,
    TileOverrunError,
    UninitialisedReadError,
)

_Place = tuple[int, ...]


def error_of(
    program: Artifact,
    record: Sequence[int],
    error: BaseException,
    shadow: ShadowMemory | None = None,
) -> Exception:
    """The error to raise.

    Args:
        record: see `record.FIELDS`.
        error: the exception that Numba, or the kernel, raised.
        shadow: the shadow memory of a checked launch.
    """
    outcome, number, axis, index, extent, *place = record
    if outcome == 0:
        return KernelError(f"kernel {program.name}: {type(error).__name__}: {error}")
    where = f"kernel {program.name}, {_said(place)}: "
    if number == NO_SITE:
        return KernelError(f"{where}{type(error).__name__}: {error}")
    site = program.sites[number]
    source_line = f" ({site.file}:{site.line})"
    if outcome == DIVERGED:
        return BarrierDivergenceError(
            f"kernel {program.name}, block {_tuple(place[:3])}: {index} of {extent} threads wait "
            f"at {site.what}, line {site.line}, but thread {_tuple(place[3:])} has returned or "
            "gone another way.\n"
            "Guard the work between barriers, not the barriers: if i < n: ...; then "
            f"{site.what}() outside the if."
        )
    if outcome == RAISED:
        return KernelError(f"{where}{type(error).__name__}: {error}{source_line}")
    if outcome == OUT_OF_RANGE:
        return OutOfBoundsError(
            f"{where}IndexError: index {index} is out of bounds for axis {axis} of {site.what}, "
            f"which has {extent}{source_line}"
        )
    if outcome == LANES_MISSING:
        return BarrierDivergenceError(
            f"{where}{index} of the warp's {extent} threads have come to {site.what}{source_line}\n"
            f"All of them must: give those without work a value that changes nothing."
        )
    if outcome == MISALIGNED:
        text = vectors.misaligned(site.what, index, extent, source_line)
        return MisalignedAccessError(f"{where}{text}")
    if outcome == RACE and shadow is not None:
        return _race(program, where, site, index, place, shadow)
    return _FOUND[outcome](where, site, source_line, index)


def _unwritten(where: str, site: Site, source_line: str, index: int) -> Exception:
    memory, others = ("shared", " of its block") if index else ("local", "")
    return UninitialisedReadError(
        f"{where}reads an element of {site.what} that no thread{others} has written{source_line}\n"
        f"A GPU gives what was left in its {memory} memory. Write it first"
        + (", and synchronise the threads: cuda.syncthreads()." if index else ".")
    )


def _input_written(where: str, site: Site, source_line: str, index: int) -> Exception:
    return InputModifiedError(
        f"{where}writes {site.what}, whose memory is of a na.KernelInput{source_line}\n"
        "What is only read may be read elsewhere at the same time. Declare it na.KernelOutput."
    )


def _outside_tile(where: str, site: Site, source_line: str, index: int) -> Exception:
    return TileOverrunError(
        f"{where}writes an element of {site.what} that is not in its block's tile{source_line}\n"
        "Each block may write its tile of a partition. Compare the grid, the threads and the "
        "tile; or pass the tensor without .partition(...)."
    )


def _overflown(where: str, site: Site, source_line: str, index: int) -> Exception:
    return IndexOverflowError(
        f"{where}{site.what} of {index}, for an index, does not fit into 32 bits{source_line}\n"
        "Numba counts indices in 64 bits: leave the conversion out, or use np.int64."
    )


def _waits_for_ever(where: str, site: Site, source_line: str, index: int) -> Exception:
    return EndlessWaitError(
        f"{where}has found {words.MOST_TURNS:,} times in a row, and done nothing else, an element "
        f"of {site.what} as it is{source_line}\n"
        "On the CPU device threads between two barriers, and blocks, run one after the other, so "
        "nobody will change it. Let threads and blocks wait only for earlier ones, as a number "
        "that cuda.atomic.add gives says; or check the kernel on a GPU."
    )


_FOUND: dict[int, Callable[[str, Site, str, int], Exception]] = {
    UNWRITTEN: _unwritten,
    INPUT_WRITTEN: _input_written,
    OUTSIDE_TILE: _outside_tile,
    OVERFLOWN: _overflown,
    WAITS_FOR_EVER: _waits_for_ever,
}


def _race(
    program: Artifact,
    where: str,
    site: Site,
    mode: int,
    place: _Place | list[int],
    shadow: ShadowMemory,
) -> Exception:
    other = program.sites[int(shadow.state[words.OTHER_SITE])]
    did = int(shadow.state[words.OTHER_DID])
    other_place = shadow.place(int(shadow.state[words.OTHER]))
    same_block = list(place[:3]) == list(other_place[:3])
    remedy = (
        "Synchronise the threads in between, cuda.syncthreads(); or use cuda.atomic."
        if same_block
        else "Blocks run in any order, or at the same time: use cuda.atomic, or two launches."
    )
    if program.has_atomics and words.ATOMIC not in (mode, did):
        fence = "cuda.threadfence_block()" if same_block else "cuda.threadfence()"
        remedy += (
            "\nAtomic operations order other accesses by fences alone: the one thread passes "
            f"{fence} and then changes an element atomically; the other sees that by an atomic "
            f"operation on the same element, and then passes {fence}."
        )
    return DataRaceError(
        f"{where}{_does(mode)} an element of {site.what} ({site.file}:{site.line})\n"
        f"that {_said(other_place)} {_does(did)} as {other.what} "
        f"({other.file}:{other.line}), and nothing says which comes first.\n{remedy}"
    )


def _does(mode: int) -> str:
    atomics = (words.ATOMIC, words.ATTEMPT)
    return "reads" if mode == words.READ else "atomically updates" if mode in atomics else "writes"


def _said(place: Sequence[int]) -> str:
    return f"block {_tuple(place[:3])}, thread {_tuple(place[3:])}"


def _tuple(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))})"
