"""Launches in clusters, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError, LaunchError
from numbasync.launch.grid import check_grid
from numbasync.launch.launcher import Launcher

LIMITS = na.devices("cpu")[0].limits


@cuda.jit
def numbered(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = i


def in_clusters(cluster: Any, **options: Any) -> Any:
    return na.launcher(cluster=cluster, **options)(numbered)


@pytest.mark.parametrize("cluster", [0, -2, "2", (2, 0), (1, 1, 1, 2), 2.0])
def test_extents_that_are_none(cluster: Any) -> None:
    with pytest.raises(LaunchError, match=r"numbered: cluster= is one to three whole numbers"):
        in_clusters(cluster)


@pytest.mark.parametrize("cluster", [9, (4, 4), (2, 2, 4)])
def test_too_many_blocks(cluster: Any) -> None:
    with pytest.raises(LauncherError, match=r"cluster=.* has (9|16) blocks.*more than 8\.\nWrite"):
        in_clusters(cluster)


def test_a_grid_that_is_no_multiple(cpu: na.Device) -> None:
    z = na.zeros(96).sync()
    with pytest.raises(LaunchError) as refused:
        in_clusters(2)[3, 32](z).sync()
    assert str(refused.value).startswith(
        "kernel numbered: a grid of (3, 1, 1) has 3 blocks along x, and cluster=(2, 1, 1) needs a "
        "multiple of 2.\nWrite numbered[grid, block](...) with a grid such as (4, 1, 1); blocks"
    )
    with pytest.raises(LaunchError, match=r"along y, .*\(1, 4, 1\).*\n.*such as \(3, 4, 1\)"):
        in_clusters((1, 4))[(3, 1), 32](z).sync()
    with pytest.raises(LaunchError, match=r"3 blocks along x"):
        in_clusters(2)(z.partition(32)).sync()
    assert not z.to_host().sync().any()


def test_a_device_without_clusters() -> None:
    older = dataclasses.replace(LIMITS, max_cluster=1)
    with pytest.raises(LaunchError, match=r"cluster=\(2, 1, 1\).*9\.0 or higher\.\nWrite"):
        check_grid((2, 1, 1), (4, 1, 1), "k", older)
    check_grid((2, 1, 1), (4, 1, 1), "k", LIMITS)


@pytest.mark.parametrize("cluster", [1, 2, (4, 1, 1)])
def test_a_kernel_that_does_not_know_its_cluster(device: na.Device, cluster: Any) -> None:
    if device.limits.max_cluster == 1 and cluster != 1:
        pytest.skip("the device has no clusters")
    kernel = in_clusters(cluster)
    for launch in (kernel[8, 32], kernel.forall(256, 32), in_clusters(cluster, threads=32)):
        z = na.full(256, -1).sync()
        launch(z).sync()
        np.testing.assert_array_equal(z.to_host().sync(), np.arange(256))


def test_clusters_are_pickled(cpu: na.Device) -> None:
    there = Launcher(*in_clusters(2).Result._made_of)  # as it is unpickled
    with pytest.raises(LaunchError, match="needs a multiple of 2"):
        there[3, 32](na.zeros(8).sync()).sync()
