"""NVTX ranges, by which profilers such as Nsight Systems show the operations of a trace."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

DOMAIN = "numbasync"
# Set by a profiler that wants to be told of ranges.
ASKED = ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH")


class Ranges:
    """A range for each operation, from the beginning of its submission to its end."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def begin(self, submission: Any) -> Any:
        return self._nvtx.start_range(message=submission.name, domain=DOMAIN)

    def end(self, submission: Any, begun: Any, is_enqueued: bool) -> None:
        self._nvtx.end_range(begun)


def ranges_of_profiler() -> Ranges | None:
    """The ranges of the package `nvtx`; None without it, or if the program runs in no profiler."""
    if not any(name in os.environ for name in ASKED):
        return None
    try:
        return Ranges(import_module("nvtx"))
    except ImportError:
        return None
