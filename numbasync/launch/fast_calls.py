"""Fast calls: calls of Python types that are known to fit.

The checks of a kernel's parameters depend first on the types of the arguments. A call of known
types therefore skips them if its arguments are plain: tensors with memory of their own, partitions
of such tensors, and numbers. Any other call is bound with every check: see `arguments`.

The compiled core has the same functions, which take and enqueue most launches; those here say what
they mean, and do it where there is no core.

An array of another library is an argument of a fast call if its type has a quick reader. The stream
is put behind its library's work after every other test, before the launch.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from numbasync.backend.array_readers import reader_of
from numbasync.device import access
from numbasync.device.storage import Storage
from numbasync.device.submission import Submission
from numbasync.launch.arguments import TYPED
from numbasync.launch.parameters import Parameter, Role
from numbasync.launch.plan import Plan
from numbasync.native import core, known
from numbasync.tensors.partition import Partition
from numbasync.tensors.quick_import import imported
from numbasync.tensors.tensor import SharedTensor, Tensor
from numbasync.tensors.tensor_map import TensorMap

Kinds = tuple[type, ...]
# The tensors of a call, those of its partitions included; and the fingerprint that its plan depends
# on, equal to `BoundArguments.fingerprint`.
Taken = tuple[tuple[Tensor, ...], tuple[Any, ...]]


_DESCRIBED = frozenset({Tensor, SharedTensor, Partition, NoneType})


def is_described(cls: type) -> bool:
    """Whether values are described by their fingerprint, as far as preconditions can ask."""
    return cls in _DESCRIBED or reader_of(cls) is not None


@known
class FastCall:
    """Calls of one kernel with arguments of the same Python types.

    Attributes:
        core: the core's functions in the place of these; None without the core.
        home: which of the tensors says where the launch runs: the first that is written, else the
            first.
        outputs: for each tensor whether it may be written.
    """

    __slots__ = (
        "_arrays", "_kinds", "_literals", "_may_alias", "_readers", "_whole", "core", "home",
        "outputs",
    )  # fmt: skip

    def __init__(self, parameters: tuple[Parameter, ...], kinds: Kinds, may_alias: bool) -> None:
        readers: list[Any] = [None if k in _ARRAYS else reader_of(k) for k in kinds]
        arrays = [i for i, k in enumerate(kinds) if k in _ARRAYS or readers[i] is not None]
        self.outputs = tuple(parameters[i].is_output for i in arrays)
        self.home = self.outputs.index(True) if True in self.outputs else 0
        self._arrays = list(zip(arrays, self.outputs, strict=True))
        self._kinds = kinds
        self._readers = readers
        self._may_alias = may_alias
        self._whole = [i for i, k in enumerate(kinds) if k is int]
        self._literals = [i for i, p in enumerate(parameters) if p.role is Role.LITERAL]
        self.core: Any = None
        if core is not None and len(kinds) <= core.MOST_ARGUMENTS:
            codes = [_code(core, p, k) for p, k in zip(parameters, kinds, strict=True)]
            written = [i for i, is_output in self._arrays if is_output]
            known_readers = [None if r is None else r.core for r in readers]
            self.core = core.TypedCall(kinds, codes, written, may_alias, self, known_readers)

    def take(self, values: tuple[Any, ...]) -> Taken | None:
        """The tensors and the fingerprint of a call, if its arguments are plain; else None. Refuses
        nothing: errors are found when the call is bound.
        """
        tensors, storages = list[Tensor](), list[Storage]()
        parts: list[Any] = list(self._kinds)
        for i, is_output in self._arrays:
            value, kind = values[i], parts[i]
            tensor: Tensor | None = value
            if kind is Partition or kind is SharedTensor:
                tensor = value.tensor
            elif kind is TensorMap:
                tensor = value.mapped
            elif kind is not Tensor:
                tensor = imported(value, self._readers[i])
            storage = None if tensor is None else tensor.own_storage
            if tensor is None or storage is None:
                return None
            source: Any = tensor.source
            if source is not None and (
                not source.is_nonblocking or (is_output and tensor.is_readonly)
            ):
                return None
            tensors.append(tensor)
            storages.append(storage)
            parts[i] = (value if kind is Partition and is_output else tensor).fingerprint
        for i in self._whole:
            if not -(2**63) <= values[i] < 2**63:
                return None
        for i in self._literals:
            parts[i] = self._kinds[i], values[i]
        # Asked last: an array that is imported may link the storages of those before.
        identities = [storage.identity for storage in storages]
        if len(set(identities)) < len(identities) and not self._may_share(identities):
            return None
        return tuple(tensors), tuple(parts)

    def _may_share(self, identities: list[int]) -> bool:
        """Whether tensors may share memory as these do: without `may_alias`, no output with another
        tensor.
        """
        return self._may_alias or all(
            identities.count(identity) == 1
            for identity, is_output in zip(identities, self.outputs, strict=True)
            if is_output
        )

    def enqueue(
        self, plan: Plan, values: tuple[Any, ...], tensors: tuple[Tensor, ...],
        submission: Submission,
    ) -> bool:  # fmt: skip
        """Launch a call that was taken, and update the access records. Returns False, with nothing
        done, if the launch must wait for other streams, or must be refused.

        Every storage is tested first; then the stream is put behind other libraries' work; then
        comes the launch, and last the access records: the device starts as early as possible, and
        an error leaves no access record.
        """
        stream = submission.stream
        backend = stream.device.backend
        with stream.device.submit_lock:
            storages = list[Storage]()
            for tensor, is_output in zip(tensors, self.outputs, strict=True):
                storage = tensor.own_storage
                if storage is None or storage.fast_path_device is not backend:
                    return False
                if access.is_written_elsewhere(storage, stream):
                    return False
                if is_output and access.is_read_elsewhere(storage, stream):
                    return False
                storages.append(storage)
            for tensor in tensors:
                if tensor.source is None:
                    continue
                tensor.source.order(stream.backend)
            submission.keep_alive += storages
            submission.queue = stream.backend.launch(
                plan.work, self.arguments(values, tensors), submission.queue
            )
            for storage, is_output in zip(storages, self.outputs, strict=True):
                if is_output:
                    access.record_write(storage, submission)
                else:
                    access.record_read(storage, submission)
        return True

    def arguments(self, values: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Any]:
        """The arguments of such a call, as the backend takes them."""
        args = list(values)
        for (i, _), tensor in zip(self._arrays, tensors, strict=True):
            args[i] = tensor.own_handle or tensor.handle
        return args

    @staticmethod
    def of(parameters: tuple[Parameter, ...], kinds: Kinds, may_alias: bool) -> FastCall | None:
        """The fast call for arguments of these types; None if such calls must be bound."""
        if all(_is_plain(p, k) for p, k in zip(parameters, kinds, strict=True)):
            return FastCall(parameters, kinds, may_alias)
        return None


_ARRAYS = frozenset({Tensor, TensorMap, SharedTensor, Partition})


def _is_plain(p: Parameter, kind: type) -> bool:
    if kind is Tensor or kind is TensorMap or kind is Partition:
        return p.takes_tensor
    if kind is SharedTensor:
        return p.takes_tensor and not p.is_output
    reader = reader_of(kind)
    if reader is not None:
        return p.takes_tensor and not (p.is_output and reader.may_be_readonly)
    if kind is NoneType:
        return p.takes_none
    if p.role is Role.LITERAL:
        return kind is int
    return p.takes_number and (kind is int or kind in TYPED)


def _code(core: Any, p: Parameter, cls: type) -> int:
    """How the core is told of an argument."""
    if cls is Partition:
        code = core.PARTITION_ if p.is_output else core.SHARED_
    elif cls is TensorMap:
        code = core.MAP_
    elif cls in _ARRAYS:
        code = core.TENSOR_ if cls is Tensor else core.SHARED_
    elif reader_of(cls) is not None:
        code = core.LENT_
    elif p.role is Role.LITERAL:
        code = core.LITERAL_
    else:
        code = core.WHOLE_ if cls is int else core.NUMBER_
    number: int = code
    return number
