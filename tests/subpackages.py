"""The subpackages, from their real imports: a picture of them, their number, and circles of
modules.

`python -m tests.subpackages` writes picture and numbers into the documents, fills the tables and
figures of measurements, and draws their plots; tests of the project compare all of it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import numbasync
from benchmarks import page, plots
from tests import algorithm_table
from tests.rooms import statements

PACKAGE = Path(str(numbasync.__file__)).parent
ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
BLOCK = re.compile(r"(?<=<!-- subpackages -->\n```\n).*?(?=```\n)", re.S)
NUMBER = re.compile(r"(?<=<!-- number of (parts|files) -->)[^<\n]*(?=<!-- / -->)")

# From the top down: each imports only what stands below it.
SUBPACKAGES = (
    "tools", "dask", "ray", "serve", "torch", "testing", "batch", "graphs", "runtime", "tuning",
    "algorithms", "collective", "cpu_cuda", "timeline",
    "launch", "random", "extending", "tensors", "ops", "device", "backend", "facts",
    "tensor_cores", "vectors", "block", "warp", "layout", "dtypes", "arguments", "cache_folder",
    "errors", "fork", "memo", "public", "driver_results",
)  # fmt: skip

# Modules that annotations make name one another, because a public class of one gives the other.
MUTUAL = (
    {"device.device", "device.event", "device.in_flight", "device.policies", "device.stream",
     "device.submission", "device.waits"},
    {"ops.op", "ops.operands", "ops.value_methods"},
    {"tensors.partition", "tensors.tensor"},
    {"graphs.graph", "graphs.scope"},
)  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module, by its name below `numbasync`; the package itself is left out."""
    named = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and name != "__main__":
            named[name] = path
    return named


@cache
def imports() -> dict[str, set[str]]:
    """For each module those that it imports, also for annotations only."""
    named = modules()
    graph: dict[str, set[str]] = {}
    for name, path in named.items():
        graph[name] = set()
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numbasync"):
                above = (node.module or "").removeprefix("numbasync").removeprefix(".")
                for alias in node.names:
                    module = f"{above}.{alias.name}".removeprefix(".")
                    graph[name].add(module if module in named else above)
        graph[name] -= {name, ""}
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that lead to one another."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        todo, seen = [start], set[str]()
        while todo:
            for module in graph.get(todo.pop(), ()):
                if module not in seen:
                    seen.add(module)
                    todo.append(module)
        reached[start] = seen
    groups = {
        frozenset(m for m in seen if start in reached.get(m, ())) for start, seen in reached.items()
    }
    return [set(group) for group in groups if group]


def picture() -> str:
    """A line for each subpackage: how many files it has, and which others they import."""
    graph = imports()
    rows = []
    for package in SUBPACKAGES:
        own = [name for name in graph if name.split(".")[0] == package]
        below = {module.split(".")[0] for name in own for module in graph[name]} - {package}
        names = " ".join(other for other in SUBPACKAGES if other in below)
        rows.append(f"{package:<8} {len(own):>4} files  -> {names}".rstrip(" ->"))
    return "\n".join(rows) + "\n"


def number(of: str) -> int:
    """How many subpackages there are; or files beside them."""
    folders = [package for package in SUBPACKAGES if (PACKAGE / package).is_dir()]
    return len(folders) if of == "parts" else len(SUBPACKAGES) - len(folders)


def filled(path: Path) -> str:
    """A document, with everything in it that is counted or measured."""
    text = BLOCK.sub(lambda _: picture(), path.read_text(encoding="utf-8"))
    text = NUMBER.sub(lambda found: str(number(found[1])), text)
    text = algorithm_table.filled(text)
    return page.filled(text, page.folder_of(path))


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path), encoding="utf-8")
    for path, plot in plots.drawn():
        path.write_text(plot, encoding="utf-8")
