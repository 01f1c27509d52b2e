"""Graphs on a GPU: what the driver holds, and what a capture leaves behind."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.backend.protocols import Command
from numbasync.errors import DriverError, GraphUpdateError
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, copy_to, elements, saxpy
from tests.waiting import begin

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


class Broken:
    """A queue's operand that fails in the middle of a capture."""

    dtype = np.dtype(np.float32)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def pointer(self) -> Any:
        raise self._error


class Invalidating(Broken):
    """One that also spoils the capture, by a call that is not allowed meanwhile."""

    def __init__(self, stream: Any) -> None:
        super().__init__(KeyError("mine"))
        self._stream = stream

    @property
    def pointer(self) -> Any:
        with pytest.raises(DriverError):
            self._stream.synchronize()
        raise self._error


class Waiting(Broken):
    """One that only spoils it."""

    def __init__(self, stream: Any, real: Any) -> None:
        self._stream, self._real = stream, real

    @property
    def pointer(self) -> Any:
        with pytest.raises(DriverError):
            self._stream.synchronize()
        return self._real.pointer

    @property
    def nbytes(self) -> int:
        return int(self._real.nbytes)


def capture_stream(device: na.Device) -> Any:
    """The stream that the next capture uses."""
    streams = device.backend.capture_streams  # type: ignore[attr-defined]  # of a GPU
    stream = streams.take()
    streams.give(stream)
    return stream


def is_capturing(stream: Any) -> bool:
    from cuda.bindings import driver as cu

    result, status = cu.cuStreamIsCapturing(stream.handle)
    assert not result
    return int(status) != 0


def test_a_capture_is_ended_whatever_happens_in_it(device: na.Device) -> None:
    z = na.zeros(8).sync()
    one = np.float32(1)
    stream = capture_stream(device)
    fill = Command("fill", (z.handle, one), "fill")
    # Only the operation fails.
    with pytest.raises(KeyError, match="mine") as only:
        device.backend.graph([fill, Command("fill", (Broken(KeyError("mine")), one), "fill", (0,))])
    assert not is_capturing(stream)
    assert not hasattr(only.value, "__notes__")
    # Both fail: the operation's error, with a note of the other.
    with pytest.raises(KeyError, match="mine") as both:
        device.backend.graph([fill, Command("fill", (Invalidating(stream), one), "fill", (0,))])
    assert "Ending the capture failed as well" in both.value.__notes__[0]
    assert not is_capturing(stream)
    # Only the capture fails.
    with pytest.raises(DriverError, match="CAPTURE"):
        device.backend.graph(
            [Command("fill", (Waiting(stream, z.handle), one), "fill"), Command(
                "fill", (z.handle, one), "fill", (0,)
            )]
        )  # fmt: skip
    assert not is_capturing(stream)
    assert capture_stream(device) is stream
    graph = add_one(z).graph_on(device.new_stream())
    graph.launch().sync()
    assert elements(z) == [1] * 8


def test_a_capture_that_another_thread_invalidates_is_repeated(device: na.Device) -> None:
    """To wait for the whole device ends every capture, of whichever library."""
    from cuda.bindings import driver as cu

    z = na.zeros(8).sync()
    waits = list[int]()

    class Invalidated(Broken):
        def __init__(self) -> None: ...

        @property
        def pointer(self) -> Any:
            if len(waits) < 3:
                waits.append(int(cu.cuCtxSynchronize()[0]))
            return z.handle.pointer

        @property
        def nbytes(self) -> int:
            return int(z.handle.nbytes)

    fill = Command("fill", (Invalidated(), np.float32(3)), "fill")
    graph = device.backend.graph([fill])
    assert len(waits) == 3 and all(waits)
    graph.launch(device.new_stream().backend.handle)  # type: ignore[attr-defined]  # of a GPU
    device.synchronize()
    assert elements(z) == [3] * 8


def test_a_thread_waits_for_devices_while_another_captures(device: na.Device) -> None:
    z = na.zeros(8).sync()
    over = threading.Event()

    def synchronize() -> int:
        turns = 0
        while not over.is_set() or not turns:
            device.synchronize()
            turns += 1
        return turns

    turns = begin(synchronize)
    for _ in range(100):
        add_one(z).graph_on(device.new_stream()).launch().sync()
    over.set()
    assert turns() and elements(z) == [100] * 8


def test_the_users_stream_is_never_captured(device: na.Device, stream: na.Stream) -> None:
    """Others may use it meanwhile; what they enqueue there is done, and not part of the graph."""
    z, other = na.zeros(8).sync(), na.zeros(8).sync()
    add_one(other).sync()

    def meanwhile(_: object) -> na.DeviceOp[Any]:
        def run() -> None:
            with na.use_device(device):
                add_one(other).sync_on(stream)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return add_one(z)

    graph = add_one(z).then(meanwhile).graph_on(stream)
    assert elements(other) == [2] * 8
    assert graph.topology().on_device == {"kernel": 2}
    graph.launch().sync()
    assert (elements(z), elements(other)) == ([2] * 8, [2] * 8)


