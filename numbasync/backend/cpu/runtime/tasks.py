"""The tasks of a queue's commands on the CPU device. A task is a function to call, and whether the
task is short: whether the call takes less time than waking a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.protocols import Formula, Work

if TYPE_CHECKING:
    from numbasync.backend.cpu.kernel.compiled import ShortLaunch
    from numbasync.backend.cpu.runtime.array import CpuArray
    from numbasync.backend.cpu.runtime.workers import Engine

Task = tuple[Callable[[], None], bool]

SHORT_BYTES = 1 << 15


def launch(engine: Engine, work: Work, args: Sequence[Any]) -> Task:
    executable: Any = work.executable
    grid, block, shared_bytes, argument_access = (
        work.grid,
        work.block,
        work.shared_bytes,
        work.argument_access,
    )
    if executable.formal is not None:
        args = executable.formal.passed(args)
    if executable.records:
        records = executable.records
        args = [_Record(a.array) if i in records else a for i, a in enumerate(args)]
    checks, short = engine.checks, short_launch(work)
    if short is not None and checks is None:
        return partial(short.run, args), True
    return (
        lambda: executable.run(grid, block, shared_bytes, args, engine, checks, argument_access),
        False,
    )


def short_launch(work: Work) -> ShortLaunch | None:
    """The launch, if it surely takes less time than waking a thread."""
    if work.prepared is None:  # or not short; what is not compiled now may be short later
        executable: Any = work.executable
        work.prepared = executable.short_launch(work.grid, work.block, work.shared_bytes)
    short: ShortLaunch | None = work.prepared
    return short


class _Record:
    """A structured scalar or a time, whose value is read when the kernel runs."""

    def __init__(self, place: np.ndarray[Any, Any]) -> None:
        self._place = place

    @property
    def array(self) -> Any:
        if self._place.dtype.names is None:
            return self._place[()]
        # `np.record` offers the fields as attributes, too.
        return self._place.view(np.dtype((np.record, self._place.dtype)))[()]


def upload(engine: Engine, dst: CpuArray, src: np.ndarray[Any, Any]) -> Task:
    source = src.reshape(dst.array.shape)
    return lambda: np.copyto(dst.array, source), _is_short(src)


def download(engine: Engine, dst: np.ndarray[Any, Any], src: CpuArray) -> Task:
    target = dst.reshape(src.array.shape)
    return lambda: np.copyto(target, src.array), _is_short(dst)


def copy(engine: Engine, dst: CpuArray, src: CpuArray) -> Task:
    return lambda: _convert(dst.array, src.array), _is_short(src.array)


def fill(engine: Engine, dst: CpuArray, value: np.generic) -> Task:
    return lambda: dst.array.fill(value), _is_short(dst.array)


def generate(engine: Engine, dst: CpuArray, formula: Formula) -> Task:
    return lambda: formula.write(dst.array), _is_short(dst.array)


def _is_short(array: np.ndarray[Any, Any]) -> bool:
    """Whether copying the array takes less time than waking a thread."""
    return array.nbytes <= SHORT_BYTES


def _convert(dst: np.ndarray[Any, Any], src: np.ndarray[Any, Any]) -> None:
    if src.dtype.kind == "c" and dst.dtype.kind not in "cb":
        src = src.real  # as the conversion would, but without NumPy's warning
    with np.errstate(all="ignore"):
        np.copyto(dst, src, casting="unsafe")
