"""Settings of a session for `check_kernel` and related functions; the pytest plugin sets them."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

DEFAULT_RACES = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a session.

    Attributes:
        races: the least number of shuffled orders, where any are tried.
        seed: the default seed of checks.
        options: command-line options that give another session the same settings.
        root: the folder that test names are relative to, seen from the session's start folder.
    """

    races: int = 0
    seed: int = 0
    options: str = ""
    root: str = "."


_current = Settings()


def current() -> Settings:
    return _current


def use(settings: Settings) -> Settings:
    """Set the settings of this process. Returns the previous settings."""
    global _current
    before, _current = _current, settings
    return before


def command(call: str, seed: int) -> str:
    """A command line that repeats the running test; outside of tests, `call` itself."""
    running = os.environ.get("PYTEST_CURRENT_TEST")
    if running is None:
        return call
    path, *within = running.rsplit(" ", 1)[0].split("::")
    node = "::".join([os.path.normpath(os.path.join(_current.root, path)), *within])
    # Always quoted, for a uniform look: most names have brackets.
    quoted = shlex.quote(node) if "'" in node else f"'{node}'"
    options = f" {_current.options}" if _current.options else ""
    return f"pytest {quoted}{options} --kernel-seed {seed}"
