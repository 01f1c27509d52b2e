"""Launchers, results and tensors: pickled, unpickled, copied, or refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from numba import cuda
from numba.cuda import grid

import numbasync as na
from numbasync.errors import DriverError, MovedError, ReentrancyError
from numbasync.launch.launcher import Launcher
from tests import sessions
from tests.common import add_one, host, saxpy, visit_tile

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def again(thing: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(thing, protocol))


def local() -> na.Launcher:
    """A kernel without a name that leads to it, with everything that a launcher can be told."""
    factor = 3

    @cuda.jit(device=True)
    def scaled(value):
        return factor * value

    @na.launcher(threads=64, preconditions=["z.shape[0] > 1"], may_alias=True)
    @cuda.jit(fastmath=True)
    def inner(z: na.KernelOutput, x):
        i = grid(1)
        if i < z.shape[0]:
            z[i] = scaled(x[i])

    return inner


# --- launchers and results -----------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_launcher_is_its_name(device: na.Device, protocol: int) -> None:
    assert again(saxpy, protocol) is saxpy
    assert len(pickle.dumps(saxpy, protocol)) < 200
    t = na.ones(8).sync()
    result = saxpy(na.zeros(8).sync().partition(4), 2.0, t).sync()
    found = again(result, protocol)
    assert type(found) is type(result) and found.a == 2.0
    assert found.z.tile == (4,) and found.z.grid == (2,)
    assert host(found.z).tolist() == [2] * 8 and host(found.x).tolist() == [1] * 8
    configured = again(saxpy[2, 4], protocol)
    assert repr(configured) == repr(saxpy[2, 4])
    assert host(configured(found.z.tensor, 1.0, found.x).output().sync())[0] == 3


def test_cloudpickle_takes_a_name_where_there_is_one() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(saxpy)) is saxpy
    assert b"tests.common" in cloudpickle.dumps(saxpy) and len(cloudpickle.dumps(saxpy)) < 200


def test_nameless_objects_need_cloudpickle(
    device: na.Device, python: str, python_env: dict[str, str], tmp_path: Any
) -> None:
    kernel = local()
    x = na.arange(100).sync()
    for thing in (kernel, kernel[1, 4], kernel(na.zeros(4), x), kernel(na.zeros(100), x).sync()):
        with pytest.raises(pickle.PicklingError, match=r"local.<locals>.inner.*\n.*cloudpickle"):
            pickle.dumps(thing)
        if isinstance(thing, na.DeviceOp):
            thing.suppress_warning()
    result = kernel(na.zeros(100), x).sync()
    data = cloudpickle.dumps((kernel, result, kernel(na.zeros(100), x).output().to_host()))
    here, _, op = cloudpickle.loads(data)
    assert here is kernel and op.sync()[5] == 15
    (tmp_path / "data").write_bytes(data)
    program = """
import gc, pathlib, pickle, sys
import numbasync as na
data = pathlib.Path(sys.argv[1]).read_bytes()
def once():
    kernel, result, op = pickle.loads(data)
    assert type(result) is kernel.Result and result.z.to_host().sync()[5] == 15
    assert kernel.may_alias and kernel.kernel.targetoptions["fastmath"]
    assert op.sync()[5] == 15
    try:
        kernel(na.zeros(1), na.zeros(1)).sync()
    except na.errors.LaunchError as error:
        assert "z.shape[0] > 1" in str(error)
    return id(kernel)
