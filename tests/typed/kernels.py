"""Kernels: the names of their parameters, what a call takes, and what it gives."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numba import cuda

import numbasync as na


@na.launcher
def saxpy(z: na.KernelOutput, a: float, x: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


@na.launcher(threads=128, preconditions=["x.shape[0] > 0"], fastmath=True)
def scaled(t: na.Tile, x: na.KernelInput, by: float | np.float32 = 2.0) -> None:
    i = cuda.threadIdx.x
    if i < t.shape[0]:
        t[i] = by * x[i]


@na.launcher
def rows(z: na.KernelOutput, n: na.Literal) -> None:
    values = na.vectors.load(z, (cuda.grid(1), 0), n)
    assert_type(values, tuple[Any, ...])
    if na.vectors.is_aligned(z, 0, n):
        na.vectors.store(z, index=0, values=values)
    na.vectors.store(z, 0, 1)  # type: ignore[arg-type]


async def what_a_call_takes(
    array: np.ndarray[Any, Any], t: na.Tensor, s: na.SharedTensor, p: na.Partition
) -> None:
    """All that a kernel takes, by position or by name; numbers as they are annotated."""
    for x in (array, t, s, na.zeros(3), na.value(t).shared(), t.take(), [1, 2]):
        for z in (t, p, t.partition_prefix(4), na.zeros(3).partition(2), p.map(1)):
            saxpy(z, 2, x)
            saxpy(z, a=2.0, x=x)
    rows(p, 4)
    rows(p, 4.0)  # type: ignore[arg-type]
    scaled(p, array)
    scaled(p, x=t, by=np.float32(2))

    saxpy(t, 2.0)  # type: ignore[call-arg]
    saxpy(t, 2.0, array, array)  # type: ignore[call-arg]
    saxpy(t, 2.0, y=array)  # type: ignore[call-arg]
    saxpy(t, "two", array)  # type: ignore[arg-type]
    saxpy[1, 128](t, 2.0)  # type: ignore[call-arg]
    saxpy.forall(8)(t, "two", array)  # type: ignore[arg-type]
    saxpy.compile(t)  # type: ignore[call-arg]


async def what_it_gives(t: na.Tensor, stream: na.Stream) -> None:
    """Its arguments, also by name: of types that no signature tells."""
    op = saxpy(t, 2.0, t)
    assert_type(op, na.Launch)
    assert_type(saxpy[1, 128, stream](t, 2.0, t), na.Launch)
    assert_type(saxpy.forall(8)(t, 2.0, t), na.Launch)
    assert_type(saxpy.compile(t, 2.0, t), na.DeviceOp[None])
    assert_type(saxpy.explain(t, 2.0, t), na.Explanation)
    assert_type(saxpy[1, 32].explain(t, 2.0, t), na.Explanation)
    run = saxpy[1, 32].prepare(t, 2.0, t)
    assert_type(run, na.PreparedLaunch)
    assert_type(saxpy.forall(8).prepare(t, 2.0, t), na.PreparedLaunch)
    assert_type(run(a=3.0), na.Launch)
    assert_type(await run, na.LaunchResult)
    assert_type(run.sync_on(stream, a=3.0), na.LaunchResult)
    run(t, 3.0, t)  # type: ignore[arg-type]
    saxpy.prepare(t, "two", t)  # type: ignore[arg-type]
    tuned = na.autotune(saxpy, [{"threads": 64}, {"threads": 128}])
    assert_type(tuned(t, 2.0, x=t), na.DeviceOp[na.LaunchResult])
    assert_type(await tuned.tune(t, 2.0, t), tuple[na.TuningResult, ...])
    tuned(t, 2.0)  # type: ignore[call-arg]
    result = await op
    assert_type(result, na.LaunchResult)
    assert_type(await na.spawn(saxpy(t, 2.0, t)), na.LaunchResult)
    assert_type(saxpy(t, 2.0, t).sync(), na.LaunchResult)
    z: na.Tensor = result.z
    _, a, x = result
    assert_type(z, na.Tensor)
    assert_type(a, Any)
    y: na.Tensor = await saxpy(t, 2.0, x).output()
    await y.to_host()

    wrong: na.Tensor = await saxpy(t, 2.0, t)  # type: ignore[assignment]
    await wrong.to_host()


def any_kernel(kernel: na.Launcher, known: na.Launcher[na.KernelOutput, float]) -> None:
    """A launcher without parameters stands for every one."""
    assert_type(kernel(1, "two", three=3), na.Launch)
    assert_type(kernel[1, 2](), na.Launch)
    known(3, 4.0)
    known(3, "four")  # type: ignore[arg-type]
    any_kernel(saxpy, known)


@na.elementwise
def cube(x: float) -> float:
    return x**3


@na.elementwise(dtype=np.float64)
def square(x: float) -> float:
    return x**2


def batches(b: na.CommandBatch, t: na.Tensor) -> None:
    assert_type(cube(b.use(t)), na.BufferId)
    assert_type(square(2 * b.use(t) + 1), na.BufferId)


@na.graphed
def step(x: na.Tensor) -> na.DeviceOp[na.Tensor]:
    return x.dup()


@na.graphed(copies=False)
def both(x: na.Tensor) -> na.DeviceOp[tuple[na.Tensor, na.Tensor]]:
    return na.zip(x.dup(), x.astype(np.int32))


class Layer(na.Module):
    def forward(self, x: na.Tensor) -> na.DeviceOp[na.Tensor]:
        return x.dup()


async def graphs(t: na.Tensor, stream: na.Stream) -> None:
    assert_type(step(t), na.DeviceOp[na.Tensor])
    assert_type(await both(t), tuple[na.Tensor, na.Tensor])
    assert_type(await Layer()(t), Any)
    assert_type(na.zeros(3).graph_on(stream), na.CudaGraph[na.Tensor])
    assert_type(na.zeros(3).graph().take_output(), na.Tensor | None)
