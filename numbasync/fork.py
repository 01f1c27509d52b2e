"""Forked processes: a child has its parent's objects and none of its threads."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(repair: Callable[[], None]) -> Callable[[], None]:
    """Call `repair` in every child that is forked from now on, before anything else runs there:
    locks are made anew, and what waited for a thread starts over. A decorator.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=repair)
    return repair
