"""Services: the requests of many callers in batches, their metrics and their health: `na.serve`."""

from numbasync.serve.batcher import MicroBatcher as MicroBatcher
from numbasync.serve.metrics import CONTENT_TYPE as CONTENT_TYPE
from numbasync.serve.monitor import Health as Health
from numbasync.serve.monitor import Monitor as Monitor
from numbasync.serve.statistics import BatcherStatistics as BatcherStatistics
from numbasync.serve.statistics import Histogram as Histogram

__all__ = ["CONTENT_TYPE", "BatcherStatistics", "Health", "Histogram", "MicroBatcher", "Monitor"]


def __dir__() -> list[str]:
    return __all__
