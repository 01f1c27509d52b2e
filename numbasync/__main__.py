"""`python -m numbasync` is the command `numbasync`."""

import sys

from numbasync.tools.cli import main

sys.exit(main())
