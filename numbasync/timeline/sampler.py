"""What a trace looks at now and then, from a thread of its own: memory, and how late loops are."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from time import perf_counter_ns

from numbasync.device import reactor
from numbasync.device.device import known_devices

EVERY_S = 0.01

# When, what, where, and how much.
Sample = tuple[int, str, str, float]
MEMORY, LAG = "memory in use", "loop lag"


class Sampler:
    """Samples of the devices' memory and of the loops that use them, until it is stopped.

    A loop is asked to run a call, and is late by the time until it does. It is asked again when it
    has run the call, so a loop that stands still has one sample, at its end.

    Attributes:
        samples: bytes in use, where they changed, and nanoseconds that loops were late.
    """

    def __init__(self, most: int) -> None:
        self.samples: deque[Sample] = deque(maxlen=most)
        self._used: dict[str, int] = {}
        self._asked: set[asyncio.AbstractEventLoop] = set()
        self._end = threading.Lock()  # held until the end
        self._end.acquire()
        self._is_stopped = False
        self._thread = threading.Thread(
            target=self._run, name="numbasync trace", daemon=True
        )  # fmt: skip

    def start(self) -> None:
        self.look()
        with suppress(RuntimeError):  # no thread can be started: there are two samples
            self._thread.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._end.release()
        if self._thread.ident is not None:
            self._thread.join()
        self.look()

    def look(self) -> None:
        """Take a sample now. A loop with a seeded device is not asked: its turns are steps."""
        devices = known_devices()
        for device in devices:
            with suppress(Exception):  # of a device that is lost
                used = device.pool.stats().used_current
                if used != self._used.get(device.label, 0):
                    self._used[device.label] = used
                    self.samples.append((perf_counter_ns(), MEMORY, device.label, used))
        if any(device.backend.counts_steps for device in devices):
            return
        for loop in reactor.running_loops():
            if loop not in self._asked:
                self._asked.add(loop)
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._came, loop, perf_counter_ns())

    def _came(self, loop: asyncio.AbstractEventLoop, asked: int) -> None:
        now = perf_counter_ns()
        self._asked.discard(loop)
        if not self._is_stopped:
            self.samples.append((now, LAG, threading.current_thread().name, now - asked))

    def _run(self) -> None:
        while not self._end.acquire(timeout=EVERY_S):
            self.look()
