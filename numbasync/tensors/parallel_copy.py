"""Work that is split into parts for several threads, and NumPy arrays as such parts.

One thread copies at a fifth of the bandwidth of a GPU's link, so large host copies are split. NumPy
releases the interpreter lock while it copies.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from numbasync.device import copy_threads
from numbasync.errors import StateError

P = TypeVar("P")
HostArray: TypeAlias = np.ndarray[Any, Any]

# Copies of more bytes, which take over 50 us, are split and must not block an event loop.
LARGE = 2**19
# Bytes of a part. What Python does for each, with the interpreter lock, takes as long as copying a
# quarter of them, and several threads want that lock: 4 MiB in 16 parts take twice as long as in 4.
SMALLEST = 2**20


def _nothing(part: object) -> None: ...


class ParallelCopy(Generic[P]):
    """Calls `do` for each of `parts`, on several threads concurrently and in any order.

    The first call of `run` does the work, alone if no copy thread can be started; later calls wait.
    Whoever comes after a first call that ^C has stopped ends the work, which has failed then.
    """

    def __init__(self, parts: Iterable[P], do: Callable[[P], None]) -> None:
        self._parts = deque(parts)
        self._do = do
        self._turn = threading.Lock()  # held by the first call, until the work is over
        self._lock = threading.Lock()
        self._begun = self._closed = False
        self._helpers = 0  # copy threads that are at work
        # Opened by the last helper that was at work when the work was closed. A lock of C, since ^C
        # could leave the lock of a `threading.Event` taken.
        self._door = threading.Lock()
        self._door.acquire()
        self._over = False
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self._over

    def run(self) -> None:
        """Do the work, or wait until another thread has done it.

        Raises:
            The first error of a part; the parts after it are skipped.
        """
        mine = True
        with self._turn:
            if self._over:
                mine = False
            else:
                try:
                    begun, self._begun = self._begun, True
                    if begun:
                        self._fail(StateError("whoever copied it was stopped"))
                    else:
                        self._share()
                except BaseException as error:
                    self._fail(error.with_traceback(None))
                self._end()
        found = self._error
        try:
            if found is None:
                return
            if not mine and not isinstance(found, Exception):
                raise StateError(f"whoever copied it was stopped: {found!r}")
            raise found.with_traceback(None)
        finally:
            found = None
            self = None  # type: ignore[assignment]  # the traceback holds this frame

    def stop(self) -> None:
        """Skip the parts that have not begun; wait for the threads that are at one."""
        self._parts.clear()
        with self._turn:
            self._begun = True
            if not self._over:
                self._end()

    def _share(self) -> None:
        # At interpreter shutdown no thread can be started: this thread does all parts.
        with contextlib.suppress(RuntimeError):
            for _ in range(min(len(self._parts), copy_threads.THREADS) - 1):
                copy_threads.submit(self._help)
        self._work()

    def _end(self) -> None:
        """Wait for the helpers; those that have not begun are not waited for."""
        with self._lock:
            self._closed = True
        while self._helpers:
            try:
                self._door.acquire()
            except BaseException as stop:  # ^C: the helpers still finish the parts they are at
                self._fail(stop)
        self._do = _nothing  # releases the arrays that `do` holds
        self._over = True

    def _help(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._helpers += 1
        self._work()
        with self._lock:
            self._helpers -= 1
            if self._closed and not self._helpers:
                self._door.release()

    def _work(self) -> None:
        try:
            while True:
                try:
                    part = self._parts.popleft()
                except IndexError:
                    return
                self._do(part)
        except BaseException as error:
            # Its frames would hold this object, which holds the error: a reference cycle.
            self._fail(error.with_traceback(None))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._parts.clear()


def plain(array: HostArray) -> HostArray:
    """The array as a plain ndarray; as a flat view of bytes, if it is C-contiguous."""
    base: HostArray = array.view(np.ndarray)
    return base.reshape(-1).view(np.uint8) if base.flags.c_contiguous else base


def part_bytes(nbytes: int, most: int) -> int:
    """Bytes per part, at most `most`, so that there are enough parts for all threads."""
    even = -(-nbytes // (2 * copy_threads.THREADS) // 4096) * 4096
    return min(most, max(SMALLEST, even))


def pieces(array: HostArray, most: int) -> Iterator[tuple[int, HostArray]]:
    """Views of at most `most` bytes, or of one element, each with its byte offset.

    Each view is one run of the array's elements in C order, in which the offset counts.
    """
    if array.nbytes <= most or array.ndim == 0:
        yield 0, array
        return
    row = array.nbytes // len(array)
    if row > most:
        for i in range(len(array)):
            for offset, piece in pieces(array[i, ...], most):
                yield i * row + offset, piece
        return
    count = most // row
    for i in range(0, len(array), count):
        yield i * row, array[i : i + count]


def place(room: HostArray, piece: HostArray) -> None:
    """Copy the elements of `piece` into `room`, a byte array of the same size."""
    np.copyto(room.view(piece.dtype).reshape(piece.shape), piece)


def copying(dst: HostArray, src: HostArray) -> ParallelCopy[tuple[int, HostArray]]:
    """The copy of the elements of `src` to `dst`.

    Both have the same shape and dtype, and at least one is C-contiguous.
    """
    size = part_bytes(src.nbytes, 2**21)
    if not dst.flags.c_contiguous:
        flat = plain(src)

        def scatter(part: tuple[int, HostArray]) -> None:
            offset, piece = part
            source = flat[offset : offset + piece.nbytes]
            np.copyto(piece, source.view(piece.dtype).reshape(piece.shape))

        return ParallelCopy(pieces(dst.view(np.ndarray), size), scatter)
    target = plain(dst)

    def gather(part: tuple[int, HostArray]) -> None:
        offset, piece = part
        place(target[offset : offset + piece.nbytes], piece)

    return ParallelCopy(pieces(plain(src), size), gather)
