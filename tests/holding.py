"""What a test holds until it lets it go on: compilations, copies on the host."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import KernelCompileError
from numbasync.tensors import parallel_copy
from tests.waiting import eventually, happens


class HeldCompiler:
    """Compilations for a device, which do not go on until `go_on` is called.

    Attributes:
        fail: whether those that go on fail, with "planted".
    """

    def __init__(self, device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail = False
        self._begun, self._go_on = threading.Event(), threading.Event()
        compile_ = type(device.backend).compile

        def slow(backend: Any, dispatcher: Any, keys: Any) -> Any:
            self._begun.set()
            assert self._go_on.wait(300)
            if self.fail:
                raise KernelCompileError("planted")
            return compile_(backend, dispatcher, keys)

        monkeypatch.setattr(type(device.backend), "compile", slow)

    async def has_begun(self) -> None:
        await happens(self._begun)

    def has_begun_sync(self) -> bool:
        return self._begun.wait(300)

    def go_on(self) -> None:
        self._go_on.set()


class HeldCopies:
    """The copying of large arrays piece by piece on the host, held until `open` is called.

    Args:
        after: so many pieces are copied before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.threads: set[int] = set()
        self.count = itertools.count()
        place = parallel_copy.place

        def slow(room: Any, piece: Any) -> None:
            self.threads.add(threading.get_ident())
            if next(self.count) >= after:
                self.begun.set()
                assert self.gate.wait(300)
            place(room, piece)

        monkeypatch.setattr(parallel_copy, "place", slow)

    def open(self) -> None:
        self.gate.set()

    async def is_reached(self, threads: int = 1) -> None:
        """Turn the loop until so many threads are to copy."""
        await eventually(lambda: self.begun.is_set() and len(self.threads) >= threads)
