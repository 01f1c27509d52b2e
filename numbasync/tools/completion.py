"""`numbasync completion SHELL`: prints the script by which a shell completes the command.

The script has all names and options in it: importing numbasync at each press of the key would take
half a second. So it is to be written again after an update.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numbasync.errors import MissingExtraError

SHELLS = ("bash", "zsh", "tcsh")


def run(shell: str, parser: argparse.ArgumentParser) -> int:
    """Run the command. Returns the exit status.

    Raises:
        MissingExtraError: shtab, which writes the script, is not installed.
    """
    if importlib.util.find_spec("shtab") is None:
        raise MissingExtraError(
            "completion needs shtab, which is not installed: pip install 'numbasync[completion]'"
        )
    shtab: Any = importlib.import_module("shtab")
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell))  # noqa: T201 - a command's output
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser, and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
