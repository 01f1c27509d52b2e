"""What wakes an event loop: a descriptor that its selector watches, and that others ring."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import ClassVar


class Waker:
    """One loop's wake-up descriptor. Never closed, only handed on.

    Native code may still hold the number when its loop is gone, and a closed number is
    given to the next file that the process opens.
    """

    _spare: ClassVar[list[Waker]] = []

    def __init__(self) -> None:
        # A forked child has the same descriptors; ringing them would wake its parent.
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
            bell = cls._spare.pop()
            if bell._process == os.getpid():
                return bell
        return cls()

    @classmethod
    def hand_on(cls, bell: Waker) -> None:
        if bell._process == os.getpid():
            cls._spare.append(bell)

    def notify(self) -> None:
        """Wake the loop. Any thread may call it; it never blocks."""
        # If it has been rung so often that it is full, the loop will wake anyway.
        with contextlib.suppress(BlockingIOError):
            self._send()

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._receive()


def _eventfd_reader(fd: int) -> Callable[[], object]:
    """`os.eventfd_read` without giving the interpreter away, which another thread that computes
    would keep for a switch interval. The descriptor does not block.
    """
    try:
        read = ctypes.PyDLL(None).eventfd_read
    except (OSError, AttributeError):
        return partial(os.eventfd_read, fd)
    read.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
    return partial(read, fd, ctypes.c_uint64())
