"""Compiled kernels on disk, beside what Numba keeps there (`cache=True`), by Numba's rules.

A kernel's file is found by its module and line and is stale once the module's source has
changed, as Numba's are. Within it, an entry is found by everything that its code was made of:
so a device function of another module, or a constant, counts too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target


class Entry(NamedTuple):
    """What is kept of a kernel: Numba's result, and what a launch needs to know."""

    result: Any  # which the code's memory belongs to
    source: str
    fixed_bytes: int

    @property
    def run(self) -> Callable[..., None]:
        found: Callable[..., None] = self.result.entry_point
        return found


class Store:
    """The file of one kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._numbas: Any = caching.CompileResultCacheImpl(function)
        locator = self._numbas.locator
        self._file = caching.IndexDataCacheFile(
            locator.get_cache_path(),
            f"{self._numbas.filename_base}.numbasync",
            locator.get_source_stamp(),
        )

    def load(self, key: Hashable) -> Entry | None:
        """What was kept under `key`; None if there is nothing, or it cannot be read."""
        with global_compiler_lock:
            target: Any = cpu_target.target_context
            target.refresh()
            try:
                data = self._file.load(key)
                # Two processes that save at once may both take the same file for their data.
                if data is None or data[0] != key:
                    return None
                _, reduced, source, fixed_bytes = data
                return Entry(self._numbas.rebuild(target, reduced), source, fixed_bytes)
            except Exception:  # half a file, or another version's: as many errors as formats
                return None

    def save(self, key: Hashable, entry: Entry) -> None:
        """Keep it, if Numba can. A full disk is no reason for a kernel not to run."""
        with global_compiler_lock, contextlib.suppress(OSError):
            if self._numbas.check_cachable(entry.result):
                reduced = self._numbas.reduce(entry.result)
                self._file.save(key, (key, reduced, entry.source, entry.fixed_bytes))


def store_of(dispatcher: Any) -> Store | None:
    """Where the kernel is kept: None if it was decorated without `cache=True`."""
    wants = not isinstance(dispatcher._cache, _nothing_kept())
    return Store(dispatcher.py_func) if wants else None


@functools.cache
def _nothing_kept() -> tuple[type, ...]:
    """The classes that stand for no cache, of Numba and of `numba.cuda`."""
    from numba import cuda

    kinds: list[Any] = [caching.NullCache]
    with contextlib.suppress(ImportError, AttributeError):
        kinds.append(cuda.core.caching.NullCache)
    return tuple(kinds)


def key_of_own() -> Hashable:
    """What code is made of that is this package's own."""
    return _version(), repr(_target())


@functools.cache
def _version() -> str:
    """Of the code that makes code."""
    import llvmlite
    import numba

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{numba.__version__} {llvmlite.__version__} {np.__version__} {digest.hexdigest()}"


@functools.cache
def _target() -> Any:
    context: Any = cpu_target.target_context
    return context.codegen().magic_tuple()
