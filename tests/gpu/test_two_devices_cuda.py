"""Copies between two GPUs, and between a GPU and the CPU device: the tests of `tests/tensors` on
them, and what only GPUs have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.testing import Gate
from tests.common import add_one, compiled
from tests.tensors.test_across_order import *  # noqa: F403
from tests.tensors.test_across_values import *  # noqa: F403

pytestmark = pytest.mark.cuda(devices=2)
Gpus = tuple[na.Device, na.Device]


@pytest.fixture(params=["cuda, cuda", "cuda, cpu", "cpu, cuda", "cuda, cuda by the host"])
def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: na.Device
) -> Iterator[Gpus]:
    """Two devices, the first of them current."""
    first, second = na.devices("cuda")[:2]
    (cpu,) = na.devices("cpu")[:1]
    near, far = {"cuda, cpu": (first, cpu), "cpu, cuda": (cpu, first)}.get(
        request.param, (first, second)
    )
    if "host" in request.param:
        monkeypatch.setattr(type(first.backend), "copies_from", lambda *_: False)
    for one in (far, near):
        with na.use_device(one):
            compiled()
    with na.use_device(near):
        yield near, far


def gpus() -> Gpus:
    first, second = na.devices("cuda")[:2]
    return first, second


def on(device: na.Device, op: na.DeviceOp[Any]) -> Any:
    return op.sync_on(device.new_stream())


@pytest.mark.parametrize("nbytes", [1, 4096, 2**20, 2**26 + 12])
def test_peer_copies_of_every_size_both_ways(device: na.Device, nbytes: int) -> None:
    array = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    for near, far in (gpus(), gpus()[::-1]):
        t = on(near, na.from_host(array))
        u = na.to_device(t, far).sync()
        u = na.to_device(t, far).sync()
        assert u.device is far
        np.testing.assert_array_equal(on(far, u.to_host()), array)


def test_direct_access_is_enabled_once_a_pair(device: na.Device) -> None:
    near, far = gpus()
    t = on(near, na.ones(1000))
    before = na.to_device(t, far).sync()
    peers: Any = far.backend.peers  # type: ignore[attr-defined]
    assert peers.enable(near.backend) == far.can_access(near)
    pool = near.pool
    near.pool = near.new_pool()  # pools that are made later are readable, too
    try:
        again = na.to_device(on(near, na.ones(1000)), far).sync()
    finally:
        near.pool = pool
    np.testing.assert_array_equal(on(far, before.to_host()), on(far, again.to_host()))


def test_random_copies_between_gpus(device: na.Device) -> None:
    from tests.stress.device_copies import main

    for seed in range(3):
        main(1000, seed, "cuda")


def test_graphs_of_two_gpus_in_one_zip(device: na.Device) -> None:
    made = []
    for gpu in gpus():
        stream = gpu.new_stream()
        z = na.zeros(8).sync_on(stream)
        made.append((stream, z, add_one(z).graph_on(stream)))
        na.fill(z, 0).sync_on(stream)
    for _ in range(5):
        na.zip(*(graph.launch() for _, _, graph in made)).sync()
    assert [z.to_host().sync_on(stream)[0] for stream, z, _ in made] == [5, 5]


async def test_a_group_of_two_gpus(device: na.Device) -> None:
    group = na.DeviceGroup(gpus())

    def work(i: int) -> na.DeviceOp[np.ndarray]:
        return na.full(1000, i).then(add_one).output().to_host()

    found = await group.map(work, range(50))
    assert [array[0] for array in found] == list(range(1, 51))
    assert min(group.statistics().done) > 0


def test_gates_of_one_stream_open_in_any_order(device: na.Device) -> None:
    """As events of the CPU device open them."""
    first, _ = gpus()
    stream = first.new_stream()
    gates = [Gate(stream) for _ in range(3)]
    for gate in gates:
        gate.close()
        na.zeros(4).async_on(stream)
    gates[2].open()
    gates[1].open()
    assert not stream.query()
    gates[0].open()
    stream.synchronize()
    with Gate(stream):
        na.zeros(4).async_on(stream)
        assert not stream.query()
    stream.synchronize()


KERNEL = """
@na.launcher
@cuda.jit
def add_{i}(z: na.KernelOutput):
    z[0] += {i}
"""
PROGRAM = """
for device in na.devices("cuda")[:2]:
    with na.use_device(device):
        z = na.zeros(1).sync()
        for kernel in kernels:
            kernel[1, 1](z).sync()
        print(z.item().sync())
"""


def test_many_kernels_on_two_gpus_end_well(tmp_path: Path) -> None:
    """Numba's modules are not unloaded twice."""
    count = 12  # more than Numba lets wait
    names = ", ".join(f"add_{i}" for i in range(count))
    (tmp_path / "program.py").write_text(
        "from numba import cuda\nimport numbasync as na\n"
        + "".join(KERNEL.format(i=i) for i in range(count))
        + f"kernels = [{names}]\n{PROGRAM}"
    )
    result = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "66.0\n66.0\n"), result.stderr
