"""Running a batch and reading its results, as one operation: one submission."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from numbasync.batch.run.run import Run
from numbasync.extending import HostArray
from numbasync.ops.context import Context
from numbasync.ops.op import Steps
from numbasync.tensors.copy_ops import ToHost


class Compute(Run[Any]):
    """A batch, run once. Returns a new NumPy array for one id, a tuple of arrays for several."""

    def result(self) -> Any:
        read, self._read = self._read, None
        return read

    def steps(self, ctx: Context) -> Steps[Any]:
        batch = self._batch
        memory = yield from self.run(ctx)
        arrays: list[HostArray] = []
        for n in self._reads:
            tensor = memory.tensors.get(n)
            if tensor is None:  # the node is a number
                arrays.append(np.array(batch.recorder.values[n]))
                continue
            copy = ToHost(tensor)
            copy.consume()
            array = copy.result() if ctx.try_enqueue(copy) else (yield from copy.steps(ctx))
            arrays.append(array)
            batch.transfers.downloads += bool(array.size)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def _width(self) -> int | None:
        count = len(self._reads)
        return count if count > 1 else None

    def _describe(self) -> str:
        return _label(self._batch.recorder.operations)


@lru_cache(256)
def _label(operations: int) -> str:
    return f"batch of {operations} operations, read"
