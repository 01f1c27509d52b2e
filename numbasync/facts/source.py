"""The source text of a function: from its file, a notebook, a prompt, or another process.

Kernels are changed in their source for a GPU (unsigned indices, several elements a thread), and
messages quote it, so the text must be found where Python itself keeps none: kernels of `python -c`
and of the prompt before Python 3.13, of `%%time` cells, and kernels that were pickled by value. A
text counts only if it compiles to the function's bytecode.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = [
    "SOURCE_ATTR", "captured", "carry_source", "compiled_like", "find_definition",
    "find_source", "hold_source", "nested_codes",
]  # fmt: skip

T = TypeVar("T")
# The attribute in which a generated kernel, or its module, stores its source.
SOURCE_ATTR = "__numbasync_source__"
# Of all `__future__` statements, the only one that Python 3.11 and later have not made the rule.
_FUTURE = __future__.annotations.compiler_flag
# The attribute with the text of a function that was pickled by value.
_PICKLED_ATTR = "__numbasync_pickled_source__"
# The lines of each file when a kernel of it was defined, or was last found in it: the file may be
# edited before the kernel is compiled.
_held: dict[str, list[str]] = {}


def hold_source(function: types.FunctionType) -> None:
    """Keep the text of a function's file, which may be edited before the function is compiled."""
    file = function.__code__.co_filename
    linecache.checkcache(file)  # the module may have been edited and imported again
    if lines := linecache.getlines(file, function.__globals__):
        _held[file] = lines


def find_source(function: types.FunctionType) -> tuple[str, ast.Module] | None:
    """The text that a function was compiled from, and its syntax tree: a whole file, notebook cell
    or entry, since its `__future__` statements decide how a function is compiled. None if there is
    none, as for functions made by `exec`, or if it was edited after it was imported.
    """
    for text in _texts(function):
        try:
            tree = _retried(lambda text=text: ast.parse(text))  # type: ignore[misc]
        except (SyntaxError, ValueError):
            continue
        code = compiled_like(tree, function.__code__)
        if code is not None and _content(code) == _content(function.__code__):
            _held[function.__code__.co_filename] = text.splitlines(True)
            return text, tree
    return None


def find_definition(function: types.FunctionType) -> tuple[ast.Module, ast.FunctionDef] | None:
    """The syntax tree of a function's text, and the function's own definition in it; None if the
    text is not at hand, or has two such definitions in one line. The tree is the caller's: it may
    be changed, and compiled by `compiled_like`.
    """
    source, code = find_source(function), function.__code__
    nodes = [
        node
        for node in (ast.walk(source[1]) if source is not None else ())
        if isinstance(node, ast.FunctionDef)
        and node.name == code.co_name
        and min([node.lineno, *(d.lineno for d in node.decorator_list)]) == code.co_firstlineno
    ]
    return (source[1], nodes[0]) if source is not None and len(nodes) == 1 else None


def carry_source(function: types.FunctionType) -> None:
    """Make a function that is pickled by value carry its text, which the receiver may not be able
    to read: a cell of a notebook, or a file of another machine.
    """
    if not hasattr(function, _PICKLED_ATTR) and (source := find_source(function)) is not None:
        setattr(function, _PICKLED_ATTR, source[0])


def captured(function: types.FunctionType) -> dict[str, Any]:
    """The variables of enclosing functions that a function uses, but those not assigned yet."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            values[name] = cell.cell_contents
    return values


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions and classes defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


def compiled_like(tree: ast.Module, like: types.CodeType) -> types.CodeType | None:
    """The code that stands where `like` stands; None if there is none. Nothing is run.

    The tree may be a cell of a notebook or an entry of an interactive session: with `await` at
    its top level, and compiled with the `__future__` statements of earlier ones.
    """
    flags = like.co_flags & _FUTURE | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        whole = _retried(lambda: compile(tree, like.co_filename, "exec", flags, dont_inherit=True))
    except (SyntaxError, ValueError):
        return None
    codes = [
        code
        for code in nested_codes(whole)
        if (code.co_name, code.co_firstlineno) == (like.co_name, like.co_firstlineno)
    ]
    return codes[0] if len(codes) == 1 and codes[0].co_freevars == like.co_freevars else None


def _content(code: types.CodeType) -> tuple[object, ...]:
    constants = [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
    return code.co_code, code.co_names, code.co_varnames, constants


def _retried(call: Callable[[], T]) -> T:
    """`call()`, and again if CPython's parser was re-entered.

    Python 3.11 counts its depth in one place for all. A finaliser that prints a traceback in
    the middle parses too, and the outer call then raises SystemError (CPython issue 106905).
    """
    for _ in range(3):
        try:
            return call()
        except SystemError:
            continue
    return call()


# --- where a text may be ---


def _texts(function: types.FunctionType) -> Iterator[str]:
    """Texts that may hold the function, the likeliest first."""
    file, name = function.__code__.co_filename, function.__code__.co_name
    for attribute in (SOURCE_ATTR, _PICKLED_ATTR):
        if (text := getattr(function, attribute, None)) is not None:
            yield text
    if file in _held:
        yield "".join(_held[file])
    yield "".join(linecache.getlines(file, function.__globals__))
    linecache.checkcache(file)  # the module may have been edited and imported again
    yield "".join(linecache.getlines(file, function.__globals__))
    if file == "<string>" and "-c" in sys.orig_argv[:-1]:
        yield sys.orig_argv[sys.orig_argv.index("-c") + 1]
    elif file in ("<stdin>", "<console>"):
        yield from (text for text in _entries() if name in text)
    elif file == "<timed exec>":
        yield from (text for text in _timed_cells() if name in text)


def _entries() -> Iterator[str]:
    """Entries of Python's prompt, the latest first. Python 3.13 registers them with linecache."""
    readline: Any = sys.modules.get("readline")
    if readline is None:
        return
    count = readline.get_current_history_length()
    lines = [readline.get_history_item(i + 1) or "" for i in range(count)]
    end = count
    for start in reversed(range(count)):
        is_below_head = start > 0 and lines[start - 1].startswith("@")
        if not (lines[start][:1].isspace() or is_below_head):
            yield "\n".join(lines[start:end])
            end = start


def _timed_cells() -> Iterator[str]:
    """Cells of the notebook that begin with %%time, without that line, the latest first."""
    shell: Any = sys.modules["IPython"].get_ipython()
    for cell in reversed(shell.history_manager.input_hist_raw):
        first, _, text = cell.lstrip().partition("\n")
        if first.startswith("%%time"):
            yield shell.transform_cell(text)
