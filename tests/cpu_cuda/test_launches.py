"""Launches of `numba.cuda`'s kernels on the CPU device: what is decided once, what each time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.backend.cpu.declared_arguments import Formal
from numbasync.cpu_cuda import arrays, summary
from numbasync.device import address_map
from numbasync.errors import KernelCompileError

REACHED = "the launch is interrupted here"


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    with na.cuda_on_cpu():
        yield


@cuda.jit
def double(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] *= 2


@cuda.jit
def set_corner(a):
    a[1, 0] = 7


def test_an_array_of_the_host_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    new = arrays._unkept
    monkeypatch.setattr(arrays, "_unkept", lambda a: made.append(a.shape) or new(a))
    a, device_array = np.ones(61), cuda.to_device(np.ones(62))
    for _ in range(3):
        double[1, 64](a)
        double[1, 64](device_array)
    assert made == [(61,), (62,)]
    assert set(a.tolist()) == set(device_array.copy_to_host().tolist()) == {8.0}


def test_a_kernel_has_an_overload_for_each_types() -> None:
    @cuda.jit
    def add(r, x, y):
        r[0] = x + y

    configured = add[1, 1]
    for dtype, x in ((np.int64, 1), (np.float64, 1.5), (np.float64, 2.5)):
        configured(np.zeros(1, dtype), x, x)
    assert [len(types) for types in add.overloads] == [3, 3]
    with pytest.raises(TypeError):
        configured(np.zeros(1), "text", 1)
    with pytest.raises(KernelCompileError):
        configured(np.zeros(1, np.int64), 1j, 1j)
    assert len(add.overloads) == 2, "what could not be compiled is none"


def test_an_array_is_known_by_its_memory() -> None:
    block = np.ones(64, np.uint64)
    for dtype in (np.float32, np.int64, np.uint8):  # at one address
        part = block.view(dtype)[:8]
        part[:] = 3
        double[1, 32](part)
        np.testing.assert_array_equal(part, 6)
    changed = np.zeros(6)
    double[1, 32](changed)
    changed.shape = 2, 3
    set_corner[1, 1](changed)
    changed.shape = 3, 2
    set_corner[1, 1](changed)
    assert np.flatnonzero(changed).tolist() == [2, 3]
    grown = np.ones(8)
    double[1, 32](grown)
    grown.resize(100_000, refcheck=False)
    grown[:] = 1
    double[1000, 128](grown)
    np.testing.assert_array_equal(grown, 2)
    grown.flags.writeable = False
    double[1, 32](grown)  # of a copy, as on a GPU
    np.testing.assert_array_equal(grown, 2)


def test_an_array_does_not_outlive_its_program() -> None:
    a = np.ones(100)
    double[1, 32](a)
    gone = weakref.ref(a)
    del a
    assert gone() is None


def test_memory_that_others_know_has_one_record(stream: na.Stream) -> None:
    if stream.device.kind != "cpu":
        pytest.skip("memory of the host")
    a = np.ones(10)
    assert arrays.tensor_of(a).storage is not na.as_tensor(a, arrays.cpu()).storage
    tensor = na.as_tensor(a, arrays.cpu())
    assert arrays.tensor_of(a).storage is tensor.storage
    assert tensor.storage in set(arrays.tensor_of(a[2:5]).storage.overlapping())
    b = np.ones(10)
    assert arrays.tensor_of(b) is arrays.tensor_of(b)
    double[1, 32](a)
    assert tensor.to_host().sync().tolist() == [2] * 10


def test_the_map_is_asked_once_for_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    is_shared = address_map.is_shared
    monkeypatch.setattr(
        address_map, "is_shared", lambda low, high: asked.append(low) or is_shared(low, high)
    )
    a, device_array = np.ones(61), cuda.to_device(np.ones(62))
    others = [na.as_tensor(np.ones(63), arrays.cpu())]
    for _ in range(3):
        double[1, 64](a)
        double[1, 64](device_array)
    assert len(asked) == 2
    others.append(na.as_tensor(a[30:], arrays.cpu()))  # from now on, others know it
    assert others[1].storage in set(arrays.tensor_of(a).storage.overlapping())
    double[1, 64](a)
    del others[1]
    before = len(asked)
    for _ in range(3):
        double[1, 64](a)
    assert len(asked) == before + 1 and set(a.tolist()) == {2.0**7}


def test_an_interrupted_launch_keeps_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    a, may_end = np.ones(100), threading.Event()
    double[1, 32](a)

    def interrupted(operation: Any) -> None:
        operation.suppress_warning()
        raise KeyboardInterrupt(REACHED)

    with monkeypatch.context() as changed:
        changed.setattr(na.Launch, "sync", interrupted)
        changed.setattr(type(arrays.cpu()), "synchronize", lambda device: may_end.wait())
        before = set(threading.enumerate())
        with pytest.raises(KeyboardInterrupt, match=REACHED):
            double[1, 32](a)
        (keeper,) = set(threading.enumerate()) - before
        kept = weakref.ref(a)
        del a
        assert kept() is not None
        may_end.set()
        keeper.join()
    assert kept() is None


def test_a_grid_is_kept_whatever_the_stream() -> None:
    first = double[2, 32]
    assert double[2, 32, cuda.stream()] is first and double[2, 32, 0, 0] is first
    assert double[2, 64] is not first
    with pytest.raises(TypeError, match="integers"):
        double[2.5, 32]
    with pytest.raises(ValueError, match="griddim and blockdim"):
        double[(2,)]
    a = np.ones(64)
    first(a)
    assert not any("ready" in name for name in first.__getstate__())  # of a pickle
    assert a.sum() == 128


def test_declared_arrays_need_no_conversion() -> None:
    """Only their layout is less special than that of the arguments: `f8[:]`, not `f8[::1]`."""

    @cuda.jit("(i8, f8[:], i4)")
    def add(n, a, step):
        if cuda.grid(1) < n:
            a[cuda.grid(1)] += step

    @cuda.jit("(i8, f8[:])")
    def plain(n, a):
        if cuda.grid(1) < n:
            a[cuda.grid(1)] += 1

    a = np.zeros(4)
    add[1, 32](3, a, 2**32 + 2)  # Numba takes the lower bits
    plain[1, 32](np.int8(2), a)
    plain[1, 32](2**64 + 1, a)
    assert a.tolist() == [4, 3, 2, 0]
    i64, floats = cuda.types.int64, cuda.types.float64
    kinds = i64, cuda.types.Array(floats, 1, "C"), i64
    wanted = i64, cuda.types.Array(floats, 1, "A"), i64
    assert Formal("k", kinds, wanted).is_plain
    assert not Formal("k", kinds, (*wanted[:2], floats)).is_plain


def test_arrays_of_other_types_than_declared_are_bits() -> None:
    @cuda.jit("void(int32[:], float32[:])")
    def negate(z, x):
        z[0] = -z[0]
        x[0] += 1

    z, x = np.ones(3, np.uint32), cuda.to_device(np.zeros(2, np.int32))
    negate[1, 1](z, x)
    assert z[0] == 2**32 - 1 and x.copy_to_host().view(np.float32)[0] == 1
    with pytest.raises(KernelCompileError, match="none of them fits"):
        negate[1, 1](np.ones(3, np.uint64), x)


def test_an_extension_is_told_types() -> None:
    class Unknown:
        value = 5

    class Extension:
        told: ClassVar[list[str]] = []

        def prepare_args(self, ty, val, **kwargs):
            self.told.append(str(ty))
            return (cuda.types.int64, val.value) if isinstance(val, Unknown) else (ty, val)

    class Later(Extension):  # is asked first
        pass

    @cuda.jit(extensions=[Extension(), Later()])
    def put(z, n, x):
        z[0] = n + x

    z = np.zeros(1, np.int32)
    put[1, 1](z, Unknown(), np.float32(2))
    assert z[0] == 7
    array = "array(int32, 1d, C)"
    assert Extension.told == [array, "None", "float32", array, "int64", "float32"]


def test_a_summary_of_kernels_and_of_their_compilations() -> None:
    rows = [
        summary.Row("a, here.py:1", 3, [0.5, 2.0]), summary.Row("b, there.py:7", 0, [9.0]),
        summary.Row("a, here.py:1", 1000, [1.0]), summary.Row("c, there.py:9", 1, []),
    ]  # fmt: skip
    assert summary.lines(rows) == [
        "2 kernels, 1,004 launches, 3 compilations in 3.5 s",
        "    2.00 s  a, here.py:1", "    1.00 s  a, here.py:1", "    0.50 s  a, here.py:1",
    ]  # fmt: skip
    assert summary.lines(rows[1:2]) == []
    double[1, 32](np.ones(3))
    place = next(row.place for row in summary.rows() if row.place.startswith("double, "))
    before = {row.place: row.launches for row in summary.rows()}[place]
    double[1, 32](np.ones(3))
    double.forall(9)(np.ones(9))
    after = {row.place: row for row in summary.rows()}[place]
    assert after.launches == before + 2 and len(after.seconds) >= 1
    assert all(seconds > 0 for seconds in after.seconds)
