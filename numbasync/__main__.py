"""`python -m numbasync` is the command `numbasync`."""

import sys

from numbasync.cli import main

sys.exit(main())
