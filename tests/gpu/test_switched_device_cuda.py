"""A thread whose current device another library has switched between two submissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from numba import cuda

import numbasync as na
from tests.common import add_one, saxpy

pytestmark = pytest.mark.cuda
two = pytest.mark.cuda(devices=2)


def switches(how: str) -> Callable[[], object]:
    """What switches the current context of the thread."""
    from numbasync.backend.cuda.driver import cu

    if how == "no context":
        return lambda: cu.cuCtxSetCurrent(None)
    if how == "another context":
        result, context = cu.cuCtxCreate(None, 0, cu.CUdevice(0))
        assert not result
        return lambda: cu.cuCtxSetCurrent(context)
    second: Any = na.devices("cuda")[1].backend
    if how == "numba":
        return lambda: cuda.select_device(second.ordinal)
    return lambda: cu.cuCtxSetCurrent(second.context)


@pytest.mark.parametrize(
    "how",
    [
        "no context",
        "another context",
        pytest.param("driver", marks=two),
        pytest.param("numba", marks=two),
    ],
)
def test_work_goes_to_its_own_device(device: na.Device, how: str) -> None:
    stream, switch = device.new_stream(), switches(how)
    z, x = na.zeros(64).sync_on(stream), na.ones(64).sync_on(stream)
    graph = add_one(x).graph_on(stream)
    graph.launch().sync_on(stream)
    expected = na.zeros(64).to_host().sync_on(stream)
    for _ in range(3):
        for op in (
            lambda: add_one(z), lambda: saxpy(z, 1.0, na.ones(64)), lambda: z.dup(),
            lambda: z.to_host(), lambda: na.from_host(expected), lambda: graph.launch(),
            lambda: na.fill(z, 5), lambda: na.full(7, 2).to_host(),
            lambda: na.launcher(add_one.py_func)(z),  # compiled and loaded anew
        ):  # fmt: skip
            switch()
            op().sync_on(stream)
        switch()
        event = device.new_event().record(stream)
        switch()
        event.synchronize()
        switch()
        assert na.full(4, 3).to_host().sync_on(device.new_stream()).tolist() == [3] * 4
        switch()
        device.synchronize()
    switch()
    assert z.to_host().sync_on(stream).tolist() == [6] * 64
