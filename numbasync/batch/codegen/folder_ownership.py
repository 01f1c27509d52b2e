"""Whether a folder is its owner's alone: what is kept there is run when it is loaded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def why_shared(folder: Path) -> str:
    """Why others than this user, and root, can put files into `folder`; "" if they cannot.

    Looked at are the folder, those that it is in, and what lies in it. Windows has no such bits,
    and folders below the user's own are nobody else's there.
    """
    if os.name == "nt":
        return ""
    real = folder.resolve()
    for each in (real, *real.parents):
        found = each.stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{each} belongs to another user"
        # In a sticky folder, others cannot replace what is not theirs.
        is_sticky = each != real and found.st_mode & stat.S_ISVTX
        if found.st_mode & _OF_OTHERS and not is_sticky:
            return f"others can write to {each}"
    for each in _entries(real):
        try:
            found = each.lstat()
        except FileNotFoundError:  # removed by another process meanwhile
            continue
        if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode):
            return f"{each} is a link, or another user's"
    return ""


def _entries(folder: Path) -> list[Path]:
    found = list(folder.iterdir())
    compiled = folder / "__pycache__"
    is_folder = compiled.is_dir() and not compiled.is_symlink()
    return [*found, *(compiled.iterdir() if is_folder else ())]
