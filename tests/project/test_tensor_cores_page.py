"""What docs/tensor-cores.md says of mistakes is what the CPU device says when they are planted into
the kernels of the example.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import NumbasyncError
from numbasync.testing import checked

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = (ROOT / "examples/10_tensor_cores.py").read_text()
PAGE = (ROOT / "docs/tensor-cores.md").read_text()
ROWS, COLUMNS, DEPTH = 128, 256, 256
LAST_WAIT = "            sums = tc.wgmma_wait(sums, 0)\n"
B_OF_STAGED = "(STAGES, 2, DEPTH, 64))\n)"
# The step (0: any part of the example), what is there, and what is planted in its place.
MISTAKES: dict[str, tuple[int, str, str]] = {
    "copies not waited for": (4, "        tc.wait_copies(PENDING)\n", ""),
    "no barrier behind the wait": (
        4, "(PENDING)\n        cuda.syncthreads()\n", "(PENDING)\n",
    ),
    "tiles written too early": (
        3, "left, right)\n        cuda.syncthreads()\n", "left, right)\n",
    ),
    "bytes not waited for": (
        5, "        tc.barrier_wait(MAPPED.full, stage, step // STAGES % 2)\n", "",
    ),
    "sums not waited for": (6, LAST_WAIT, ""),
    "always the first phase": (5, "step // STAGES % 2", "0"),
    "the other parity": (6, "stage, parity ^ 1)", "stage, parity)"),
    "too few bytes announced": (5, "2 * (TILE * DEPTH + DEPTH * TILE)", "2 * TILE * DEPTH"),
    "too many bytes announced": (5, "2 * (TILE * DEPTH + DEPTH * TILE)", "6 * TILE * DEPTH"),
    "barriers without a fence": (5, "        tc.fence_barrier_init()\n", ""),
    "a fragment of the wrong side": (3, "right = tc.load_b(", "right = tc.load_a("),
    "rows taken for columns": (3, "own_column), 64, True)", "own_column), 64)"),
    "another swizzle in the map": (0, "a, (TILE, DEPTH))", "a, (TILE, DEPTH), 0)"),
    "arrays that overlap": (4, B_OF_STAGED, B_OF_STAGED[:-2] + ", offsets={'b': 16384}\n)"),
    "arrays that overlap, union=True": (
        4, B_OF_STAGED, B_OF_STAGED[:-2] + ", offsets={'b': 16384}, union=True\n)",
    ),
}  # fmt: skip


def planted(mistake: str, step: int, old: str, new: str) -> dict[str, Any]:
    """The names of the example, with a mistake in one of its steps."""
    start = EXAMPLE.index(f"# --- {step}:") if step else 0
    end = EXAMPLE.index("\n# ---", start) if step else len(EXAMPLE)
    assert EXAMPLE.count(old, start, end) == 1
    source = EXAMPLE[:start] + EXAMPLE[start:end].replace(old, new) + EXAMPLE[end:]
    file = f"<{mistake}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names: dict[str, Any] = {"__name__": "planted"}
    exec(compile(source, file, "exec"), names)
    return names


def launched(names: dict[str, Any], step: int) -> bool:
    """Whether a step's kernel gives what NumPy gives."""
    rng = np.random.default_rng(0)
    left = rng.integers(-2, 3, (ROWS, DEPTH)).astype(np.float16)
    right = rng.integers(-2, 3, (DEPTH, COLUMNS)).astype(np.float16)
    a, b = na.from_host(left).sync(), na.from_host(right).sync()
    out = na.zeros((ROWS, COLUMNS), np.float16).sync()
    names["STEPS"][step - 1][2](out, a, b).op().sync()
    return bool(np.array_equal(out.to_host().sync(), left.astype(float) @ right.astype(float)))


def said(error: Exception) -> str:
    """The sentence of an error that a page quotes: without its place, and what follows."""
    text = re.sub(r",? line \d+", "", str(error))
    of_the_compiler = re.search(r"TypingError: (.*)", text)
    if of_the_compiler:
        return of_the_compiler[1].rstrip(".")
    text = re.sub(r"^kernel .*?: ", "", text.split("\nIn ")[0])
    return " ".join(text.split("\nLeave")[0].split()).rstrip(".")


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_page_quotes_the_cpu_devices_messages(mistake: str) -> None:
    step, old, new = MISTAKES[mistake]
    with checked(na.devices("cpu")[0]), pytest.raises(NumbasyncError) as caught:
        launched(planted(mistake, step, old, new), step or 5)
    row = f"| {mistake} | {step or 5} | `{said(caught.value)}` |"
    assert row in PAGE, row
