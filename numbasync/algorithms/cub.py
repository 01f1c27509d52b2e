"""CUB's radix sort of integers, by `cuda.compute`, where the extra `algorithms` has installed it.

It takes less time than the kernels of `sort_kernels`, and gives the same bits: both are stable. It
has another order of floats, whose NaNs come first if their sign is set; so those have the kernels
here, as have graphs, which cannot repeat another library's calls, and short arrays.

`cuda.compute` compiles CUB for each pair of dtypes and each order, which takes seconds: on a worker
thread, once in a process for each GPU. Its temporary memory is of the operation's pool, and its
work is on the operation's stream.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numbasync.backend.protocols import Prerequisite
from numbasync.device.device import Device
from numbasync.extending import Context, DeviceOp, Home, Steps, enqueue
from numbasync.launch.external import external
from numbasync.memo import Memo
from numbasync.tensors.create import arange, empty
from numbasync.tensors.tensor import Tensor

PACKAGE = "cuda.compute"
LEAST = 2**20  # elements of a row that it sorts
MOST = 2**31 - 1
Pair = tuple[Tensor, Tensor]


class Kind(NamedTuple):
    """What a compiled sort is of: the dtypes of keys and of values (None: no values), and whether
    the largest comes first.
    """

    keys: np.dtype[Any]
    values: np.dtype[Any] | None
    descending: bool


def kind_of(x: Tensor, descending: bool, carried: np.dtype[Any] | None) -> Kind | None:
    """How CUB sorts the row, of shape ``(1, n)``; None: it does not.

    Args:
        carried: the dtype of what moves with the keys; None: nothing.
    """
    dtype = x.dtype
    is_row = x.shape[0] == 1 and LEAST <= x.size <= MOST
    if dtype.kind not in "biu" or not is_row or (carried is not None and carried.itemsize > 8):
        return None
    if x.device is None or not x.device.backend.has_cub:
        return None
    bits = None if carried is None else np.dtype(f"u{carried.itemsize}")
    return Kind(np.dtype(np.uint8) if dtype.kind == "b" else dtype, bits, descending)


class Sorter:
    """A compiled sort.

    Args:
        capability: the compute capability that it is compiled for.
    """

    def __init__(self, kind: Kind, capability: tuple[int, int]) -> None:
        compute = importlib.import_module(PACKAGE)
        keys = compute.ProxyArray(kind.keys)
        values = None if kind.values is None else compute.ProxyArray(kind.values)
        order = compute.SortOrder.DESCENDING if kind.descending else compute.SortOrder.ASCENDING
        self._sort = compute.make_radix_sort(
            d_in_keys=keys, d_out_keys=keys, d_in_values=values, d_out_values=values, order=order,
            compute_capability=capability,
        )  # fmt: skip
        self._end = 8 * kind.keys.itemsize
        self._lock = threading.Lock()  # it notes its arguments in itself
        self._rooms = Memo[int, int](64)

    def room(self, ctx: Context, given: list[Tensor]) -> Steps[int]:
        """How many bytes of temporary memory a sort of these keys, and values, takes."""
        count = given[0].size
        if count not in self._rooms:

            def ask(stream: Any, *arrays: Any) -> None:  # at once: on a GPU
                self._rooms[count] = self._call(stream, count, arrays, arrays, None)

            yield from enqueue(ctx, external(ask, given, []))
        return self._rooms[count]

    def sort(self, stream: Any, count: int, of: Sequence[Any], to: Sequence[Any]) -> None:
        """Sort `count` keys, and move the values.

        Args:
            of: the keys, and the values if there are some.
            to: where these are written, and temporary memory.
        """
        self._call(stream, count, of, to[:-1], _Room(to[-1]))

    def _call(
        self, stream: Any, count: int, of: Sequence[Any], to: Sequence[Any], room: _Room | None
    ) -> int:
        keys, values = (*of, None)[:2]
        z, moved = (*to, None)[:2]
        with self._lock:
            return int(
                self._sort(
                    temp_storage=room, d_in_keys=keys, d_out_keys=z, d_in_values=values,
                    d_out_values=moved, num_items=count, begin_bit=0, end_bit=self._end,
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


class CubSort(DeviceOp[Pair]):
    """The sort of one row, of shape ``(1, n)``, and what moves with its keys; or the keys again.

    Args:
        values: what moves; None: nothing.
        are_places: what moves is the place of each key, int64, and `values` is not read.
        own: the operation that does the same without CUB.
    """

    def __init__(
        self, kind: Kind, keys: Tensor, values: Tensor | None, are_places: bool,
        own: DeviceOp[Pair],
    ) -> None:  # fmt: skip
        own.suppress_warning()  # of what runs only where CUB does not
        self._kind, self._keys, self._values, self._own = kind, keys, values, own
        self._are_places = are_places

    @property
    def home(self) -> Home:
        return self._keys.device

    def steps(self, ctx: Context) -> Steps[Pair]:
        if ctx.records:
            return (yield from self._own.steps(ctx))
        kind, key = self._kind, (self._kind, ctx.device.compute_capability)
        if key not in _sorters:
            yield _Compiling(kind, ctx.device)
        if (sorter := _sorters.get(key)) is None:
            return (yield from self._own.steps(ctx))
        keys, values = self._keys, self._values
        count = keys.size
        if self._are_places:
            values = yield from enqueue(ctx, arange(count, dtype=np.int64).reshape(keys.shape))
        given = [keys.reinterpret(kind.keys)]
        if values is not None:
            given.append(values.reinterpret(kind.values))
        nbytes = yield from sorter.room(ctx, given)

        def cub_radix_sort(stream: Any, *arrays: Any) -> None:
            sorter.sort(stream, count, arrays[: len(given)], arrays[len(given) :])

        to: list[Any] = [empty(keys.shape, t.dtype) for t in given]
        to.append(empty(nbytes, np.uint8))
        z, *moved, _ = yield from enqueue(ctx, external(cub_radix_sort, given, to))
        z = z.reinterpret(keys.dtype)
        return z, moved[0].reinterpret(values.dtype) if values is not None else z

    def _describe(self) -> str:
        return f"CUB's radix sort of {self._keys.size:,} {self._keys.dtype}"
