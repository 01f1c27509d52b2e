"""The folder in which numbasync keeps what later processes use again, and the one guard of every
folder whose contents it trusts.

What is kept is run, or chooses what is run, when it is loaded: nobody but this user and root may
be able to write it. A folder is therefore opened from the root of the file system downwards, each
folder relative to the one above it, and every one is checked when it is open; entries are read and
replaced relative to the folder that was checked. So there is no moment between the check and the
use, and no path that leads elsewhere then. It is done at every load: a folder may be removed, and
made again by somebody else.

Each kind of thing has a folder of its own here: batches their sources, with what Numba compiles
from them beside them, and tuning its measurements. A file that no process has used for `RETENTION`
seconds is removed: those of a program under development would become more and more. The time of the
last use is the file's access time, set here, since file systems need not maintain it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePath

SWITCH = "NUMBASYNC_CACHE_DIR"

IS_CHECKED = sys.platform != "win32"  # folders below a user's own are that user's on Windows
DAY = 24 * 60 * 60  # seconds
RETENTION = 30 * DAY  # since the last use
STAMP = ".tidied"  # its time is that of the last clean-up: once a day is enough
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # as the system's own limit
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# A folder above may be one that this user can pass, and not list.
_ABOVE = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)

_resolved: dict[str, Path] = {}
_told: set[str] = set()
_lock = threading.Lock()


class UntrustedError(OSError):
    """Other users can write to a folder or a file, or have made it."""


def root() -> Path:
    """The folder that `NUMBASYNC_CACHE_DIR` names, else `numbasync` in the user's cache folder.
    The folder may not exist. A relative path is that of the working directory at its first use.

    Raises:
        OSError: none is named, and the user has no home folder.
    """
    configured = os.environ.get(SWITCH)
    if configured:
        return absolute(configured)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        raise OSError(f"this user has no home folder; name a folder: HOME, or {SWITCH}") from None
    return absolute(str(home)) / "numbasync"


def absolute(path: str) -> Path:
    """The path, which stays the same in this process wherever its working directory moves.

    Raises:
        OSError: the path is relative, and the working directory does not exist.
    """
    found = _resolved.get(path)
    return found or _resolved.setdefault(path, Path(os.path.abspath(path)))


class Folder:
    """A folder that is open and was checked. Its methods name entries, not paths.

    Attributes:
        path: how it was named; for messages.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor  # None on Windows, where paths are used

    def _at(self, name: str) -> str:
        if PurePath(name).name != name or name in ("", ".."):
            raise OSError(errno.EINVAL, "not the name of an entry", name)
        return name if self.descriptor is not None else str(self.path / name)

    def read(self, name: str) -> bytes:
        """The contents of a file.

        Raises:
            UntrustedError: the file is a link, or others have made it or can write to it.
            OSError: it cannot be read, or is none.
        """
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_BINARY", 0)
        try:
            descriptor = os.open(self._at(name), flags, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UntrustedError(f"{self.path / name} is a link") from None
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "not a file", str(self.path / name))
            if why := _why_foreign(status, self.path / name):
                raise UntrustedError(why)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, or whatever has its name, as a whole; a link is replaced, not followed.

        Raises:
            OSError: it cannot be written; nothing is left then.
        """
        target, temporary = self._at(name), self._at(f"{uuid.uuid4().hex}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=self.descriptor), "wb") as file:
                file.write(data)
            try:
                self._rename(temporary, target)
            except OSError:
                if not stat.S_ISDIR(self.status(name).st_mode):
                    raise
                self._remove_folder(name)
                self._rename(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.descriptor)
            raise

    def _rename(self, old: str, new: str) -> None:
        if self.descriptor is None:
            os.replace(old, new)
        else:
            os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def _remove_folder(self, name: str) -> None:
        shutil.rmtree(self._at(name), dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self.descriptor)

    def names(self) -> list[str]:
        """The names of all entries."""
        return os.listdir(self.path if self.descriptor is None else self.descriptor)

    def status(self, name: str) -> os.stat_result:
        """The status of an entry, of a link itself."""
        return os.stat(self._at(name), dir_fd=self.descriptor, follow_symlinks=False)

    def set_times(self, name: str, accessed: int, modified: int) -> None:
        """Set the times of a file, in nanoseconds."""
        if self.descriptor is None:
            os.utime(self._at(name), ns=(accessed, modified))
        else:
            os.utime(name, ns=(accessed, modified), dir_fd=self.descriptor, follow_symlinks=False)

    def check_entries(self) -> None:
        """Check what is in the folder, apart from what is removed meanwhile.

        Raises:
            UntrustedError: an entry is a link, or others have made it.
        """
        for name in self.names() if IS_CHECKED else ():
            with contextlib.suppress(FileNotFoundError):
                status, path = self.status(name), self.path / name
                if stat.S_ISLNK(status.st_mode) or not _is_ours(status):
                    raise UntrustedError(f"{path} is a link, or another user's")

    def check_writable(self) -> None:
        """
        Raises:
            OSError: no file can be made in the folder.
        """
        name = f"{uuid.uuid4().hex}.tmp"
        self.write(name, b"")
        self.remove(name)


@contextlib.contextmanager
def opened(path: Path, *, make: bool = False, above: bool = True) -> Iterator[Folder]:
    """A folder, checked.

    Args:
        make: it, and those above it that are missing, are made for this user alone.
        above: the folders above it, and links on the way, are checked, too. Without it the folder
            itself is no link, and its own name is all that is checked.

    Raises:
        UntrustedError: other users can write to it, or to a folder above it.
        OSError: it does not exist, or cannot be made.
    """
    if not IS_CHECKED:
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not path.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
        yield Folder(path, None)
        return
    descriptor = _walk(path, make) if above else _open_last(path, make)
    try:
        yield Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _walk(path: Path, make: bool) -> int:
    """Open each folder of an absolute path from the one above it; the descriptor of the last."""
    at, rest, links = Path("/"), list(reversed(path.parts[1:])), 0
    here = os.open("/", _ABOVE)
    try:
        while True:
            _check(os.fstat(here), at, is_last=not rest)
            if not rest:
                return os.open(".", _FOLDER | os.O_RDONLY, dir_fd=here)
            name = rest.pop()
            try:
                below = os.open(name, _ABOVE, dir_fd=here)
                at /= name
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):  # another process has made it
                    os.mkdir(name, 0o700, dir_fd=here)
                rest.append(name)
                continue
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or links == _MOST_LINKS:
                    raise OSError(error.errno, error.strerror, str(at / name)) from None
                links += 1
                target = PurePath(_link(name, here, at))
                rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if not target.is_absolute():
                    continue
                at, below = Path("/"), os.open("/", _ABOVE)
            os.close(here)
            here = below
    finally:
        os.close(here)


def _link(name: str, folder: int, at: Path) -> str:
    """Where a link leads; its own folder has been checked, so it stays what it is."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(at / name))
    if not _is_ours(status):
        raise UntrustedError(f"the link {at / name} belongs to another user")
    return os.readlink(name, dir_fd=folder)


