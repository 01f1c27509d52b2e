"""The build hook: compiles `numbasync/_core.pyx` where there is a C compiler.

Without one the package is built in pure Python, and one line says so. The environment variable
NUMBASYNC_NATIVE decides otherwise: 0, it is not compiled; 1, the build fails without it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "_core"


class NativeCore(BuildHookInterface):
    """Adds the compiled core to the wheel; to an editable install, beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("NUMBASYNC_NATIVE", "")
        if self.target_name != "wheel" or wish == "0" or sys.implementation.name != "cpython":
            return
        folder = Path(self.root, "numbasync")
        with tempfile.TemporaryDirectory() as work:
            try:
                module = compiled(folder / f"{NAME}.pyx", Path(work))
            except (Exception, SystemExit) as error:  # of Cython, setuptools or the compiler
                if wish == "1":
                    raise
                self.app.display_warning(
                    f"numbasync is installed without its compiled core, in pure Python: {error}"
                )
                return
            for old in folder.glob(f"{NAME}.*.so"):
                old.unlink()
            shutil.copy(module, folder / module.name)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(folder / module.name)] = f"numbasync/{module.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":  # an editable install imports it from there
            for module in Path(self.root, "numbasync").glob(f"{NAME}.*.so"):
                module.unlink()


def compiled(source: Path, work: Path) -> Path:
    """The extension module of a Cython source, built in the folder `work`."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extension = Extension(
        f"numbasync.{NAME}", [os.path.relpath(source)], extra_compile_args=["-O2"]
    )
    modules = cythonize([extension], build_dir=str(work), quiet=True)
    command = Distribution({"name": "numbasync", "ext_modules": modules}).get_command_obj(
        "build_ext"
    )
    command.build_lib = command.build_temp = str(work)
    command.ensure_finalized()
    command.run()
    return next(Path(work, "numbasync").glob(f"{NAME}.*.so"))
