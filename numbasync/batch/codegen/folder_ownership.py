"""Whether only its owner can write to a folder: the code kept there is run when it is loaded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def why_shared(folder: Path) -> str:
    """The reason why users other than this user and root can put files into `folder`; "" if they
    cannot.

    The check covers the folder, its parent folders, and its entries. Windows has no such permission
    bits, and folders below the user's own belong to that user there.
    """
    if os.name == "nt":
        return ""
    real = folder.resolve()
    for path in (real, *real.parents):
        status = path.stat()
        if status.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to another user"
        # In a sticky folder, other users cannot replace files that they do not own.
        is_sticky = path != real and status.st_mode & stat.S_ISVTX
        if status.st_mode & _OF_OTHERS and not is_sticky:
            return f"others can write to {path}"
    for path in _entries(real):
        try:
            status = path.lstat()
        except FileNotFoundError:  # removed by another process meanwhile
            continue
        if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
            return f"{path} is a link, or another user's"
    return ""


def _entries(folder: Path) -> list[Path]:
    entries = list(folder.iterdir())
    compiled = folder / "__pycache__"
    is_folder = compiled.is_dir() and not compiled.is_symlink()
    return [*entries, *(compiled.iterdir() if is_folder else ())]
