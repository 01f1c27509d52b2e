"""`na.flight_recorder`: the last operations, kept all the time and written when something fails."""

from __future__ import annotations

import os
import signal as signals
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from types import FrameType, TracebackType
from typing import Any, Self

from numbasync.arguments import check_whole, is_number, shown, with_type
from numbasync.device import tracing
from numbasync.device.device import known_devices
from numbasync.errors import CallerError, DeviceLostError, StateError
from numbasync.timeline.recorder import TraceRecorder
from numbasync.timeline.records import Shapes, TracedOperation
from numbasync.timeline.summary import counted

LONGEST_S = 1e6
LOOKS = 4  # of the watchdog, in the time after which it writes

_opening = threading.Lock()


class FlightRecorder:
    """The last operations of the process. Made by `na.flight_recorder`, and open until `close`, or
    to the end of a `with` block.

    Examples:
        >>> with na.flight_recorder(100) as recorder:
        ...     z = await na.zeros(3)
        ...     [op.name for op in recorder.operations]
        ['zeros((3,))']
    """

    def __init__(
        self,
        operations: int,
        path: str | os.PathLike[str] | None,
        hang_after: float | None,
        signal: int | None,
    ) -> None:
        self._most = check_whole(operations, "operations of flight_recorder", 1)
        if not (path is None or isinstance(path, str | os.PathLike)):
            raise CallerError(
                f"path of flight_recorder is {with_type(path)}: write the name of a file, or None."
            )
        self._path = None if path is None else Path(path)
        self._hang_after = None if hang_after is None else _seconds(hang_after)
        self._signal = None if signal is None else _checked(signal)
        self._handler: Any = None  # of the signal before
        self._end = threading.Lock()  # held until the end
        self._end.acquire()
        self._watchdog: threading.Thread | None = None
        self._recorder = TraceRecorder(self._most, is_exact=False, has_marks=False)
        with _opening:
            if tracing.flight is not None:
                raise StateError("a flight recorder is open already: close it first.")
            tracing.fly_with(self._recorder, self._lost)
        try:
            if self._signal is not None:
                self._handler = signals.signal(self._signal, self._signalled)
            if self._hang_after is not None:
                watchdog = threading.Thread(
                    target=self._watch, name="numbasync watchdog", daemon=True
                )
                watchdog.start()
                self._watchdog = watchdog
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Record no more. What was recorded can still be read."""
        with _opening:
            if tracing.flight is self._recorder:
                tracing.fly_with(None, None)
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            self._end.release()
            watchdog.join()
        handler, self._handler = self._handler, None
        if handler is not None and self._signal is not None:
            signals.signal(self._signal, handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def operations(self) -> list[TracedOperation]:
        """The last operations, in the order in which they were enqueued. Their times are bounds;
        what was not seen to be passed has no end.
        """
        found = list(self._recorder.records()[0])
        trace = tracing.open_trace()  # has those since it was opened
        if isinstance(trace, TraceRecorder) and trace is not self._recorder:
            later = (trace.start_ns - self._recorder.start_ns) / 1e9
            found += [_shifted(op, later) for op in trace.records()[0]]
        return found[-self._most :]

    def write(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the operations as lines of text.

        Args:
            path: the file; None: that of the recorder, else the standard error.

        Examples:
            >>> recorder = na.flight_recorder(2)
            >>> z = await na.zeros(3)
            >>> recorder.write("flight.txt")
            >>> with open("flight.txt") as file:
            ...     print(file.read())
            numbasync flight recorder, as asked: the last 1 of 1 operation, the newest last
            ...  cpu:0 stream ... zeros((3,)), done, by Task-..., at "...", line ...
            >>> recorder.close()
        """
        self._write("as asked", self._path if path is None else Path(path))

    def _write(self, why: str, target: Path | None) -> None:
        text = self._text(why)
        if target is None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        else:
            target.write_text(f"{text}\n", encoding="utf-8")

    def _text(self, why: str) -> str:
        operations, count = self.operations, self._recorder.journal.count
        now = (perf_counter_ns() - self._recorder.start_ns) / 1e9
        head = (
            f"numbasync flight recorder, {why}: the last {len(operations):,} of "
            f"{counted(max(count, len(operations)), 'operation')}, the newest last"
        )
        return "\n".join([head, *(_line(op, now) for op in operations)])

    def _write_quietly(self, why: str) -> str:
        """`write`, where an error would hide another one; where it was written."""
        with suppress(Exception):
            self._write(why, self._path)
            return "the standard error" if self._path is None else str(self._path)
        return ""

    # --- what it is written for ---

    def _lost(self, fault: DeviceLostError) -> None:
        where = self._write_quietly("after a device was lost")
        if where:
            fault.add_note(f"The last operations were written to {where}.")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._write_quietly(f"on {signals.Signals(number).name}")
        if callable(self._handler):
            self._handler(number, frame)

    def _watch(self) -> None:
        """Write once for each operation that a stream does not pass in `hang_after` seconds."""
        limit = self._hang_after or 0.0
        fronts: dict[int, tuple[int, int]] = {}  # of streams: the number, and since when
        told = set[tuple[int, int]]()
        while not self._end.acquire(timeout=limit / LOOKS):
            now = perf_counter_ns()
            seen: dict[int, tuple[int, int]] = {}
            for device in known_devices():
                if device.backend.counts_steps:  # to ask would be a step
                    continue
                for stream in list(device.busy):
                    front, since = stream.front, fronts.get(stream.number, (0, now))
                    if not front:
                        continue
                    seen[stream.number] = since if since[0] == front else (front, now)
                    place = stream.number, front
                    is_late = now - seen[stream.number][1] >= limit * 1e9 and place not in told
                    if is_late and not _is_idle(stream):
                        told.add(place)
                        self._write_quietly(
                            f"as stream {stream.number} of {device.label} has not passed #{front} "
                            f"in {limit:g} s"
                        )
            fronts = seen

    def __repr__(self) -> str:
        state = "open" if tracing.flight is self._recorder else "closed"
        return f"<FlightRecorder, {state}, {counted(self._recorder.journal.count, 'operation')}>"


