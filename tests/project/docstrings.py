"""The docstrings of the package and the examples in them, found in the sources."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import types
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numbasync as na
import numbasync_kernels

PACKAGE = Path(str(na.__file__)).parent
KERNELS = Path(str(numbasync_kernels.__file__)).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(path: Path) -> Iterator[tuple[str, str, int]]:
    """Each docstring of a file, with the qualified name that it belongs to (empty: the module) and
    the number of its first line.
    """
    yield from _docstrings_of(_tree(path), "")


def _docstrings_of(node: ast.AST, name: str) -> Iterator[tuple[str, str, int]]:
    if isinstance(node, _Documented):
        text = ast.get_docstring(node)
        if text is not None:
            yield name, text, node.body[0].lineno
        for before, after in pairwise(node.body):  # of an alias of a type, the text below it
            match before, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=alias)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield f"{name}.{alias}".strip("."), inspect.cleandoc(text), after.lineno
    for child in ast.iter_child_nodes(node):
        own = getattr(child, "name", "") if isinstance(child, _Documented) else ""
        yield from _docstrings_of(child, f"{name}.{own}".strip("."))


def source_of(module: str) -> Path:
    """The file of a module of this package, or of the package of ready kernels."""
    above = KERNELS.parent if module.startswith(KERNELS.name) else PACKAGE.parent
    path = above.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(module: str) -> set[str]:
    """The names that a module makes public: those of `__all__`; without it, what it imports as
    `from x import y as y`, and its own functions and classes.
    """
    tree = _tree(source_of(module))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {a.name for a in node.names if a.asname == a.name}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return set(ast.literal_eval(node.value))
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
    return {name for name in found if not name.startswith("_")}


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """What a module imports from this package: names, with module and name there."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(_tree(source_of(module)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numbasync")
        for alias in node.names
    }


def home(module: str, name: str) -> str:
    """The qualified name of what a module calls `name`, where it is written: imports of this
    package are followed. Nothing is imported, so that what needs other packages is found, too.
    """
    if source_of(f"{module}.{name}").exists():
        return f"{module}.{name}"
    found = imported(module).get(name)
    return f"{module}.{name}" if found is None else home(*found)


def example_lines(path: Path) -> int:
    """The number of lines that a file has for the examples in its docstrings: from the empty line
    before `Examples:` to the docstring's end, with the quotes if all else stood on one line.
    """
    found = 0
    for _, text, _ in docstrings(path):
        before, heading, section = text.partition("\n\nExamples:\n")
        if heading:
            found += section.count("\n") + 3 + ("\n" not in before)
    return found


class Written(NamedTuple):
    """A docstring with examples: where it is, and its text."""

    name: str
    text: str
    path: Path
    line: int

    def test(self, names: dict[str, Any]) -> doctest.DocTest:
        """The examples, which see `names`."""
        parser = doctest.DocTestParser()
        return parser.get_doctest(self.text, dict(names), self.name, str(self.path), self.line)


@cache
def written(package: Path = PACKAGE) -> tuple[Written, ...]:
    """All docstrings of a package that have examples. To parse all takes half a second, so a test
    of one makes a `DocTest` of that alone.
    """
    found: list[Written] = []
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for name, text, line in docstrings(path):
            if ">>>" in text:
                whole = f"{module.removesuffix('.__init__')}.{name}".strip(".")
                found.append(Written(whole, text, path, line - 1))
    return tuple(found)


class Interpreter(doctest.DocTestRunner):
    """Runs examples as `python -m asyncio` would: they may await."""

    def __init__(self, runner: asyncio.Runner) -> None:
        super().__init__(optionflags=FLAGS)
        self._runner = runner

    def execute(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Run one example; what doctest calls `exec` for."""
        try:
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(eval(code, names))
            else:
                exec(code, names)
        except Exception as error:
            # Where an operation was submitted, and the address of the class's documentation;
            # versions of doctest differ in what they show of them.
            error.__notes__ = []
            raise

    def difference(self, test: doctest.DocTest) -> str:
        """What doctest reports of a test; empty: all of it is as written."""
        said: list[str] = []
        saved = vars(doctest).get("exec", exec)
        vars(doctest)["exec"] = self.execute
        try:
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            self.run(test, compileflags=flags, out=said.append, clear_globs=True)
        finally:
            vars(doctest)["exec"] = saved
        return "".join(said)
