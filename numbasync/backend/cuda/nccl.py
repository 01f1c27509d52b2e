"""Collectives of GPUs by NCCL, through nccl4py, where that is installed."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from numbasync.backend.cuda.driver import enter
from numbasync.backend.protocols import counters
from numbasync.dtypes import TABLE
from numbasync.errors import DriverError, RankLostError
from numbasync.native import core

if TYPE_CHECKING:
    from numbasync.backend.collectives import Call, Rank
    from numbasync.backend.cuda.arrays import CudaArray
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.stream import CudaStream

INVALID_ARGUMENT, REMOTE_ERROR = 4, 6
REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
OF_BOOL = {"sum": 2, "prod": 3, "max": 2, "min": 3}  # "or" is the maximum, "and" the minimum
RECORDED = (  # by the core, see `RanksRecord`
    "ncclGroupStart", "ncclGroupEnd", "ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
    "ncclBroadcast",
)  # fmt: skip
OF_PAIRS = ("sum", "avg")  # what pairs of floats have in common with complex numbers


@cache
def library() -> Nccl | None:
    """NCCL; None where nccl4py, or NCCL itself, is not installed."""
    try:
        from nccl.bindings import nccl
        from nccl.core.utils import get_unique_id

        nccl.get_version()  # loads the library
    except (ImportError, RuntimeError):
        return None
    return Nccl(nccl, get_unique_id, _addresses())


def _addresses() -> dict[str, int]:
    """NCCL's functions of `RECORDED` that the bindings offer to compiled code, by name."""
    try:
        cynccl = import_module("nccl.bindings.cynccl")
    except ImportError:
        return {}
    api = ctypes.pythonapi
    name_of, pointer_of = api.PyCapsule_GetName, api.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    offered = vars(cynccl).get("__pyx_capi__", {})
    found = {name: offered[name] for name in RECORDED if name in offered}
    return {name: pointer_of(capsule, name_of(capsule)) for name, capsule in found.items()}


class Nccl:
    """NCCL by its bindings. An error of a call is a `DriverError`.

    Args:
        addresses: of the functions of `RECORDED` that compiled code can call.
    """

    def __init__(
        self,
        bindings: Any,
        unique_id: Callable[[], Any],
        addresses: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.bindings = bindings
        self._unique_id = unique_id
        self._addresses = addresses

    def takes(self, dtype: np.dtype[Any], op: str | None = None) -> bool:
        if op is not None and dtype.kind == "c":
            return op in OF_PAIRS
        return _number(dtype) is not None

    def make(self, calls: Sequence[Call], rank: Any) -> None:
        bindings = self.bindings
        start, end = ([bindings.group_start], [bindings.group_end]) if len(calls) > 1 else ([], [])
        every = [*start, *calls, *end]
        made: list[object] = []
        enter(rank.device)  # to which NCCL comes back from the others
        try:
            # By `map`, which runs no bytecode: ^C between two calls would leave the first rank's
            # on its device for ever, and between the start and the end all later calls in Python.
            made.extend(map(operator.call, every))
        except bindings.NCCLError as error:
            if start and 0 < len(made) < len(every) - 1:
                with suppress(bindings.NCCLError):  # says the same again
                    bindings.group_end()
            failed = every[len(made)]
            name = failed.func.__name__ if isinstance(failed, partial) else failed.__name__
            raise self._error(name, error) from error
        counters.copies += len(calls)

    def record(
        self, name: str, ranks: Sequence[Rank], dtype: np.dtype[Any], nbytes: int, choice: Any
    ) -> Any:
        if (
            core is None
            or len(ranks) > core.MOST_RANKS
            or not set(RECORDED) <= set(self._addresses)
        ):
            return None
        size, number = _unit(dtype)
        if isinstance(choice, str):
            choice = _reduction(dtype, choice)
        comms = [rank._comm for rank in cast("Sequence[NcclRank]", ranks)]
        return core.RanksRecord(
            name, dict(self._addresses), comms, nbytes // size, number, choice, self._fail
        )

    def _fail(self, name: str, status: int) -> None:
        """Raise what a call of that name raises that returns a status."""
        error = self.bindings.NCCLError(status)
        raise self._error(name, error) from error

    def ranks(self, devices: Sequence[Gpu]) -> Sequence[NcclRank]:
        comms = self.call("comm_init_all", len(devices), [d.ordinal for d in devices])
        return [NcclRank(self, comm, device) for comm, device in zip(comms, devices, strict=True)]

    def new_id(self) -> bytes:
        return bytes(self._unique_id())

    def rank(self, identity: bytes, number: int, size: int, device: Gpu) -> NcclRank:
        enter(device)
        comm = self.call("comm_init_rank_scalable", size, number, 1, bytearray(identity), 0)
        return NcclRank(self, comm, device)

    def call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self.bindings, name)(*args)
        except self.bindings.NCCLError as error:
            raise self._error(name, error) from error

    def _error(self, name: str, error: Any) -> Exception:
        """What a call of that name raises for an error of the bindings."""
        if int(error.status) == REMOTE_ERROR:
            return RankLostError(f"nccl {name}: another process of the group has ended.")
        return DriverError(f"nccl {name}", int(error.status), str(error), "")


