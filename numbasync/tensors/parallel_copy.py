"""Work in parts that several threads do together, and NumPy arrays as such parts.

One thread fills a fifth of what a GPU's link carries, so large copies on the host are shared out.
NumPy gives the interpreter away while it copies.
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

# From here on a copy is shared out, and does not keep an event loop waiting: more than 50 us.
LARGE = 2**19
SMALLEST = 2**18  # of a part; to wake a thread takes as long as to copy half of it


def _nothing(part: object) -> None: ...


class ParallelCopy(Generic[P]):
    """`do` for each of `parts`, by several threads at once and in any order. `run` does it once,
    or waits for the thread that does; on its own, where no other thread can be had.
    """

    def __init__(self, parts: Iterable[P], do: Callable[[P], None]) -> None:
        self._parts = deque(parts)
        self._do = do
        self._lock = threading.Lock()
        self._begun = self._closed = False
        self._helpers = 0  # that are at work
        self._over = threading.Event()
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def run(self) -> None:
        """Do it, or wait until another thread has.

        Raises:
            The first error of a part; what comes after it is left out.
        """
        with self._lock:
            mine, self._begun = not self._begun, True
        if mine:
            self._share()
        else:
            self._over.wait()
        error = self._error
        try:
            if error is None:
                return
            if not mine and not isinstance(error, Exception):
                raise StateError(f"whoever copied it was stopped: {error!r}")
            raise error.with_traceback(None)
        finally:
            error = None
            self = None  # type: ignore[assignment]  # the traceback holds this frame

    def stop(self) -> None:
        """Leave out the parts that nobody has begun with; wait for those who are at one."""
        with self._lock:
            begun, self._begun = self._begun, True
            self._parts.clear()
        if begun:
            self._over.wait()
        else:
            self._do = _nothing  # what it holds goes
            self._over.set()

    def _share(self) -> None:
        # Not if no thread can be started, at the end of the interpreter.
        with contextlib.suppress(RuntimeError):
            for _ in range(min(len(self._parts), copy_threads.THREADS) - 1):
                copy_threads.submit(self._help)
        self._work()
        with self._lock:
            self._closed = True
            at_work = self._helpers
        # Those that have not begun are not waited for.
        while at_work and not self._over.is_set():
            try:
                self._over.wait()
            except BaseException as stop:  # ^C: they are at it all the same, for a moment
                self._fail(stop)
        self._do = _nothing  # what it holds goes
        self._over.set()

    def _help(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._helpers += 1
        self._work()
        with self._lock:
            self._helpers -= 1
            last = self._closed and not self._helpers
        if last:
            self._over.set()

    def _work(self) -> None:
        try:
            while True:
                try:
                    part = self._parts.popleft()
                except IndexError:
                    return
                self._do(part)
        except BaseException as error:
            # Its frames would hold us, who hold the error.
            self._fail(error.with_traceback(None))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._parts.clear()


def plain(array: HostArray) -> HostArray:
    """The array without what a subclass makes of it; of bytes, if they lie in a row."""
    found: HostArray = array.view(np.ndarray)
    return found.reshape(-1).view(np.uint8) if found.flags.c_contiguous else found


def part_bytes(nbytes: int, most: int) -> int:
    """Bytes of a part so that there are enough for all threads, and none has more than `most`."""
    even = -(-nbytes // (2 * copy_threads.THREADS) // 4096) * 4096
    return min(most, max(SMALLEST, even))


def pieces(array: HostArray, most: int) -> Iterator[tuple[int, HostArray]]:
    """Views of at most `most` bytes, or of one element, and where each begins: as bytes of the
    array's elements in C order, of which they are a run each.
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
    """Copy a piece into as many bytes."""
    np.copyto(room.view(piece.dtype).reshape(piece.shape), piece)


def copying(dst: HostArray, src: HostArray) -> ParallelCopy[tuple[int, HostArray]]:
    """Copies the elements of `src` to `dst`, of the same shape and dtype, one of which is
    C-contiguous.
    """
    size = part_bytes(src.nbytes, 2**21)
    if not dst.flags.c_contiguous:
        flat = plain(src)

        def scatter(part: tuple[int, HostArray]) -> None:
            offset, piece = part
            room = flat[offset : offset + piece.nbytes]
            np.copyto(piece, room.view(piece.dtype).reshape(piece.shape))

        return ParallelCopy(pieces(dst.view(np.ndarray), size), scatter)
    whole = plain(dst)

    def gather(part: tuple[int, HostArray]) -> None:
        offset, piece = part
        place(whole[offset : offset + piece.nbytes], piece)

    return ParallelCopy(pieces(plain(src), size), gather)
