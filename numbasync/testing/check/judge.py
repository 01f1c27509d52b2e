"""Reports of the errors in the result of a launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.backend.protocols import Checks, Writers
from numbasync.device.device import Device
from numbasync.testing.check import settings
from numbasync.testing.check.block_map import map_of_elements
from numbasync.testing.check.closeness import Array, Mismatch, Tolerance, compare
from numbasync.testing.check.failures import (
    InputModified,
    KernelFailure,
    KernelMismatch,
    KernelRace,
    OutOfBounds,
)
from numbasync.testing.check.guarded_run import Extents, Result, Subject


class Judge:
    """Compares the results of one kind of launch with the expected values, and with each other.

    Args:
        wants: expected values by output; an output without an entry may hold anything. None:
            there is no reference, and results are compared with each other.
        seed: the seed that reports name.
    """

    def __init__(
        self, subject: Subject, extents: Extents, tolerance: Tolerance,
        wants: dict[str, Array] | None, seed: int,
    ) -> None:  # fmt: skip
        self._subject = subject
        self._extents = extents
        self._tolerance = tolerance
        self._wants = wants
        self._seed = seed
        self._writers: Writers | None = None

    # --- judgements of a run ---

    def first(self, result: Result, device: Device, writers: Writers | None) -> None:
        """Judge a run in the device's own order of threads."""
        __tracebackhide__ = True
        self._writers = writers
        self._memory(result, device, "")
        self._against_reference(result, device, KernelMismatch, "", [])

    def reordered(self, result: Result, device: Device, order: str, plain: Result) -> None:
        """Judge a run in another order than that of `plain`, which was correct."""
        __tracebackhide__ = True
        how = f", threads in {order} order"
        self._memory(result, device, how)
        self._against_reference(
            result, device, KernelRace, how,
            ["  in forward order all are right: the result depends on who comes first"],
        )  # fmt: skip
        self._against(plain, "in forward order", result, device, KernelRace, how)

    def other(self, result: Result, device: Device, cpu: Device, plain: Result | None) -> None:
        """Judge a run on another device than that of `plain`, which was correct, or None."""
        __tracebackhide__ = True
        self._memory(result, device, "")
        remarks = [] if plain is None else [f"  {cpu.label} is right everywhere"]
        self._against_reference(result, device, KernelMismatch, "", remarks)
        if plain is not None:
            self._against(plain, f"on {cpu.label}", result, device, KernelMismatch, "")

    # --- comparisons ---

    def _memory(self, result: Result, device: Device, how: str) -> None:
        __tracebackhide__ = True
        for name, write in result.outside_writes.items():
            size = self._subject.arrays[name].size
            raise OutOfBounds(
                f"{self._where(device)}{how}: memory beside {name}, which has {size} elements, was "
                f"{write}\nCompare the index with {name}.shape before the store.\n{self._again()}"
            )
        arrays = self._subject.arrays
        written = {id(arrays[name]) for name in self._subject.outputs}
        for name, before in arrays.items():
            after = result.arrays[name]
            if id(before) in written or after.tobytes() == np.ascontiguousarray(before).tobytes():
                continue
            bad = bits_differ(before, after)
            if not bad.any():
                continue  # only padding between fields of records differs, which is not copied
            index = tuple(int(k) for k in np.argwhere(bad)[0])
            raise InputModified(
                f"{self._where(device)}{how}: {int(bad.sum())} of {bad.size} elements of {name}, "
                f"which is an input, were changed\n  first at {index}: was {before[index]}, is "
                f"{after[index]}\nDeclare it na.KernelOutput, or do not write to it.\n"
                f"{self._again()}"
            )

    def _against_reference(
        self, result: Result, device: Device, kind: type[KernelFailure], how: str, more: list[str]
    ) -> None:
        __tracebackhide__ = True
        for name, want in (self._wants or {}).items():
            mismatch = compare(result.arrays[name], want, self._tolerance)
            if mismatch is not None:
                raise kind(self._report(name, mismatch, device, how, more))

    def _against(
        self, plain: Result, whose: str, result: Result, device: Device,
        kind: type[KernelFailure], how: str,
    ) -> None:  # fmt: skip
        __tracebackhide__ = True
        if self._wants is not None:
            return  # both results are already within the tolerance of the reference
        for name in self._subject.outputs:
            mismatch = compare(result.arrays[name], plain.arrays[name], self._tolerance)
            if mismatch is not None:
                more = [f"  'want' is what it gave {whose}"]
                raise kind(self._report(name, mismatch, device, how, more))

    def _report(
        self, name: str, mismatch: Mismatch, device: Device, how: str, more: list[str]
    ) -> str:
        owners = None
        if self._writers is not None:
            owners = self._subject.owners(name, self._extents, self._writers)
        wrong = f"{mismatch.count} of {mismatch.bad.size} elements of {name} are wrong"
        lines = [
            f"{self._where(device)}{how}: {wrong} ({self._tolerance})",
            f"  first at {mismatch.index}: {mismatch}",
        ]
        if owners is not None:
            lines.append(f"  {owners.of(mismatch.index)}")
        lines += self._untouched(name, mismatch)
        lines += more
        drawn = "" if owners is None else owners.drawn(mismatch.bad)
        lines.append(drawn or map_of_elements(mismatch.bad))
        return "\n".join([*lines, self._again()])

    def _untouched(self, name: str, mismatch: Mismatch) -> list[str]:
        before = self._subject.arrays[name]
        if str(before[mismatch.index]) != str(mismatch.got):
            return []
        if name not in self._subject.filled:
            return ["  that is what was there before"]
        return [
            "  that is what was there before: outputs that are only stored to are filled. If it",
            "  is meant to stay, let the reference keep it, or pass poison=False",
        ]

    # --- common parts of all reports ---

    def about(self, device: Device, checks: Checks | None) -> str:
        """A text that says where and how a launch ran, and how to repeat it."""
        order = "" if checks is None else f", threads in {checks.order} order"
        return f"{self._where(device)}{order}\n{self._again()}"

    def _where(self, device: Device) -> str:
        name, writers, launch = self._subject.kernel.name, self._writers, str(self._extents)
        if writers is not None:
            launch = f"grid {writers.grid}, block {writers.block}"
        return f"kernel {name} on {device.label}" + (f", {launch}" if launch else "")

    def _again(self) -> str:
        launch = f", {self._extents}" if str(self._extents) else ""
        call = (
            f"check_kernel({self._subject.kernel.name}, args, reference{launch}, seed={self._seed})"
        )
        return f"again: {settings.command(call, self._seed)}"


def bits_differ(before: Array, after: Array) -> Any:
    """Which elements differ in any bit; for records, in any bit of a field."""
    if before.dtype.names is not None:
        bad = np.zeros(before.shape, np.bool_)
        for name in before.dtype.names:
            of_field = bits_differ(before[name], after[name])
            bad |= of_field.any(axis=tuple(range(before.ndim, of_field.ndim)))
        return bad
    size = before.dtype.itemsize
    before_bytes = np.ascontiguousarray(before).reshape(-1).view(np.uint8).reshape(-1, size)
    after_bytes = np.ascontiguousarray(after).reshape(-1).view(np.uint8).reshape(-1, size)
    return (before_bytes != after_bytes).any(axis=1).reshape(before.shape)
