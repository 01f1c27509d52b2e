"""Arrays of other libraries: used in place, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AliasError,
    CallerError,
    DeviceMismatchError,
    DTypeError,
    LauncherError,
    LaunchError,
    OperationError,
    ShapeError,
    SharedStorageError,
)
from numbasync.testing import counters
from tests.common import add_one, copy_to, fresh, host, saxpy
from tests.lenders import Lent, OnGpu, Versioned, lend, lend_readonly, seen


@na.launcher(may_alias=True)
@cuda.jit
def shift(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + 10


# --- in place ------------------------------------------------------------------------


def test_an_imported_tensor_needs_no_copy_or_work(device: na.Device) -> None:
    x = lend(device, np.arange(6, dtype=np.float32))
    before = counters()
    t = na.as_tensor(x)
    assert counters() == before
    home = device
    if device.kind != "cpu":  # Numba's current one
        home = na.devices("cuda")[cuda.current_context().device.id]
    assert (t.shape, t.dtype, t.strides, t.device) == ((6,), np.float32, (4,), home)
    assert host(t).tolist() == [0, 1, 2, 3, 4, 5]
    add_one(t.partition(4)).sync()
    assert seen(x).tolist() == [1, 2, 3, 4, 5, 6]
    na.memcpy(t[:2], np.full(2, 9, np.float32)).sync()
    assert seen(x).tolist() == [9, 9, 3, 4, 5, 6]


def test_an_argument_is_used_where_it_is(device: na.Device) -> None:
    z, x = lend(device, np.ones(8, np.float32)), lend(device, np.arange(8, dtype=np.float32))
    before = counters()
    result = saxpy(z, 2.0, x).sync()
    assert result.z is z and result.x is x
    assert (counters() - before).allocations == (counters() - before).copies == 0
    assert seen(z).tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert saxpy(z, 2.0, x).output().sync() is z


async def test_an_operation_may_give_another_librarys_array(device: na.Device) -> None:
    x = lend(device, np.ones(8, np.float32))
    with na.use_device(na.as_tensor(x).device):
        z = (await copy_to(na.zeros(8), na.value(x))).z
    assert (await z.to_host()).tolist() == [1] * 8
    await fresh()(x)
    assert seen(x).tolist() == [2] * 8


def test_views_of_it_are_views(device: na.Device) -> None:
    x = lend(device, np.arange(12, dtype=np.int32).reshape(3, 4))
    want = seen(x)
    t = na.as_tensor(x)
    for view, array in (
        (t[1:, ::2], want[1:, ::2]),
        (na.as_tensor(x[1:, ::2]), want[1:, ::2]),
        (t.reshape(12)[3:], want.reshape(12)[3:]),
        (t.take()[0], want[0]),
    ):
        np.testing.assert_array_equal(host(view), array)
        na.fill(view, 7).sync()
        array[...] = 7
        np.testing.assert_array_equal(seen(x), want)


def test_a_tensor_comes_back_as_it_is(device: na.Device) -> None:
    t = na.ones(3).sync()
    assert na.as_tensor(t) is t and na.as_tensor(t, device) is t and na.from_dlpack(t) is t
    with pytest.raises(OperationError, match="is a tensor already"):
        na.as_tensor(t.shared())
    others = [d for d in na.devices() if d is not device]
    with pytest.raises(DeviceMismatchError, match=f"not on {others[0].label}"):
        na.as_tensor(t, others[0])
    with pytest.raises(CallerError, match=r"as_tensor takes a device, not str \('cuda'\)"):
        na.as_tensor(t, "cuda")  # type: ignore[arg-type]


def test_nothing_is_an_array_too(device: na.Device) -> None:
    x = lend(device, np.zeros((3, 0), np.float32))
    t = na.as_tensor(x)
    assert host(t).shape == (3, 0)
    na.fill(t, 1).sync()
    assert host(na.as_tensor(lend(device, np.array(3.5)))) == 3.5


def test_kernels_are_planned_as_for_tensors(device: na.Device) -> None:
    @na.launcher(preconditions=["z.shape[0] % 4 == 0"])
    @cuda.jit
    def fours(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = i

    x = lend(device, np.zeros(8, np.float32))
    fours.compile(x).sync()
    before = na.compile_count()
    fours[2, 4](x).sync()
    fours(na.as_tensor(x).partition(4)).sync()
    assert na.compile_count() == before
    with pytest.raises(LaunchError, match=r"z\.shape\[0\] % 4"):
        fours(x[:6]).sync()


# --- in the host's memory ------------------------------------------------------------------


def test_a_host_array_is_read_where_it_is(device: na.Device) -> None:
    x = Lent(np.arange(8, dtype=np.float32))
    z = na.zeros(8).sync()
    before = counters()
    result = copy_to(z, x).sync()
    assert result.x is x
    assert host(z).tolist() == list(range(8))
    copy_to(z, x[::-1]).sync()
    assert host(z).tolist() == list(range(8))[::-1]
    assert (counters() - before).allocations == (0 if device.kind == "cpu" else 2)


def test_a_host_array_is_written_where_possible(device: na.Device) -> None:
    x = Lent(np.zeros(8, np.float32))
    if device.kind == "cpu":
        add_one(x).sync()
        assert x.array.tolist() == [1] * 8
        return
    before = counters()
    with pytest.raises(LauncherError, match=r"z is written.*would be lost(.|\n)*from_host"):
        add_one(x).sync()
    assert (counters() - before).launches == 0


def test_a_host_array_is_uploaded_by_from_host(device: na.Device) -> None:
    x = Lent(np.arange(8, dtype=np.float32))
    t = na.from_host(x).sync()
    add_one(t).sync()
    assert x.array[7] == 7 and host(t)[7] == 8
    with pytest.raises(DeviceMismatchError, match=r"on cuda:63, not in host memory.*\n.*as_tensor"):
        na.from_host(OnGpu(np.zeros(3)))


def test_host_memory_is_a_tensor_of_the_cpu(device: na.Device) -> None:
    array = np.arange(4, dtype=np.float32)
    (cpu, *_) = na.devices("cpu")
    for x in (array, Lent(array), Versioned(array)):
        t = na.as_tensor(x, cpu)
        assert t.device is cpu and t.storage.memory.address == array.ctypes.data
        with na.use_device(cpu):
            na.fill(t, 3).sync()
            assert na.as_tensor(x).device is na.from_dlpack(x).device is cpu
    assert array.tolist() == [3] * 4
    if device is not cpu:
        with pytest.raises(
            DeviceMismatchError, match=rf"in host memory.*{device.label}.*\n.*from_host"
        ):
            na.as_tensor(array)


def test_every_layout_of_numpy(device: na.Device) -> None:
    (cpu, *_) = na.devices("cpu")
    base = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    views = (base[::-1], base.T, base[:, ::2, ::-2], base[1], base[:, None, 2], base[0, 0, 0:0])
    with na.use_device(cpu):
        for view in (*views, np.array(7), np.broadcast_to(np.float32(2), (2, 3))):
            for x in (view, Versioned(view)):
                t = na.as_tensor(x)
                np.testing.assert_array_equal(host(t), view)
        na.fill(na.as_tensor(base[:, ::2, ::-2]), -1).sync()
    assert (base[:, ::2, ::-2] == -1).all() and (base == -1).sum() == 18


# --- refused -------------------------------------------------------------------------------


def test_outputs_that_overlap_other_arguments(device: na.Device) -> None:
    x = lend(device, np.zeros(8, np.float32))
    t = na.as_tensor(x)
    for z, y in ((x, x), (x[:5], x[4:]), (x, x[2:6]), (x[2:6], x), (x[::2], x[1::2]), (t, x[1:])):
        before = counters()
        with pytest.raises(AliasError, match=r"z, which may be written, and x"):
            saxpy(z, 1.0, y).sync()
        assert counters() == before
    saxpy(x[:4], 1.0, x[4:]).sync()
    shift(x[4:], x[2:6]).sync()


def test_overlapping_arrays_are_copied_as_if_at_once(device: na.Device) -> None:
    n = 1 << 16
    want = np.arange(n, dtype=np.int32)
    x = lend(device, want)
    for to, of in ((slice(1, None), slice(None, -1)), (slice(None, -1), slice(1, None))):
        na.memcpy(na.as_tensor(x[to]), na.as_tensor(x[of])).sync()
        want[to] = want[of].copy()
        assert np.array_equal(seen(x), want)


def test_a_partition_waits_for_whoever_overlaps(device: na.Device) -> None:
    x = lend(device, np.zeros(8, np.float32))
    whole, part = na.as_tensor(x), na.as_tensor(x[2:6])
    shared = whole.shared()
    del whole
    with pytest.raises(SharedStorageError, match="1 other"):
        shared.partition(4)
    del part
    assert shared.partition(4).grid == (2,)


def test_read_only_arrays_are_read_only(device: na.Device) -> None:
    x = lend_readonly(device, np.arange(8, dtype=np.float32))
    t = na.as_tensor(x)
    assert t.is_readonly and t[2:].is_readonly and t.take().is_readonly
    t = na.as_tensor(x)
    before = counters()
    for refused in (
        lambda: add_one(x).sync(),
        lambda: add_one(t).sync(),
        lambda: add_one(t.partition(4)).sync(),
        lambda: add_one(na.value(t[1:])).sync(),
    ):
        with pytest.raises(LauncherError, match="z may be written, but .*reading only"):
            refused()
    for write in (
        lambda: na.fill(t, 1),
        lambda: na.memcpy(t[:4], na.zeros(4).sync()),
        lambda: na.memcpy(t, np.zeros(8, np.float32)),
    ):
        with pytest.raises(OperationError, match="reading only"):
            write()
    assert (counters() - before).launches == 0
    out = na.zeros(8).sync()
    copy_to(out, x).sync()
    na.memcpy(out, t).sync()
    assert host(out).tolist() == list(range(8))


class Refusing(Lent):
    """What a library does with a tensor that requires a gradient."""

    requires_grad = True

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient")


def refusals() -> dict[str, tuple[Any, type, str]]:
    misaligned = np.zeros(9, np.uint8)[1:].view(np.float32)
    ragged = np.zeros(4, np.dtype([("a", np.float32), ("b", np.int8)]))["a"]
    return {
        "no array": (object(), OperationError, r"object \(<object.*\n.*from_host"),
        "a list": ([1.0], OperationError, r"list \(\[1\.0\]\)"),
        "a type": (Lent, OperationError, "takes an array with __dlpack__"),
        "on another device": (
            OnGpu(np.zeros(3)), DeviceMismatchError, "tests.OnGpu lies on cuda:63, which",
        ),
        "gradients": (Refusing(np.zeros(3)), OperationError, r"require gradient\n.*detach\(\)"),
        "text": (np.array(["a"]), DTypeError, "cannot hold <U1"),
        "another byte order": (np.zeros(3, ">f4"), DTypeError, "cannot hold >f4"),
        "long doubles": (np.zeros(3, np.longdouble), DTypeError, "cannot hold"),
        "no multiple": (ragged, ShapeError, r"strides of \(5,\) bytes.*\n.*contiguous copy"),
        "not aligned": (misaligned, ShapeError, r"no float32 can lie.*\n.*contiguous copy"),
    }  # fmt: skip


@pytest.mark.parametrize("case", refusals())
def test_what_as_tensor_refuses(case: str) -> None:
    x, error, message = refusals()[case]
    (cpu, *_) = na.devices("cpu")
    for use in (lambda: na.as_tensor(x, cpu), lambda: na.as_tensor(x)):
        with na.use_device(cpu), pytest.raises(error, match=message):
            use()


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [(OnGpu(np.zeros(3)), DeviceMismatchError, "saxpy: x: tests.OnGpu lies on cuda:63"),
     (Refusing(np.zeros(3)), OperationError, r"saxpy: x: (.|\n)*detach\(\)"),
     (object(), LauncherError, "saxpy: x cannot be object(.|\n)*__dlpack__")],
)  # fmt: skip
def test_arguments_that_are_refused_name_the_parameter(
    device: na.Device, x: Any, error: type, message: str
) -> None:
    z = na.zeros(8).sync()
    before = counters()
    with pytest.raises(error, match=message):
        saxpy(z, 1.0, x)
    assert counters() == before


def test_an_array_is_no_number(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scaled(z: na.KernelOutput, a: float):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] *= a

    x = lend(device, np.zeros(8, np.float32))
    with pytest.raises(LauncherError, match="a is annotated as a number, but came as an array of"):
        scaled(x, x)


def test_a_foreign_devices_array_is_refused_by_names(device: na.Device) -> None:
    (cpu, *others) = na.devices("cpu")
    elsewhere = others[0] if device is cpu else cpu
    t = na.as_tensor(np.zeros(8, np.float32), elsewhere)
    with pytest.raises(DeviceMismatchError, match=f"on {elsewhere.label}.*goes to {device.label}"):
        add_one(t).sync_on(device.new_stream())
    assert add_one(t).sync().z is t  # without a stream, where the array is


def test_from_dlpack_wants_dlpack(device: na.Device) -> None:
    with pytest.raises(OperationError, match="int has no __dlpack__"):
        na.from_dlpack(3)


def test_the_cpu_device_lends_by_dlpack_alone() -> None:
    (cpu, *_) = na.devices("cpu")
    with na.use_device(cpu):
        t = na.ones(3).sync()
    assert np.from_dlpack(t).tolist() == [1, 1, 1]
    for name in ("__cuda_array_interface__", "__array_interface__"):
        assert not hasattr(t, name)
    with pytest.raises(DTypeError, match=r"await t\.to_host\(\)"):
        np.asarray(t)
