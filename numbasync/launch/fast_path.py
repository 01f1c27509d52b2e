"""Fast calls: calls whose arguments are of Python types that are known to fit.

The checks of a kernel's parameters depend first on the types of the arguments. A call of known
types therefore skips them if its arguments are plain: tensors with memory of their own, partitions
of such tensors, and numbers. Any other call is bound with every check: see `arguments`.

Each fast call has two functions of its own, generated for its argument types: loops over the
arguments would cost twice as much as everything else that Python does for a launch.

An array of another library is an argument of a fast call if its type has a quick reader. The stream
is put behind its library's work after every other test, before the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

from numbasync.backend.array_readers import reader_of
from numbasync.device import access
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
        take: the tensors and the fingerprint of a call, if its arguments are plain; else None.
            Refuses nothing: errors are found when the call is bound.
        enqueue: launch such a call, given its plan, values and tensors, and update the access
            records. Returns False, with nothing done, if the launch must wait for other streams, or
            must be refused.
        home: which of the tensors says where the launch runs: the first that is written, else the
            first.
        outputs: for each tensor whether it may be written.
    """

    __slots__ = ("_arrays", "core", "enqueue", "home", "outputs", "take")

    def __init__(self, parameters: tuple[Parameter, ...], kinds: Kinds, may_alias: bool) -> None:
        names: dict[str, Any] = {**access.NAMES, **{f"k{i}": k for i, k in enumerate(kinds)}}
        readers = [None if k in _TENSOR_OF else reader_of(k) for k in kinds]
        names |= {f"r{i}": reader for i, reader in enumerate(readers)}
        names["imported"] = imported
        arrays = [i for i, k in enumerate(kinds) if k in _ARRAYS or readers[i] is not None]
        outputs = [i for i in arrays if parameters[i].is_output]
        literals = [i for i, p in enumerate(parameters) if p.role is Role.LITERAL]
        text = _take(kinds, arrays, outputs, literals, may_alias)
        text += _enqueue(len(kinds), arrays, outputs)
        exec("\n".join(text), names)  # noqa: S102 - built from positions alone
        self.take: Callable[[tuple[Any, ...]], Taken | None] = names["take"]
        self.enqueue: Callable[[Plan, tuple[Any, ...], tuple[Tensor, ...], Submission], bool] = (
            names["enqueue"]
        )
        self._arrays = arrays
        self.outputs = tuple(i in outputs for i in arrays)
        self.home = next((a for a, i in enumerate(arrays) if i in outputs), 0)
        self.core: Any = None
        if core is not None and len(kinds) <= core.MOST_ARGUMENTS:
            codes = [_code(core, p, k) for p, k in zip(parameters, kinds, strict=True)]
            known_readers = [None if r is None else r.core for r in readers]
            self.core = core.FastCall(kinds, codes, outputs, may_alias, self, known_readers)

    def arguments(self, values: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Any]:
        """The arguments of such a call, as the backend takes them."""
        args = list(values)
        for i, tensor in zip(self._arrays, tensors, strict=True):
            args[i] = tensor.own_handle or tensor.handle
        return args

    @staticmethod
    def of(parameters: tuple[Parameter, ...], kinds: Kinds, may_alias: bool) -> FastCall | None:
        """The fast call for arguments of these types; None if such calls must be bound."""
        if all(_is_plain(p, k) for p, k in zip(parameters, kinds, strict=True)):
            return FastCall(parameters, kinds, may_alias)
        return None


# How the tensor of an argument is named.
_TENSOR_OF: dict[type, str] = {
    Tensor: "",
    TensorMap: ".mapped",
    SharedTensor: ".tensor",
    Partition: ".tensor",
}
_ARRAYS = frozenset(_TENSOR_OF)


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


def _take(
    kinds: Kinds, arrays: list[int], outputs: list[int], literals: list[int], may_alias: bool
) -> list[str]:
    """The source of `take(values)`: v are the values, t the tensors, s their storages, f the
    fingerprints.
    """
    lines = ["def take(values):"]
    if kinds:
        lines.append(f"    {_all('v', range(len(kinds)))}= values")
    for i in arrays:
        is_lent = kinds[i] not in _TENSOR_OF
        tensor = f"imported(v{i}, r{i})" if is_lent else f"v{i}{_TENSOR_OF[kinds[i]]}"
        fingerprinted = f"v{i}" if kinds[i] is Partition and i in outputs else f"t{i}"
        lines.append(f"    t{i} = {tensor}")
        if is_lent:
            lines.append(f"    if t{i} is None: return None")
        must_refuse = f"not t{i}.source.is_nonblocking" + (f" or t{i}.is_readonly" * (i in outputs))
        lines += [
            f"    s{i} = t{i}.own_storage", f"    if s{i} is None: return None",
            f"    if t{i}.source is not None and ({must_refuse}): return None",
            f"    f{i} = {fingerprinted}.fingerprint",
        ]  # fmt: skip
    for i, cls in enumerate(kinds):
        if cls is int:
            lines.append(f"    if not -(2**63) <= v{i} < 2**63: return None")
    if outputs and len(arrays) > 1 and not may_alias:
        same = " or ".join(
            f"s{i}.identity == s{j}.identity"
            for i in outputs for j in arrays if j != i and not (j in outputs and j < i)
        )  # fmt: skip
        if len(arrays) > 2:
            identities = ", ".join(f"s{i}.identity" for i in arrays)
            same = f"len({{{identities}}}) < {len(arrays)} and ({same})"
        lines.append(f"    if {same}: return None")
    parts = [f"f{i}" if i in arrays else f"k{i}" for i in range(len(kinds))]
    for i in literals:
        parts[i] = f"(k{i}, v{i})"
    lines.append(f"    return ({_all('t', arrays)}), ({', '.join(parts)}{',' * bool(parts)})")
    return lines


def _enqueue(count: int, arrays: list[int], outputs: list[int]) -> list[str]:
    """The source of `enqueue(plan, values, tensors, submission)`.

    The generated function tests every storage first, then puts the stream behind other libraries'
    work, then launches, then updates the access records: the device starts as early as possible,
    and an error leaves no access record.
    """
    lines = [
        "def enqueue(plan, values, tensors, submission):",
        "    stream = submission.stream",
        "    device = stream.device",
        "    backend = device.backend",
        f"    {_all('v', range(count))}= values" if count else "    pass",
        f"    {_all('t', arrays)}= tensors" if arrays else "    pass",
        "    with device.submit_lock:",
    ]
    for i in arrays:
        lines += [
            f"        s{i} = t{i}.own_storage",
            f"        if s{i} is None or s{i}.fast_path_device is not backend: return False",
            *(" " * 8 + line for line in access.questions(f"s{i}", i in outputs, "return False")),
        ]
    lines += [
        f"        if t{i}.source is not None: t{i}.source.order(stream.backend)" for i in arrays
    ]
    values = (f"t{i}.own_handle or t{i}.handle" if i in arrays else f"v{i}" for i in range(count))
    storages = "".join(f"s{i}, " for i in arrays)
    lines += [
        f"        submission.keep_alive += ({storages})",
        "        submission.queue = stream.backend.launch(",
        f"            plan.work, [{', '.join(values)}], submission.queue",
        "        )",
    ]
    for i in arrays:
        lines += [" " * 8 + line for line in access.records(f"s{i}", i in outputs)]
    return [*lines, "    return True"]


def _all(letter: str, positions: Any) -> str:
    return "".join(f"{letter}{i}, " for i in positions)
