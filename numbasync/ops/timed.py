"""The device's time of one operation, measured by events on its stream."""

from __future__ import annotations

from typing import Any

from numbasync.device.device import Device
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import check_op


class Timed(DeviceOp[Any]):
    """An operation between two events. Compilation before its first work is not between them."""

    def __init__(self, op: DeviceOp[Any], device: Device) -> None:
        self._unused = False
        self._op = check_op(op, "what is timed")
        self.stream = op.stream
        op.consume()
        self._unused = True
        self._start = device.backend.new_event(timing=True)
        self._stop = device.backend.new_event(timing=True)

    def steps(self, ctx: Context) -> Steps[Any]:
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
