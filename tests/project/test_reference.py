"""The reference: an entry and an example for each public name, and lists that are complete."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync.public import NAMES
from numbasync.testing.plugin import MARKS, fixtures, options
from numbasync.tools import cli
from tests.project import docstrings
from tests.project.test_documents import uncommon_word

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs/reference"
MODULES = ("", "algorithms", "batch", "block", "collective", "cpu_cuda", "dask", "errors",
           "extending", "random", "ray", "serve", "tensor_cores", "testing", "testing.strategies",
           "torch", "vectors", "warp")  # fmt: skip
EXAMPLE = re.compile(r" *(>>>|\.\.\.)")
# Modules themselves: their entries are the pages of what is in them.
PLACES = {name for name in MODULES if name}


def whole(module: str) -> str:
    return f"numbasync.{module}".strip(".")


NAMED = [
    (whole(module), name)
    for module in MODULES
    for name in sorted(docstrings.public_names(whole(module)) - PLACES)
]


def entries() -> Iterator[str]:
    """The qualified names, where they are written, of what the pages show."""
    for page in sorted(PAGES.glob("*.md")):
        for path, settings in re.findall(
            r"^::: (numbasync\.[\w.]+)\n((?: {4}.*\n)*)", page.read_text(encoding="utf-8"), re.M
        ):
            listed = re.search(r"members:\s*((?:\[.*\])|(?:\n +- \w+)+)", settings)
            names = re.findall(r"\w+", listed.group(1)) if listed else []
            if docstrings.source_of(path).exists():  # a module
                names = names or sorted(docstrings.public_names(path))
                yield from (docstrings.home(path, name) for name in names)
            else:
                yield docstrings.home(*path.rsplit(".", 1))


@cache
def texts(module: str) -> dict[str, str]:
    """The docstrings of a module, by what they describe; its own by the empty name."""
    source = docstrings.source_of(module)
    return {name: text for name, text, _ in docstrings.docstrings(source)}


def docstring(path: str) -> str:
    """The docstring of what has this qualified name; empty without one."""
    module, _, name = path.rpartition(".")
    return texts(module).get(name, "")


def has_example(module: str, name: str) -> bool:
    """Whether the docstring has an example, or the module's has one that uses the name: as those
    of operations that only kernels call, a few of which make one program.
    """
    own = docstring(docstrings.home(module, name))
    lines = [line for line in texts(module).get("", "").splitlines() if EXAMPLE.match(line)]
    return ">>>" in own or any(re.search(rf"\b{name}\b", line) for line in lines)


def test_each_public_name_has_an_entry() -> None:
    assert len(NAMED) > 250
    shown = set(entries())
    missing = [f"{m}.{n}" for m, n in NAMED if docstrings.home(m, n) not in shown]
    assert missing == [], "no entry in docs/reference: write `::: NAME` on the page that fits"


def test_each_public_name_has_an_example() -> None:
    missing = [f"{m}.{n}" for m, n in NAMED if not has_example(m, n)]
    assert missing == [], "no example: write `Examples:` and `>>>` lines at the docstring's end"


def test_each_ready_kernel_has_example_and_entry() -> None:
    """All that the packages of ready kernels name, but their constants and NumPy's references."""
    shown = re.findall(r"^::: ([\w.]+)$", (PAGES / "kernels.md").read_text(encoding="utf-8"), re.M)
    found = 0
    for module in ("numbasync_kernels.image", "numbasync_kernels.nn"):
        for name in docstrings.public_names(module):
            if name.isupper() or name.endswith("_reference"):
                continue
            place, own = docstrings.imported(module)[name]
            assert place in shown, f"no entry of {place} in docs/reference/kernels.md"
            assert ">>>" in texts(place)[own], f"no example: {place}.{own}"
            found += 1
    assert found > 20


def test_each_public_method_has_an_example() -> None:
    """In its own docstring, or in that of its class, as the operations of a batch."""
    missing = []
    for name, listed in NAMES.items():
        kind = getattr(na, name)
        of_class = [line for line in str(kind.__doc__).splitlines() if EXAMPLE.match(line)]
        for member in listed:
            method = getattr(kind, member, None)
            is_method = callable(method) and not isinstance(method, type)
            shown = any(re.search(rf"\.{member}\b", line) for line in of_class)
            if is_method and not shown and ">>>" not in str(method.__doc__):
                missing.append(f"na.{name}.{member}")
    assert missing == [], "no example: write `Examples:` and `>>>` lines at the docstring's end"


