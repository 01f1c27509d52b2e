"""The device's time of one operation, measured by events on its stream."""

from __future__ import annotations

from typing import Any

from numbasync.ops.context import Context
from numbasync.ops.home import Home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import check_op


class Timed(DeviceOp[Any]):
    """An operation between two events of its stream, for its time on the device. Compilation before
    its first work is not between them.

    Args:
        op: it has not run, and runs where it would without this.

    Raises:
        OperationError: `op` is no operation.

    Examples:
        >>> from numbasync.extending import Timed
        >>> timed = Timed(na.zeros(1000))
        >>> z = await timed
        >>> timed.ms > 0
        True
    """

    _start: Any  # events of the backend, once it runs
    _stop: Any

    def __init__(self, op: DeviceOp[Any]) -> None:
        self._unused = False
        self._op = check_op(op, "what is timed")
        self.stream = op.stream
        op.consume()
        self._unused = True

    @property
    def home(self) -> Home:
        return self._op.home

    def steps(self, ctx: Context) -> Steps[Any]:
        new_event = ctx.device.backend.new_event
        self._start, self._stop = new_event(timing=True), new_event(timing=True)
        ctx.touch()
        stream, submission = ctx.stream.backend, ctx.submission
        stream.record(self._start)
        # The fast path leaves the least time of the host between the events.
        if self._op.has_fast_path and ctx.try_enqueue(self._op):
            stream.record(self._stop)
            return self._op.result()
        steps = self._op.steps(ctx)
        try:
            while True:
                yield next(steps)
                if not submission.launched and submission.queue is None:
                    stream.record(self._start)  # again, since no work has been enqueued so far
        except StopIteration as end:
            stream.record(self._stop)
            return end.value

    @property
    def ms(self) -> float:
        """Device milliseconds of the operation, once it has run."""
        return float(self._start.elapsed_ms(self._stop))

    def _describe(self) -> str:
        return f"{self._op}, timed"
