"""The arguments of measured launches: what a kernel may write is a copy of the caller's array."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.device.stream import Stream
from numbasync.launch.arguments import flat, replaced
from numbasync.launch.launcher import Launcher
from numbasync.layout import Layout, span
from numbasync.tensors.create import empty, from_host, memcpy
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor

BYTE = np.dtype(np.uint8)
ALIGNMENT = 256  # bytes; a copy begins at a multiple, so that its arrays are aligned as before


class _Copy:
    """A copy of the bytes of one storage that the arguments of a call use.

    Attributes:
        begin: where the copied bytes begin in the storage.
        bytes: the copy.
    """

    def __init__(self, tensors: list[Tensor], stream: Stream) -> None:
        """
        Args:
            tensors: of one storage; there is at least one.
        """
        ranges = [_range(tensor) for tensor in tensors]
        self.begin = min(begin for begin, _ in ranges) // ALIGNMENT * ALIGNMENT
        size = max(end for _, end in ranges) - self.begin
        first = tensors[0]
        self._original = Tensor(
            first.device, first.storage, Layout(self.begin, (size,), (1,)), BYTE, first.source
        )
        self.bytes: Tensor = empty(size, BYTE).sync_on(stream)

    def restore(self, stream: Stream) -> None:
        """Enqueue that the copy is made again."""
        memcpy(self.bytes, self._original).async_on(stream)

    def tensor(self, original: Tensor) -> Tensor:
        """The tensor of the copy that stands for a tensor of the storage."""
        offset, shape, strides = original._layout
        at = Layout(offset - self.begin, shape, strides)
        return Tensor(original.device, self.bytes.storage, at, original.dtype)

    def array(self, original: Tensor, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The elements of a tensor of the storage, in `data`, which are the bytes of the copy."""
        offset, shape, strides = original._layout
        return np.ndarray(shape, original.dtype, data.data, offset - self.begin, strides)


class Scratch:
    """The arguments of one call, for launches that are measured on one stream.

    Arrays of the host are uploaded once. Arrays that the kernel may write, and inputs in the same
    storage, are replaced by copies; other inputs are the caller's.

    Attributes:
        values: the arguments in signature order.
        names: of the parameters whose arrays the kernel may write, one for each array.
    """

    def __init__(self, launcher: Launcher, values: tuple[Any, ...], stream: Stream) -> None:
        """
        Raises:
            OutOfDeviceMemoryError: the copies do not fit.
            The errors of the kernel's call.
        """
        self._stream = stream
        bound = launcher.bind(values)
        if bound.unresolved_host:
            bound = launcher.bind(bound.resolve_on(stream.device))
        tensors = dict(bound.tensors)
        for i, array in bound.host:
            if i not in bound.records:
                tensors[i] = _uploaded(array, stream)
        members: dict[int, tuple[Any, ...]] = {}
        for i, given in bound.tuples.items():
            members[i] = replaced(
                given, lambda v: _uploaded(v, stream) if isinstance(v, np.ndarray) else v
            )
        arrays = [
            *tensors.items(),
            *((i, v) for i, m in members.items() for v in flat(m) if isinstance(v, Tensor)),
        ]
        arrays.sort(key=lambda pair: pair[0])
        parameters = launcher.parameters
        self._outputs = [(i, t) for i, t in arrays if parameters[i].is_output and t.size]
        self.names = [parameters[i].name for i, _ in self._outputs]
        written = {id(t.storage) for _, t in self._outputs}
        self._copies: dict[int, _Copy] = {}
        for storage in written:
            of_storage = [t for _, t in arrays if id(t.storage) == storage and t.size]
            self._copies[storage] = _Copy(of_storage, stream)

        def replacement(tensor: Any) -> Any:
            copy = None
            if isinstance(tensor, Tensor) and tensor.size:
                copy = self._copies.get(id(tensor.storage))
            return tensor if copy is None else copy.tensor(tensor)

        self.values = tuple(
            replaced(members[i], replacement) if i in members
            else value if i not in tensors
            else _cut(bound.partitions.get(i), replacement(tensors[i]))
            for i, value in enumerate(bound.values)
        )  # fmt: skip
        self._originals = [
            members.get(i, tensors.get(i, value)) for i, value in enumerate(bound.values)
        ]

    def restore(self) -> None:
        """Enqueue that what the kernel may write has the caller's elements again."""
        for copy in self._copies.values():
            copy.restore(self._stream)

    def answer(self) -> list[np.ndarray[Any, Any]]:
        """What the kernel has written, for each of `names`. Blocks."""
        data = {k: c.bytes.to_host().sync_on(self._stream) for k, c in self._copies.items()}
        return [self._copies[id(t.storage)].array(t, data[id(t.storage)]) for _, t in self._outputs]

    def on_host(self) -> list[Any]:
        """The caller's arguments, with each array as a NumPy array of its own. Blocks."""

        def downloaded(value: Any) -> Any:
            return value.to_host().sync_on(self._stream) if isinstance(value, Tensor) else value

        return [
            replaced(v, downloaded) if isinstance(v, tuple) else downloaded(v)
            for v in self._originals
        ]


def _uploaded(array: np.ndarray[Any, Any], stream: Stream) -> Tensor:
    return from_host(array).sync_on(stream)


def _range(tensor: Tensor) -> tuple[int, int]:
    """The bytes of the storage that a tensor's elements lie in: begin, end."""
    offset, shape, strides = tensor._layout
    begin, end = span(shape, strides, tensor.dtype.itemsize)
    return offset + begin, offset + end


def _cut(like: Partition | None, tensor: Tensor) -> Tensor | Partition:
    """The tensor, cut as the partition is."""
    if like is None:
        return tensor
    partition = Partition(tensor, like.tile, exact=like.exact)
    return partition if like.blocks is None else partition.map(like.blocks)
