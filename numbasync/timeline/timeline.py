"""`na.trace`: what a program's operations, waits and compilations were, on one axis of time."""

from __future__ import annotations

import gzip
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from numbasync.arguments import check_bool, check_whole
from numbasync.device import tracing
from numbasync.errors import CallerError, StateError
from numbasync.timeline import trace_events
from numbasync.timeline.nvtx_ranges import ranges_of_profiler
from numbasync.timeline.page import page
from numbasync.timeline.picture import draw
from numbasync.timeline.recorder import TraceRecorder
from numbasync.timeline.records import TracedCompilation, TracedOperation, TracedSample, TracedWait
from numbasync.timeline.summary import TraceSummary, counted, summarize
from numbasync.timeline.tracks import lines, tracks

MOST = 1_000_000
LEAST_WIDTH = 600  # pixels of a picture

_opening = threading.Lock()
_around: ProgramTimeline | None = None  # the program that is traced as a whole


class Timeline:
    """What ran while a trace was open. Made by `na.trace()`.

    It may be read at any time, also while the trace is open, and nothing is waited for: what the
    device has not passed yet has no end.

    Examples:
        >>> with na.trace() as t:
        ...     a, b = await na.gather(na.zeros(3), na.ones(3))
        >>> [op.name for op in t.operations], len({op.stream for op in t.operations})
        (['zeros((3,))', 'ones((3,))'], 2)
        >>> t
        <Timeline, 2 operations on 2 streams, ... ms>
    """

    def __init__(self, max_operations: int, exact: bool) -> None:
        self._most = check_whole(max_operations, "max_operations of trace", 1)
        self._is_exact = check_bool(exact, "exact of trace")
        self._ranges = ranges_of_profiler()
        self._recorder: TraceRecorder | None = None
        self._read: (
            tuple[list[TracedOperation], list[TracedWait], list[TracedCompilation]] | None
        ) = None

    def __enter__(self) -> Self:
        with _opening:
            if self._recorder is not None:
                raise StateError("this trace was opened before: write `with na.trace() as t:`.")
            if _around is not None:
                _around._close()
                _around.own = self
            if tracing.open_trace() is not None:
                raise StateError(
                    "a trace is open already, and there is one for the process: close it first."
                )
            self._recorder = TraceRecorder(self._most, self._is_exact)
            self._recorder.open()
            tracing.record_by(self._recorder)
            if self._ranges is not None:
                tracing.announce_to(self._ranges)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        is_open = tracing.open_trace() is self._recorder
        if self._recorder is not None and is_open:
            if self._ranges is not None:
                tracing.announce_to(self._ranges, is_on=False)
            tracing.record_by(None)
            self._recorder.close()

    def _records(
        self,
    ) -> tuple[list[TracedOperation], list[TracedWait], list[TracedCompilation]]:
        if self._read is not None:
            return self._read
        if self._recorder is None:
            return [], [], []
        is_settled = self._recorder.is_settled
        records = self._recorder.records()
        if is_settled:
            self._read = records
        return records

    @property
    def operations(self) -> list[TracedOperation]:
        """The operations, in the order in which they were enqueued."""
        return self._records()[0]

    @property
    def waits(self) -> list[TracedWait]:
        """Awaits and blocked threads, in the order in which they ended."""
        return self._records()[1]

    @property
    def compilations(self) -> list[TracedCompilation]:
        """The kernels that were compiled, in the order in which that ended."""
        return self._records()[2]

    @property
    def samples(self) -> list[TracedSample]:
        """The memory in use, and how late event loops were, as far as they were looked at."""
        return [] if self._recorder is None else self._recorder.samples

    @property
    def seconds(self) -> float:
        """How long the trace was open, or has been so far."""
        recorder = self._recorder
        if recorder is None:
            return 0.0
        return ((recorder.end_ns or recorder.now()) - recorder.start_ns) / 1e9

    @property
    def clock_error(self) -> float:
        """How far the devices' times may be off from the host's, in seconds."""
        return 0.0 if self._recorder is None else self._recorder.clock_error

    @property
    def dropped(self) -> int:
        """How many operations were noted and are no longer kept, since there were so many."""
        recorder = self._recorder
        return 0 if recorder is None else max(0, recorder.journal.count - self._most)

    @property
    def problems(self) -> list[str]:
        """Why device times are missing, in sentences; usually there is nothing to say.

        Examples:
            >>> with na.trace() as t:
            ...     z = await na.zeros(3)
            >>> t.problems
            []
        """
        return [] if self._recorder is None else self._recorder.problems

    def summary(self) -> TraceSummary:
        """How busy each stream was, what was waited for longest and why, and what would help."""
        summary = summarize(*self._records(), self.seconds)
        return replace(summary, advice=(*summary.advice, *self.problems))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the timeline to a file that Perfetto (https://ui.perfetto.dev) and
        chrome://tracing open. Devices are processes there, and streams, tasks and threads are
        threads; arrows lead from the host to the work, and from the work to who waited.

        Args:
            path: ends in `.json`, or `.json.gz` for a compressed file.

        Raises:
            CallerError: the path ends otherwise.

        Examples:
            >>> with na.trace() as t:
            ...     z = await na.zeros(3)
            >>> t.save("zeros.json.gz").name
            'zeros.json.gz'
        """
        file = Path(path)
        if not file.name.endswith((".json", ".json.gz")):
            raise CallerError(f"a timeline is saved as .json or .json.gz, not as {file.name!r}.")
        operations, waits, compilations = self._records()
        found = tracks(operations, waits, compilations, self.seconds)
        about: dict[str, object] = {
            "clock error, us": self.clock_error * 1e6,
            "operations dropped": self.dropped,
        }
        if self.problems:
            about["problems"] = self.problems
        numbers = lines(operations, self.samples)
        text = json.dumps(
            {
                "traceEvents": trace_events.events(found, operations, numbers),
                "displayTimeUnit": "ms",
                "otherData": about,
            },
            allow_nan=False,
            separators=(",", ":"),
        ).encode()
        file.write_bytes(gzip.compress(text, 6, mtime=0) if file.suffix == ".gz" else text)
        return file

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the timeline to one page of HTML, which any browser shows without a network: lanes
        of streams, tasks and threads, counters of memory, of what is in flight and of the loop's
        lag, with zoom, search, and what is under the pointer.

        Examples:
            >>> with na.trace() as t:
            ...     z = await na.zeros(3)
            >>> t.to_html("zeros.html").name
            'zeros.html'
        """
        operations, waits, compilations = self._records()
        found = tracks(operations, waits, compilations, self.seconds)
        file = Path(path)
        numbers = lines(operations, self.samples)
        file.write_text(page(found, numbers, self.summary()), encoding="utf-8")
        return file

    def to_png(
        self, path: str | os.PathLike[str], *, width: int = 1600, dark: bool = False
    ) -> Path:
        """Draw the lanes and the counters of the whole timeline, for a document or a message.

        Pillow draws it, of the extra `demo`: what is not drawn by a browser needs its letters.

        Args:
            width: in pixels; the height is what the lanes need.
            dark: light letters on a dark ground.

        Raises:
            CallerError: the path does not end in `.png`, or `width` is no number from 600 on.
            MissingExtraError: Pillow is not installed.

        Examples:
            >>> with na.trace() as t:
            ...     z = await na.zeros(3)
            >>> t.to_png("zeros.png").name
            'zeros.png'
        """
        file = Path(path)
        if file.suffix != ".png":
            raise CallerError(f"a picture of a timeline is saved as .png, not as {file.name!r}.")
        pixels = check_whole(width, "width of to_png", LEAST_WIDTH)
        is_dark = check_bool(dark, "dark of to_png")
        operations, waits, compilations = self._records()
        found = tracks(operations, waits, compilations, self.seconds)
        numbers = lines(operations, self.samples)
        end = max([self.seconds, *(s.ended for track in found for s in track.slices)])
        draw(found, numbers, self.summary().title, end, pixels, is_dark).save(file, optimize=True)
        return file

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        if self._recorder is None:
            return "<Timeline, not opened>"
        operations = self.operations
        streams = len({op.stream for op in operations})
        return (
            f"<Timeline, {counted(len(operations), 'operation')} on "
            f"{counted(streams, 'stream')}, {self.seconds * 1e3:.3g} ms>"
        )


class ProgramTimeline(Timeline):
    """The timeline of a whole program. It ends where the program opens a trace of its own.

    Attributes:
        own: the last trace that the program has opened, if it has opened one.
    """

    def __init__(self) -> None:
        super().__init__(MOST, exact=False)
        self.own: Timeline | None = None

    def __enter__(self) -> Self:
        global _around
        super().__enter__()
        _around = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _around
        _around = None
        super().__exit__(kind, error, trace)


def trace(max_operations: int = MOST, *, exact: bool = False) -> Timeline:
    """A trace, which is open inside of a `with` block: it notes the operations of all threads and
    devices, the waits for them and the compilations of kernels.

    There is one open trace for the process. A program runs as without it, but for events on its
    streams, and about a twentieth slower where it only launches short kernels.

    Args:
        max_operations: the newest are kept, so many at most.
        exact: events around each operation, whatever that takes; of a GPU that the program has used
            before, CUPTI's records of each kernel, where `cupti-python` is installed. Else those
            that follow one another too quickly for events have common bounds instead: see
            `TracedOperation.is_measured`.

    Raises:
        StateError: another trace is open, when this one is opened.

    Examples:
        >>> with na.trace() as t:
        ...     z = await saxpy(na.zeros(3), 2.0, na.ones(3)).first()
        >>> t.operations[-1].kernels[-1]
        'saxpy'
        >>> [(wait.how, wait.sequence > 0) for wait in t.waits]
        [('await', True)]
    """
    return Timeline(max_operations, exact)
