"""Errors from the record that a compiled kernel leaves when it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numbasync import vectors
from numbasync.backend.cpu.compiler.program import Program, Site
from numbasync.backend.cpu.library import entry_points
from numbasync.backend.cpu.races import rules
from numbasync.backend.cpu.races.shadow_memory import ShadowMemory
from numbasync.errors import (
    BarrierDivergenceError,
    DataRaceError,
    IndexOverflowError,
    InputModifiedError,
    KernelError,
    MisalignedAccessError,
    OutOfBoundsError,
    TileOverrunError,
    UninitialisedReadError,
)

NO_SITE = -1  # somewhere in the kernel

_Place = tuple[int, ...]


def error_of(
    program: Program, record: Sequence[int], error: Exception, shadow: ShadowMemory | None = None
) -> Exception:
    """The error to raise.

    Args:
        record: see `entry_points.FIELDS`.
        error: the exception that Numba raised.
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
    if outcome == entry_points.DIVERGED:
        return BarrierDivergenceError(
            f"kernel {program.name}, block {_tuple(place[:3])}: {index} of {extent} threads wait "
            f"at {site.what}, line {site.line}, but thread {_tuple(place[3:])} has returned or "
            "gone another way.\n"
            "Guard the work between barriers, not the barriers: if i < n: ...; then "
            f"{site.what}() outside the if."
        )
    if outcome == entry_points.RAISED:
        return KernelError(f"{where}{type(error).__name__}: {error}{source_line}")
    if outcome == entry_points.OUT_OF_RANGE:
        return OutOfBoundsError(
            f"{where}IndexError: index {index} is out of bounds for axis {axis} of {site.what}, "
            f"which has {extent}{source_line}"
        )
    if outcome == entry_points.MISALIGNED:
        text = vectors.misaligned(site.what, index, extent, source_line)
        return MisalignedAccessError(f"{where}{text}")
    if outcome == entry_points.RACE and shadow is not None:
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


_FOUND: dict[int, Callable[[str, Site, str, int], Exception]] = {
    entry_points.UNWRITTEN: _unwritten,
    entry_points.INPUT_WRITTEN: _input_written,
    entry_points.OUTSIDE_TILE: _outside_tile,
    entry_points.OVERFLOWN: _overflown,
}


def _race(
    program: Program,
    where: str,
    site: Site,
    mode: int,
    place: _Place | list[int],
    shadow: ShadowMemory,
) -> Exception:
    other = program.sites[int(shadow.state[rules.OTHER_SITE])]
    wrote = bool(shadow.state[rules.OTHER_WROTE])
    other_place = shadow.place(int(shadow.state[rules.OTHER]))
    does = {rules.READ: "reads", rules.ATOMIC: "atomically updates"}.get(mode, "writes")
    same_block = list(place[:3]) == list(other_place[:3])
    remedy = (
        "Synchronise the threads in between, cuda.syncthreads(); or use cuda.atomic."
        if same_block
        else "Blocks run in any order, or at the same time: use cuda.atomic, or two launches."
    )
    return DataRaceError(
        f"{where}{does} an element of {site.what} ({site.file}:{site.line})\n"
        f"that {_said(other_place)} {'writes' if wrote else 'reads'} as {other.what} "
        f"({other.file}:{other.line}), and nothing says which comes first.\n{remedy}"
    )


def _said(place: Sequence[int]) -> str:
    return f"block {_tuple(place[:3])}, thread {_tuple(place[3:])}"


def _tuple(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))})"
