"""Functions that replay, given what is not a plain tensor, and giving what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import DTypeError, NotAGraphNodeError
from numbasync.testing import Gate
from tests.common import scaled_plus_one as step


@na.launcher
@cuda.jit
def inverse(z: na.KernelOutput, c):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 1.0 / c


async def test_numbers_that_are_equal_and_differ(device: na.Device) -> None:
    @na.graphed
    def filled(x: na.Tensor, c: Any) -> na.DeviceOp[na.Tensor]:
        c, *_ = c if isinstance(c, tuple) else (c,)
        return na.zeros(x.shape).then(lambda z: inverse(z, c)).output()

    x = await na.ones(4)
    for kind in (float, np.float32, np.float64, lambda c: (c,), lambda c: (np.float32(c), 1)):
        for c in (0.0, -0.0):
            out = await filled(x, kind(c))
            assert (await out.to_host()).tolist() == [np.copysign(np.inf, c)] * 4
    assert len(filled.graphs) == 10

    replayed: Any = na.graphed(lambda x, c: na.full(x.shape, *c))
    for c, want in (((2, np.float32), "f4"), ((2.0, np.float64), "f8"), ((True, bool), "?")):
        assert (await replayed(x, c)).dtype == want
    assert len(replayed.graphs) == 3


async def test_a_number_that_is_none_is_known_again(device: na.Device) -> None:
    x = await na.ones(4)
    for kind in (float, np.float32, complex, lambda c: (float(c),)):
        replayed: Any = na.graphed(lambda x, c: step(x))
        for _ in range(3):
            await replayed(x, kind("nan"))
        assert len(replayed.graphs) == 1


async def test_a_replays_overwritten_array_is_not_handed_out(device: na.Device) -> None:
    x = await na.ones(4)
    for change in (lambda array: array, lambda array: {"a": [array[1:]]}):
        replayed = na.graphed(lambda x, change=change: step(x).to_host().map(change))
        with pytest.raises(NotAGraphNodeError, match=r"\.to_host\(\)"):
            await replayed(x)
    overwritten = na.graphed(copies=False)(lambda x: step(x).to_host())
    first = await overwritten(x)
    assert first.tolist() == [3] * 4
    assert await overwritten(await na.full(4, 2)) is first
    constant = np.arange(3)
    given = na.graphed(lambda x: step(x).map(lambda t: (t, constant)))
    assert (await given(x))[1] is constant
    locked = na.pinned(4)
    into = na.graphed(lambda x: step(x).then(lambda t: na.memcpy(locked, t)))
    await into(x)
    assert locked.tolist() == [3] * 4, "whose overwriting the caller has asked for"


async def test_elements_that_no_tensor_can_have(device: na.Device) -> None:
    replayed = na.graphed(lambda x: na.value(x))
    with pytest.raises(DTypeError, match="object"):
        replayed(np.array([1, "a"], dtype=object))


async def test_strict_ordering_ignores_places_that_calls_share(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    replayed: Any = na.graphed(step)
    a, b = await na.full(8, 1), await na.full(8, 10)
    await replayed(a)
    other = device.new_stream()
    with na.ordering("strict"):
        gate.close()
        first, second = na.spawn(replayed(a), stream), na.spawn(replayed(b), other)
        gate.open()
        assert (await (await first).to_host()).tolist() == [3] * 8
        assert (await (await second).to_host()).tolist() == [21] * 8


class Lent:
    """An array of another library."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


async def test_arrays_of_other_libraries_are_arrays(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    for value in range(4):
        out = await replayed(Lent(np.full(8, value, np.float32)))
        assert (await out.to_host()).tolist() == [2 * value + 1] * 8
    assert len(replayed.graphs) == 1
