"""The waker of an event loop: a descriptor that the loop's selector watches and others notify."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import ClassVar


class Waker:
    """One loop's wake-up descriptor. A waker is never closed, only handed on to a later loop.

    Native code may still hold the descriptor's number when the loop is gone, and the number of a
    closed descriptor is given to the next file that the process opens.
    """

    _spare: ClassVar[list[Waker]] = []

    def __init__(self) -> None:
        # A forked child has the same descriptors; notifying them would wake the parent's loop.
        self._process = os.getpid()
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

    @classmethod
    def take(cls) -> Waker:
        while cls._spare:
            waker = cls._spare.pop()
            if waker._process == os.getpid():
                return waker
        return cls()

    @classmethod
    def hand_on(cls, bell: Waker) -> None:
        if bell._process == os.getpid():
            cls._spare.append(bell)

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
