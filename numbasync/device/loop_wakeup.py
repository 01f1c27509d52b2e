"""What wakes an event loop: descriptors that the loop's selector watches. Others notify the waker.
The loop itself sets the timer, to any microsecond: uvloop and asyncio sleep whole milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self


class _Descriptor:
    """One loop's descriptor. It is never closed, only handed on to a later loop.

    Native code may still hold the descriptor's number when the loop is gone, and the number of a
    closed descriptor is given to the next file that the process opens.
    """

    _spare: ClassVar[list[Any]]
    fileno: int

    def __init__(self) -> None:
        # A forked child has the same descriptors; using them would wake the parent's loop.
        self._process = os.getpid()

    @classmethod
    def take(cls) -> Self:
        while cls._spare:
            spare: Self = cls._spare.pop()
            if spare._process == os.getpid():
                return spare
        return cls()

    @classmethod
    def hand_on(cls, spare: Self) -> None:
        if spare._process == os.getpid():
            spare.rest()
            cls._spare.append(spare)

    def rest(self) -> None:
        """Wake nobody until a loop takes the descriptor."""


class Waker(_Descriptor):
    """One loop's wake-up descriptor."""

    _spare: ClassVar[list[Waker]] = []

    def __init__(self) -> None:
        super().__init__()
        self._send: Callable[[], object]
        self._receive: Callable[[], object]
        if hasattr(os, "eventfd"):
            self.fileno = self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._send = partial(os.eventfd_write, self.eventfd, 1)
            self._receive = _eventfd_reader(self.eventfd)
        else:
            reader, writer = socket.socketpair()
            reader.setblocking(False)
            writer.setblocking(False)
            self.fileno, self.eventfd = reader.fileno(), -1
            self._send = partial(writer.send, b"!")
            self._receive = partial(reader.recv, 65536)

    def notify(self) -> None:
        """Wake the loop. Any thread may call this method; the call never blocks."""
        # A full descriptor, which raises BlockingIOError, wakes the loop anyway.
        with contextlib.suppress(BlockingIOError):
            self._send()

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._receive()


def _eventfd_reader(fd: int) -> Callable[[], object]:
    """`os.eventfd_read` without releasing the interpreter lock, which another, computing thread
    would keep for a switch interval. The descriptor does not block.
    """
    try:
        read = ctypes.PyDLL(None).eventfd_read
    except (OSError, AttributeError):
        return partial(os.eventfd_read, fd)
    read.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
    return partial(read, fd, ctypes.c_uint64())


class Timer(_Descriptor):
    """One loop's timer, where the system has descriptors that are timers: Linux."""

    _spare: ClassVar[list[Timer]] = []

    def __init__(self) -> None:
        super().__init__()
        # Called without releasing the interpreter lock: the calls do not block.
        library = ctypes.PyDLL(None)
        self.fileno = library.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fileno < 0:
            raise OSError("no timer can be made")
        self._times = (ctypes.c_long * 4)()  # of the period, 0, and of the time: s, ns
        library.timerfd_settime.argtypes = (
            ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_long), ctypes.c_void_p
        )  # fmt: skip
        self._set = partial(library.timerfd_settime, self.fileno, 0, self._times, None)

    def start(self, seconds: float) -> None:
        """Wake the loop once, so many seconds from now; an earlier time is forgotten."""
        whole, part = divmod(max(seconds, 1e-6), 1.0)
        self._times[2], self._times[3] = int(whole), int(part * 1e9)
        self._set()

    def rest(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Do not wake the loop, also if the time has come and the loop has not looked yet."""
        self._times[2] = self._times[3] = 0
        self._set()


_MONOTONIC = 1  # CLOCK_MONOTONIC
