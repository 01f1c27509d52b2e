"""The disk cache of kernels on a GPU, in folders of this user alone; see `checked_caches`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.cuda.core import caching, config
from numba.cuda.dispatcher import CUDACache, CUDACacheImpl

from numbasync import cache_folder
from numbasync.backend.checked_caches import CheckedCache, CheckedFile, checked_locators


class _File(CheckedFile, caching.IndexDataCacheFile):  # type: ignore[misc]
    pass


class _Places(CUDACacheImpl):  # type: ignore[misc]
    @property
    def _locator_classes(self) -> list[type]:
        return checked_locators(caching.CacheImpl._locator_classes, config)


class _Cache(CheckedCache, CUDACache):  # type: ignore[misc]
    _impl_class = _Places
    _launch_config_marker_path: str

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        locator = self._impl.locator
        file: Any = _File
        self._cache_file = file(
            locator.get_cache_path(), self._impl.filename_base, locator.get_source_stamp()
        )

    def mark_launch_config_sensitive(self) -> bool:
        """Write the file by which Numba knows kernels that depend on the grid; whether it could."""
        try:
            with cache_folder.opened(Path(self._cache_path), make=True) as folder:
                folder.write(os.path.basename(self._launch_config_marker_path), b"")
        except OSError:
            return False
        self._launch_config_sensitive_flag = True
        return True


def check_cache(dispatcher: Any) -> None:
    """Give a kernel with `cache=True` the checked cache in the place of Numba's; none, if there is
    no folder for it that is this user's alone.
    """
    if isinstance(dispatcher._cache, CUDACache) and not isinstance(dispatcher._cache, _Cache):
        try:
            dispatcher._cache = _Cache(dispatcher.py_func)
        except RuntimeError:
            dispatcher._cache = caching.NullCache()
