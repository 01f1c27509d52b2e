"""Forms: calls whose arguments are of Python types that have been seen to fit.

What a kernel's parameters say about a call depends on the types of its arguments first. So a
call of known types is taken without asking again, if its arguments are the plain ones: tensors
with memory of their own, partitions of such, and numbers. Any other call is bound with care:
see `arguments`.
"""

from __future__ import annotations

from typing import Any

from numbasync.arguments import TYPED
from numbasync.partition import Partition
from numbasync.signature import Parameter, Role
from numbasync.tensor import SharedTensor, Tensor

Kinds = tuple[type, ...]


# The tensors of a call, and those of its partitions, in the order of `Form.positions`; and what its
# plan depends on, equal to `Bound.fingerprint`.
Taken = tuple[list[Tensor], tuple[Any, ...]]


class Form:
    """Calls of one kernel with arguments of the same Python types.

    Attributes:
        positions: where in the call the arrays are.
        writes: of each of them, whether the kernel may write it.
    """

    __slots__ = ("_arrays", "_ints", "_may_alias", "_types", "positions", "writes")

    def __init__(self, parameters: tuple[Parameter, ...], kinds: Kinds, may_alias: bool) -> None:
        arrays = [i for i, k in enumerate(kinds) if k in _ARRAYS]
        self.positions = tuple(arrays)
        self.writes = tuple(parameters[i].is_output for i in arrays)
        self._arrays = tuple((i, kinds[i] is not Tensor, kinds[i] is Partition) for i in arrays)
        self._ints = tuple(i for i, kind in enumerate(kinds) if kind is int)
        self._types: tuple[Any, ...] = kinds
        self._may_alias = may_alias

    @staticmethod
    def of(parameters: tuple[Parameter, ...], kinds: Kinds, may_alias: bool) -> Form | None:
        """The form of calls of these types; None if they need a closer look."""
        if all(_is_plain(p, kind) for p, kind in zip(parameters, kinds, strict=True)):
            return Form(parameters, kinds, may_alias)
        return None

    def take(self, values: tuple[Any, ...]) -> Taken | None:
        """The call, if it is a plain one. Refuses nothing: whoever looks closer does."""
        parts = list(self._types)
        tensors = []
        seen = []
        for i, wraps, has_tiles in self._arrays:
            value = values[i]
            tensor = value.tensor if wraps else value
            storage = tensor.own_storage
            if storage is None or tensor.source is not None:
                return None
            parts[i] = value.fingerprint if has_tiles else tensor.fingerprint
            tensors.append(tensor)
            seen.append(storage.identity)
        for i in self._ints:
            if not -(2**63) <= values[i] < 2**63:
                return None
        count = len(seen)
        if count > 1 and not self._may_alias:
            apart = seen[0] != seen[1] if count == 2 else len(set(seen)) == count
            if not apart:
                return None
        return tensors, tuple(parts)


_ARRAYS = frozenset({Tensor, SharedTensor, Partition})


def _is_plain(p: Parameter, kind: type) -> bool:
    if kind is Partition:
        return p.is_output and p.role is not Role.TILE
    if kind is Tensor:
        return p.takes_tensor
    if kind is SharedTensor:
        return p.takes_tensor and not p.is_output
    return p.takes_number and (kind is int or kind in TYPED)
