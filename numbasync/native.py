"""The compiled core, where it is installed, in the place of Python functions of the same meaning.

The environment variable NUMBASYNC_NATIVE is read once, on import: 0, the core is not used; 1, it
must be there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import update_wrapper
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

HOW_TO_GET = "pip install --force-reinstall --no-deps --no-binary numbasync numbasync"


def _found() -> tuple[Any, str]:
    """The core, or None and the reason."""
    wish = os.environ.get("NUMBASYNC_NATIVE", "")
    if wish not in ("", "0", "1"):
        raise ImportError(f"NUMBASYNC_NATIVE={wish!r:.20}: write 0 or 1, or leave it out.")
    if wish == "0":
        return None, "NUMBASYNC_NATIVE is 0"
    try:
        module: ModuleType = __import__("numbasync._core", fromlist=["_core"])
    except ImportError as error:
        if wish == "1":
            raise ImportError(
                "NUMBASYNC_NATIVE is 1, and numbasync was installed without its compiled core.\n"
                f"With a C compiler: {HOW_TO_GET}"
            ) from error
        return None, "numbasync was installed without it"
    return module, ""


core, why_not = _found()


def compiled(function: F) -> F:
    """The core's function of the same qualified name; `function` where there is none. The core
    calls `function` for everything unusual.
    """
    replacement: F = function if core is None else core.take_over(function)
    return function if replacement is function else update_wrapper(replacement, function)


def new_lock() -> Any:
    """A reentrant lock."""
    return threading.RLock() if core is None else core.Lock()


def known(cls: C) -> C:
    """`cls`, whose slots the core reads."""
    if core is not None:
        core.know(cls)
    return cls


def switch(on: bool) -> bool:
    """Switch the core on or off; whether it is on. For tests: it is on if it is installed."""
    return core is not None and bool(core.switch(on))
