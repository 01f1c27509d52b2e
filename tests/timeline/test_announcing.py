"""The logger of submissions, and NVTX ranges, which are told of each operation at once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.device import tracing
from numbasync.timeline.nvtx_ranges import ASKED
from tests.common import add_one

BOTH_WAYS = (False, True) if native.core is not None else (False,)
NAME = "numbasync.submit"


@pytest.fixture(params=BOTH_WAYS, ids=lambda on: "compiled" if on else "Python")
def core(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the core is on."""
    before = native.core is not None and native.core.is_on()
    native.switch(request.param)
    yield request.param
    native.switch(before)


@pytest.fixture
def z(device: na.Device) -> na.Tensor:
    """A tensor that the kernel was launched on before."""
    z = na.zeros(8).sync()
    add_one(z).sync()
    return z


def test_each_form_of_submission_is_logged_once(
    z: na.Tensor, stream: na.Stream, core: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await add_one(z)
        await na.gather(add_one(z), add_one(z).then(lambda r: add_one(r[0])))
        await stream.done()  # a signal, which is no operation

    run = add_one.prepare(z)
    with caplog.at_level(logging.DEBUG, logger=NAME):
        add_one(z).sync_on(stream)
        run.async_on(stream)
        na.run(main())
    messages = [record.getMessage() for record in caplog.records if record.name == NAME]
    names = [message.split(" on stream")[0] for message in messages]
    assert names == [*4 * ["add_one(z)"], "add_one(z).then(<lambda>)"]
    first = f"add_one(z) on stream {stream.number} of {stream.device.label}, number "
    assert messages[0].startswith(first) and "in test_each_form_of_submission" in messages[0]


def test_the_logger_is_heard_when_a_level_changes(z: na.Tensor, core: bool) -> None:
    """Its own, or one above it, and nothing is in the way of operations otherwise."""
    logger, parent = logging.getLogger(NAME), logging.getLogger("numbasync")
    assert tracing.recorder is None
    try:
        parent.setLevel(logging.DEBUG)
        assert tracing.recorder is not None
        logger.setLevel(logging.INFO)
        assert tracing.recorder is None
        logger.setLevel(logging.DEBUG)
        assert tracing.recorder is not None
        logging.disable(logging.CRITICAL)
        assert tracing.recorder is None
    finally:
        logging.disable(logging.NOTSET)
        parent.setLevel(logging.NOTSET)
        logger.setLevel(logging.NOTSET)
    assert tracing.recorder is None


def test_a_trace_notes_the_same_with_the_log(z: na.Tensor, stream: na.Stream, core: bool) -> None:
    async def main() -> na.Timeline:
        with na.trace(exact=True) as t:
            await add_one(z)
            await na.spawn(na.ones(4))
            add_one(z).sync_on(stream)
            add_one(z).then(lambda r: add_one(r[0])).sync_on(stream)
        return t

    without = na.run(main())
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.DEBUG)
    try:
        logged = na.run(main())
        with na.flight_recorder() as recorder:
            add_one(z).sync()
        assert [op.kernels for op in recorder.operations] == [("add_one",)]
    finally:
        logger.setLevel(logging.NOTSET)
    assert tracing.recorder is None
    for t in (without, logged):
        assert [op.name for op in t.operations] == [
            "add_one(z)", "ones((4,))", "add_one(z)", "add_one(z).then(<lambda>)",
        ]  # fmt: skip
        assert all(op.is_measured for op in t.operations)
    assert [(w.how, w.name) for w in without.waits] == [(w.how, w.name) for w in logged.waits]


def test_ranges_are_those_of_a_profiler(
    z: na.Tensor, core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ranges: dict[int, str] = {}
    seen: list[str] = []

    def start_range(message: str, domain: str) -> int:
        assert domain == "numbasync"
        open_ranges[len(seen)] = message
        seen.append(message)
        return len(seen) - 1

    nvtx: Any = ModuleType("nvtx")
    nvtx.start_range, nvtx.end_range = start_range, open_ranges.pop
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    for name in ASKED:
        monkeypatch.delenv(name, raising=False)
    with na.trace():
        add_one(z).sync()
    assert seen == []
    monkeypatch.setenv(ASKED[0], "/of/a/profiler.so")
    with na.trace() as t:
        add_one(z).sync()
        with pytest.raises(ZeroDivisionError):
            na.value(1).map(lambda n: n / 0).sync()
    assert seen[0] == t.operations[0].name == "add_one(z)" and not open_ranges
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with na.trace() as t:
        add_one(z).sync()
    assert len(t.operations) == 1 and tracing.recorder is None
