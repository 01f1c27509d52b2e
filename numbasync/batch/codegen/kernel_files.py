"""Written kernels as modules: one for each text, made once however many threads ask.

The text is kept as a file, so that tracebacks show it and Numba's disk cache (`cache=True`) has
something to stand beside: the next process compiles nothing. See `kept`. What is run is the text at
hand, not the file. Kernels with functions of the program are not kept on disk: their texts do not
tell what those functions do.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from numbasync.backend.protocols import SOURCE_ATTR
from numbasync.batch.codegen import folder_ownership, kernel_cache
from numbasync.batch.codegen.writer import KernelText
from numbasync.fork import in_child
from numbasync.launch.launcher import Launcher, launcher

FOLDER = "NUMBASYNC_CACHE_DIR"  # looked at once a process

Key = tuple[str, tuple[tuple[str, Any], ...]]

_made: dict[Key, Launcher] = {}
_running: dict[Key, Loading] = {}
_lock = threading.Lock()


class Loading:
    """A preparation: the module of one text is made."""

    def __init__(self, text: KernelText) -> None:
        self._text = text
        self._key = _key(text)
        self._own = threading.Lock()

    def run(self) -> None:
        """Make it, or wait for the thread that does."""
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
    """The kernel, if it has been made."""
    return _made.get(_key(text))


def loading(text: KernelText) -> Loading:
    """What makes it; the one that is under way, if there is one."""
    with _lock:
        return _running.setdefault(_key(text), Loading(text))


def _load(text: KernelText) -> Launcher:
    digest = hashlib.sha256(text.source.encode()).hexdigest()[:20]
    if text.functions:
        # Other functions, another module: by the number of what has been made.
        digest = f"{digest}_{len(_made)}"
    name = f"{text.name}_{digest}"
    path = _write(_private() if text.functions else folder(), f"{name}.py", text.source)
    module = ModuleType(f"numbasync_{name}", f"A kernel of batches, in {path}.")
    module.__file__ = str(path)
    exec(compile(text.source, str(path), "exec"), module.__dict__)  # noqa: S102 - written here
    setattr(module, SOURCE_ATTR, text.source)
    vars(module).update({known: function.device for known, function in text.functions})
    sys.modules[module.__name__] = module  # where Numba looks for what it kept on disk
    return launcher(may_alias=True)(getattr(module, text.name))


def _write(where: Path, name: str, source: str) -> Path:
    """The file; not touched if it is there, since Numba asks for its time."""
    path = where / name
    with contextlib.suppress(OSError, UnicodeError):
        if path.read_text(encoding="utf-8") == source:
            kernel_cache.use(path)
            return path
    where.mkdir(parents=True, exist_ok=True)  # somebody may have cleared the cache meanwhile
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=where, suffix=".tmp", delete=False
    ) as file:
        file.write(source)
    Path(file.name).replace(path)  # at once, for other processes
    kernel_cache.tidy(where)
    return path


@functools.cache
def folder() -> Path:
    """Where written kernels are kept: `NUMBASYNC_CACHE_DIR`, else the user's cache folder; if it
    cannot be written to, or others can write to it, too, a folder of this process. What is compiled
    lies there as well, and is run when it is loaded.
    """
    named = os.environ.get(FOLDER)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    wanted = Path(named) if named else Path(home).expanduser() / "numbasync"
    found = wanted / "batch"
    try:
        for each in reversed([p for p in (found, *found.parents) if not p.exists()]):
            each.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=found):
            pass
        shared = folder_ownership.why_shared(found)
    except OSError:
        return _private()
    if not shared:
        return found
    warnings.warn(
        f"Kernels of batches are not kept in {found}: {shared}, and what is kept is run when it is "
        f"loaded. Make it a folder of yours alone, with chmod 700, or name another one: {FOLDER}.",
        RuntimeWarning,
        stacklevel=2,
    )
    return _private()


@functools.cache
def _private() -> Path:
    """A folder that goes when this process ends, and not with a child of it."""
    made, owner = tempfile.mkdtemp(prefix="numbasync-batch-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return Path(made)
