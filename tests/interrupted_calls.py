"""Calls that tests interrupt, and what must hold after each ^C."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.backend.cpu.runtime.workers import state
from numbasync.device import copy_threads
from numbasync.device.access import is_strict
from numbasync.ops import reentrancy, submission_queue
from numbasync.ops.future import starting
from numbasync.tensors.pinned import sharing
from tests.interrupted_devices import Call, awaiting, calls_of, pair_of, runtimes
from tests.interrupting import Interrupt, Place, Places, Trace

WAYS = [False, True] if native.core is not None else [False]


@na.launcher
@cuda.jit
def add(z: na.KernelOutput, c):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += c


@contextmanager
def quietly(on: bool) -> Iterator[None]:
    """With the core, or without it; and without warnings of what ^C has ended."""
    native.switch(on)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # what comes in a finaliser
    logger = logging.getLogger("asyncio")  # says that a closed loop had tasks
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of operations that did not run
            warnings.simplefilter("ignore", ResourceWarning)  # of loops, before they were closed
            yield
    finally:
        gc.collect()  # loops that ^C has ended half-way, with their files
        sys.unraisablehook, logger.disabled = hook, False
        native.switch(True)


class Interrupted:
    """Tensors of one device, and calls on a stream that use them.

    Args:
        all: also those of several devices, large copies, page-locked memory and threads.

    Attributes:
        calls: by name; each has returned when its work is done, or its loop closed.
    """

    def __init__(self, device: na.Device, all: bool = True) -> None:
        gc.collect()  # what other tests have left in cycles must not end while a call is watched
        device.synchronize()
        self._on_sigint = signal.getsignal(signal.SIGINT)
        self.device = device
        self.z = na.zeros(64, np.int64).sync()
        self.host = np.ones(64, np.int64)
        self.other = device.new_stream()
        self.devices = {device: None, **dict.fromkeys(pair_of(device))}
        self.graph: Any = add(self.z, 1).graph_on(device.new_stream())
        z, host = self.z, self.host
        self.calls: dict[str, Call] = {
            "fill": lambda s: na.fill(z, 1).sync_on(s),
            "to_host": lambda s: z.to_host().sync_on(s),
            "memcpy": lambda s: na.memcpy(z, host).sync_on(s),
            "zeros": lambda s: na.zeros(64).sync_on(s),
            "from_host": lambda s: na.from_host(host).sync_on(s),
            "launch": lambda s: add(z, 1).sync_on(s),
            "launch_sync": lambda s: add(z, 1).sync(),
            "async_on": lambda s: add(z, 1).async_on(s),
            "zip": lambda s: na.zip(add(z, 1), na.fill(z, 1)).sync_on(s),
            "then": lambda s: (
                add(z, 1).then(lambda r: add(r.z, 2)).map(lambda r: r).sync_on(s)
            ),
            "two_streams": lambda s: (add(z, 1).async_on(self.other), add(z, 1).sync_on(s)),
            "limit": self._limited,
            "ordering": self._strict,
            "use_device": self._on_the_device,
            "synchronize": lambda s: s.synchronize(),
            "event": self._event,
            "graph": lambda s: self.graph.launch().sync_on(s),
            "capture": lambda s: add(z, 1).graph_on(s),
            "scope": self._scope,
            "scope_that_is_kept": self._kept_scope,
            "batch": self._batch,
            "future_sync": lambda s: add(z, 1).shared().schedule(s).sync(),
            "await": awaiting(lambda s: add(z, 1)),
            "await_shared": awaiting(lambda s: add(z, 1).shared()),
            "closed_loop": self._await_and_close,
            "await_to_host": awaiting(lambda s: z.to_host()),
            "spawn": awaiting(lambda s: na.spawn(add(z, 1), s)),
            "schedule": awaiting(
                lambda s: add(z, 1).then(lambda r: add(r.z, 1)).schedule(s)
            ),
            "gather": awaiting(lambda s: na.gather(add(z, 1), z.to_host(), na.zeros(8))),
            "await_limit": awaiting(self._await_limited),
            **(calls_of(device, z, add) if all else {}),
        }  # fmt: skip

    def _limited(self, stream: na.Stream) -> None:
        with na.limit(ops=4):
            add(self.z, 1).sync_on(stream)

    async def _await_limited(self, stream: na.Stream) -> None:
        with na.limit(ops=1):
            await add(self.z, 1)

    def _await_and_close(self, stream: na.Stream) -> None:
        """The loop is closed with its task, as programs do that do not care."""

        async def main() -> None:
            await add(self.z, 1).then(lambda r: add(r.z, 1))

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(main())
        finally:
            loop.close()

    def _strict(self, stream: na.Stream) -> None:
        with na.ordering("strict"):
            add(self.z, 1).sync_on(stream)

    def _on_the_device(self, stream: na.Stream) -> None:
        with na.use_device(na.devices("cpu")[-1]):
            na.value(1).sync()

    def _event(self, stream: na.Stream) -> None:
        event = self.device.new_event()
        event.record(stream)
        event.wait(self.other)
        event.synchronize()

    def _scope(self, stream: na.Stream) -> None:
        with na.CudaGraph.scope(stream) as scope:
            scope.record(add(self.z, 1))

    def _kept_scope(self, stream: na.Stream) -> None:
        self.scope = na.CudaGraph.scope(stream)
        with self.scope:
            self.scope.record(add(self.z, 1))

    def _batch(self, stream: na.Stream) -> None:
        batch = na.CommandBatch()
        x = batch.upload(np.ones(8, np.float32))
        y = batch.add(x, x)
        batch.execute_sync()
        batch.read_sync(y)

    def left(self) -> list[str]:
        """What is not as before the call."""
        line = submission_queue._thread.line
        found = {
            "the thread is busy": reentrancy._thread.busy,
            "strict ordering": is_strict(),
            "another device": na.default_device() is not self.device,
            "a queue is not empty": line is not None and bool(line),
            "a runtime runs": bool(runtimes()),
        }
        for device in self.devices:
            found |= {
                f"a limit of {device.label} is open": device.open_limits,
                f"a limit of {device.label} holds": device.limit is not None,
                f"{device.label} counts as limited": device.is_limited,
                f"in flight on {device.label}": device.in_flight != (0, 0),
                f"chunks of {device.label} are in use": device.ring.statistics().in_use > 0,
            }
        found |= {f"a lock is held: {lock}": is_held(lock) for lock in self._locks()}
        return [what for what, is_so in found.items() if is_so]

    def _locks(self) -> list[Any]:
        pools: list[Any] = [device.pool._pool for device in self.devices]
        submits = [device.submit_lock for device in self.devices]
        return [
            state, starting, sharing, self.other._lock, *submits, *(pool._lock for pool in pools)
        ]  # fmt: skip

    def bytes_now(self) -> list[int]:
        """The bytes in use on each device."""
        return [device.memory_stats().used_current for device in self.devices]

    def after(self, stream: na.Stream, bytes_before: list[int]) -> list[str]:
        """What is wrong after an interrupted call on `stream`."""
        # `asyncio.run` handles ^C by a method that names its task, and therefore the result. It
        # sets the former handler again in a `finally`, which ^C can end before: then, for good.
        signal.signal(signal.SIGINT, self._on_sigint)
        self._synchronize()
        wrong = self.left()
        if wrong or self.bytes_now() != bytes_before:
            gc.collect()  # what is in the frames of the traceback
            for thread in runtimes():
                thread.join(300)  # it ends with its runtime
            self._synchronize()
            wrong = self.left()
            if self.bytes_now() != bytes_before:
                wrong.append("memory")
        if not wrong:  # else it might hang
            before = self.z.to_host().sync_on(stream)
            add(self.z, 1).sync_on(stream)
            if not np.array_equal(self.z.to_host().sync_on(self.other), before + 1):
                wrong.append("the next operation")
        return wrong

    def _synchronize(self) -> None:
        copy_threads.settle()
        for device in self.devices:
            device.synchronize()

    def _follow(self, name: str, stream: na.Stream, trace: Trace) -> None:
        """The call of that name, followed; it finds memory that others have just given back."""
        call = self.calls[name]
        na.zeros(8).sync_on(self.other)
        trace.run(lambda: call(stream))  # in one place: it is one of the callers

    def interrupt_at(self, name: str, interrupt: Interrupt) -> list[str]:
        """The call of that name, interrupted; and what is wrong then."""
        stream = self.device.new_stream()
        bytes_before = self.bytes_now()
        raised = False
        try:
            self._follow(name, stream, interrupt)
        except KeyboardInterrupt:
            raised = True
        wrong = self.after(stream, bytes_before)
        if interrupt.came and not raised and not interrupt.was_swallowed:
            wrong.append("not raised")
        return wrong

    def places(self, name: str) -> list[tuple[Place, int]]:
        """Each place of the call of that name; the first and the last time that it comes there."""
        for _ in range(2):  # compiled, and what is made once or seen twice
            self.calls[name](self.device.new_stream())
        places, stream = Places(), self.device.new_stream()
        self.after(stream, self.bytes_now())
        self._follow(name, stream, places)
        self._synchronize()
        return [(place, n) for place, hits in places.hits.items() for n in {1: 0, hits: 0}]

    def sweep(self, step: int, calls: slice = slice(None)) -> list[str]:
        """Calls, interrupted at every `step`-th place; what was wrong with one of them."""
        gc.collect()
        gc.freeze()  # collections then look at what the calls leave
        try:
            missed = tried = 0
            for i, name in enumerate(list(self.calls)[calls]):
                places = self.places(name)[11 * i % step :: step]
                tried += len(places)
                for place, hit in places:
                    interrupt = Interrupt(place, hit)
                    wrong = self.interrupt_at(name, interrupt)
                    if wrong:
                        return [f"{name}: {what}, ^C in {place}, {hit}. time" for what in wrong]
                    missed += not interrupt.came
            # Of one call it may be most: how often it looks whether the device is done, differs.
            if missed > max(3, tried // 2):
                return [f"{missed} of {tried} places were not come to"]
            return []
        finally:
            gc.unfreeze()


def is_held(lock: Any) -> bool:
    """Whether this thread holds a reentrant lock, which it ought not to."""
    with suppress(RuntimeError):
        lock.release()
        lock.acquire()
        return True
    return False
