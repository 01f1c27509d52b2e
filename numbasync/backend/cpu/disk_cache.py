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
from typing import Any

import numpy as np
from llvmlite import binding
from numba.core import caching, config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from numbasync.backend import checked_caches


class Store:
    """The file of one kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """
        Raises:
            RuntimeError: there is no folder for it that can be written, by this user alone.
        """
        self._numbas: Any = checked_caches.Places(function)
        self._file: Any = checked_caches.file_of(self._numbas, ".numbasync")

    def load(self, key: Hashable) -> tuple[Any, ...] | None:
        """What was saved under `key`; None if there is nothing, or it cannot be read."""
        try:
            data = self._file.load(key)
        except Exception:  # half a file, or another version's: each raises errors of its own
            return None
        # Two processes that save at once may both take the same file for their data.
        return None if data is None or data[0] != key else data[1:]

    def save(self, key: Hashable, *parts: Any) -> None:
        """Save what can be pickled. Errors of the file system are ignored: a kernel also runs when
        the disk is full.
        """
        with contextlib.suppress(OSError):
            self._file.save(key, (key, *parts))

    def load_result(self, key: Hashable) -> Any:
        """Numba's result of a function, as it was saved; None if it was not."""
        with global_compiler_lock:
            target: Any = cpu_target.target_context
            target.refresh()
            kept = self.load(key)
            try:
                return kept and self._numbas.rebuild(target, kept[0])
            except Exception:  # another version's: each raises errors of its own
                return None

    def save_result(self, key: Hashable, result: Any) -> None:
        """Save Numba's result of a function, if Numba can."""
        with global_compiler_lock:
            if self._numbas.check_cachable(result):
                self.save(key, self._numbas.reduce(result))


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
    for path in sorted(Path(__file__).parent.rglob("*.py")):
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
