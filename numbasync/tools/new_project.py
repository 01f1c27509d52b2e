"""`numbasync new PATH`: creates a folder with a kernel, its passing test and a pyproject."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
import sys
from pathlib import Path

from numbasync.errors import CallerError

# Packages that a new project of the same name would hide from itself, even if they are not
# installed yet.
_TAKEN = frozenset({"cuda", "numba_cuda", "numbasync_kernels", "test", "tests"})

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "0.1.0"
description = "CUDA kernels"
requires-python = ">=3.11"
dependencies = ["numbasync"]

[project.optional-dependencies]
cuda = ["numbasync[cuda]"]
test = ["pytest>=8"]

[tool.hatch.build.targets.wheel]
packages = ["src/{module}"]

[tool.pytest.ini_options]
pythonpath = ["src"]
testpaths = ["tests"]
addopts = "-ra --strict-markers"
"""

INIT = '''\
"""CUDA kernels."""

from {module}.scale_add import scale_add as scale_add
'''

KERNEL = '''\
"""A kernel, and what it is to give."""

import numbasync as na
from numba import cuda


@na.launcher
@cuda.jit
def scale_add(out: na.KernelOutput, a, x: na.KernelInput, y: na.KernelInput):
    """Compute out = a * x + y, one thread an element."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = a * x[i] + y[i]


def reference(out, a, x, y):
    """The same with NumPy; `check_kernel` calls it with float64."""
    return a * x + y
'''

TEST = '''\
"""Run with `pytest`: on a GPU if there is one, else on the CPU device; `--device all`: on both."""

import numbasync as na
import numpy as np
import pytest
from numbasync.testing import check_kernel

from {module} import scale_add
from {module}.scale_add import reference


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
def test_scale_add(device, n):
    rng = np.random.default_rng(0)
    x, y = rng.random((2, n), np.float32)
    check_kernel(scale_add, [np.zeros(n, np.float32), 2.5, x, y], reference, tile=32)


async def test_it_can_be_awaited(device):
    out = await na.empty(100)
    x, y = await na.gather(na.arange(100), na.ones(100))
    await scale_add(out.partition(32), 2.0, x, y)
    np.testing.assert_array_equal(await out.to_host(), 2 * np.arange(100) + 1)
'''

FILES = {
    "pyproject.toml": PYPROJECT,
    "src/{module}/__init__.py": INIT,
    "src/{module}/scale_add.py": KERNEL,
    "tests/test_scale_add.py": TEST,
}


def create(path: str | Path, where: Path) -> list[Path]:
    """Write the files below `where / path`.

    Args:
        path: a folder that does not exist, or is empty. The folder's name becomes the project's
            name, and with `_` for `-` the module's name.

    Returns:
        The written files.

    Raises:
        CallerError: the folder is not empty, a module cannot have that name, or the folder cannot
            be made.
    """
    try:
        return _create(path, where)
    except OSError as error:
        raise CallerError(f"{path!s:.200} cannot be made: {error.strerror or error}.") from None


def _create(path: str | Path, where: Path) -> list[Path]:
    root = _root(path, where)
    name = Path(os.path.abspath(root)).name
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        raise CallerError(
            f"{name!r} cannot be a package: write small letters, digits, - and _, as in my-kernels."
        )
    if module in _TAKEN or _is_installed(module):
        raise CallerError(f"{name!r} would hide the package {module}; choose another name.")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise CallerError(
            f"{root} exists already, and nothing is overwritten; choose another name."
        )
    written = []
    for file, text in FILES.items():
        target = root / file.format(module=module)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("{module}", module).replace("{project}", name))
        written.append(target)
    return written


def _root(path: str | Path, where: Path) -> Path:
    """The project's folder."""
    try:
        return Path(os.path.normpath(where / Path(path).expanduser()))
    except RuntimeError:
        raise CallerError(
            f"{str(path)!r:.200} begins with the home folder of nobody; write the path in full."
        ) from None


def _is_installed(module: str) -> bool:
    """Whether a module is installed or part of Python. A mere folder of that name, without being
    a package, does not count.
    """
    if module in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def run(path: str, where: Path) -> int:
    """Run the command: write the files, print their paths and the next step."""
    for written in create(path, where):
        print(written)  # noqa: T201 - a command's output
    root = shlex.quote(str(_root(path, where)))
    install = "" if _is_installed("pytest") else "pip install pytest && "
    print(f"\nNow: cd {root} && {install}python -m pytest")  # noqa: T201
    return 0
