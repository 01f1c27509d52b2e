"""Running a batch and reading what it computes, as one operation: one submission."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from numbasync.batch.run.run import Run
from numbasync.ops.context import Context
from numbasync.ops.op import Steps
from numbasync.tensors.copies import HostArray
from numbasync.tensors.copy_ops import ToHost


class Compute(Run[Any]):
    """A batch, run once. Gives a new NumPy array of one id, a tuple of several."""

    def result(self) -> Any:
        read, self._read = self._read, None
        return read

    def steps(self, ctx: Context) -> Steps[Any]:
        batch = self._batch
        memory = yield from self.run(ctx)
        read: list[HostArray] = []
        for n in self._reads:
            tensor = memory.tensors.get(n)
            if tensor is None:  # it is a number
                read.append(np.array(batch.recorder.values[n]))
                continue
            copy = ToHost(tensor)
            copy.consume()
            found = copy.result() if ctx.try_enqueue(copy) else (yield from copy.steps(ctx))
            read.append(found)
            batch.transfers.downloads += bool(found.size)
        return read[0] if len(read) == 1 else tuple(read)

    def _width(self) -> int | None:
        count = len(self._reads)
        return count if count > 1 else None

    def _describe(self) -> str:
        return _label(self._batch.recorder.operations)


@lru_cache(256)
def _label(operations: int) -> str:
    return f"batch of {operations} operations, read"
