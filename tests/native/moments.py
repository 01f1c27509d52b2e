"""Moments at which Python code runs in the middle of an operation, and what may happen at them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

import numpy as np

import numbasync as na
from numbasync.errors import MovedError
from numbasync.tensors.array_spec import known_specs
from tests.common import add_one, saxpy

SIZES = range(64, 257, 16)  # bytes of the objects that a launch frees


class Moments:
    """Counts the moments of a block in which Python code runs by itself: calls and returns, and
    collections, which come as often as they can. At one of them it runs `act`.

    Attributes:
        count: the moments so far.
    """

    def __init__(self, act: Callable[[], None], at: int) -> None:
        self.count = 0
        self._act, self._at, self._inside = act, at, False

    def __enter__(self) -> Self:
        self._threshold = gc.get_threshold()
        gc.callbacks.append(self._collected)
        gc.set_threshold(1, 10_000, 10_000)
        sys.setprofile(self._profiled)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)
        gc.set_threshold(*self._threshold)
        gc.callbacks.remove(self._collected)

    def _profiled(self, frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_filename != __file__:
            self._pass()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        self._pass()

    def _pass(self) -> None:
        if self._inside:
            return
        self.count += 1
        if self.count == self._at:
            self._inside = True
            self._act()
            self._inside = False


_others: list[bytes] = []


def overwrite() -> None:
    """Give freed memory to other objects, so that who still reads it reads nonsense."""
    header = sys.getsizeof(b"")
    _others[:] = [b"\xdd" * (size - header) for size in SIZES for _ in range(40)]


@contextmanager
def at_call(name: str, number: int, act: Callable[[], object]) -> Iterator[None]:
    """Run `act` when a Python function of this name is called for the so-manieth time."""
    left = number

    def profiled(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_name == name:
            left -= 1
            if not left:
                act()

    sys.setprofile(profiled)
    try:
        yield
    finally:
        sys.setprofile(None)


class Work:
    """Operations on views of fresh tensors, and what takes the tensors away."""

    def __init__(self, device: na.Device) -> None:
        self.stream = device.new_stream()
        z, x = (na.full(8, n, np.float32).sync_on(self.stream) for n in (1, 2))
        self.whole: list[Any] = [z, x]
        self.views: list[Any] = [z[0:], x[0:]]  # whose fingerprints are not known yet
        self.ready: Any = None

    def take_away(self) -> None:
        for tensor in self.whole + self.views:
            with suppress(MovedError):
                tensor.take()
        known_specs.clear()
        overwrite()

    # What is called at each moment, behind what is done before.

    def launch(self) -> Any:
        z, x = self.views
        return saxpy(z, 2.0, x).sync_on(self.stream)

    def partition(self) -> Any:
        return saxpy(self.views[0].partition(4), 2.0, self.views[1]).sync_on(self.stream)

    def shared(self) -> Any:
        return saxpy(self.views[0], 2.0, self.views[1].shared()).sync_on(self.stream)

    def lazy(self) -> Any:
        return saxpy(self.views[0], 2.0, na.zeros(8)).sync_on(self.stream)

    def copied_argument(self) -> Any:
        return saxpy(self.views[0], 2.0, self.views[1].dup()).sync_on(self.stream)

    def prepares(self) -> None:
        self.ready = saxpy.prepare(self.whole[0], 2.0, self.whole[1])
        for _ in range(2):
            self.ready().sync_on(self.stream)

    def prepared(self) -> Any:
        return self.ready.sync_on(self.stream, a=3.0)

    def zip(self) -> Any:
        z, x = self.views
        ops = [saxpy(z, 2.0, x), add_one(z), add_one(x)]
        return na.zip(*ops).sync_on(self.stream)

    def chain(self) -> Any:
        z, x = self.views
        return add_one(z).then(lambda _: saxpy(z, 2.0, x)).sync_on(self.stream)

    def captures(self) -> None:
        self.ready = saxpy(self.whole[0], 2.0, self.whole[1]).graph_on(self.stream)
        self.ready.launch().sync_on(self.stream)

    def graph(self) -> Any:
        return self.ready.launch().sync_on(self.stream)

    def download(self) -> Any:
        return [t.to_host().sync_on(self.stream) for t in (self.whole[0], self.views[1])]

    def describes(self) -> None:
        self.ready = np.arange(9, dtype=np.float32)
        na.from_host(self.ready).sync_on(self.stream)  # only the memo of specs has its spec now

    def upload(self) -> Any:
        return na.from_host(self.ready).sync_on(self.stream)

    def copy(self) -> Any:
        return na.memcpy(self.views[0], self.whole[1]).sync_on(self.stream)

    def new(self) -> Any:
        return [na.full(8, 3.0, np.float32).sync_on(self.stream), na.zeros(8).sync_on(self.stream)]


BEFORE = {"upload": "describes", "prepared": "prepares", "graph": "captures"}
KINDS = [
    "launch", "partition", "shared", "lazy", "copied_argument", "prepared", "zip", "chain", "graph",
    "download", "upload", "copy", "new",
]  # fmt: skip


def pass_moment(device: na.Device, kind: str, at: int) -> int:
    """Take everything away at one moment of an operation; how many moments there were."""
    work = Work(device)
    if kind in BEFORE:
        getattr(work, BEFORE[kind])()
    with Moments(work.take_away, at) as moments, suppress(MovedError):
        getattr(work, kind)()
    device.synchronize()
    assert not device.busy
    return moments.count
