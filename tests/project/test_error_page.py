"""The page of errors: every class is there, and its program says what the page says."""

from __future__ import annotations

import inspect
import pickle
import re
import tomllib
import traceback
from collections.abc import Iterator
from urllib.parse import urldefrag

import pytest

from numbasync import errors, testing
from tests import error_page

TEXT = error_page.PAGE.read_text()
NUMBER = re.compile(r"\d[\d,.]*\d|\d")  # of bytes in use, streams, lines that others add
NO_PROGRAM = {"InternalError"}  # there is none, or it would be mended
GROUPS = {"NumbasyncError", "CallerError", "DeviceError", "InterpretedKernelWarning"}


def test_every_error_class_has_its_part() -> None:
    public = {name for name, c in inspect.getmembers(errors, inspect.isclass)
              if issubclass(c, (Exception, Warning))}  # fmt: skip
    assert public - GROUPS == set(error_page.sections(TEXT))


def test_every_class_has_program_message_and_remedy() -> None:
    for name, part in error_page.sections(TEXT).items():
        if name not in NO_PROGRAM:
            cause, program, _, message, remedy = re.split(r"^```\w*\n", part, flags=re.M)
            remedy, *_ = remedy.split("\n## ")
            assert all(map(str.strip, (cause, program, message, remedy))), name


def test_programs_of_the_page_say_what_it_says() -> None:
    found = error_page.messages(TEXT)
    parts = error_page.sections(TEXT)
    assert len(found) > 30
    for name, (classes, message) in found.items():
        assert classes[:1] == [name], message
        ((_, shown),) = error_page.BLOCK.findall(parts[name])
        assert shown and NUMBER.sub("N", shown) == NUMBER.sub("N", message)


def classes(module: object) -> Iterator[type[errors.NumbasyncError]]:
    for _, found in inspect.getmembers(module, inspect.isclass):
        if issubclass(found, errors.NumbasyncError):
            yield found


def address(cls: type[errors.NumbasyncError]) -> str:
    driver = errors.DriverError("cuInit", 1, "NAME", "text")
    (note,) = driver.__notes__ if cls is errors.DriverError else cls("text").__notes__
    return note.removeprefix("See ")


@pytest.mark.parametrize("cls", [*classes(errors), *classes(testing)], ids=lambda c: c.__name__)
def test_an_errors_address_has_an_existing_heading(
    cls: type[errors.NumbasyncError],
) -> None:
    page, anchor = urldefrag(address(cls).removeprefix(errors.DOCUMENTATION))
    text = (error_page.ROOT / f"docs{page}").read_text()
    headings = [re.sub(r"\W+", "-", h.lower()) for h in re.findall(r"^#+ (.*)$", text, re.M)]
    assert anchor in headings or (cls is errors.NumbasyncError and page and not anchor)
    if cls.__name__ in error_page.sections(TEXT):
        assert anchor == cls.__name__.lower()


def test_the_address_is_the_projects_documentation() -> None:
    project = tomllib.loads((error_page.ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == errors.DOCUMENTATION


def test_a_users_class_has_its_bases_address() -> None:
    own = type("Own", (errors.ShapeError,), {"__module__": "theirs"})
    assert address(own) == address(errors.ShapeError)


def test_the_address_stands_only_below_the_message() -> None:
    error = errors.DriverError("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "no device")
    error.add_note("a note")
    assert errors.DOCUMENTATION not in str(error)
    for one in (error, pickle.loads(pickle.dumps(error))):
        shown = "".join(traceback.format_exception_only(one)).splitlines()
        assert shown[-2:] == [f"See {address(errors.DriverError)}", "a note"]
