"""Compiled kernels on disk (`cache=True`), in Numba's cache folders and by Numba's rules.

As with Numba, a kernel's file is named by its module and line, and is stale once the module's
source has changed. In the file, the key of an entry covers everything of which its code was made:
a changed device function of another module, or a changed constant, has another entry.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding
from numba.core import caching, config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from numbasync.backend import checked_caches
from numbasync.backend.protocols import Dim3


class Entry(NamedTuple):
    """A compiled kernel: Numba's result, the generated source, and the bytes of memory of a block
    without dynamic shared memory.
    """

    result: Any  # owns the memory of the code
    source: str
    fixed_bytes: int

    @property
    def run(self) -> Callable[..., None]:
        entry_point: Callable[..., None] = self.result.entry_point
        return entry_point

    @property
    def dynamic_offset(self) -> int:
        return self.fixed_bytes

    def memory_bytes(self, threads: int, shared_bytes: int) -> int:
        """Memory of a block, of however many threads."""
        return self.fixed_bytes + shared_bytes

    def blocks(self, first: int, end: int, block: Dim3, grid: Dim3) -> tuple[tuple[int, ...], None]:
        """What `run` takes before memory and arguments, for some blocks; and nothing to keep."""
        return (first, end, *block, *grid), None


class Store:
    """The file of one kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """
        Raises:
            RuntimeError: there is no folder for it that can be written, by this user alone.
        """
        self._numbas: Any = checked_caches.Places(function)
        self._file: Any = checked_caches.file_of(self._numbas, ".numbasync")

    def load(self, key: Hashable) -> Entry | None:
        """The entry that was saved under `key`; None if there is none, or it cannot be read."""
        with global_compiler_lock:
            target: Any = cpu_target.target_context
            target.refresh()
            kept = self.load_parts(key)
            if kept is None:
                return None
            try:
                reduced, source, fixed_bytes = kept
                return Entry(self._numbas.rebuild(target, reduced), source, fixed_bytes)
            except Exception:  # another version's: each raises errors of its own
                return None

    def load_parts(self, key: Hashable) -> tuple[Any, ...] | None:
        """What was saved under `key`; None if there is nothing, or it cannot be read."""
        try:
            data = self._file.load(key)
        except Exception:  # half a file, or another version's: each raises errors of its own
            return None
        # Two processes that save at once may both take the same file for their data.
        return None if data is None or data[0] != key else data[1:]

    def save(self, key: Hashable, entry: Entry) -> None:
        """Save the entry, if Numba can."""
        with global_compiler_lock:
            if self._numbas.check_cachable(entry.result):
                reduced = self._numbas.reduce(entry.result)
                self.save_parts(key, reduced, entry.source, entry.fixed_bytes)

    def save_parts(self, key: Hashable, *parts: Any) -> None:
        """Save what can be pickled. Errors of the file system are ignored: a kernel also runs when
        the disk is full.
        """
        with contextlib.suppress(OSError):
            self._file.save(key, (key, *parts))


def store_of(dispatcher: Any) -> Store | None:
    """The file of a kernel; None if the kernel was decorated without `cache=True`, or there is
    no folder for it.
    """
    if isinstance(dispatcher._cache, _null_caches()):
        return None
    try:
        return Store(dispatcher.py_func)
    except RuntimeError:  # there is no folder of this user alone; if it was named, that was said
        return None


@functools.cache
def _null_caches() -> tuple[type, ...]:
    """The classes that stand for no cache, in Numba and in `numba.cuda`."""
    from numba import cuda

    classes: list[Any] = [caching.NullCache]
    with contextlib.suppress(ImportError, AttributeError):
        classes.append(cuda.core.caching.NullCache)
    return tuple(classes)


def key_of_own() -> Hashable:
    """The part of a key for this package, Numba and the processor."""
    return _version(), repr(_target())


@functools.cache
def _version() -> str:
    """The versions of the packages, and a digest of the sources, that generate code."""
    from importlib.metadata import PackageNotFoundError, version

    import llvmlite
    import numba

    numba_cuda = "of numba"
    with contextlib.suppress(PackageNotFoundError):
        numba_cuda = version("numba-cuda")
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    versions = numba.__version__, numba_cuda, llvmlite.__version__, np.__version__
    return f"{' '.join(versions)} {digest.hexdigest()}"


@functools.cache
def _target() -> Any:
    """What code is made for. Numba's compiler for the processor, which has settings for it, is not
    started for that.
    """
    features = binding.get_host_cpu_features().flatten()
    settings = config.CPU_NAME, config.CPU_FEATURES
    return binding.get_process_triple(), binding.get_host_cpu_name(), features, settings
