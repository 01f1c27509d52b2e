"""Written kernels on disk: which are kept.

Each text has its file, and what is compiled from it lies beside it. A text that no process has used
for a while goes, with what belongs to it: batches of a program that is being worked on would leave
more and more. When it was used is the file's time of access, set here, since file systems need not.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

DAY = 24 * 60 * 60  # seconds
KEPT = 30 * DAY  # since it was used
STAMP = ".tidied"  # its time is when somebody last looked: once a day is enough

_WRITTEN = re.compile(r"batch_\w*_[0-9a-f]{20}\.py")  # other files are somebody else's


def use(path: Path) -> None:
    """A process uses this text. Its time of writing stays: by it, Numba finds what it compiled."""
    with contextlib.suppress(OSError):
        written = path.stat().st_mtime_ns
        os.utime(path, ns=(time.time_ns(), written))


def tidy(folder: Path) -> None:
    """Remove what has not been used for long. Errors of the file system are nobody's concern here:
    other processes may do the same, and what cannot be removed stays.
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
    found = path.stat()
    return now - max(found.st_atime, found.st_mtime) > KEPT
