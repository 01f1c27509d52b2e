"""What the core uses is there until it is done with it, whatever Python code does meanwhile.

A property, a finaliser, another thread or the collector's callbacks may move a tensor and free its
storage while the core is in the middle of an operation. The operation then raises MovedError or
does what it was asked to.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.device.device import Device
from numbasync.errors import MovedError
from tests.common import saxpy
from tests.native.moments import KINDS, at_call, overwrite, pass_moment
from tests.native.null_device import CudaArray, NullDevice, launches

pytestmark = [
    pytest.mark.skipif(native.core is None, reason="the compiled core is not installed"),
    pytest.mark.filterwarnings("ignore:.*was never awaited"),  # of operations that were refused
]
FEW = 12  # moments; `test_every_moment.py` passes all of them


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_taken_away(null: na.Device, on: bool, kind: str) -> None:
    _take_away_now_and_then(null, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_taken_away_on_a_device(device: na.Device, on: bool, kind: str) -> None:
    _take_away_now_and_then(device, kind)


def _take_away_now_and_then(device: na.Device, kind: str) -> None:
    pass_moment(device, kind, 0)
    count = pass_moment(device, kind, 0)  # now nothing is compiled
    for at in range(1, count + 1, max(1, count // FEW)):
        pass_moment(device, kind, at)


def test_a_spec_is_forgotten_while_building_an_upload(null: na.Device, on: bool) -> None:
    pass_moment(null, "upload", 0)
    count = pass_moment(null, "upload", 0)
    for at in range(1, count + 1):
        pass_moment(null, "upload", at)


def views(stream: na.Stream) -> tuple[na.Tensor, na.Tensor]:
    """Two views, which are all that holds their storages, and whose kernel has a plan."""
    z, x = (na.zeros(8).sync_on(stream) for _ in range(2))
    for _ in range(2):
        saxpy(z, 1.0, x).sync_on(stream)
    return z[0:], x[0:]


def drop_storage(tensor: na.Tensor) -> None:
    tensor.take()
    overwrite()


def test_an_output_moves_during_an_inputs_fingerprint(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    for _ in range(20):
        z, x = views(stream)
        with at_call("fingerprint", 2, partial(drop_storage, z)), pytest.raises(MovedError):
            saxpy(z, 1.0, x).sync_on(stream)


def test_nobody_sees_a_tuple_with_empty_places(null: na.Device, on: bool) -> None:
    """Who asks the collector for all objects, as memory profilers do, would read them."""
    stream = null.new_stream()
    seen: list[str] = []

    def look() -> None:
        seen.extend(repr(len(set(map(id, o)))) for o in gc.get_objects(0) if type(o) is tuple)

    z, x = views(stream)
    with at_call("fingerprint", 2, look):
        saxpy(z, 1.0, x).sync_on(stream)
    assert seen


# --- while another stream is asked ---


class Elsewhere:
    """A recorded access of another stream, which is in flight until the stream is asked for its
    progress; then that runs `act`.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self.stream = _Stream(act)

    @property
    def done(self) -> bool:
        return self.stream.is_done


class _Stream:
    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self.is_done = act, False

    def advance(self) -> None:
        self._act()
        self.is_done = True


def record(storage: Any, as_writer: bool, act: Callable[[], object] = overwrite) -> list[bool]:
    """Record an access that its storage forgets while it is asked; whether it was there still."""
    held: list[bool] = []

    def forget() -> None:
        storage.writer = None
        storage.readers.clear()
        act()
        held.append(ref() is not None)

    access: Any = Elsewhere(forget)
    ref = weakref.ref(access)
    if as_writer:
        storage.writer = access
    else:
        storage.readers[access.stream] = access
    return held


@pytest.mark.parametrize("as_writer", [True, False], ids=["writer", "reader"])
def test_an_access_is_forgotten_while_it_is_asked(
    null: na.Device, on: bool, as_writer: bool
) -> None:
    stream = null.new_stream()
    z, x = views(stream)
    held = record(z.storage, as_writer)
    saxpy(z, 1.0, x).sync_on(stream)
    assert held == [True]


def test_a_writer_is_forgotten_while_downloads_ask(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    z.to_host().sync_on(stream)
    held = record(z.storage, True)
    z.to_host().sync_on(stream)
    assert held == [True]


@pytest.mark.parametrize("of_source", [True, False], ids=["source", "target"])
def test_an_access_is_forgotten_while_copies_ask(
    null: na.Device, on: bool, of_source: bool
) -> None:
    far = Device(NullDevice(100))
    try:
        stream = far.new_stream()
        src = na.zeros(8).sync()
        with na.use_device(far):
            dst = na.zeros(8).sync_on(stream)
        na.memcpy(dst, src).sync_on(stream)
        held = record((src if of_source else dst).storage, True)
        na.memcpy(dst, src).sync_on(stream)
        assert held == [True]
    finally:
        far.backend._engine.stop()  # type: ignore[attr-defined]


def test_a_storage_is_freed_while_asking_its_writer(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z, x = views(stream)
    storage = weakref.ref(z.storage)
    held: list[bool] = []

    def move() -> None:
        drop_storage(z)
        held.append(storage() is not None)

    record(z.storage, True, move)
    with pytest.raises(MovedError):
        saxpy(z, 1.0, x).sync_on(stream)
    assert held == [True]


# --- the argument buffer, which all launches of a kernel on a stream share ---


def arguments(null: na.Device, launch: Any, tensors: dict[str, na.Tensor]) -> list[Any]:
    """The tensors' names and the number of a launch of saxpy."""
    names = {t.storage.memory.address: name for name, t in tensors.items()}
    _, _, _, z, (a,), x = launch.described(null.backend.kernels, names)  # type: ignore[attr-defined]
    return [z[4], a, x[4]]


def test_the_kernel_is_launched_again_while_entering(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = null.new_stream()
    z, x, y = (na.zeros(8).sync_on(stream) for _ in range(3))
    for _ in range(2):
        saxpy(z, 1.0, x).sync_on(stream)
    first, waiting = len(launches()), [True]

    def entered(self: NullDevice) -> int:
        if waiting.pop() if waiting else False:
            saxpy(y, 7.0, z).async_on(stream)
        return 0

    monkeypatch.setattr(NullDevice, "entered", property(entered, lambda self, n: None))
    native.core.forget_current()
    saxpy(z, 1.0, x).async_on(stream)
    tensors = {"z": z, "x": x, "y": y}
    got = [arguments(null, launch, tensors) for launch in launches(first)]
    assert got == [["y", 7.0, "z"], ["z", 1.0, "x"]]


def test_the_kernel_is_launched_again_while_making_parameters(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = null.new_stream()
    z, x, y = (na.zeros(8).sync_on(stream) for _ in range(3))
    for _ in range(2):
        saxpy(z, 1.0, x).sync_on(stream)
        saxpy(y, 1.0, z).sync_on(stream)
    handle: Any = x.handle
    first, kept = len(launches()), handle.packed

    def make(self: CudaArray, name: str) -> Any:
        if name != "packed":
            raise AttributeError(name)
        self.packed = kept
        saxpy(y, 7.0, z).async_on(stream)
        return kept

    monkeypatch.setattr(CudaArray, "__getattr__", make, raising=False)
    del handle.packed
    saxpy(z, 1.0, x).async_on(stream)
    tensors = {"z": z, "x": x, "y": y}
    got = [arguments(null, launch, tensors) for launch in launches(first)]
    assert got == [["y", 7.0, "z"], ["z", 1.0, "x"]]