class NcclRank:
    """A communicator of NCCL."""

    def __init__(self, nccl: Nccl, comm: Any, device: Gpu) -> None:
        self._nccl = nccl
        self._comm = comm
        self.device = device

    def _prepared(self, stream: CudaStream, name: str, *args: Any) -> Call:
        comm = self._comm
        if comm is None:
            raise DriverError(
                f"nccl {name}", INVALID_ARGUMENT, "ncclInvalidArgument", "it was aborted"
            )
        return partial(getattr(self._nccl.bindings, name), *args, comm, stream.handle_number)

    def all_reduce(self, stream: CudaStream, send: CudaArray, recv: CudaArray, op: str) -> Call:
        count, dtype = _count(send)
        number = _reduction(send.dtype, op)
        return self._prepared(
            stream, "all_reduce", send.address, recv.address, count, dtype, number
        )

    def reduce_scatter(self, stream: CudaStream, send: CudaArray, recv: CudaArray, op: str) -> Call:
        count, dtype = _count(recv)
        number = _reduction(send.dtype, op)
        return self._prepared(
            stream, "reduce_scatter", send.address, recv.address, count, dtype, number
        )

    def all_gather(self, stream: CudaStream, send: CudaArray, recv: CudaArray) -> Call:
        count, dtype = _count(send)
        return self._prepared(stream, "all_gather", send.address, recv.address, count, dtype)

    def broadcast(self, stream: CudaStream, send: CudaArray, recv: CudaArray, root: int) -> Call:
        count, dtype = _count(recv)
        return self._prepared(stream, "broadcast", send.address, recv.address, count, dtype, root)

    def send(self, stream: CudaStream, array: CudaArray, to: int) -> Call:
        count, dtype = _count(array)
        return self._prepared(stream, "send", array.address, count, dtype, to)

    def recv(self, stream: CudaStream, array: CudaArray, source: int) -> Call:
        count, dtype = _count(array)
        return self._prepared(stream, "recv", array.address, count, dtype, source)

    def abort(self) -> None:
        enter(self.device)
        comm, self._comm = self._comm, None  # later calls are refused: its memory is freed
        if comm is not None:
            self._nccl.call("comm_abort", comm)


def _count(array: CudaArray) -> tuple[int, int]:
    """The number of elements, or of their parts, and NCCL's number of their dtype."""
    size, number = _unit(array.dtype)
    return array.nbytes // size, number


@cache
def _unit(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The bytes of what NCCL counts of a dtype that it takes, and its number of that."""
    number = _number(dtype)
    assert number is not None  # `takes` was asked
    return dtype.itemsize // (2 if dtype.kind == "c" else 1), number


@cache
def _number(dtype: np.dtype[Any]) -> int | None:
    """NCCL's number of a dtype; None of one that it does not know."""
    row = TABLE.get(dtype.name)  # NumPy computes the name each time
    return None if row is None else row.nccl


@cache
def _reduction(dtype: np.dtype[Any], op: str) -> int:
    """NCCL's number of a reduction of such elements."""
    return (OF_BOOL if dtype.kind == "b" else REDUCTIONS)[op]
