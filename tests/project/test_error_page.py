"""The page of errors: every class is there, and its program says what the page says."""

from __future__ import annotations

import inspect
import re

from numbasync import errors
from tests import error_page

TEXT = error_page.PAGE.read_text()
NUMBER = re.compile(r"\d[\d,.]*\d|\d")  # of bytes in use, streams, lines that others add
GROUPS = {"NumbasyncError", "CallerError", "DeviceError", "InterpretedKernelWarning"}


def test_every_class_of_error_has_a_part_of_the_page() -> None:
    public = {name for name, c in inspect.getmembers(errors, inspect.isclass)
              if issubclass(c, (Exception, Warning))}  # fmt: skip
    assert public - GROUPS == set(error_page.sections(TEXT))


def test_programs_of_the_page_say_what_it_says() -> None:
    found = error_page.messages(TEXT)
    parts = error_page.sections(TEXT)
    assert len(found) > 30
    for name, (classes, message) in found.items():
        assert classes[:1] == [name], message
        ((_, shown),) = error_page.BLOCK.findall(parts[name])
        assert shown and NUMBER.sub("N", shown) == NUMBER.sub("N", message)
