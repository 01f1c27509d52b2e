"""What the session's options say to `check_kernel` and its kin; the plugin sets it."""

from __future__ import annotations

import os
from dataclasses import dataclass

DEFAULT_RACES = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a session.

    Attributes:
        races: fewest shuffled orders to try, where any are tried.
        seed: of whoever names none.
        options: how to give a session the same ones, on its command line.
    """

    races: int = 0
    seed: int = 0
    options: str = ""


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
    node = running.rsplit(" ", 1)[0]
    options = f" {_current.options}" if _current.options else ""
    return f"pytest '{node}'{options} --kernel-seed {seed}"