def test_what_the_pages_show_exists() -> None:
    gone = [name for name in entries() if not docstring(name)]
    assert gone == [], "an entry of something that is not there, or has no docstring"


def test_each_public_member_is_described() -> None:
    """By its own docstring, or in the list of attributes of its class or of a base class."""
    missing = []
    for name, listed in NAMES.items():
        kind = getattr(na, name)
        attributes = "\n".join(str(base.__doc__) for base in kind.__mro__)
        for member in listed:
            own = getattr(kind, member, None)
            text = own.__doc__ if callable(own) or isinstance(own, property) else None
            is_listed = re.search(rf"^ +(\w+, )*{member}(, \w+)*: ", attributes, re.M)
            if not text and not is_listed:
                missing.append(f"na.{name}.{member}")
    assert missing == [], "no docstring"


def test_shown_docstrings_have_the_fields_words() -> None:
    for entry in entries():
        module, _, name = entry.rpartition(".")
        for own, text in texts(module).items():
            if own == name or own.startswith(f"{name}."):
                found = uncommon_word(text)
                assert found is None, f"{entry}, {own}: {found}"


def test_each_page_is_in_navigation_and_index() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    first = (PAGES / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in PAGES.glob("*.md")}
    assert set(re.findall(r"reference/([\w-]+\.md)", navigation)) == pages
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", first)) == pages - {"index.md"}


def first_column(page: str, heading: str = "") -> list[str]:
    """What stands in backquotes in the first column of the tables of a page, or of a part of it."""
    text = (PAGES / page).read_text(encoding="utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", text, re.M)


def test_the_environment_variables_are_listed() -> None:
    sources = [*docstrings.PACKAGE.rglob("*.py"), ROOT / "hatch_build.py"]
    read = {
        name
        for path in sources
        for name in re.findall(r"NUMBASYNC_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    assert len(read) > 5
    assert sorted(first_column("environment.md")) == sorted(read)


class _Options:
    """What `add_options` adds to."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def getgroup(self, name: str) -> _Options:
        return self

    def addoption(self, name: str, **settings: Any) -> None:
        self.names.append(name)


def test_the_options_of_pytest_are_listed() -> None:
    added = _Options()
    options.add_options(added)  # type: ignore[arg-type]
    assert len(added.names) > 5
    # The plugin adds --device by itself, where no other has it.
    assert sorted(first_column("pytest.md", "Options")) == sorted([*added.names, "--device"])


def test_the_fixtures_and_marks_of_pytest_are_listed() -> None:
    made = [name for name, one in vars(fixtures).items() if type(one).__name__ == (
        "FixtureFunctionDefinition")]  # fmt: skip
    assert len(made) > 3 and len(MARKS) > 2
    assert sorted(first_column("pytest.md", "Fixtures")) == sorted(made)
    marks = [re.split(r"[(:]", mark)[0] for mark in MARKS]
    assert sorted(first_column("pytest.md", "Marks")) == sorted(marks)


def commands() -> dict[str, argparse.ArgumentParser]:
    (chosen,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(chosen.choices)


def test_the_commands_are_listed() -> None:
    text = (PAGES / "command-line.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## `numbasync ([\w-]+)`", text, re.M)) == sorted(commands())


@pytest.mark.parametrize("name", commands())
def test_the_arguments_of_a_command_are_listed(name: str) -> None:
    actions = [a for a in commands()[name]._actions if "--help" not in a.option_strings]
    written = [(a.option_strings or [a.dest])[0] for a in actions]
    assert sorted(first_column("command-line.md", f"`numbasync {name}`")) == sorted(written)
    text = (PAGES / "command-line.md").read_text(encoding="utf-8")
    part = text.split(f"\n## `numbasync {name}`\n")[1].split("\n## ")[0]
    for action in actions:
        for choice in action.choices or ():
            assert f"`{choice}`" in part, (name, action.dest, choice)
