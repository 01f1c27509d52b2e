"""The folder in which numbasync keeps what later processes use again."""

from __future__ import annotations

import os
from pathlib import Path

SWITCH = "NUMBASYNC_CACHE_DIR"


def root() -> Path:
    """The folder that `NUMBASYNC_CACHE_DIR` names, else `numbasync` in the user's cache folder.
    The folder may not exist.
    """
    configured = os.environ.get(SWITCH)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(configured) if configured else Path(home).expanduser() / "numbasync"


def make(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone.

    Raises:
        OSError: a folder cannot be made.
    """
    for parent in reversed([p for p in (path, *path.parents) if not p.exists()]):
        parent.mkdir(mode=0o700, exist_ok=True)