def _open_last(path: Path, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    try:
        descriptor = os.open(path, _FOLDER | os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UntrustedError(f"{path} is a link, or no folder") from None
        raise
    try:
        _check(os.fstat(descriptor), path, is_last=True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(status: os.stat_result, path: Path, is_last: bool) -> None:
    # In a sticky folder, other users cannot replace what they do not own.
    is_sticky = not is_last and status.st_mode & stat.S_ISVTX
    if why := _why_foreign(status, path, bool(is_sticky)):
        raise UntrustedError(why)


def _why_foreign(status: os.stat_result, path: Path, may_share: bool = False) -> str:
    if not _is_ours(status):
        return f"{path} belongs to another user"
    if IS_CHECKED and status.st_mode & _OF_OTHERS and not may_share:
        return f"others can write to {path}"
    return ""


def _is_ours(status: os.stat_result) -> bool:
    """Whether this user or root owns it. Root can do everything anyway."""
    return not IS_CHECKED or status.st_uid in (os.geteuid(), 0)


def use(path: Path) -> None:
    """Record that a process uses this file. The modification time stays: by it, Numba finds what it
    has compiled from a source.
    """
    with contextlib.suppress(OSError), opened(path.parent) as folder:
        folder.set_times(path.name, time.time_ns(), folder.status(path.name).st_mtime_ns)


def tidy(path: Path, ours: re.Pattern[str]) -> None:
    """Remove files that have not been used for long, and what Numba has compiled from them. Errors
    of the file system are ignored: other processes may do the same, and a file that cannot be
    removed stays.

    Args:
        ours: the names of the files that may be removed, whole.
    """
    now = time.time()
    with contextlib.suppress(OSError), opened(path) as folder:
        with contextlib.suppress(FileNotFoundError):
            if 0 <= now - folder.status(STAMP).st_mtime < DAY:
                return
        folder.write(STAMP, b"")
        old = [n for n in folder.names() if ours.fullmatch(n) and _is_old(folder.status(n), now)]
        stems = {PurePath(name).stem for name in old}
        with contextlib.suppress(FileNotFoundError), opened(path / "__pycache__") as compiled:
            for name in compiled.names() if stems else ():
                if name.partition(".")[0] in stems:
                    compiled.remove(name)
        for name in old:
            folder.remove(name)


def _is_old(status: os.stat_result, now: float) -> bool:
    return now - max(status.st_atime, status.st_mtime) > RETENTION


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """SIGTERM ends the block as `sys.exit` does, so that what it has made is removed; only where
    the program has not said itself what the signal does, and on the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def temporary(prefix: str = "numbasync-") -> Iterator[Path]:
    """A folder of this user alone that is gone behind the block, also if SIGTERM ends it."""
    with sigterm_as_exit(), tempfile.TemporaryDirectory(prefix=prefix) as path:
        yield Path(path)


def tell(what: str, path: Path, why: object, remedy: str = SWITCH) -> None:
    """Warn, once for each folder and reason, that something is not kept on disk."""
    text = (
        f"{what} not kept in {path}: {why}, and what is kept is used when it is loaded. Make it a "
        f"folder of yours alone, with chmod 700, or name another one: {remedy}."
    )
    with _lock:
        if text in _told:
            return
        _told.add(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
