"""Decides which launches spread their blocks over several threads, by measured costs."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

# Shared out are launches that would take so long on one processor; of a kernel that has not run
# yet, those of so many threads.
SPREAD_SECONDS = 0.0005
SPREAD_THREADS = 1 << 15
PARTS = 4  # for each processor: they need not take the same time

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def workers() -> int:
    """Threads that share the blocks of one launch."""
    return min(os.cpu_count() or 1, 64)


def helpers() -> ThreadPoolExecutor:
    """The threads that share the blocks of a launch with the calling thread."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(workers() - 1, thread_name_prefix="numbasync-blocks")
        return _pool


def after_fork() -> None:
    """Start anew in a forked child, which has none of the threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


class Costs:
    """Measured seconds of a kernel's blocks, on one thread and on several.

    Args:
        contend: blocks may write to the same elements. Processors that do take turns in owning
            them, which may take longer than one that does it all: then both are tried.
    """

    def __init__(self, contend: bool) -> None:
        self._contend = contend
        # Seconds of the latest launch, divided by its blocks.
        self._alone: float | None = None
        self._shared: float | None = None
        self._latest = 0.0  # of either, on one processor

    def are_shared(self, threads: int, blocks: int) -> bool:
        """Whether a launch should spread its blocks."""
        alone, shared = self._alone, self._shared
        if alone is None and shared is None:
            return threads >= SPREAD_THREADS
        if self._latest * blocks < SPREAD_SECONDS:
            return False
        if not self._contend or shared is None:
            return True
        return alone is not None and shared < alone

    def took(self, shared: bool, seconds: float) -> None:
        """Record the seconds that a block of a launch took on average."""
        if shared:
            self._shared, self._latest = seconds, seconds * workers()
        else:
            self._alone = self._latest = seconds