first = once()
gc.collect()
before = na.compile_count()
assert once() == first and na.compile_count() == before
print("end")
"""
    env = {**python_env, "NUMBASYNC_DEVICE": device.kind}
    found = sessions.run_program(python, ["-c", program, str(tmp_path / "data")], env, seconds=600)
    assert (found.returncode, found.stdout, found.stderr) == (0, "end\n", "")


def test_an_unpickled_launcher_takes_arguments_by_name(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scaled(z, x, *, n, factor=2.0):
        i = cuda.grid(1)
        if i < n:
            z[i] = x[i] * factor

    there = Launcher(*scaled.Result._made_of)  # as it is unpickled
    z, x = na.zeros(4).sync(), na.ones(4).sync()
    there(z, x, n=3).sync()
    assert z.to_host().sync().tolist() == [2, 2, 2, 0]
    with pytest.raises(na.errors.LauncherError, match="without a name"):
        there(z, x, 3)


def test_a_name_that_leads_elsewhere_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import common

    monkeypatch.setattr(common, "saxpy", na.launcher(saxpy.kernel))
    with pytest.raises(pickle.PicklingError, match=r"saxpy of module tests\.common"):
        pickle.dumps(saxpy)
    assert cloudpickle.loads(cloudpickle.dumps(saxpy)) is saxpy


def test_launchers_are_copied_as_functions_are() -> None:
    assert copy.copy(saxpy) is copy.deepcopy(saxpy) is saxpy


# --- tensors -------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tensor_is_its_elements(device: na.Device, protocol: int) -> None:
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    t = na.from_host(values).sync()
    for key in (..., np.s_[:, ::2, ::-1], np.s_[1, 1, 1], np.s_[0:0]):
        found = again(t[key], protocol)
        assert found.is_contiguous and found.dtype == t.dtype and found.device is device
        np.testing.assert_array_equal(host(found), values[key])
    shared = again(t.shared(), protocol)
    assert type(shared) is na.SharedTensor and host(shared)[1, 2, 3] == 23
    record = np.zeros(3, [("a", "i4"), ("b", "f8")])
    record["b"] = 7
    assert (host(again(na.from_host(record).sync(), protocol)) == record).all()
    meta = again(na.meta((2, 3), np.int8).sync(), protocol)
    assert (meta.device, meta.shape, meta.dtype) == (None, (2, 3), np.int8)


def test_elements_go_out_of_band(device: na.Device) -> None:
    t = na.arange(1 << 16).sync()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    assert len(data) < 1000 and [b.raw().nbytes for b in buffers] == [t.nbytes]
    sent = [bytearray(b) for b in buffers]
    found = pickle.loads(data, buffers=sent)
    sent[0][:] = bytes(len(sent[0]))  # the receiver's again
    assert (host(found) == np.arange(1 << 16)).all()


def test_one_tensor_stays_one(device: na.Device) -> None:
    t = na.zeros(8).sync()
    one, two, part, mapped = again((t, t, t.partition(4), t.partition(2).map(3)))
    assert one is two is part.tensor is mapped.tensor
    assert (mapped.blocks, mapped.tile, part.exact) == (3, (2,), True)
    prefix = again(t.partition_prefix(4))
    assert not prefix.exact
    visit_tile(part).sync()
    assert host(one).tolist() == [1] * 8 and host(t).tolist() == [0] * 8


def test_a_tensor_comes_back_on_the_current_device(device: na.Device) -> None:
    others = [d for d in na.devices() if d is not device]
    t = na.ones(3).sync()
    data = pickle.dumps(t)
    with na.use_device(others[0]):
        assert pickle.loads(data).device is others[0]
        assert pickle.dumps(t) == data  # it is read on its own


def test_the_latest_work_is_in_it(device: na.Device) -> None:
    t = na.zeros(8).sync()
    add_one(t).async_on(device.new_stream())
    assert host(again(t)).tolist() == [1] * 8
    with pytest.raises(ReentrancyError):
        add_one(t).map(lambda r: pickle.dumps(r.z)).sync()
    moved = t.take()
    with pytest.raises(MovedError):
        pickle.dumps(t)
    assert again(moved).shape == (8,)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_are_as_numpys(device: na.Device, copied: Callable[[Any], Any]) -> None:
    other = next(d for d in na.devices() if d is not device)
    t = na.arange(8).sync()
    with na.use_device(other):
        found = copied(t[::2])
    assert found.device is device and found.is_contiguous
    add_one(t).sync()
    assert host(found).tolist() == [0, 2, 4, 6]
    assert copied(na.meta(3).sync()).shape == (3,)


# --- functions of batches ------------------------------------------------------------


@na.elementwise
def doubled(x):
    return 2 * x


def test_functions_of_batches_are_pickled_as_launchers_are(
    device: na.Device, python: str, python_env: dict[str, str], tmp_path: Any
) -> None:
    for pickled in (again, copy.copy, copy.deepcopy, lambda x: pickle.loads(cloudpickle.dumps(x))):
        assert pickled(doubled) is doubled
    assert len(cloudpickle.dumps(doubled)) < 200
    factor = 3

    @na.elementwise(dtype=np.float32)
    def tripled(x):
        return factor * x

    with pytest.raises(pickle.PicklingError, match=r"<locals>\.tripled of.*\n.*cloudpickle"):
        pickle.dumps(tripled)
    assert copy.deepcopy(tripled) is tripled
    (tmp_path / "data").write_bytes(cloudpickle.dumps(tripled))
    program = """
import pathlib, pickle, sys
import numbasync as na
data = pathlib.Path(sys.argv[1]).read_bytes()
tripled = pickle.loads(data)
assert pickle.loads(data) is tripled
b = na.CommandBatch()
x = tripled(b.upload([1, 2]))
b.execute_sync()
print(b.read_sync(x), b.read_sync(x).dtype)
"""
    env = {**python_env, "NUMBASYNC_DEVICE": device.kind}
    found = sessions.run_program(python, ["-c", program, str(tmp_path / "data")], env, seconds=600)
    assert (found.returncode, found.stdout, found.stderr) == (0, "[3. 6.] float32\n", "")


# --- operations ----------------------------------------------------------------------


def test_what_belongs_to_a_process_says_so(device: na.Device) -> None:
    stream = device.new_stream()
    future = na.spawn(na.zeros(3))
    t = na.zeros(3).sync()
    graph = na.fill(t, 1).graph_on(stream)
    batch = na.CommandBatch()
    things = (stream, device, device.pool, device.new_event(), future, graph, batch)
    things += (batch.upload(np.ones(3)),)
    held = [saxpy[1, 1, stream](t, 1.0, np.ones(3, "f4")), graph.launch()]
    for thing in (*things, *held):
        for refused in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"belongs to this process(.|\n)*\n[A-Z]"):
                refused(thing)
    for op in held:
        op.sync()
    future.sync()


def test_an_error_of_the_driver_comes_through() -> None:
    error = DriverError("cuX", 1, "CUDA_ERROR_INVALID_VALUE", "invalid")
    error.add_note("a note")
    found = again(error)
    assert str(found) == str(error) and (found.code, found.__notes__[1:]) == (1, ["a note"])
