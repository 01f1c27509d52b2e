"""Functions of other libraries as operations: `na.external`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    DeviceMismatchError,
    NotAGraphNodeError,
    OperationError,
)
from numbasync.testing import gate
from tests.common import host


def add(stream: na.Stream, x: Any, y: Any, z: Any) -> None:
    np.add(x, y, out=z)


def test_a_function_runs_in_its_tensors_order(cpu: na.Device) -> None:
    x, z = na.zeros(4).sync(), na.zeros(4).sync()
    one, two = cpu.new_stream(), cpu.new_stream()
    with gate(one):
        na.fill(x, 3).async_on(one)
        na.external(add, [x, x], [z]).async_on(two)
        na.fill(x, 7).async_on(one)
        copy = z.dup().async_on(one)
        assert not two.query(), "behind the writer of x"
    assert host(copy).tolist() == [6] * 4 and host(x).tolist() == [7] * 4


async def test_operations_and_results_are_composed(device: na.Device) -> None:
    if device.kind != "cpu":
        pytest.skip("the function is NumPy's")
    op = na.external(add, [na.ones(3), na.arange(3)], [na.empty(3)])
    assert (await op.then(lambda z: z.dup()).to_host()).tolist() == [1, 2, 3]
    seen: list[Any] = []
    x, y = await na.gather(na.zeros(2), na.ones(2))
    stream = device.new_stream()
    both = na.external(lambda stream, *arrays: seen.extend([stream, *arrays]), (), (x, y))
    assert await na.spawn(both, stream) == (x, y)
    assert seen[0] is stream and [a.tolist() for a in seen[1:]] == [[0, 0], [1, 1]]
    assert await na.external(lambda stream, x: None, [x[1:]], []) is None


def test_an_error_is_the_awaits_and_ends_there(cpu: na.Device) -> None:
    z = na.zeros(3).sync()
    with pytest.raises(ValueError, match="broadcast"):
        na.external(lambda s, z: np.add(z, np.ones(2), out=z), [], [z]).sync()
    assert host(z).tolist() == [0] * 3 and cpu.in_flight == (0, 0)


async def _coroutine(stream: Any, z: Any) -> None: ...


REFUSED: dict[str, tuple[Callable[[na.Tensor], Any], str]] = {
    "no function": (lambda z: na.external(3, [], [z]), "external"),  # type: ignore[arg-type]
    "one tensor": (lambda z: na.external(add, z, []), r"inputs is <Tensor.*write a list"),  # type: ignore[arg-type]
    "an array": (lambda z: na.external(add, [np.ones(3)], [z]), r"inputs.*no tensor.*from_host"),  # type: ignore[list-item]
    "a number": (lambda z: na.external(add, [], [5]), r"outputs.*5.*no tensor"),  # type: ignore[list-item]
    "its value": (
        lambda z: na.external(add, [na.value(3)], [z]).sync(),
        r"value\(int\) gives.*3.*no tensor",
    ),
    "coroutine": (lambda z: na.external(_coroutine, [], [z]).sync(), "coroutine"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tensor_or_function_is_refused(device: na.Device, name: str) -> None:
    run, text = REFUSED[name]
    with pytest.raises(OperationError, match=text):
        run(na.zeros(3).sync())


def test_a_used_operation_and_a_graph_are_refused(device: na.Device) -> None:
    z, used = na.zeros(3).sync(), na.ones(3)
    used.sync()
    with pytest.raises(AlreadySubmittedError):
        na.external(add, [used], [z])
    with pytest.raises(NotAGraphNodeError, match=r"external\(.*a graph cannot repeat"):
        na.external(lambda s, z: None, [], [z]).graph()


def test_tensors_of_two_devices_are_refused(cpu: na.Device) -> None:
    other = next(d for d in na.devices("cpu") if d is not cpu)
    with na.use_device(other):
        t = na.ones(4).sync()
    with pytest.raises(DeviceMismatchError, match="uses <Tensor"):
        na.external(add, [na.ones(4).sync(), t], [t]).sync()
