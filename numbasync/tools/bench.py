"""`numbasync bench`: the door to the benchmarks, which are in a checkout and not in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from numbasync.errors import StateError

CHECKOUT = Path(__file__).parents[2]


def run(arguments: Sequence[str]) -> int:
    """Run `python -m benchmarks` of the checkout, from the current folder. Returns its exit status.

    Raises:
        StateError: numbasync is installed without its checkout.
    """
    if not Path(CHECKOUT, "benchmarks", "__main__.py").is_file():
        raise StateError(
            f"the benchmarks are not in {CHECKOUT}: they are in a checkout of numbasync, with the "
            "programs of other libraries that they compare with. There: pip install -e '.[bench]', "
            "then python -m benchmarks."
        )
    # -P: a folder `benchmarks` where this is called is somebody else's.
    command = [sys.executable, "-P", "-m", "benchmarks", *arguments]
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if sys.platform != "win32":
        os.execve(sys.executable, command, environment)  # noqa: S606 - signals are then its own
    return subprocess.call(command, env=environment)  # noqa: S603 - no exec that a shell waits for
