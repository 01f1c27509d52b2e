"""Line numbers in the code of kernels, from which profilers and compute-sanitizer name the source.

They change no instruction. Numba's disk cache does not tell kernels with them from kernels without.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType
from typing import Any

# The attribute of a dispatcher that has line numbers without asking for them.
_BY_DEFAULT = "__numbasync_lines__"


def add_line_info(dispatcher: Any) -> None:
    """Have a kernel compiled with line numbers, unless its decorator has `lineinfo=`, or
    `debug=True`, beside which Numba refuses them.
    """
    options = dispatcher.targetoptions
    definition = _definition(dispatcher.py_func)
    if definition is None or options.get("debug"):
        return
    # A dispatcher does not tell `lineinfo=False` from its default.
    calls = (d for d in definition.decorator_list if isinstance(d, ast.Call))
    if not any(keyword.arg == "lineinfo" for call in calls for keyword in call.keywords):
        options["lineinfo"] = True
        setattr(dispatcher, _BY_DEFAULT, True)


def drop_wrong_line_info(dispatcher: Any) -> None:
    """Have a kernel compiled without line numbers if its file was edited since it was defined.
    Numba would read other lines than the kernel's, and warn, or fail to parse them.
    """
    options = dispatcher.targetoptions
    if options.get("lineinfo"):
        options["lineinfo"] = _definition(dispatcher.py_func) is not None


def retract_line_info(dispatcher: Any, error: BaseException) -> bool:
    """Have a kernel compiled without line numbers if that may mend `error`: the linker refuses them
    in kernels that it links with C++, such as Numba's functions for float16. False if the error is
    another one, or the kernel asks for line numbers.
    """
    is_default = getattr(dispatcher, _BY_DEFAULT, False)
    if not is_default or type(error.__cause__).__name__ != "nvJitLinkError":
        return False
    setattr(dispatcher, _BY_DEFAULT, False)
    dispatcher.targetoptions["lineinfo"] = False
    return True


def _definition(function: FunctionType) -> ast.FunctionDef | None:
    """The definition of a function, read as Numba reads it: from the function's lines alone. None
    if Numba would not find it there.
    """
    try:
        lines, _ = inspect.getsourcelines(function)
        node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except Exception:  # no file; or other lines than the function's, which raise various errors
        return None
    if not isinstance(node, ast.FunctionDef) or node.name != function.__code__.co_name:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node if first == 1 else None
