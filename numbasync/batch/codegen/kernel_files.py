"""Generated kernels as modules: one module per source, created once however many threads request
it.

The source is kept as a file, so that tracebacks show it and Numba's disk cache (`cache=True`) has a
file to belong to: the next process compiles nothing. See `cache_folder`. The code that runs is the
source in memory, not the file. Kernels with functions of the program are not kept on disk: their
sources do not contain the code of these functions.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from numbasync import cache_folder
from numbasync.batch.codegen.writer import KernelText
from numbasync.facts.source import SOURCE_ATTR
from numbasync.fork import in_child
from numbasync.launch.launcher import Launcher, launcher

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

KEPT = "Kernels of batches are"
PREFIX, LOCK = "numbasync-batch-", "lock"  # of private folders

_WRITTEN = re.compile(r"batch_\w*_[0-9a-f]{20}\.py")  # other files are not generated here

Key = tuple[str, tuple[tuple[str, Any], ...]]

_made: dict[Key, Launcher] = {}
_running: dict[Key, Loading] = {}
_lock = threading.Lock()


class Loading:
    """A prerequisite: the module of one source has been created."""

    def __init__(self, text: KernelText) -> None:
        self._text = text
        self._key = _key(text)
        self._own = threading.Lock()

    def run(self) -> None:
        """Create the module, or wait for the thread that does."""
        with self._own:
            if self._key in _made:
                return
            try:
                _made[self._key] = _load(self._text)
            finally:
                with _lock:
                    _running.pop(self._key, None)


@in_child
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _running.clear()


def _key(text: KernelText) -> Key:
    return text.source, text.functions


def find(text: KernelText) -> Launcher | None:
    """The kernel, if its module has been created."""
    return _made.get(_key(text))


def loading(text: KernelText) -> Loading:
    """The prerequisite that creates the module; the one in progress, if there is one."""
    with _lock:
        return _running.setdefault(_key(text), Loading(text))


def _load(text: KernelText) -> Launcher:
    digest = hashlib.sha256(text.source.encode()).hexdigest()[:20]
    if text.functions:
        # Other functions need another module: the count of created kernels tells the modules apart.
        digest = f"{digest}_{len(_made)}"
    name = f"{text.name}_{digest}"
    path = _write(_private() if text.functions else folder(), f"{name}.py", text.source)
    module = ModuleType(f"numbasync_{name}", f"A kernel of batches, in {path}.")
    module.__file__ = str(path)
    exec(compile(text.source, str(path), "exec"), module.__dict__)  # noqa: S102 - written here
    setattr(module, SOURCE_ATTR, text.source)
    vars(module).update({alias: function.device for alias, function in text.functions})
    sys.modules[module.__name__] = module  # Numba's disk cache looks modules up here
    return launcher(may_alias=True)(getattr(module, text.name))


def _write(where: Path, name: str, source: str) -> Path:
    """The path of the source file; in this process's own folder, if it cannot be kept in `where`,
    or that is not this user's alone any more.
    """
    try:
        return _put(where, name, source.encode(), above=True)
    except OSError as error:
        if isinstance(error, cache_folder.UntrustedError) and where != _private():
            cache_folder.tell(KEPT, where, error)
    return _put(_private(), name, source.encode(), above=False)


def _put(where: Path, name: str, data: bytes, above: bool) -> Path:
    """Write the file, unless there is an equal one, which stays untouched: by its modification
    time, Numba finds what was compiled from it.
    """
    path = where / name
    with cache_folder.opened(where, make=True, above=above) as kept:
        with contextlib.suppress(OSError):
            if kept.read(name) == data:
                cache_folder.use(path)
                return path
        # Numba would make this one with the umask's modes.
        with cache_folder.opened(where / "__pycache__", make=True, above=above):
            kept.write(name, data)
    cache_folder.tidy(where, _WRITTEN)
    return path


@functools.cache
def folder() -> Path:
    """The folder of generated kernels: `NUMBASYNC_CACHE_DIR`, else the user's cache folder; a
    private folder of this process if that folder cannot be written to, or if other users can write
    to it, too. The folder also contains compiled code, which is run when it is loaded.
    """
    try:
        path = cache_folder.root() / "batch"
    except OSError:
        return _private()
    try:
        with cache_folder.opened(path, make=True) as kept:
            kept.check_writable()
            kept.check_entries()
        with (
            contextlib.suppress(FileNotFoundError),
            cache_folder.opened(path / "__pycache__") as compiled,
        ):
            compiled.check_entries()
    except cache_folder.UntrustedError as error:
        cache_folder.tell(KEPT, path, error)
        return _private()
    except OSError:
        return _private()
    return path


@functools.cache
def _private() -> Path:
    """A folder that is deleted when this process ends, but not when a child of it ends. Those of
    processes that a signal ended are deleted by the next one.
    """
    _remove_abandoned()
    path, owner = tempfile.mkdtemp(prefix=PREFIX), os.getpid()
    if _locked(Path(path, "locking")) is not None:  # and named only then, for who looks meanwhile
        os.rename(Path(path, "locking"), Path(path, LOCK))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return Path(path)


def _locked(path: Path) -> int | None:
    """The descriptor of a file that no other process has locked, locked while this one lives."""
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            with cache_folder.opened(path, above=False) as folder:  # else another user's
                descriptor = _locked(path / LOCK) if LOCK in folder.names() else None
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)
