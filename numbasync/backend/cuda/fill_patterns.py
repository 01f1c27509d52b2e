"""What the driver fills memory with: the shortest number that, repeated, makes an element."""

from __future__ import annotations

import numpy as np

from numbasync.memo import Memo

MOST = 64  # that are known again; a program has few constants

_known = Memo[bytes, tuple[int, int]](MOST)


def pattern(value: np.generic) -> tuple[int, int]:
    """How many bytes are repeated, and the first four of them at most, as a number. The driver's
    own patterns have 1, 2 or 4 bytes.
    """
    data = value.tobytes()
    found = _known.get(data)
    if found is None:
        unit = next(n for n in (1, 2, 4, len(data)) if data == data[:n] * (len(data) // n))
        found = unit, int.from_bytes(data[: min(unit, 4)], "little")
        _known[data] = found
    return found
