"""The core's own tests with the core under AddressSanitizer; Linux and gcc.

    python -m tests.native.sanitized [pytest arguments ...]

The core is compiled apart from the checkout, for debugging and with its own checks. Python's
allocator is replaced by the system's, so that every object has its own memory, and leaks are not
reported: the interpreter frees much at exit only. `test_leaks.py` looks for those.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.native.mutants import ROOT, TESTS, build, copy_of_checkout

FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address", "-w")


def main(arguments: list[str]) -> int:
    name = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        copy_of_checkout(folder)
        build(folder, FLAGS)
        path = os.pathsep.join([str(folder), str(ROOT / "kernels")])
        env = {
            **os.environ, "PYTHONPATH": path, "NUMBASYNC_NATIVE": "1", "PYTHONMALLOC": "malloc",
            "LD_PRELOAD": name.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0",
        }  # fmt: skip
        others = "tests/native/test_every_moment.py", "tests/launch/test_fast_calls.py"
        tests = arguments or [*TESTS, *others]
        command = [sys.executable, "-X", "dev", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return subprocess.run([*command, *tests], cwd=folder, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
