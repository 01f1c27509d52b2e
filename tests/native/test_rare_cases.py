"""Cases that few programs have: wide fills, debug kernels in graphs, frames of the package."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.device.stream import Stream
from numbasync.errors import DriverError
from tests.common import add_one, saxpy
from tests.native.null_device import library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
BY_PYTHON = (1, 0, 0)  # what the null device's stream asks of the driver


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("u1", 7, (1, 7, 8)),
        ("u2", 0x0102, (2, 0x0102, 8)),
        ("u2", 0x0202, (1, 2, 16)),
        ("f4", 1.5, (4, 0x3FC00000, 8)),
        ("f8", 0.0, (1, 0, 64)),
        ("f8", 1.0, BY_PYTHON),
        ("c16", 1.0, BY_PYTHON),
    ],
    ids=str,
)
def test_a_fill_repeats_the_drivers_shortest_pattern(
    null: na.Device, on: bool, dtype: str, value: float, expected: tuple[int, int, int]
) -> None:
    stream = null.new_stream()
    for _ in range(2):  # the second one reuses memory and the pattern
        na.full(8, value, np.dtype(dtype)).sync_on(stream)
        assert tuple(library().null_filled()[:3]) == (expected if on else BY_PYTHON)


def test_a_debug_graph_is_checked_after_each_launch(null: na.Device, on: bool) -> None:
    """Python's launch does so; the core's gives the driver the graph."""
    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    for checks in ((), ("a kernel's exceptions",)):
        graph: Any = add_one(z).graph_on(stream)
        graph._backend.checks = checks
        for _ in range(2):
            graph.launch().sync_on(stream)
        assert library().null_replayed() == (graph._backend.number if on and not checks else 0)


def test_a_waiting_launch_keeps_its_tensors_once(null: na.Device, on: bool) -> None:
    stream, other = null.new_stream(), null.new_stream()
    z, y, x = (na.zeros(8).sync_on(stream) for _ in range(3))
    add_one(x).sync_on(other)
    na.zip(add_one(z), saxpy(y, 1.0, x)).sync_on(stream)
    release = other.backend.hold()
    add_one(x).async_on(other)
    na.zip(add_one(z), saxpy(y, 1.0, x)).async_on(stream)
    kept = Counter(id(one) for one in y.storage.writer.keep_alive)
    assert [kept[id(t.storage)] for t in (z, y, x)] == [1, 1, 1]
    release()


def test_the_packages_lines_are_not_a_programs(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    inside: dict[str, Any] = {"__name__": "numbasync.somewhere"}
    exec("def submit(op, stream):\n    op.async_on(stream)", inside)
    for _ in range(2):
        inside["submit"](add_one(z), stream)
        assert z.storage.writer.site.code.co_name == "test_the_packages_lines_are_not_a_programs"


def test_the_works_error_notes_the_waits_error(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = null.new_stream()
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)

    def poll(stream: Stream) -> None:
        z.storage.writer.error = ValueError("of the work")

    monkeypatch.setattr(Stream, "poll", poll)
    library().null_fail_once(1, 1)  # after the launch
    with pytest.raises(DriverError, match="cuStreamSynchronize") as caught:
        add_one(z).sync_on(stream)
    assert caught.value.__notes__[1:] == ["Its work failed as well: ValueError: of the work"]
