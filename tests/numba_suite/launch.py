"""Launches of the tests: what was launched, what refused, and what a GPU says of an exception."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from numbasync.errors import KernelCompileError, KernelError, UnsupportedKernelError

# Names of the kernels since the last test began: launched to their end, asked for, and refused.
launched: list[str] = []
attempts: list[str] = []
refused: list[str] = []


def noted(launch: Callable[..., None]) -> Callable[..., None]:
    """`launch(configuration, *args)`, which notes what becomes of it."""

    @functools.wraps(launch)
    def launch_and_note(configuration: Any, *args: Any) -> None:
        dispatcher = configuration.dispatcher
        name = dispatcher.py_func.__name__
        attempts.append(name)
        try:
            launch(configuration, *args)
        except (KernelCompileError, UnsupportedKernelError):
            refused.append(name)
            raise
        except Exception as error:
            launched.append(name)
            said = error.__context__
            if isinstance(error, KernelError) or not isinstance(said, KernelError):
                raise
            # Without debug=True a GPU drops what a kernel raises, and so do Numba's tests.
            if dispatcher.targetoptions.get("debug"):
                error.args = (_as_on_a_gpu(dispatcher.py_func, str(said)),)
                raise
        else:
            launched.append(name)

    return launch_and_note


def _as_on_a_gpu(function: Any, said: str) -> str:
    """Numba's text of an exception in a kernel, with the place that the device has named."""
    places = re.search(r"block (\(.*?\)), thread (\(.*?\)):", said)
    line = re.search(r"line (\d+)|:(\d+)\)", said)
    where = (
        ""
        if places is None
        else (
            f"tid={list(map(int, places[2].strip('()').split(',')))} "
            f"ctaid={list(map(int, places[1].strip('()').split(',')))}"
        )
    )
    number = "" if line is None else f", line {line[1] or line[2]}"
    message = re.search(r"\): \w+: (.*?)( \(\S+:\d+\))?$", said, re.M)
    text = "" if message is None else message[1]
    file = function.__code__.co_filename
    begin = f"In function '{function.__name__}', file {file}{number}, {where}"
    return f"{begin}: {text}" if text else begin
