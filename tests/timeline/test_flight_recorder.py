"""The flight recorder: what it keeps, and when it writes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync import native, testing
from numbasync.device import tracing
from numbasync.errors import CallerError, DeviceLostError, StateError
from numbasync.timeline.recorder import MOST_OPEN, TraceRecorder
from tests.common import add_one

BOTH_WAYS = (False, True) if native.core is not None else (False,)


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


def test_the_last_operations_are_kept(z: na.Tensor, core: bool, tmp_path: Path) -> None:
    path = tmp_path / "flight.txt"
    with na.flight_recorder(3, path=path) as recorder:
        for _ in range(100):
            na.fill(z, 0).sync()
        for _ in range(2):
            add_one(z).sync()
        z.to_host().sync()
        recorder.write()
    assert tracing.recorder is None and repr(recorder) == "<FlightRecorder, closed, 103 operations>"
    head, first, _, last = path.read_text().splitlines()
    assert head.endswith("as asked: the last 3 of 103 operations, the newest last")
    assert "add_one(z) [add_one z (8,)], done, by MainThread, at" in first
    assert "in test_the_last_operations_are_kept" in first and "32 bytes copied" in last
    add_one(z).sync()
    ops = recorder.operations
    assert [op.kernels for op in ops] == [("add_one",), ("add_one",), ()]
    assert [op.shapes for op in ops] == [((("z", (8,)),),), ((("z", (8,)),),), ()]
    assert all(op.ended is not None and op.ended >= op.submitted for op in ops)


def test_a_lost_device_is_told_with_its_works(
    z: na.Tensor, device: na.Device, stream: na.Stream, core: bool, tmp_path: Path
) -> None:
    path = tmp_path / "flight.txt"
    with na.flight_recorder(path=path):
        add_one(z).sync_on(stream)
        with testing.inject(device, "device"), pytest.raises(DeviceLostError) as lost:
            add_one(z).sync_on(stream)
    assert f"The last operations were written to {path}." in lost.value.__notes__
    text = path.read_text()
    assert "after a device was lost" in text and text.count("add_one(z)") >= 1


def test_an_unwritable_file_hides_no_error(
    z: na.Tensor, device: na.Device, stream: na.Stream, tmp_path: Path
) -> None:
    with (
        na.flight_recorder(path=tmp_path),  # a folder
        testing.inject(device, "device"),
        pytest.raises(DeviceLostError) as lost,
    ):
        add_one(z).sync_on(stream)
    assert not any("written" in note for note in getattr(lost.value, "__notes__", []))


def test_a_hang_is_told_once(
    z: na.Tensor, device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    written = threading.Event()

    def write(self: na.FlightRecorder, why: str) -> str:
        told.append(f"{why}: {self.operations[-1].ended}")
        written.set()
        return ""

    monkeypatch.setattr(na.FlightRecorder, "_write_quietly", write)
    y = na.zeros(8).sync()
    with na.flight_recorder(hang_after=1e-3) as recorder:
        gated = device.new_stream()
        with testing.gate(gated):
            add_one(z).async_on(stream)  # idle, though nobody has looked
            add_one(y).async_on(gated)
            written.wait()
        gated.synchronize()
        assert recorder._watchdog is not None
    (text,) = told
    assert text == (
        f"as stream {gated.number} of {device.label} has not passed "
        f"#{recorder.operations[-1].sequence} in 0.001 s: None"
    )
    assert all(thread.name != "numbasync watchdog" for thread in threading.enumerate())


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no such signals")
def test_a_signal_has_it_written(z: na.Tensor, tmp_path: Path) -> None:
    path, seen = tmp_path / "flight.txt", list[int]()

    def send() -> None:
        count = len(seen)
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(seen) == count:  # the handler runs between two instructions of this thread
            pass

    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with na.flight_recorder(path=path, signal=signal.SIGUSR1):
            add_one(z).sync()
            send()
        assert "on SIGUSR1: the last 1 of 1 operation," in path.read_text()
        path.unlink()
        send()
        assert not path.exists()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_trace_keeps_the_operations_for_both(
    z: na.Tensor, core: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with na.flight_recorder() as recorder:
        add_one(z).sync()
        with na.trace() as t:
            na.fill(z, 1).sync()
            names = [op.name for op in recorder.operations]
            assert len(t.operations) == 1
            recorder.write()
        add_one(z).sync()
        first, second = recorder.operations
        assert names == [first.name, t.operations[0].name] and second.kernels == ("add_one",)
    ages = [float(line.split()[0]) for line in capsys.readouterr().err.splitlines()[1:]]
    assert ages == sorted(ages) and all(age <= 0 for age in ages)


def test_the_last_are_kept_beside_a_trace(z: na.Tensor, core: bool) -> None:
    with na.flight_recorder(1) as recorder:
        add_one(z).sync()
        with na.trace() as t:
            na.fill(z, 1).sync()
            assert [op.name for op in recorder.operations] == [op.name for op in t.operations]


def test_one_at_a_time_and_what_it_takes(device: na.Device) -> None:
    with na.flight_recorder(), pytest.raises(StateError, match="open already"):
        na.flight_recorder()
    wrong: list[dict[str, Any]] = [
        {"operations": 0}, {"hang_after": 0}, {"hang_after": "1"}, {"signal": "SIGUSR1"},
        {"signal": 12345},
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(CallerError):
            na.flight_recorder(**arguments)
    assert tracing.flight is None and tracing.recorder is None


def test_what_is_never_enqueued_is_forgotten(device: na.Device) -> None:
    recorder: Any = TraceRecorder(10, is_exact=False, has_marks=False)
    for _ in range(MOST_OPEN + 5):
        recorder.prepare(object())
    assert len(recorder._open) == MOST_OPEN
