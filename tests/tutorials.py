"""The tutorials: notebooks that are run, and the page and pictures of each that the site shows.

`python -m tests.tutorials` runs them all on the CPU device, keeps what they show, and writes pages
and pictures; `python -m tests.tutorials heat` does it with one. tests/project/test_tutorials.py
runs them again, and compares. A cell with the tag `measured` shows times, which are never the same.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
KINDS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif"}
NOTICE = (
    "*This page is a notebook, [{name}.ipynb]({name}.ipynb), as it ran on the CPU device of a "
    "machine without a GPU.*"
)


def read(path: Path) -> Any:
    """The notebook of a file, with a cell for each text and each piece of code."""
    return _nbformat().read(path, as_version=4)


def _nbformat() -> Any:
    """The package, only part of which has types."""
    return importlib.import_module("nbformat")


def run(path: Path, environment: dict[str, str]) -> Any:
    """The notebook of a file, run in a process of its own with these environment variables.

    Raises:
        CellExecutionError: a cell raised.
    """
    import nbclient

    notebook = read(path)
    with tempfile.TemporaryDirectory() as folder:
        # Nothing of the user's settings; and Jupyter's own warnings are nobody's here.
        places = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        own = {
            **dict.fromkeys(places, folder), "JUPYTER_PLATFORM_DIRS": "1", "PYTHONWARNINGS": "",
        }  # fmt: skip
        before = dict(os.environ)
        os.environ.update(own)
        try:
            client = nbclient.NotebookClient(notebook, kernel_name="python3", timeout=None)
            of_reader = {k: v for k, v in environment.items() if k != "PYTEST_CURRENT_TEST"}
            client.execute(env={**of_reader, **own}, cwd=folder)
        finally:
            os.environ.clear()
            os.environ.update(before)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = joined(cell.outputs)
    return notebook


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs with the texts of one stream put together, however they arrived."""
    result: list[Any] = []
    for output in outputs:
        is_text = output.output_type == "stream"
        if is_text and result and result[-1].get("name") == output.name:
            result[-1].text += output.text
        else:
            result.append(output)
        if is_text:
            result[-1].text = without_places(result[-1].text)
        data = output.get("data", {})
        if KINDS.keys() & data.keys():  # Pillow gives a picture twice, and its repr
            data.pop("text/plain", None)
            if "image/png" in data:
                data.pop("image/jpeg", None)
        if "execution_count" in output:
            output.execution_count = None
    return result


def without_places(text: str) -> str:
    """Without the names of files in which IPython keeps the cells, which are new in each run."""
    return re.sub(r'"?[\w./-]*ipykernel_\d+/\d+\.py"?', "the cell", text)


def pictures_in(output: Any) -> dict[str, bytes]:
    """The pictures of an output, by the ending of a file's name."""
    data = output.get("data", {})
    return {KINDS[kind]: base64.b64decode(data[kind]) for kind in KINDS if kind in data}


def page(path: Path, notebook: Any) -> dict[str, str | bytes]:
    """What the site shows of a notebook: the page, and its pictures, by the names of the files."""
    name = path.stem
    files: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            if len(parts) == 1:
                parts.append(NOTICE.format(name=name))
            continue
        # Not `python`: what has that name on a page is a program, and run as such by other tests.
        parts.append(f"```python3\n{cell.source}\n```")
        for output in cell.outputs:
            for ending, data in pictures_in(output).items():
                # The number of the picture, and not of the cell, so that a new cell renames none.
                file = f"{name}-{sum(isinstance(f, bytes) for f in files.values()) + 1}.{ending}"
                files[file] = data
                parts.append(f"![{_caption(cell.source)}]({file})")
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    files[f"{name}.md"] = "\n\n".join(parts) + "\n"
    return files


def _caption(source: str) -> str:
    """What a picture shows: the comment on the cell's first line."""
    first = source.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else ""


def write(path: Path) -> None:
    """Run the notebook of a file, keep it with its outputs, and write its page."""
    paths = [str(ROOT), str(ROOT / "kernels")]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "NUMBASYNC_DEVICE": "cpu"}
    notebook = run(path, {**os.environ, **environment})
    _nbformat().write(notebook, path)
    for old in FOLDER.glob(f"{path.stem}-*"):
        old.unlink()
    for name, content in page(path, notebook).items():
        data = content if isinstance(content, bytes) else content.encode()
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    for one in NOTEBOOKS:
        if not sys.argv[1:] or one.stem in sys.argv[1:]:
            write(one)
