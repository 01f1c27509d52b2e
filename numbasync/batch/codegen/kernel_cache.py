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

DAY = 24 * 60 * 60  # seconds
KEPT = 30 * DAY  # since the last use
STAMP = ".tidied"  # its time is that of the last clean-up: once a day is enough

_WRITTEN = re.compile(r"batch_\w*_[0-9a-f]{20}\.py")  # other files are not generated here


def use(path: Path) -> None:
    """Record that a process uses this source. The modification time stays: by it, Numba finds its
    compiled code.
    """
    with contextlib.suppress(OSError):
        written = path.stat().st_mtime_ns
        os.utime(path, ns=(time.time_ns(), written))


def tidy(folder: Path) -> None:
    """Remove files that have not been used for long. Errors of the file system are ignored: other
    processes may do the same, and a file that cannot be removed stays.
    """
    now = time.time()
    with contextlib.suppress(OSError):
        stamp = folder / STAMP
        if stamp.exists() and 0 <= now - stamp.stat().st_mtime < DAY:
            return
        stamp.touch()
        old = {p.stem for p in folder.iterdir() if _WRITTEN.fullmatch(p.name) and _is_old(p, now)}
        if not old:
            return
        compiled = folder / "__pycache__"
        for path in compiled.iterdir() if compiled.is_dir() else ():
            if path.name.partition(".")[0] in old:
                path.unlink(missing_ok=True)
        for stem in old:
            (folder / f"{stem}.py").unlink(missing_ok=True)


def _is_old(path: Path, now: float) -> bool:
    status = path.stat()
    return now - max(status.st_atime, status.st_mtime) > KEPT
