"""What the session's options say to `check_kernel` and its kin; the plugin sets it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

DEFAULT_RACES = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a session.

    Attributes:
        races: fewest shuffled orders to try, where any are tried.
        seed: of whoever names none.
        options: how to give a session the same ones, on its command line.
        root: the folder that names of tests begin at, seen from where the session was started.
    """

    races: int = 0
    seed: int = 0
    options: str = ""
    root: str = "."


_current = Settings()


def current() -> Settings:
    return _current


def use(settings: Settings) -> Settings:
    """Set the options of this process; the ones before."""
    global _current
    before, _current = _current, settings
    return before


def command(call: str, seed: int) -> str:
    """One line that does it again: of the test that runs now, or `call` itself."""
    running = os.environ.get("PYTEST_CURRENT_TEST")
    if running is None:
        return call
    path, *within = running.rsplit(" ", 1)[0].split("::")
    node = "::".join([os.path.normpath(os.path.join(_current.root, path)), *within])
    # Quoted always, so that it looks the same: most names have brackets.
    quoted = shlex.quote(node) if "'" in node else f"'{node}'"
    options = f" {_current.options}" if _current.options else ""
    return f"pytest {quoted}{options} --kernel-seed {seed}"
