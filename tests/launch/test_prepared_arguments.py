"""Prepared launches: which arguments may change, and what is checked, with and without the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import errors
from tests.common import saxpy

pytestmark = pytest.mark.usefixtures("way")

N = 64


def values(t: na.Tensor, stream: na.Stream) -> list[float]:
    return t.to_host().sync_on(stream).tolist()


def test_numbers_are_changed_by_name(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    assert run(a=3.0).sync_on(stream).a == 3.0
    assert run(a=np.float32(5)).sync_on(stream).a == 5  # of another type: another variant
    assert run(a=1).sync_on(stream).a == 1
    assert values(z, stream) == [11.0] * N
    assert run().sync_on(stream).a == 2.0, "changes are of one operation"


@pytest.mark.parametrize("how", ["sync_on", "async_on"])
def test_changes_of_one_run(tensors: Any, stream: na.Stream, how: str) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    for _ in range(2):  # the first one is compiled
        assert getattr(run, how)(stream, a=3.0).a == 3.0
        assert getattr(run, how)(stream).a == 2.0
    y = na.full(N, 10).sync_on(stream)
    assert getattr(run, how)(stream, x=y, a=1.0).x is y
    assert values(z, stream) == [20.0] * N
    with pytest.raises(errors.LauncherError, match="no parameter 'b'"):
        getattr(run, how)(stream, b=1)
    with pytest.raises(errors.NumbasyncError):
        getattr(run, how)(3)


def test_numbers_that_do_not_fit_are_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2, x)
    run.sync_on(stream)
    run(a=2**63 - 1).sync_on(stream)
    with pytest.raises(errors.NumbasyncError):
        run(a=2**64)
    with pytest.raises(errors.NumbasyncError):
        run(a="two")


def test_tensors_are_known_by_identity(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    y = na.full(N, 10).sync_on(stream)
    assert run(x=x).sync_on(stream).x is x
    assert run(x=y, a=1.0).sync_on(stream).x is y
    assert values(z, stream) == [14.0] * N
    with pytest.raises(errors.AliasError, match="saxpy"):
        run(x=z)
    with pytest.raises(errors.NumbasyncError, match="saxpy"):
        run(x=na.zeros(N, np.float64).sync_on(stream)[:0].reshape(0, 1)).sync_on(stream)


def test_shared_tensors_and_host_arrays(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    shared, host = x.shared(), np.ones(N, np.float32)
    run, uploading = saxpy.prepare(z, 1.0, shared), saxpy.prepare(z, 1.0, host)
    for _ in range(2):
        assert run.sync_on(stream).x is shared
        assert uploading.sync_on(stream).x is host
        assert uploading.sync_on(stream, a=2.0).a == 2.0
    host[:] = 10
    uploading.sync_on(stream)
    assert values(z, stream) == [2 * 4 + 10] * N
    assert "checked at each run" in repr(uploading)
    inout = np.zeros(N, np.float32)
    there = saxpy.prepare(na.inout(inout), 1.0, x)
    for _ in range(3):
        there.sync_on(stream)
    assert inout.tolist() == [3] * N


def test_inputs_that_may_alias(tensors: Any, stream: na.Stream) -> None:
    @na.launcher(may_alias=True)
    @cuda.jit
    def doubled(z: na.KernelOutput, x: na.KernelInput) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = x[i] + x[i]

    z, x = tensors
    run = doubled.prepare(x, x)
    for _ in range(2):
        run.sync_on(stream)
    run(z=z).sync_on(stream)
    run(x=z, z=z).sync_on(stream)
    assert values(x, stream) == [4] * N
    assert values(z, stream) == [16] * N


def test_literals_choose_the_variant(tensors: Any, stream: na.Stream) -> None:
    @na.launcher
    @cuda.jit
    def fill(z: na.KernelOutput, n: na.Literal) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = n

    z, _ = tensors
    run = fill.prepare(z, 1)
    for n in (1, 2, 1, 3, 2):
        assert run(n=n).sync_on(stream).n == n
        assert values(z, stream) == [n] * N
    run.sync_on(stream)
    assert values(z, stream) == [1] * N


def test_extents_of_the_call_stay(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    few, named = saxpy[1, N // 2].prepare(z, 1.0, x), saxpy[1, N, stream].prepare(z, 1.0, x)
    for _ in range(2):
        few.sync_on(stream)
        named.sync()
    assert values(z, stream) == [4] * (N // 2) + [2] * (N // 2)
    with pytest.raises(errors.OperationError, match="in its brackets"):
        named.sync_on(stream.device.new_stream())


def test_partitions(stream: na.Stream) -> None:
    z, x = na.zeros(N).sync_on(stream), na.ones(N).sync_on(stream)
    part = z.partition(16)
    run = saxpy.prepare(part, 1.0, x)
    for _ in range(3):
        assert run.sync_on(stream).z is part
    other = na.zeros(2 * N).sync_on(stream)
    with pytest.raises(errors.NumbasyncError):
        run(z=other.partition((2, 2)))
    assert values(z, stream) == [3.0] * N


def test_a_moved_tensor_is_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    kept = x.take()
    for _ in range(2):
        with pytest.raises(errors.MovedError, match="kernel saxpy, x: .*take"):
            run.sync_on(stream)
        with pytest.raises(errors.MovedError, match="kernel saxpy, x: .*take"):
            run(a=3.0).async_on(stream)
    assert run(x=kept).sync_on(stream).x is kept


def test_a_partition_of_a_moved_tensor_is_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z.partition(16), 2.0, x)
    z = z.take()
    assert "planned" in repr(run)
    for _ in range(2):
        with pytest.raises(errors.MovedError, match="kernel saxpy, z: .*take"):
            run.sync_on(stream)
        saxpy(z.partition(16), 2.0, x).sync_on(stream)  # plans such calls
    assert values(z, stream) == [4.0] * N


def test_an_owned_argument_comes_back_live(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z.take(), 2.0, x)
    back = [run.sync_on(stream).z for _ in range(3)]
    assert back[0] is back[1] is back[2]
    assert values(back[0], stream) == [6.0] * N


def test_preconditions_hold_for_changed_arguments(stream: na.Stream) -> None:
    @na.launcher(preconditions=["n > 0", "z.shape[0] % 2 == 0"])
    @cuda.jit
    def fill(z: na.KernelOutput, n: Any) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = n

    z = na.zeros(N).sync_on(stream)
    run = fill.prepare(z, 1)
    run.sync_on(stream)
    run.sync_on(stream)
    with pytest.raises(errors.LaunchError, match="n > 0"):
        run(n=-1).sync_on(stream)
    assert values(z, stream) == [1.0] * N
