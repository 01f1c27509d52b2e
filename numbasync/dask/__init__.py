"""Operations and tensors on a Dask cluster: `na.dask`. Needs the extra `dask`.

Importing this registers tensors with Dask: how they are sent, spilled, and counted.
"""

from numbasync.errors import MissingExtraError

try:
    import distributed as _distributed  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        f"na.dask needs Dask, which cannot be imported ({error}): pip install 'numbasync[dask]'"
    ) from error

from numbasync.dask import serialize as _serialize  # noqa: F401  # registers tensors
from numbasync.dask.arrays import map_blocks as map_blocks
from numbasync.dask.tasks import OperationFuture as OperationFuture
from numbasync.dask.tasks import map_ops as map_ops
from numbasync.dask.tasks import submit as submit
from numbasync.dask.worker_device import WorkerDevice as WorkerDevice

__all__ = ["OperationFuture", "WorkerDevice", "map_blocks", "map_ops", "submit"]


def __dir__() -> list[str]:
    return __all__
