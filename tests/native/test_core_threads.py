"""Threads that launch at the same time, and switch at every chance."""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.backend.protocols import counters
from numbasync.errors import MovedError
from tests.common import add_one, saxpy
from tests.native.null_device import launches

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
THREADS = 8


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def together(*mains: Callable[[], None]) -> None:
    """Run functions, each in a thread, from the same moment on."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(mains))

    def run(main: Callable[[], None]) -> None:
        try:
            barrier.wait()
            main()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(main,)) for main in mains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_streams(device: na.Device, same: bool) -> list[na.Stream]:
    streams = [device.new_stream() for _ in range(1 if same else THREADS)]
    return streams * (THREADS // len(streams))


@pytest.mark.parametrize("same", [True, False], ids=["one stream", "a stream each"])
def test_every_launch_has_its_own_arguments(null: na.Device, on: bool, same: bool) -> None:
    """The buffer of a prepared launch is one for all threads."""
    streams, times = in_streams(null, same), 100
    tensors = [na.zeros(8).sync() for _ in range(THREADS)]
    for stream in streams:
        saxpy(tensors[0], 1.0, tensors[1]).sync_on(stream)
    first, counted = len(launches()), counters.launches

    def main(i: int) -> None:
        z, x, stream = tensors[i], tensors[i - 1], streams[i]
        for k in range(times):
            op = saxpy(z, float(1000 * i + k), x)
            # A chunk of launches has buffers of its own.
            na.zip(op, saxpy(z, float(1000 * i + k), x)).async_on(stream) if k % 4 == 0 else (
                op.async_on(stream)
            )

    together(*(lambda i=i: main(i) for i in range(THREADS)))
    names = {t.storage.memory.address: i for i, t in enumerate(tensors)}
    kernels = null.backend.kernels  # type: ignore[attr-defined]
    got: Counter[Any] = Counter()
    for launch in launches(first):
        _, _, _, z, (a,), x = launch.described(kernels, names)
        got[z[4], a, x[4]] += 1
    wanted = {
        (i, float(1000 * i + k), (i - 1) % THREADS): 1 + (k % 4 == 0)
        for i in range(THREADS) for k in range(times)
    }  # fmt: skip
    assert got == wanted
    assert counters.launches - counted == sum(wanted.values())
    null.synchronize()
    assert not null.busy


@pytest.mark.parametrize("same", [True, False], ids=["one stream", "a stream each"])
def test_numbers_are_given_once_and_everything_retires(
    null: na.Device, on: bool, same: bool
) -> None:
    streams, tensors = in_streams(null, same), [na.zeros(8).sync() for _ in range(THREADS)]
    for stream in streams:
        add_one(tensors[0]).sync_on(stream)
    null.synchronize()
    first = {stream: stream._sequence for stream in streams}
    numbers: list[tuple[na.Stream, int]] = []

    def main(i: int) -> None:
        for k in range(150):
            add_one(tensors[i]).async_on(streams[i])
            writer = tensors[i].storage.writer
            numbers.append((writer.stream, writer.sequence))
            if k % 7 == 0:
                streams[i].poll()
            if k % 31 == 0:
                streams[i].synchronize()

    together(*(lambda i=i: main(i) for i in range(THREADS)))
    null.synchronize()
    assert len(set(numbers)) == len(numbers) == THREADS * 150
    for stream, number in first.items():
        own = sorted(n for s, n in numbers if s is stream)
        assert own == list(range(number + 1, number + 1 + len(own)))
        assert stream.in_flight_count == stream.nbytes == 0
        assert stream.advance() == stream._sequence
    assert all(t.storage.writer.done and not t.storage.writer.keep_alive for t in tensors)


def test_shared_tensors_and_several_kernels(device: na.Device, on: bool) -> None:
    """Writers of one tensor, on streams of their own, run one after the other, and all of them."""
    total, sums = na.zeros(8).sync(), [na.zeros(8).sync() for _ in range(THREADS)]
    one = na.ones(8).sync()

    def main(i: int) -> None:
        stream, times = device.new_stream(), 40
        for _ in range(times):
            add_one(total).async_on(stream)
            saxpy(sums[i], 2.0, one).async_on(stream)
        np.testing.assert_array_equal(sums[i].to_host().sync_on(stream), 2.0 * times)
        stream.synchronize()

    together(*(lambda i=i: main(i) for i in range(THREADS)))
    np.testing.assert_array_equal(total.to_host().sync(), 40.0 * THREADS)


def test_loops_of_threads(device: na.Device, on: bool) -> None:
    def main(i: int) -> None:
        async def awaits() -> None:
            z = await na.zeros(8)
            for _ in range(20):
                await add_one(z)
            await na.gather(*(add_one(z) for _ in range(20)))
            np.testing.assert_array_equal(await z.to_host(), 40)

        with na.use_device(device):
            na.run(awaits())

    together(*(lambda i=i: main(i) for i in range(THREADS)))


def test_a_lock_of_the_core(null: na.Device) -> None:
    """Reentrant, and held by one thread at a time."""
    lock, count, inside = native.core.Lock(), 0, 0

    def main() -> None:
        nonlocal count, inside
        for k in range(300):
            with lock:
                assert lock.acquire(False)
                inside += 1
                assert inside == 1
                before = count
                for _ in range(k % 5):
                    native.core.is_on()  # a chance to switch
                count = before + 1
                inside -= 1
                lock.release()

    together(*[main] * THREADS)
    assert count == 300 * THREADS
    lock.acquire()
    seen: list[bool] = []
    together(lambda: seen.append(lock.acquire(False)))
    assert seen == [False]
    lock.release()
    with pytest.raises(RuntimeError, match="un-acquired"):
        lock.release()


@pytest.mark.filterwarnings("ignore:.*was never awaited")  # of operations that were refused
def test_a_tensor_moved_and_freed_by_other_threads(null: na.Device, on: bool) -> None:
    z, x = (na.zeros(8).sync() for _ in range(2))
    saxpy(z, 1.0, x).sync()
    views: deque[na.Tensor] = deque()
    is_over = False

    def launch() -> None:
        nonlocal is_over
        stream = null.new_stream()
        for _ in range(300):
            view = na.zeros(8).sync_on(stream)[0:]
            views.append(view)
            with suppress(MovedError):
                saxpy(view, 1.0, x).sync_on(stream)
        is_over = True

    def move() -> None:
        while not is_over:
            with suppress(IndexError, MovedError):
                views.pop().take()

    together(launch, move)