def test_what_the_driver_holds(device: na.Device, stream: na.Stream) -> None:
    z, wide = na.zeros(8).sync(), na.zeros(8, np.float64).sync()
    grid, other = na.zeros((8, 8)).sync(), na.zeros((8, 8)).sync()
    locked = na.pinned(8)
    graph = na.zip(
        add_one(z),
        na.fill(wide, 1.5),  # two halves
        na.memcpy(z, locked),
        na.memcpy(locked, z),
        na.memcpy(grid[:, 1], other[:, 0]),  # a kernel of ours
    ).graph_on(stream)
    shape = graph.topology()
    assert shape.counts == {"kernel": 1, "memcpy": 3, "memset": 1}
    assert sum(shape.on_device.values()) >= 5
    assert not set(shape.on_device) - {"kernel", "memcpy", "memset"}
    locked[:] = 4
    graph.launch().sync()
    assert elements(wide) == [1.5] * 8


def test_a_debug_kernels_nodes_cannot_be_changed(device: na.Device, stream: na.Stream) -> None:
    @na.launcher
    @cuda.jit(debug=True, opt=False)
    def checked(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += 1

    z, y = na.zeros(8).sync(), na.zeros(8).sync()
    graph = checked(z).graph_on(stream)
    assert graph.topology().on_device["memcpy"] == 7
    with pytest.raises(GraphUpdateError, match="debug"):
        graph.set_args(0, y)
    graph.launch().sync()
    assert (elements(z), elements(y)) == ([1] * 8, [0] * 8)


def test_a_graph_without_the_core(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    native.switch(False)
    try:
        for _ in range(3):
            graph.launch().sync()
    finally:
        native.switch(True)
    assert elements(z) == [3] * 8


def test_kernels_that_numba_launches_itself(device: na.Device, stream: na.Stream) -> None:
    @na.launcher
    @cuda.jit
    def shift(z: na.KernelOutput, by):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += by[0] + by[1]

    z = na.zeros(8).sync()
    graph = shift(z, (1.0, 2.0)).graph_on(stream)
    for _ in range(2):
        graph.launch().sync()
    assert elements(z) == [6] * 8
    graph.set_args(0, z, (10.0, 20.0))
    graph.launch().sync()
    assert elements(z) == [36] * 8


def test_another_librarys_array_is_ordered_at_each_launch(
    device: na.Device, stream: na.Stream
) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.zeros(2**22, device="cuda")
    x, z = na.as_tensor(theirs), na.zeros(2**22).sync()
    graph = copy_to(z, x).graph_on(stream)
    for i in range(1, 20):
        for _ in range(20):  # what a launch without order would overtake
            theirs.mul_(1.0)
        theirs.fill_(float(i))
        graph.launch().sync()
        assert z.to_host().sync()[-1] == i


def test_a_capture_while_torch_captures_on_another_thread(
    device: na.Device, stream: na.Stream
) -> None:
    torch = pytest.importorskip("torch")
    z = na.zeros(8).sync()
    add_one(z).sync()
    theirs = torch.zeros(8, device="cuda")
    wrong = list[BaseException]()
    captured, go_on = threading.Event(), threading.Event()

    def capture() -> None:
        try:
            torch.cuda.set_device(theirs.device)  # a new thread's is the first GPU
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                theirs.add_(1)
                captured.set()
                go_on.wait(30)
            graph.replay()
            torch.cuda.synchronize()
        except BaseException as error:
            wrong.append(error)
            captured.set()

    thread = threading.Thread(target=capture)
    thread.start()
    captured.wait(30)
    try:
        graph = add_one(z).graph_on(stream)
        graph.launch().sync()
    finally:
        go_on.set()
        thread.join()
    assert not wrong
    assert elements(z) == [2] * 8
    assert theirs.tolist() == [1] * 8


async def test_frees_during_captures_go_nowhere_near_them(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    """Memory that the collector returns while the device captures is not freed by replays."""
    z = await na.zeros(1000)

    class Cycle:
        def __init__(self, tensor: na.Tensor) -> None:
            self.tensor, self.itself = tensor, self

    class Collecting(np.float32):
        """A value whose bits are asked for in the middle of a capture."""

        def tobytes(self, *args: Any) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
            gc.collect()
            return super().tobytes(*args)

    gc.disable()
    try:
        for _ in range(20):
            Cycle(await na.zeros(1000))
            device.backend.graph([
                Command("fill", (z.handle, Collecting(1.0)), "fill"),
                Command("launch", _launch_of(stream, z), "add_one", (0,)),
            ])  # fmt: skip
    finally:
        gc.enable()
    graph = saxpy(z, 1.0, await na.ones(1000)).graph_on(stream)
    assert graph.topology().on_device == {"kernel": 1}
    for _ in range(10):
        poison = await na.full(1000, np.nan)
        await graph.launch()
        del poison
    await settle(device)
    assert elements(z) == [10] * 1000


def _launch_of(stream: na.Stream, z: na.Tensor) -> tuple[Any, ...]:
    graph = add_one(z).graph_on(stream)
    (command,) = graph._backend.commands
    return command.operands


def test_a_launch_is_one_call_however_many_nodes(device: na.Device, stream: na.Stream) -> None:
    zs = [na.zeros(8).sync() for _ in range(200)]
    graph = na.zip(*(add_one(z) for z in zs)).graph_on(stream)
    graph.launch().sync()
    before = counters()
    for _ in range(50):
        graph.launch().async_on(stream)
    stream.synchronize()
    after = counters() - before
    assert (after.launches, after.replays, after.copies, after.allocations) == (0, 50, 0, 0)
    assert elements(zs[-1]) == [51] * 8
