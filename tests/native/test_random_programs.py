"""Random programs, with the core and without: the same numbers, records, values and errors."""

from __future__ import annotations

import pytest

import numbasync as na
from numbasync import native
from tests.native.null_device import launches, null_device
from tests.native.programs import Program

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
WAYS = (False, True)


def compare(runs: list[list[str]]) -> None:
    python, core = runs
    for i, (want, got) in enumerate(zip(python, core, strict=False)):
        assert got == want, f"step {i}, after {python[max(0, i - 8) : i]}"
    assert len(python) == len(core)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_on_a_device(device: na.Device, first: int) -> None:
    for seed in range(first, first + 20):
        runs = []
        for on in WAYS:
            assert native.switch(on) is on
            runs.append(Program(device, seed).run())
        compare(runs)


class Launching(Program):
    """A program that notes each launch as the driver got it."""

    def note(self) -> None:
        super().note()
        tensors = [*self.tensors, self.constant.tensor]
        names = {t.storage.memory.address: f"tensor {i}" for i, t in enumerate(tensors)}
        done = getattr(self, "launches", 0)
        fresh = launches(done)
        self.launches = done + len(fresh)
        kernels = self.device.backend.kernels  # type: ignore[attr-defined]
        self.seen += [launch.described(kernels, names) for launch in fresh]


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_on_the_null_driver(first: int) -> None:
    """Here the program lets work pass: what is retired is compared after every step, too."""
    for seed in range(first, first + 20):
        runs = []
        for on in WAYS:
            assert native.switch(on) is on
            with null_device() as device:
                runs.append(Launching(device, seed, counts_retired=True).run())
        compare(runs)
