"""Operations on Ray's actors, by the pickling that launchers, operations and tensors have."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError
from tests.common import host, saxpy

ray: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


class Worker:
    """An actor with an event loop."""

    async def run(self, op: Any) -> Any:
        return await op

    async def call(self, function: Any, *args: Any) -> Any:
        return await function(*args)


@contextmanager
def cluster() -> Iterator[None]:
    """A cluster of this machine alone."""
    env = {"NUMBASYNC_DEVICE": "cpu", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ray.init(
        num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": env},
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def actors() -> Iterator[list[Any]]:
    with cluster():
        kind = ray.remote(Worker)
        yield [kind.remote() for _ in range(2)]


def test_operations_go_to_actors_and_values_come_back(cpu: na.Device, actors: list[Any]) -> None:
    x = np.arange(4, dtype=np.float32)
    ops = [saxpy(na.ones(4), float(n), x).output() for n in range(8)]
    calls = [actors[n % 2].run.remote(op) for n, op in enumerate(ops)]
    for n, tensor in enumerate(ray.get(calls, timeout=300)):
        assert host(tensor).tolist() == (n * x + 1).tolist()


def test_kernels_without_a_name_go_by_value(cpu: na.Device, actors: list[Any]) -> None:
    bias = 5.0

    @na.launcher
    def kernel(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += bias

    called = actors[0].call.remote(lambda t: kernel(t).output().to_host(), na.ones(3).sync())
    assert ray.get(called, timeout=300).tolist() == [6] * 3


def test_an_error_is_raised_here_by_its_class(cpu: na.Device, actors: list[Any]) -> None:
    with pytest.raises(LauncherError, match="x is missing"):
        ray.get(actors[0].call.remote(saxpy, na.ones(3).sync(), 1.0), timeout=300)
