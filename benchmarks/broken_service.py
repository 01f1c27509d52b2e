"""The service of examples/16_service, whose device breaks at the n-th launch from its start on.

The load test has it served by workers.py, which starts it anew each time:

    python examples/16_service/workers.py --program benchmarks/broken_service.py --break-after 100
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import numbasync as na

FOLDER = Path(__file__).parent.parent / "examples/16_service"


def main() -> None:
    at = sys.argv.index("--break-after")
    after = int(sys.argv[at + 1])
    sys.argv[at : at + 2] = []
    sys.path.insert(0, str(FOLDER))
    device = na.devices(os.environ.get("NUMBASYNC_DEVICE", "cpu").partition(":")[0])[0]
    with na.testing.inject(device, "device", after=after):
        runpy.run_path(str(FOLDER / "service.py"), run_name="__main__")


if __name__ == "__main__":
    main()
