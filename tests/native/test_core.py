"""The compiled core beside the Python code, which is its specification."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.device.callsite import call_site
from numbasync.testing import Gate
from tests.common import add_one, saxpy

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@pytest.fixture(autouse=True)
def _on_again() -> Iterator[None]:
    yield
    native.switch(True)


def test_every_function_of_the_core_is_in_the_place_of_one_in_python() -> None:
    """A Python function that is renamed would leave the core's unused."""
    taken = {name.replace(".", "_") for name in native.core.taken_over()}
    own = {
        name for name, value in vars(native.core).items()
        if callable(value) and not inspect.isclass(value) and not isinstance(value, type)
    }  # fmt: skip
    interface = {
        "know", "take_over", "taken_over", "switch", "is_on", "know_frames", "know_faults",
        "use_driver", "forget_current", "know_operations", "know_memory", "know_devices", "await_fast",
        "get_running_loop", "current_task",
    }  # fmt: skip
    assert own - interface <= taken
    assert own & interface == interface


@pytest.mark.parametrize("on", [True, False])
def test_the_switch(device: na.Device, on: bool) -> None:
    assert native.switch(on) is on
    z = na.zeros(8).sync()
    for _ in range(3):
        add_one(z).sync()
    np.testing.assert_array_equal(z.to_host().sync(), 3)


def test_a_class_without_its_slots_is_refused() -> None:
    class Storage:
        pass

    with pytest.raises(TypeError, match=r"Storage\.fast_path_device is no slot"):
        native.core.know(Storage)


def test_call_sites_are_those_of_python(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync_on(stream)
    lines = []
    for on in (True, False):
        native.switch(on)
        op = add_one(z)
        op.suppress_warning()
        lines.append((call_site(0), op._site, submission_of(z, stream).site))
    assert [str(line) for line in lines[0]] == [str(line) for line in lines[1]]


def submission_of(z: na.Tensor, stream: na.Stream) -> Any:
    add_one(z).async_on(stream)
    submission = z.storage.writer
    stream.synchronize()
    return submission


# --- what is kept until the device has passed it ---


@pytest.mark.parametrize("on", [True, False])
def test_tensors_in_use_are_kept(device: na.Device, stream: na.Stream, on: bool) -> None:
    assert native.switch(on) is on
    z = na.zeros(2**16).sync_on(stream)
    add_one(z).sync_on(stream)
    used = device.pool.stats().used_current
    gate = Gate(stream)
    gate.close()
    add_one(z).async_on(stream)
    submission = z.storage.writer
    del z
    assert device.pool.stats().used_current == used
    assert not submission.done
    gate.open()
    stream.synchronize()
    assert submission.done
    assert device.pool.stats().used_current < used


@pytest.mark.parametrize("on", [True, False])
def test_streams_without_awaiters_are_looked_at(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    """Nothing is awaited here, and nothing asks the stream: submitting itself retires the work."""
    assert native.switch(on) is on
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    most = 0
    for _ in range(400):
        add_one(z).async_on(stream)
        device.backend.quiesce()
        most = max(most, stream.in_flight_count)
    assert most <= 16
    stream.synchronize()
    assert not stream.in_flight_count
    assert stream not in device.busy


@pytest.mark.parametrize("on", [True, False])
def test_work_that_has_a_host_side_is_retired_in_order(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    assert native.switch(on) is on
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    gate = Gate(stream)
    gate.close()
    add_one(z).async_on(stream)
    host = na.spawn(z.to_host(), stream)
    add_one(z).async_on(stream)
    assert stream.in_flight_count == 3
    gate.open()
    np.testing.assert_array_equal(host.sync(), 2)
    stream.synchronize()
    np.testing.assert_array_equal(z.to_host().sync_on(stream), 3)


# --- random programs ---


def program(device: na.Device, seed: int) -> list[Any]:
    """What a program of random calls on two streams, one of which may be held, leaves behind: the
    numbers given, the access records, and what every await and every read gave.
    """
    rng = random.Random(seed)
    streams = [device.new_stream(), device.new_stream()]
    first = [stream._sequence for stream in streams]
    tensors = [na.full(16, i).sync_on(streams[0]) for i in range(4)]
    for stream in streams:  # compiled, so that every later call is a fast one
        saxpy(tensors[0], 1.0, tensors[1]).sync_on(stream)
        add_one(tensors[0]).sync_on(stream)
    seen: list[Any] = []
    gates: dict[int, Gate] = {}

    def op() -> na.DeviceOp[Any]:
        z, x = rng.sample(range(4), 2)
        kind = rng.randrange(6)
        if kind == 0:
            return add_one(tensors[z])
        if kind == 1:
            return add_one(tensors[z]).first()
        if kind == 2:
            return na.zip(add_one(tensors[z]), saxpy(tensors[x], 0.5, tensors[z]))
        if kind == 3:
            return saxpy(tensors[z], 2.0, tensors[x]).then(lambda r: add_one(r.z))
        return saxpy(tensors[z], float(rng.randrange(3)), tensors[x])

    async def awaited(ops: list[Any]) -> Any:
        return await na.gather(*ops) if len(ops) > 1 else await ops[0]

    for _ in range(40):
        which = rng.randrange(2)
        stream, action = streams[which], rng.randrange(8)
        if action == 0 and not gates:
            gates[which] = Gate(stream)
            gates[which].close()
        elif action == 1 and gates:
            gates.popitem()[1].open()
        elif action == 2 and not gates:
            seen.append(repr(op().sync_on(stream)))
        elif action == 3 and not gates:
            na.run(awaited([op() for _ in range(rng.randrange(1, 4))]))
        elif action == 4 and not gates:
            seen.append(tensors[rng.randrange(4)].to_host().sync_on(stream).tolist())
        else:
            op().async_on(stream)
        seen.append([s._sequence - n for s, n in zip(streams, first, strict=True)])
        for tensor in tensors:
            storage = tensor.storage
            seen.append((
                storage.writer.sequence - first[streams.index(storage.writer.stream)]
                if storage.writer is not None and storage.writer.stream in streams else None,
                sorted(streams.index(s) for s in storage.readers if s in streams),
            ))  # fmt: skip
    for gate in gates.values():
        gate.open()
    for stream in streams:
        stream.synchronize()
    seen += [t.to_host().sync_on(streams[0]).tolist() for t in tensors]
    seen.append([stream.in_flight_count for stream in streams])
    return [str(x).replace(str(id(device)), "") for x in seen]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_those_of_python(device: na.Device, seed: int) -> None:
    results = []
    for on in (False, True):
        assert native.switch(on) is on
        results.append(program(device, seed))
    assert len(results[0]) == len(results[1])
    for i, (want, got) in enumerate(zip(*results, strict=True)):
        assert got == want, f"step {i}"
