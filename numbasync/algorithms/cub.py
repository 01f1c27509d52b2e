"""CUB's radix sort of integers, by `cuda.compute`, where the extra `algorithms` has installed it.

It takes less time than the kernels of `sort_kernels`, and gives the same bits. It has another order
of floats, whose NaNs come first if their sign is set; so those have the kernels here, as have
graphs, which cannot repeat another library's calls, short arrays, and what moves with keys.

`cuda.compute` compiles CUB for each dtype and each order, which takes seconds: on a worker thread,
once in a process. Its temporary memory is of the operation's pool, and its work is on the
operation's stream.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbasync.backend.protocols import Prerequisite
from numbasync.device.device import Device
from numbasync.extending import Context, DeviceOp, Home, Steps, enqueue
from numbasync.launch.external import external
from numbasync.memo import Memo
from numbasync.tensors.create import empty
from numbasync.tensors.tensor import Tensor

PACKAGE = "cuda.compute"
LEAST = 2**22  # elements of a row that it sorts
MOST = 2**31 - 1


class Kind(NamedTuple):
    """What a compiled sort is of: the dtype of the keys, and whether the largest comes first."""

    keys: np.dtype[Any]
    descending: bool


def kind_of(x: Tensor, descending: bool) -> Kind | None:
    """How CUB sorts the row, of shape ``(1, n)``; None: it does not."""
    dtype = x.dtype
    is_row = x.shape[0] == 1 and LEAST <= x.size <= MOST
    if dtype.kind not in "biu" or not is_row:
        return None
    if x.device is None or not x.device.backend.has_cub:
        return None
    return Kind(np.dtype(np.uint8) if dtype.kind == "b" else dtype, descending)


class Sorter:
    """A compiled sort.

    Args:
        capability: the compute capability that it is compiled for.
    """

    def __init__(self, kind: Kind, capability: tuple[int, int]) -> None:
        compute = importlib.import_module(PACKAGE)
        keys = compute.ProxyArray(kind.keys)
        order = compute.SortOrder.DESCENDING if kind.descending else compute.SortOrder.ASCENDING
        self._sort = compute.make_radix_sort(
            d_in_keys=keys, d_out_keys=keys, d_in_values=None, d_out_values=None, order=order,
            compute_capability=capability,
        )  # fmt: skip
        self._end = 8 * kind.keys.itemsize
        self._lock = threading.Lock()  # it notes its arguments in itself
        self._rooms = Memo[int, int](64)

    def room(self, ctx: Context, keys: Tensor) -> Steps[int]:
        """How many bytes of temporary memory a sort of these keys takes."""
        count = keys.size
        if count not in self._rooms:

            def ask(stream: Any, keys: Any) -> None:  # at once: on a GPU
                self._rooms[count] = self._call(stream, count, keys, keys, None)

            yield from enqueue(ctx, external(ask, [keys], []))
        return self._rooms[count]

    def sort(self, stream: Any, count: int, keys: Any, z: Any, room: Any) -> None:
        """Sort `count` keys to `z`, with temporary memory."""
        self._call(stream, count, keys, z, _Room(room))

    def _call(self, stream: Any, count: int, keys: Any, z: Any, room: _Room | None) -> int:
        with self._lock:
            return int(
                self._sort(
                    temp_storage=room, d_in_keys=keys, d_out_keys=z, d_in_values=None,
                    d_out_values=None, num_items=count, begin_bit=0, end_bit=self._end,
                    stream=stream,
                )
            )  # fmt: skip


class _Room:
    """Temporary memory, with the attributes that `cuda.compute` asks for."""

    def __init__(self, view: Any) -> None:
        self.__cuda_array_interface__ = interface = view.__cuda_array_interface__
        (self.nbytes,) = interface["shape"]


# None: it cannot be compiled here.
_sorters = Memo[tuple[Kind, tuple[int, int]], Sorter | None](64)


class _Compiling(Prerequisite):
    """The prerequisite that a sort has been compiled, or that it is known not to be."""

    def __init__(self, kind: Kind, device: Device) -> None:
        self._key = kind, device.compute_capability

    def run(self) -> None:
        sorter = None
        try:
            sorter = Sorter(*self._key)
        except Exception as error:  # it raises classes of its own
            warnings.warn(
                f"{PACKAGE} cannot compile a sort here ({type(error).__name__}: {error}), so that "
                f"numbasync's kernels sort. NUMBASYNC_CUB=0 in the environment goes without it.",
                RuntimeWarning,
                stacklevel=2,
            )
        _sorters.setdefault(self._key, sorter)


class CubSort(DeviceOp[Tensor]):
    """The sort of one row, of shape ``(1, n)``.

    Args:
        own: makes the operation that does the same without CUB.
    """

    def __init__(self, kind: Kind, keys: Tensor, own: Callable[[], DeviceOp[Tensor]]) -> None:
        self._kind, self._keys, self._own = kind, keys, own

    @property
    def home(self) -> Home:
        return self._keys.device

    def steps(self, ctx: Context) -> Steps[Tensor]:
        if ctx.records:
            return (yield from enqueue(ctx, self._own()))
        kind, key = self._kind, (self._kind, ctx.device.compute_capability)
        if key not in _sorters:
            yield _Compiling(kind, ctx.device)
        sorter = _sorters.get(key)
        if sorter is None:
            return (yield from enqueue(ctx, self._own()))
        keys = self._keys.reinterpret(kind.keys)
        nbytes = yield from sorter.room(ctx, keys)

        def cub_radix_sort(stream: Any, x: Any, z: Any, room: Any) -> None:
            sorter.sort(stream, keys.size, x, z, room)

        to = [empty(keys.shape, keys.dtype), empty(nbytes, np.uint8)]
        z: Tensor
        z, _ = yield from enqueue(ctx, external(cub_radix_sort, [keys], to))
        return z.reinterpret(self._keys.dtype)

    def _describe(self) -> str:
        return f"CUB's radix sort of {self._keys.size:,} {self._keys.dtype}"
