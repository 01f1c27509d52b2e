"""Retention of generated kernels on disk.

Each source has its file, and the code compiled from it lies beside it. A source that no process has
used for `KEPT` seconds is removed, with its compiled code: batches of a program under development
would leave more and more files. The time of the last use is the file's access time, set here, since
file systems need not maintain it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from numbasync import cache_folder

DAY = 24 * 60 * 60  # seconds
KEPT = 30 * DAY  # since the last use
STAMP = ".tidied"  # its time is that of the last clean-up: once a day is enough

_WRITTEN = re.compile(r"batch_\w*_[0-9a-f]{20}\.py")  # other files are not generated here


def use(path: Path) -> None:
    """Record that a process uses this source. The modification time stays: by it, Numba finds its
    compiled code.
    """
    with contextlib.suppress(OSError), cache_folder.opened(path.parent) as folder:
        folder.set_times(path.name, time.time_ns(), folder.status(path.name).st_mtime_ns)


def tidy(path: Path) -> None:
    """Remove files that have not been used for long. Errors of the file system are ignored: other
    processes may do the same, and a file that cannot be removed stays.
    """
    now = time.time()
    with contextlib.suppress(OSError), cache_folder.opened(path) as folder:
        with contextlib.suppress(FileNotFoundError):
            if 0 <= now - folder.status(STAMP).st_mtime < DAY:
                return
        folder.write(STAMP, b"")
        old = {
            name.removesuffix(".py")
            for name in folder.names()
            if _WRITTEN.fullmatch(name) and _is_old(folder.status(name), now)
        }
        if not old:
            return
        with (
            contextlib.suppress(FileNotFoundError),
            cache_folder.opened(path / "__pycache__") as compiled,
        ):
            for name in compiled.names():
                if name.partition(".")[0] in old:
                    compiled.remove(name)
        for stem in old:
            folder.remove(f"{stem}.py")


def _is_old(status: os.stat_result, now: float) -> bool:
    return now - max(status.st_atime, status.st_mtime) > KEPT
