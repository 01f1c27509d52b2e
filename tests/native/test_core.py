"""The compiled core beside the Python code, which is its specification."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.device.callsite import call_site
from numbasync.device.in_flight import LOOK_EVERY
from numbasync.testing import Gate
from tests.common import add_one

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


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


def test_the_switch(device: na.Device, on: bool) -> None:
    assert native.core.is_on() is on
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


def test_tensors_in_use_are_kept(device: na.Device, stream: na.Stream, on: bool) -> None:
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


def test_streams_without_awaiters_are_looked_at(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    """Nothing is awaited here, and nothing asks the stream: submitting itself retires the work.

    A GPU writes a signal after the call that asks for it has polled. The work before the signal is
    then retired at the next poll, so that twice as much may be in flight.
    """
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    most = 0
    for _ in range(400):
        add_one(z).async_on(stream)
        device.backend.quiesce()
        most = max(most, stream.in_flight_count)
    assert most <= 2 * LOOK_EVERY
    stream.synchronize()
    assert not stream.in_flight_count
    assert stream not in device.busy


def test_work_that_has_a_host_side_is_retired_in_order(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
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
