"""Whether a call tunes by itself: `NUMBASYNC_AUTOTUNE`, read once per process."""

from __future__ import annotations

import os

from numbasync.errors import CallerError

__all__ = ["automatic", "requested", "use"]

SWITCH = "NUMBASYNC_AUTOTUNE"


def _requested() -> bool | None:
    """What the environment requests; None: nothing."""
    text = os.environ.get(SWITCH, "").strip()
    if text not in ("", "0", "1"):
        raise CallerError(
            f"{SWITCH}={text!r}: write 1 (calls tune by themselves, in tests, too) or 0 (only "
            "tune(...) does)."
        )
    return bool(int(text)) if text else None


# What NUMBASYNC_AUTOTUNE says; None: nothing.
requested = _requested()
# pytest sets the other variable, and the processes that a test starts inherit it.
automatic = "PYTEST_CURRENT_TEST" not in os.environ if requested is None else requested


def use(on: bool) -> bool:
    """Set whether calls tune by themselves. Returns the previous setting."""
    global automatic
    before, automatic = automatic, on
    return before
