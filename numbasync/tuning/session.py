"""The measuring of one call's configurations, a step at a time.

A step compares one configuration's answer, or takes one sample, and stores it. Between two steps
the operation that tunes may be withdrawn; another call goes on where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from numbasync.device.access import ordering
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.errors import (
    DriverError,
    KernelCompileError,
    KernelError,
    LauncherError,
    LaunchError,
    OutOfDeviceMemoryError,
    UnsupportedKernelError,
)
from numbasync.extending import Timed, unlocked
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, fill
from numbasync.tensors.tensor import Tensor
from numbasync.tuning import answers
from numbasync.tuning.configurations import Configurations
from numbasync.tuning.measurements import Entry, Measurements
from numbasync.tuning.scratch import Scratch

FLUSH = 128 * 2**20  # bytes; larger than the largest second-level cache of a GPU
MOST_REASON = 400  # characters
# What a device says of a configuration that it cannot run, or not to the end.
_ILLEGAL = (
    LauncherError, LaunchError, KernelCompileError, UnsupportedKernelError, KernelError, DriverError
)  # fmt: skip


def milliseconds(op: DeviceOp[Any], stream: Stream, flush: Tensor | None) -> float:
    """Device milliseconds of `op`. Blocks.

    Args:
        flush: memory that is filled before, so that caches hold no operands, and the device is busy
            until the host has enqueued `op`.
    """
    timed = Timed(op)
    if flush is not None:
        fill(flush, 0).async_on(stream)
    timed.sync_on(stream)
    return timed.ms


@dataclass(frozen=True, slots=True)
class Rules:
    """How answers are compared.

    Attributes:
        reference: a function of the arguments as NumPy arrays; None: the first legal
            configuration's answer is the expected one.
        tolerance: see `answers.difference`.
    """

    reference: Callable[..., Any] | None
    tolerance: float | None


class Session:
    """A prerequisite: `run` takes the next step. It is run until its measurements are done."""

    def __init__(
        self,
        configurations: Configurations,
        measurements: Measurements,
        rules: Rules,
        values: tuple[Any, ...],
        device: Device,
        lock: Any,
    ) -> None:
        """
        Args:
            values: the arguments of the call, none of them an operation.
            lock: held during a step, so that two calls do not measure at the same time.
        """
        self._configurations = configurations
        self._measurements = measurements
        self._rules = rules
        self._values = values
        self._device = device
        self._lock = lock
        self._loaded: set[int] = set()  # configurations that this session has launched

    def run(self) -> None:
        """Take the next step. Blocks; any thread may call it.

        Raises:
            LaunchError: every configuration is illegal or wrong.
            OutOfDeviceMemoryError: the copies of the outputs do not fit.
            The errors of `reference`, and of the kernel's call.
        """
        # Strict ordering is about what the program submits.
        with self._lock, unlocked(), ordering("auto"):
            measurements = self._measurements
            if measurements.done:  # by the thread that held the lock
                return
            index = measurements.unchecked()
            if index is not None:
                self._check(index, measurements.entries[index])
            elif (index := measurements.next()) is not None:
                measurements.add(index, self._measured(index))
            measurements.save()
            if measurements.done and measurements.best() is None:
                self._refuse()

    # --- answers ---

    def _check(self, index: int, entry: Entry) -> None:
        """Compare the answer of a configuration, and set its status."""
        names = self._scratch.names  # raises what is wrong with every configuration
        try:
            answer = self._answer(index)
        except _ILLEGAL as error:
            entry.status, entry.reason = "illegal", _reason(error)
        else:
            problem = answers.difference(
                names, answer, self._expected(index, answer), self._rules.tolerance
            )
            entry.status = "wrong" if problem else "pending"
            entry.reason = problem
        entry.checked = True

    def _answer(self, index: int) -> list[Any]:
        """What the kernel of a configuration has written."""
        self._scratch.restore()
        self._launch(index).sync_on(self._stream)
        self._loaded.add(index)
        return self._scratch.answer()

    def _expected(self, index: int, answer: list[Any]) -> list[Any]:
        """The expected answer, while the configuration `index` has given `answer`."""
        if self._rules.reference is not None:
            return self._of_reference
        entries = self._measurements.entries
        first = next((i for i, e in enumerate(entries) if e.checked and _is_legal(e)), None)
        if self._of_first is None:  # none so far, or another session has compared the first one
            self._of_first = answer if first is None else self._answer(first)
        return self._of_first

    _of_first: list[Any] | None = None  # the answer of the first legal configuration

    @cached_property
    def _of_reference(self) -> list[Any]:
        reference = self._rules.reference
        assert reference is not None  # the caller has looked
        expected = reference(*self._scratch.on_host())
        arrays = expected if isinstance(expected, tuple) else (expected,)
        names = self._scratch.names
        if len(arrays) != len(names):
            raise LaunchError(
                f"autotune of {self._configurations.name}: reference gives {len(arrays)} arrays, "
                f"the kernel writes {len(names)}: {', '.join(names)}."
            )
        return [np.asarray(array) for array in arrays]

    # --- times ---

    def _measured(self, index: int) -> float:
        """A sample of a configuration."""
        if index not in self._loaded:  # measured by another process so far
            self._answer(index)
        self._scratch.restore()
        return milliseconds(self._launch(index), self._stream, self._flush)

    def _launch(self, index: int) -> DeviceOp[Any]:
        return self._configurations.launch(index, self._scratch.values)

    @cached_property
    def _stream(self) -> Stream:
        return self._device.new_stream()

    @cached_property
    def _scratch(self) -> Scratch:
        launcher = self._configurations.launcher(self._configurations.default)
        return Scratch(launcher, self._values, self._stream)

    @cached_property
    def _flush(self) -> Tensor | None:
        with contextlib.suppress(OutOfDeviceMemoryError):
            return empty(FLUSH, np.uint8).sync_on(self._stream)
        return None

    def _refuse(self) -> None:
        """Raise that no configuration is legal; the next call tries all again."""
        entries = self._measurements.entries
        texts = zip(self._configurations.texts, entries, strict=True)
        reasons = "\n".join(f"{text}: {entry.status}: {entry.reason}" for text, entry in texts)
        entries[:] = [Entry() for _ in entries]
        self._measurements.save()
        raise LaunchError(
            f"autotune of {self._configurations.name}: no configuration can be used.\n{reasons}"
        )


def _is_legal(entry: Entry) -> bool:
    return entry.status not in ("illegal", "wrong")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MOST_REASON]