def _seconds(value: object) -> float:
    number = float(value) if is_number(value) else 0.0  # type: ignore[arg-type]
    if not 0 < number < LONGEST_S:
        raise CallerError(
            f"hang_after of flight_recorder is {shown(value)}: write a number of seconds, above 0."
        )
    return number


def _checked(number: object) -> int:
    if not isinstance(number, int) or number not in signals.valid_signals():
        raise CallerError(
            f"flight_recorder takes a signal, not {with_type(number)}: write signal.SIGUSR1, say."
        )
    here = threading.current_thread()
    if here is not threading.main_thread():
        raise CallerError(
            f"flight_recorder(signal=...) is called on {here.name}: Python sets signals on the "
            "main thread only. Call it there, or leave the signal out."
        )
    return int(number)


def _is_idle(stream: Any) -> bool:
    with suppress(Exception):  # of a device that is lost, which is told elsewhere
        return bool(stream.backend.query())
    return True


def _shifted(op: TracedOperation, by: float) -> TracedOperation:
    """The same operation by the times of a recorder that was opened so many seconds earlier."""
    return replace(
        op,
        submitted=op.submitted + by,
        enqueued=op.enqueued + by,
        spans=tuple((a + by, None if b is None else b + by) for a, b in op.spans),
    )


def _line(op: TracedOperation, now: float) -> str:
    kernels = dict.fromkeys(zip(op.kernels, op.shapes, strict=True))
    launched = f" [{', '.join(_shaped(*kernel) for kernel in kernels)}]" if kernels else ""
    state = op.error or ("in flight" if op.sequence and op.ended is None else "done")
    copied = f", {op.copied:,} bytes copied" if op.copied else ""
    where = f", at {op.line}" if op.line else ""
    return (
        f"{op.submitted - now:.6f} s  {op.device} stream {op.stream} #{op.sequence}  "
        f"{op.name}{launched}{copied}, {state}, by {op.task or op.thread}{where}"
    )


def _shaped(kernel: str, shapes: Shapes) -> str:
    """A kernel with the shapes of its arrays: `saxpy z (1000,) x (1000,)`."""
    return " ".join([kernel, *(f"{name} {shape}" for name, shape in shapes)])


def flight_recorder(
    operations: int = 1000,
    *,
    path: str | os.PathLike[str] | None = None,
    hang_after: float | None = None,
    signal: int | None = None,
) -> FlightRecorder:
    """Keep the last operations from now on: their names, kernels, the shapes of their arrays,
    lines, streams and times. They are written when a device is lost, and whenever else is asked for
    here.

    There is one flight recorder for the process. It costs as much as an open trace does, and
    records nothing on streams. While a trace is open, the trace keeps the operations for both.

    Args:
        operations: so many at most.
        path: the file to write to, each time anew; None: the standard error.
        hang_after: write, too, when a stream has not come past an operation for so many seconds. A
            seeded device is not watched.
        signal: write, too, on this signal, `signal.SIGUSR1` say, and then do what was done on it
            before. As with all signals, that waits until the main thread runs Python code.

    Raises:
        StateError: another flight recorder is open.
        CallerError: a wrong argument, or a signal on another thread than the main one.

    Examples:
        >>> recorder = na.flight_recorder(100, path="flight.txt", hang_after=60)
        >>> z = await na.zeros(3)
        >>> recorder
        <FlightRecorder, open, 1 operation>
        >>> recorder.close()
    """
    return FlightRecorder(operations, path, hang_after, signal)
