"""Fixtures of tests of operations: gates, compilations and threads, each seen or held."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import numbasync as na
from numbasync.ops import reentrancy
from numbasync.testing import Gate
from tests.holding import HeldCompiler


@pytest.fixture(autouse=True)
def no_limit_is_left(device: na.Device) -> Iterator[None]:
    yield
    assert not device.is_limited


@pytest.fixture
def gate(stream: na.Stream) -> Iterator[Gate]:
    """One that opens by itself, so that a test that fails does not hang at the end of its loop."""
    gate = Gate(stream)
    opening = threading.Timer(15, gate.open)
    opening.daemon = True
    opening.start()
    yield gate
    opening.cancel()
    gate.open()


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
