"""ArrayView values of a batch that has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numbasync.batch.run.plan import Prepared
from numbasync.batch.run.run import run
from numbasync.device.storage import MemoryPool
from numbasync.extending import Home, HostArray, Submission, download, note_site
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun


class Read(DeviceOp[HostArray]):
    """A result as a new NumPy array; the batch counts the download."""

    has_fast_path = True

    def __init__(self, batch: BatchRun, number: int) -> None:
        note_site(self, 2)
        self._tensor = batch.tensors[number]
        self._copy = self._tensor.to_host()
        self._copy.consume()
        self._batch = batch
        self._producer = batch.producers.get(number)

    @property
    def home(self) -> Home:
        return self._tensor.device

    def operands(self) -> frozenset[int] | None:
        return self._copy.operands()

    def result(self) -> HostArray:
        return self._copy.result()

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        producer = self._producer
        is_pending = producer is not None and not producer.done
        if producer is not None and is_pending:
            if not producer.sequence or producer.stream is not submission.stream:
                return False  # `steps` orders the copy after its producer
        elif producer is not None and producer.error is not None:
            return False  # `steps` raises that error
        if not self._copy.try_enqueue(submission, pool):
            return False
        if producer is not None and is_pending and not producer.cannot_fail:
            submission.depends_on(producer)
        self._batch.transfers.downloads += 1
        return True

    def steps(self, ctx: Context) -> Steps[HostArray]:
        if self._producer is not None:
            ctx.depend(self._producer)
        array = yield from download(ctx, self._tensor)
        self._batch.transfers.downloads += bool(array.size)
        return array

    def _describe(self) -> str:
        return self._copy.label


class Late(DeviceOp[HostArray]):
    """A value that was not written when the batch ran: computed from values on the device, and
    read.
    """

    def __init__(self, batch: BatchRun, prepared: Prepared, number: int) -> None:
        note_site(self, 2)
        self._batch = batch
        self._prepared = prepared
        self._number = number

    @property
    def home(self) -> Home:
        return self._batch.device

    def steps(self, ctx: Context) -> Steps[HostArray]:
        batch = self._batch
        batch.check_device(ctx.device)
        for producer in batch.producers_of(self._prepared.inputs):
            ctx.depend(producer)
        memory = yield from run(ctx, batch, self._prepared)
        new = {n: t for n, t in memory.tensors.items() if n not in batch.tensors}
        batch.ran(new, ctx.submission)
        read = Read(batch, self._number)
        read.consume()
        return (yield from read.steps(ctx))

    def _describe(self) -> str:
        return f"read of buffer {self._number}"
