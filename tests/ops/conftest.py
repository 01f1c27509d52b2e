"""Fixtures of tests of operations: gates, compilations and threads, each seen or held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import numbasync as na
from numbasync import native
from numbasync.ops import reentrancy
from numbasync.testing import Gate
from tests.holding import HeldCompiler


@pytest.fixture(autouse=True)
def no_limit_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    device = request.getfixturevalue("device") if "device" in request.fixturenames else None
    yield
    assert device is None or not device.is_limited


@pytest.fixture
def gate(stream: na.Stream) -> Iterator[Gate]:
    """One that opens by itself, so that a test that fails does not hang at the end of its loop."""
    gate = Gate(stream)
    opening = threading.Timer(60, gate.open)
    opening.daemon = True
    opening.start()
    yield gate
    opening.cancel()
    gate.open()
    opening.join()  # its thread holds the gate, and so the stream


@pytest.fixture
def compiler(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldCompiler]:
    """Holds compilations until it is told to go on."""
    held = HeldCompiler(device, monkeypatch)
    yield held
    held.go_on()


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a thread blocks for what another task or thread is to do."""
    blocks, run = threading.Event(), reentrancy.OneShotEvent.run

    def noted(event: reentrancy.OneShotEvent) -> None:
        blocks.set()
        run(event)

    monkeypatch.setattr(reentrancy.OneShotEvent, "run", noted)
    return blocks


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Who waits on a loop for what another task or thread is to do: once more at each look whether
    that one is still there, which are every millisecond here.
    """
    looks: list[Callable[[], None]] = []
    when_settled = reentrancy.OneShotEvent.when_settled

    def noted(event: reentrancy.OneShotEvent, call: Callable[[], None]) -> None:
        looks.append(call)
        when_settled(event, call)

    monkeypatch.setattr(reentrancy.OneShotEvent, "when_settled", noted)
    monkeypatch.setattr(reentrancy, "LOOK_AGAIN", 0.001)
    return looks


@pytest.fixture(params=[False] if native.core is None else [False, True], ids="core={}".format)
def core(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Both ways: without the compiled core and, where it is installed, with it."""
    native.switch(request.param)
    yield request.param
    native.switch(True)
