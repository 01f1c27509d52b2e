"""When a call uses a coarsened variant, and which: decided from its arguments and its extents."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.backend.protocols import ArrayKey, Coarsening, Limits
from numbasync.launch.coarse_kernels import CoarseKernels, CoarseLaunch
from numbasync.launch.coarsening import NotPlainError
from numbasync.launch.grid import Geometry
from tests.common import add_one

LIMITS = Limits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 49152, 232448, 32, 100, 16)
MANY = 2**20


def add(z: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i]


def add_rows(z: Any, x: Any) -> None:
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[i, j]


def looping(z: Any, x: Any) -> None:
    for i in range(cuda.grid(1), z.size):
        z[i] = x[i]


class Compiled:
    """Stands for a device that coarsens: keeps what the planner asks for."""

    def __init__(self) -> None:
        self.asked: list[Coarsening] = []

    def __call__(self, dispatcher: Any, coarsening: Coarsening) -> Any:
        self.asked.append(coarsening)
        return dispatcher


def choose(
    kernel: Any = add, *, dtype: str = "<f4", order: str = "C", aligned: bool = True,
    threads: int = 256, positions: int = MANY, elements: int | None = None,
    may_alias: bool = False, device: Any = None,
) -> CoarseLaunch:  # fmt: skip
    kernels = CoarseKernels(cuda.jit(kernel), elements, may_alias)
    keys = [ArrayKey(dtype, 1, order), ArrayKey(dtype, 1, order)]
    geometry = Geometry((-(-positions // threads), 1, 1), (threads, 1, 1))
    return kernels.choose(keys, aligned, geometry, LIMITS, device or Compiled())


@pytest.mark.parametrize(
    ("dtype", "elements"),
    [("|i1", 16), ("|b1", 16), ("<i2", 8), ("<f2", 4), ("<f4", 4), ("<f8", 2), ("<c8", 2)],
)
def test_a_thread_loads_16_bytes_of_aligned_arrays(dtype: str, elements: int) -> None:
    device = Compiled()
    launch = choose(dtype=dtype, positions=10_000_019, device=device)
    assert launch.elements == elements
    blocks = -(-10_000_019 // 256)
    assert launch.positions == blocks * 256
    assert launch.geometry == Geometry((-(-blocks // elements), 1, 1), (256, 1, 1))
    assert device.asked[0].block == 0


def test_positions_are_a_block_apart_in_unaligned_arrays() -> None:
    device = Compiled()
    assert choose(aligned=False, threads=128, device=device).elements == 4
    assert device.asked[0].block == 128


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"elements": 1}, "elements=1"),
        ({"dtype": "<c16"}, "16 bytes"),
        ({"order": "A"}, "no array in C order"),
        ({"dtype": np.dtype([("a", "f4")])}, "structures"),
        ({"may_alias": True}, "may alias"),
        ({"kernel": looping}, "a loop"),
        ({"positions": 100_000}, "idle"),
        ({"positions": 1000}, "too few"),
        ({"positions": 2**31}, "2,147,483,648 positions"),
    ],
)
def test_why_a_call_is_not_coarsened(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(NotPlainError, match=why):
        choose(**changed)


def test_a_device_whose_threads_gain_nothing(cpu: na.Device) -> None:
    kernel = na.launcher(elements=4)(cuda.jit(add))
    with na.use_device(cpu):
        explained = kernel.explain(na.meta(MANY), na.meta(MANY))
    assert (explained.elements, len(kernel.planner.coarse_kernels)) == (1, 0)
    assert "gain nothing" in explained.why_not_wider


def test_small_arrays_are_coarsened_on_request() -> None:
    assert choose(positions=1000, elements=8).elements == 8


@pytest.mark.parametrize(
    ("block", "why"), [((1, 256, 1), ""), ((16, 16, 1), "side by side"), ((256, 1, 1), "side by")]
)
def test_the_coarsened_axis_is_that_of_neighbouring_elements(
    block: tuple[int, int, int], why: str
) -> None:
    kernels, device = CoarseKernels(cuda.jit(add_rows), None, False), Compiled()
    geometry = Geometry((3000 // block[0], 3000 // block[1], 1), block)
    keys = [ArrayKey("<f4", 2, "C")] * 2
    if why:
        with pytest.raises(NotPlainError, match=why):
            kernels.choose(keys, True, geometry, LIMITS, device)
        return
    launch = kernels.choose(keys, True, geometry, LIMITS, device)
    assert launch.geometry == Geometry((3000, 3, 1), block)
    assert (device.asked[0].axis, device.asked[0].block) == (1, 256)
    assert kernels.block(LIMITS, (3000, 3000)) == (1, 256, 1)
    assert kernels.block(LIMITS, (30, 30)) is None


def test_a_variant_that_fails_compiling_is_not_rechosen() -> None:
    kernels, device = CoarseKernels(cuda.jit(add), None, False), Compiled()
    geometry = Geometry((MANY // 256, 1, 1), (256, 1, 1))
    keys = [ArrayKey("<f4", 1, "C")]
    launch = kernels.choose(keys, True, geometry, LIMITS, device)
    assert kernels.choose(keys, True, geometry, LIMITS, device).kernel is launch.kernel
    kernels.refuse(launch, "no such instruction")
    with pytest.raises(NotPlainError, match="no such instruction"):
        kernels.choose(keys, True, geometry, LIMITS, device)


def test_failures_of_other_types_are_theirs_alone() -> None:
    kernels, device = CoarseKernels(cuda.jit(add), None, False), Compiled()
    floats, numbers = [ArrayKey("<f4", 1, "C")] * 2, [ArrayKey("<i4", 1, "C")] * 2

    def chosen(keys: list[ArrayKey], threads: int) -> CoarseLaunch:
        geometry = Geometry((MANY // threads, 1, 1), (threads, 1, 1))
        return kernels.choose(keys, True, geometry, LIMITS, device)

    kernels.refuse(chosen(floats, 1024), "blocks of 512 threads at most", 513)
    with pytest.raises(NotPlainError, match="512 threads"):
        chosen(floats, 1024)
    assert chosen(floats, 512).kernel is chosen(numbers, 1024).kernel


@pytest.mark.parametrize("bounds", [128, (128, 4)])
def test_blocks_are_within_the_launch_bounds(bounds: Any) -> None:
    kernels = CoarseKernels(cuda.jit(launch_bounds=bounds)(add_rows), None, False)
    assert kernels.threads == 128
    assert kernels.block(LIMITS, (3000, 3000)) == (1, 128, 1)


# --- what a user sees ---


@pytest.mark.parametrize("elements", [0, 3, 32, "4", 4.0, True])
def test_numbers_of_elements_that_no_thread_can_have(elements: Any) -> None:
    with pytest.raises(na.errors.LauncherError, match="1, 2, 4, 8 or 16 positions a thread"):
        na.launcher(elements=elements)(cuda.jit(add))


def test_a_request_says_why_the_kernel_cannot() -> None:
    with pytest.raises(na.errors.LauncherError, match=r"elements=4, but it has a loop"):
        na.launcher(elements=4)(cuda.jit(looping))


def test_a_request_changes_no_number() -> None:
    kernel = na.launcher(elements=4)(cuda.jit(add))
    x = np.arange(1000, dtype=np.float32)
    z = na.zeros(1000).sync()
    kernel(z, x).sync()
    assert (z.to_host().sync() == x).all()


def test_alignment_is_part_of_a_plan(device: na.Device) -> None:
    t = na.zeros(64).sync()
    assert t.is_aligned and t[4:8].is_aligned and not t[1:5].is_aligned
    assert t[4:8].fingerprint == t[8:12].fingerprint != t[1:5].fingerprint
    add_one(t[1:5]).sync()
    assert t.to_host().sync().sum() == 4


def test_a_kernel_not_plain_keeps_no_argument_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with na.use_device("cpu"):
        monkeypatch.setattr(type(na.default_device().backend), "coarsener", Compiled())
        kernel = na.launcher(cuda.jit(looping))
        z, x = na.zeros(1000).sync(), na.zeros(1000).sync()
        kernel.forall(2**16)(z, x).sync()
    tensor = weakref.ref(z)
    del z
    gc.collect()
    assert tensor() is None


def test_alignment_of_a_moved_tensor_is_not_guessed() -> None:
    view = na.zeros(64).sync()[1:5]
    view.take()
    with pytest.raises(na.errors.MovedError):
        view.is_aligned  # noqa: B018
