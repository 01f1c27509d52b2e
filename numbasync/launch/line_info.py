"""Line numbers in the code of kernels, from which profilers and compute-sanitizer name the source.

They change no instruction. Numba's disk cache does not tell kernels with them from kernels without.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def has_line_info(dispatcher: Any) -> bool:
    """Whether a kernel is compiled with line numbers: as `lineinfo=` in its decorator says; without
    the option, yes, except with `debug=True`, beside which Numba refuses them.
    """
    options = dispatcher.targetoptions
    if options.get("lineinfo") or options.get("debug"):
        return bool(options.get("lineinfo"))
    # Read as Numba reads it for the numbers: it warns where it finds no source, and fails where it
    # cannot parse the lines of the function alone.
    try:
        lines, _ = inspect.getsourcelines(dispatcher.py_func)
        nodes = list(ast.walk(ast.parse(textwrap.dedent("".join(lines)))))
    except (OSError, TypeError, SyntaxError):
        return False
    # A dispatcher does not tell `lineinfo=False` from its default.
    calls = (d for n in nodes if isinstance(n, ast.FunctionDef) for d in n.decorator_list)
    keywords = (k.arg for d in calls if isinstance(d, ast.Call) for k in d.keywords)
    return "lineinfo" not in keywords
