"""What a build does beyond packing files: it compiles the core, and makes links absolute.

The core, `numbasync/_core.pyx`, is compiled where there is a C compiler. Without one the package is
built in pure Python, and one line says so. The environment variable NUMBASYNC_NATIVE decides
otherwise: 0, it is not compiled; 1, the build fails without it.

README.md is the description of the package, too. Its links are relative, as a checkout needs them;
on the page of an index they would lead nowhere, so there they lead to the files of the release.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import runpy
import shutil
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NAME = "_core"
REPOSITORY = "numbasync/numbasync"
# Code, which has no links; or the target of one, in Markdown or in the HTML within it, that is not
# yet an address.
TARGET = re.compile(
    r"```.*?```|`[^`]*`"
    r"|(?P<before>\]\(|\b(?:href|src|srcset)=\")(?![a-z]+:|#)(?P<path>[^)\s\"]+)",
    re.DOTALL,
)
PICTURES = (".gif", ".jpg", ".png", ".svg", ".webp")


class Description(MetadataHookInterface):
    """Gives the package README.md as its description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": make_links_absolute(text, f"v{metadata['version']}"),
        }


def make_links_absolute(text: str, tag: str) -> str:
    """The Markdown text whose links to files lead to those of the tag in the repository; links to
    pictures to their bytes, which a page can show.
    """

    def absolute(found: re.Match[str]) -> str:
        path = found["path"]
        if path is None:
            return found[0]
        if path.endswith(PICTURES):
            return f"{found['before']}https://raw.githubusercontent.com/{REPOSITORY}/{tag}/{path}"
        return f"{found['before']}https://github.com/{REPOSITORY}/blob/{tag}/{path}"

    return TARGET.sub(absolute, text)


class NativeCore(BuildHookInterface):
    """Adds the compiled core to the wheel; to an editable install, beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        setting = os.environ.get("NUMBASYNC_NATIVE", "")
        if setting not in ("", "0", "1"):
            raise ValueError(f"NUMBASYNC_NATIVE={setting!r:.20}: write 0 or 1, or leave it out.")
        if self.target_name != "wheel" or setting == "0" or sys.implementation.name != "cpython":
            return
        folder, build = Path(self.root, "numbasync"), Path(self.root, "build")
        if not os.access(self.root, os.W_OK):
            self.work = tempfile.TemporaryDirectory()  # until this hook is dropped
            build = Path(self.work.name)
        if version == "editable":  # without a compiler, an older core would not fit the sources
            for suffix in EXTENSION_SUFFIXES:  # of this Python
                Path(folder, NAME + suffix).unlink(missing_ok=True)
        try:
            module = compile_once(folder / f"{NAME}.pyx", build)
        except (Exception, SystemExit) as error:  # of Cython, setuptools or the compiler
            if setting == "1":
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.app.display_warning(
                f"numbasync is installed without its compiled core, in pure Python: {reason:.200}"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":  # which is imported from there
            shutil.copy(module, folder / module.name)
        else:
            build_data["force_include"][str(module)] = f"numbasync/{module.name}"


def compile_once(source: Path, folder: Path) -> Path:
    """Compile a Cython source, unless a build before has left its module in `folder`; its path.

    So a checkout's wheel and its editable install compile once.
    """
    import Cython

    environment = [os.environ.get(name) for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")]
    made_by = (sys.version, platform.platform(), Cython.__version__, environment)
    table = _table(source)
    digest = hashlib.sha256((repr(made_by) + table).encode())
    for path in (Path(__file__), source, *sorted(source.parent.glob("core/*.pxi"))):
        digest.update(path.read_bytes())
    home = Path(folder, f"core-{digest.hexdigest()[:16]}")
    if not home.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            Path(work, "table.pxi").write_text(table)
            module = compiled(source, Path(work))
            Path(work, "built").mkdir()
            shutil.move(module, Path(work, "built"))
            with contextlib.suppress(OSError):  # another build was faster
                Path(work, "built").rename(home)
    return next(home.iterdir())


def _table(source: Path) -> str:
    """What the core's source includes beside its parts: see `core_table.py`."""
    functions = runpy.run_path(str(Path(__file__).with_name("core_table.py")))
    text: str = functions["table"](source.parent)
    return text


def compiled(source: Path, work: Path) -> Path:
    """The extension module of a Cython source, built in the folder `work`, which has the table."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extension = Extension(
        f"numbasync.{NAME}", [os.path.relpath(source)],
        extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-g0"],
        extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],  # without symbols
    )  # fmt: skip
    modules = cythonize([extension], build_dir=str(work), include_path=[str(work)], quiet=True)
    command = Distribution({"name": "numbasync", "ext_modules": modules}).get_command_obj(
        "build_ext"
    )
    command.build_lib = command.build_temp = str(work)
    command.ensure_finalized()
    command.run()
    paths = (Path(work, "numbasync", NAME + suffix) for suffix in EXTENSION_SUFFIXES)
    return next(path for path in paths if path.exists())
