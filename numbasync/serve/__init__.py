"""Services: the requests of many callers in batches, their metrics and their health: `na.serve`.

async with na.serve.MicroBatcher(f, max_batch=32, max_wait=0.002) as batcher:
    answer = await batcher(item)
"""

from numbasync.serve.batcher import MicroBatcher as MicroBatcher
from numbasync.serve.statistics import BatcherStatistics as BatcherStatistics
from numbasync.serve.statistics import Histogram as Histogram

__all__ = ["BatcherStatistics", "Histogram", "MicroBatcher"]


def __dir__() -> list[str]:
    return __all__
