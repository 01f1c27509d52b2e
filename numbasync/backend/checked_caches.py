"""Numba's disk cache (`cache=True`), read and written only in folders of this user alone.

Numba takes what it finds at a path, and what it finds is code that runs when it is unpickled. Here
the place of a cache is chosen by Numba's rules among the folders that `cache_folder` accepts, and
the folder is checked at each load and save. What is damaged counts as missing, and is replaced.
The names and the contents of the files are Numba's.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba import config
from numba.core import caching

from numbasync import cache_folder

KEPT = "Compiled kernels are"
SWITCH = "NUMBA_CACHE_DIR"


class CheckedFile:
    """Overrides what Numba's `IndexDataCacheFile` does with the file system."""

    _cache_path: str
    _index_name: str
    _version: str
    _source_stamp: Any

    def _read(self, name: str) -> Any:
        """The stream of a file.

        Raises:
            OSError: it cannot be read, or is not this user's alone.
        """
        path = Path(self._cache_path)
        try:
            with cache_folder.opened(path) as folder:
                return io.BytesIO(folder.read(name))
        except cache_folder.UntrustedError as error:
            cache_folder.tell(KEPT, path, error, SWITCH)
            raise

    def _load_index(self) -> dict[Any, str]:
        try:
            stream = self._read(self._index_name)
            if pickle.load(stream) != self._version:  # noqa: S301 - of a folder of this user alone
                return {}
            stamp, entries = pickle.load(stream)  # noqa: S301
        except Exception:  # missing, damaged or another's: pickles raise errors of any kind
            return {}
        fits = stamp == self._source_stamp and isinstance(entries, dict)
        return entries if fits and all(isinstance(n, str) for n in entries.values()) else {}

    def _load_data(self, name: str) -> Any:
        try:
            return pickle.load(self._read(name))  # noqa: S301
        except Exception as error:
            raise OSError(f"{name} cannot be loaded") from error  # to Numba: it is not there

    @contextlib.contextmanager
    def _open_for_write(self, path: str) -> Iterator[Any]:
        data = io.BytesIO()
        yield data
        with cache_folder.opened(Path(self._cache_path), make=True) as folder:
            folder.write(os.path.basename(path), data.getvalue())


class CheckedCache:
    """Overrides the errors of Numba's `Cache`: a kernel that cannot be kept is compiled."""

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(sig, target_context)  # type: ignore[misc]
        except Exception:  # readable, and not what it should be
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[misc]


class _File(CheckedFile, caching.IndexDataCacheFile):  # type: ignore[misc]
    pass


class Places(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """Where Numba would keep a function, of the folders that are this user's alone.

    Raises:
        RuntimeError: there is none.
    """

    @property
    def _locator_classes(self) -> list[type]:
        return checked_locators(caching.CompileResultCacheImpl._locator_classes)


def file_of(place: Any, suffix: str = "") -> Any:
    """The file of a function in its place."""
    locator = place.locator
    file: Any = _File
    return file(
        locator.get_cache_path(), f"{place.filename_base}{suffix}", locator.get_source_stamp()
    )


def checked_locators(classes: list[Any], settings: Any = config) -> list[type]:
    """Numba's locators of caches, which refuse folders that others can write to. Numba asks one
    after the other. Where a folder was named, it is not replaced by another one.

    Args:
        settings: Numba's configuration.
    """
    others = ("InTree", "UserWide") if settings.CACHE_DIR else ()
    kept_ones = [c for c in classes if not any(other in c.__name__ for other in others)]
    return [_checked(c, settings) for c in kept_ones]


@functools.cache
def _checked(locator: Any, settings: Any) -> type:
    is_named = "UserProvided" in locator.__name__
    is_last = is_named or "UserWide" in locator.__name__

    def get_cache_path(self: Any) -> str:
        path = str(locator.get_cache_path(self))
        if is_named:
            inner = os.path.relpath(path, settings.CACHE_DIR)
            return str(cache_folder.absolute(settings.CACHE_DIR) / inner)
        return path

    def ensure_cache_path(self: Any) -> None:
        path = Path(get_cache_path(self))
        if not path.is_absolute():  # Numba's answer for a user without a home
            raise FileNotFoundError(f"{path} is not an absolute path")
        try:
            with cache_folder.opened(path, make=True) as folder:
                folder.check_writable()
        except cache_folder.UntrustedError as error:
            if is_last:
                cache_folder.tell(KEPT, path, error, SWITCH)
            raise

    own = {"get_cache_path": get_cache_path, "ensure_cache_path": ensure_cache_path}
    return type(locator.__name__, (locator,), own)
