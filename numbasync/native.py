"""The compiled core, where it is installed, in the place of Python functions of the same meaning.

The environment variable NUMBASYNC_NATIVE is read on import: 0, the core is not used; 1, it must be
there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import update_wrapper
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

NAME = "NUMBASYNC_NATIVE"  # of the environment variable


def how_to_get() -> str:
    """The command that installs numbasync with its compiled core, where there is a C compiler."""
    import json  # here: the package is imported without it
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from shlex import quote
    from urllib.parse import unquote, urlparse

    root = Path(__file__).parents[1]
    if (root / "hatch_build.py").exists():
        return f"pip install -e {quote(str(root))}"  # a checkout
    source = "numbasync"
    with suppress(PackageNotFoundError):
        package = distribution(source)
        source = f"numbasync=={package.version}"
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        url = origin.get("url", "")
        if "vcs_info" in origin:
            source = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
        elif url.startswith("file:") and not url.endswith(".whl"):
            source = unquote(urlparse(url).path)
    # pip keeps what it has built, and would install the same again.
    options = "--force-reinstall --no-deps --no-cache-dir --no-binary numbasync"
    return f"pip install {options} {quote(source)}"


def is_off() -> bool:
    """Whether the environment says that the core is not used.

    Raises:
        ImportError: the variable is neither 0 nor 1.
    """
    setting = os.environ.get(NAME, "")
    if setting not in ("", "0", "1"):
        raise ImportError(f"{NAME}={setting!r:.20}: write 0 or 1, or leave it out.")
    return setting == "0"


def _load() -> Any:
    """The core; None without it."""
    if is_off():
        return None
    try:
        module: ModuleType = import_module("numbasync._core")
    except ImportError as error:
        if os.environ.get(NAME) == "1":
            raise ImportError(
                f"{NAME} is 1, and numbasync is installed without its compiled core.\n"
                f"With a C compiler: {how_to_get()}"
            ) from error
        return None
    return module


core = _load()


def compiled(function: F) -> F:
    """The core's function of the same qualified name; `function` where there is none. The core
    calls `function` for everything unusual.
    """
    replacement: F = function if core is None else core.take_over(function)
    if replacement is not function:
        update_wrapper(replacement, function)
    return replacement


def new_lock() -> Any:
    """A reentrant lock."""
    return threading.RLock() if core is None else core.Lock()


def known(cls: C) -> C:
    """`cls`, whose slots the core reads.

    Raises:
        ImportError: the core reads slots that `cls` has not, so it was built of other sources.
    """
    if core is not None:
        try:
            core.know(cls)
        except TypeError as error:
            raise ImportError(
                f"{core.__file__} does not fit numbasync's sources ({error}).\n"
                f"Build it again: {how_to_get()}. Or set {NAME}=0 to go without it."
            ) from error
    return cls


def switch(on: bool) -> bool:
    """Switch the core on or off; whether it is on. For tests: it is on if it is installed."""
    return core is not None and bool(core.switch(on))
