"""What programs for `numba.cuda` have launched in this process: kernels, launches, compilations."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import FunctionType
from typing import NamedTuple

SLOWEST = 5


class Row(NamedTuple):
    """What is told of a kernel.

    Attributes:
        place: its name, file and line.
        launches: how often it was launched.
        seconds: what each of its compilations took.
    """

    place: str
    launches: int
    seconds: list[float]


class Counts:
    """The launches and compilations of a kernel, in all its forms: a factory makes many."""

    __slots__ = ("_seconds", "launches")

    def __init__(self) -> None:
        self.launches = 0
        self._seconds: list[list[float]] = []

    def add(self, seconds: list[float]) -> None:
        """Note one more form of the kernel: a list that grows with its compilations."""
        self._seconds.append(seconds)

    @property
    def seconds(self) -> list[float]:
        return [each for form in self._seconds for each in form]


_kernels: dict[str, Counts] = {}


def counts_of(function: FunctionType) -> Counts:
    """The counts of a kernel, which are kept as long as the process."""
    code = function.__code__
    place = f"{function.__qualname__}, {code.co_filename}:{code.co_firstlineno}"
    return _kernels.setdefault(place, Counts())


def rows() -> list[Row]:
    """All kernels of this process."""
    return [Row(place, each.launches, each.seconds) for place, each in list(_kernels.items())]


def lines(found: Iterable[Row]) -> list[str]:
    """The summary of kernels of one or several processes; none if nothing was launched."""
    merged: dict[str, Row] = {}
    for place, launches, seconds in found:
        before = merged.get(place, Row(place, 0, []))
        merged[place] = Row(place, before.launches + launches, before.seconds + list(seconds))
    launched = [row for row in merged.values() if row.launches]
    if not launched:
        return []
    times = [(s, row.place) for row in launched for s in row.seconds]
    total = sum(s for s, _ in times)
    told = [
        ", ".join(
            (
                _number(len(launched), "kernel"),
                _number(sum(row.launches for row in launched), "launch", "es"),
                f"{_number(len(times), 'compilation')} in {total:.1f} s",
            )
        )
    ]
    slowest = sorted(times, reverse=True)[:SLOWEST]
    return told + [f"{seconds:8.2f} s  {_short(place)}" for seconds, place in slowest]


def _number(count: int, what: str, plural: str = "s") -> str:
    return f"{count:,} {what}{'' if count == 1 else plural}"


def _short(place: str) -> str:
    name, _, where = place.partition(", ")
    inside = os.path.join(os.getcwd(), "")
    return f"{name}, {where.removeprefix(inside)}"
