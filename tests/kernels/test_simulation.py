"""Steps of simulations against references, and what nature keeps."""

from __future__ import annotations

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LaunchError
from numbasync_kernels import simulation
from tests.common import full, host

U = 2.0**-24
RNG = np.random.default_rng(46)


@pytest.mark.parametrize("size", [(3, 50), full((1, 1)), full((2, 7)), full((33, 40))], ids=str)
def test_heat_and_waves(device: na.Device, size: tuple[int, int]) -> None:
    u, before = (RNG.uniform(-9, 9, size).astype(np.float32) for _ in range(2))
    out = na.zeros(size).sync()
    simulation.heat(out, u, 0.25).sync()
    assert abs(host(out) - simulation.heat_reference(u, 0.25)).max() <= 12 * U * 9
    simulation.wave(out, u, before, 0.5).sync()
    assert abs(host(out) - simulation.wave_reference(u, before, 0.5)).max() <= 20 * U * 9


@pytest.mark.parametrize("size", [(5, 40), full((1, 1)), full((2, 3)), full((33, 17))], ids=str)
def test_life(device: na.Device, size: tuple[int, int]) -> None:
    cells = RNG.integers(0, 2, size).astype(np.uint8)
    out = na.zeros(size, np.uint8).sync()
    simulation.life(out, cells).sync()
    np.testing.assert_array_equal(host(out), simulation.life_reference(cells))


@pytest.mark.parametrize("n", [2, full(1), full(128), full(300)])
def test_bodies(device: na.Device, n: int) -> None:
    bodies = RNG.uniform(-1, 1, (n, 4)).astype(np.float32)
    bodies[:, 3] = abs(bodies[:, 3])
    out = na.zeros((n, 3)).sync()
    simulation.accelerations[-(-n // 128), 128](out, bodies, 0.1).sync()
    got, want = host(out), simulation.accelerations_reference(bodies, 0.1)
    # A pull's size is at most mass / softening**2.
    sizes = bodies[:, 3].sum() / 0.1**2
    assert abs(got - want).max() <= (n + 16) * U * sizes
    # What all bodies do to one another adds up to nothing.
    assert abs((bodies[:, 3:] * got).sum(0)).max() <= 2 * n * (n + 16) * U * sizes
    with pytest.raises(LaunchError, match="softening > 0"):
        simulation.accelerations[1, 128](out, bodies, 0.0).sync()


def test_points(device: na.Device) -> None:
    n, draws = 300, 100
    counts = na.zeros(n, np.int64).sync()
    simulation.points_in_circle(counts, draws, 5).sync()
    first = host(counts)
    share = first.sum() / (n * draws)
    assert abs(share - np.pi / 4) <= 5 * 0.41 / np.sqrt(n * draws)
    simulation.points_in_circle(counts, draws, 5).sync()
    np.testing.assert_array_equal(host(counts), first)
    simulation.points_in_circle(counts, draws, 6).sync()
    assert (host(counts) != first).any()


@pytest.mark.full
def test_no_races_between_bodies(device: na.Device) -> None:
    bodies = np.abs(RNG.uniform(0, 1, (130, 4))).astype(np.float32)
    na.testing.check_kernel(
        simulation.accelerations, (np.zeros((130, 3), np.float32), bodies, 0.5),
        lambda *_: simulation.accelerations_reference(bodies, 0.5).astype(np.float32),
        grid=2, block=128, rtol=1e-3, atol=1e-2,
    )  # fmt: skip
