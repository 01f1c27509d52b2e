"""Kernels where people try things: notebooks, interactive sessions, doctests.

Their source is a cell or an entry, which may `await` at its top level, and none of it is a file.
"""

from __future__ import annotations
import __future__

import ast
import doctest
import linecache
import re
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any

import pytest

import numbasync as na
from numbasync.facts.source import find_source

CELLS = {
    "imports": """
        from __future__ import annotations  # which IPython keeps for later cells
        import numbasync as na, numpy as np
        from numba import cuda
        from numbasync.testing import check_kernel
        x = np.arange(4, dtype=np.float32)
    """,
    "defined and awaited": """
        %time unrelated = 1
        @na.launcher
        @cuda.jit
        def times(z: na.KernelOutput, x: na.KernelInput):
            def inner(a: NotDefined) -> NotDefined:
                return a * 2
            i = cuda.grid(1)
            if i < z.size:
                z[i] = inner(x[i])
        z = await na.zeros(4)
        await times(z, x)
        print((await z.to_host()).tolist(), times.cpu_engine().name)
    """,
    "defined again": """
        !echo from the shell
        @na.launcher
        @cuda.jit
        def times(z: na.KernelOutput, x: na.KernelInput):
            i = cuda.grid(1)
            if i < z.size:
                z[i] = x[i] * 3
        await times(z, x)
        print((await z.to_host()).tolist(), times.cpu_engine().name)
    """,
    "timed": """
        %%time
        @na.launcher
        @cuda.jit
        def timed(z: na.KernelOutput, x: na.KernelInput):
            i = cuda.grid(1)
            if i < z.size:
                z[i] = x[i] * 4
        timed(z, x).sync()
        print(z.to_host().sync().tolist(), timed.cpu_engine().name)
    """,
    "of a batch": """
        @na.elementwise
        def fifth(a):
            return a * 5
        b = na.CommandBatch()
        result = fifth(b.upload(x))
        await b.execute()
        print((await b.read(result)).tolist())
    """,
    "checked": """
        check_kernel(times, (np.zeros(4, np.float32), x), lambda z, x: x * 4)
    """,
    "refused": """
        @na.launcher
        @cuda.jit
        def refused(z: na.KernelOutput):
            i = cuda.grid(1)
            # A GPU's compiler refuses this shape.
            own = cuda.local.array(z.size, np.float32)
            z[i] = own[0]
        await refused(z)
    """,
}


def test_a_notebook(
    python_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    # Jupyter's own warnings, while pytest runs, are nobody's here.
    for name, value in {"JUPYTER_PLATFORM_DIRS": "1", "PYTHONWARNINGS": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NUMBASYNC_DEVICE", "cpu")
    monkeypatch.setenv("PYTHONPATH", python_env["PYTHONPATH"])
    cells = [nbformat.v4.new_code_cell(dedent(text)) for text in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
    shown = {name: _shown(cell) for name, cell in zip(CELLS, notebook.cells, strict=True)}
    assert shown["imports"] == ""
    assert "[0.0, 2.0, 4.0, 6.0] compiled" in shown["defined and awaited"]
    assert "[0.0, 3.0, 6.0, 9.0] compiled" in shown["defined again"]
    assert "[0.0, 4.0, 8.0, 12.0] compiled" in shown["timed"]
    assert shown["of a batch"] == "[0.0, 5.0, 10.0, 15.0]\n"
    assert "KernelMismatch: kernel times" in shown["checked"]
    assert "first at (1,): got 3.0, want 4.0" in shown["checked"]
    assert "KernelCompileError: kernel refused" in shown["refused"]
    assert "cuda.local.array, line 6" in shown["refused"]
    assert "----> 8 await refused(z)" in shown["refused"]


def _shown(cell: Any) -> str:
    """What a cell printed, and the text of its error, without colours."""
    parts = [o.get("text") or "\n".join(o.get("traceback", ())) for o in cell.outputs]
    return re.sub("\x1b.*?m", "", "".join(parts))


ENTRY: str = """
def kernel(z):
    def inner(a: unknown) -> unknown:
        return a + 1
    z[0] = inner(z[0])

await something(kernel)
"""


@pytest.mark.parametrize("future", [0, __future__.annotations.compiler_flag])
def test_the_source_of_an_entry_that_awaits(future: int) -> None:
    """As asyncio's prompt keeps it, after an entry with or without the `__future__` statement."""
    name = f"<entry {future}>"
    lines = ENTRY.splitlines(keepends=True)
    linecache.cache[name] = (len(ENTRY), None, lines, name)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | future
    code = compile(ENTRY, name, "exec", flags, dont_inherit=True)
    (body,) = (c for c in code.co_consts if getattr(c, "co_name", "") == "kernel")
    found = find_source(FunctionType(body, {}))
    assert found is not None and found[0] == ENTRY


def test_a_doctest() -> None:
    """
    >>> from numba import cuda
    >>> @na.launcher
    ... @cuda.jit
    ... def first(z: na.KernelOutput):
    ...     def inner(a: int) -> int:
    ...         return a + 1
    ...     z[0] = inner(z.shape[0])
    >>> z = na.zeros(3).sync_on(stream)
    >>> _ = first[1, 1, stream](z).sync_on(stream)
    >>> z.to_host().sync_on(stream).tolist()
    [4.0, 0.0, 0.0]
    >>> find_source(first.py_func) is not None
    True
    """
    stream = na.devices("cpu")[0].new_stream()
    (test,) = doctest.DocTestFinder().find(test_a_doctest, globs={**globals(), "stream": stream})
    assert doctest.DocTestRunner().run(test).failed == 0
