"""The arguments of a kernel call: what each argument is, and whether its parameter accepts it.

Everything here works without a device: roles, types, aliases. Later stages work with a
`BoundArguments`, which records the arrays among the arguments and which of them were passed as
partitions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from types import NoneType
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.backend import array_protocols, protocols
from numbasync.backend.protocols import ArrayKey, NamedTupleKey
from numbasync.device.device import Device
from numbasync.errors import AliasError, DTypeError, LauncherError
from numbasync.launch.argument_types import (
    ArrayArgument,
    array_of,
    big,
    check_integer,
    is_number,
    named,
)
from numbasync.launch.parameters import Parameter, Role
from numbasync.ops.run import describe
from numbasync.tensors import import_array
from numbasync.tensors.copies import HostArray
from numbasync.tensors.expected_results import UNKNOWN
from numbasync.tensors.host_arrays import TIMES, number
from numbasync.tensors.inout import InOut, check_apart
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

__all__ = ["flat", "holds_arrays", "replaced"]

# --- tuples with arrays in them, and arrays of no axes that are passed as numbers ---

MOST_LEVELS = 16  # of nested tuples; the compiler's time grows with them
_ARRAYS = (Tensor, SharedTensor, Partition, np.ndarray)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tuple, and no launch's result, which is one of all its arguments."""
    return isinstance(value, tuple) and not hasattr(type(value), "_output_positions")


def holds_arrays(value: Any, kernel: str = "", name: str = "an argument") -> bool:
    """Whether a value is a tuple that contains an array, directly or in a nested tuple; False for a
    launch's result.

    Raises:
        LauncherError: tuples are nested deeper than `MOST_LEVELS`.
    """
    level = [value] if _is_plain(value) else []
    found = False
    for _ in range(MOST_LEVELS):
        members = [member for part in level for member in part]
        found = found or any(isinstance(member, _ARRAYS) for member in members)
        level = [member for member in members if _is_plain(member)]
        if not level:
            return found
    raise LauncherError(
        f"kernel {kernel}: {name} is {shown(value)}, a tuple of tuples in more than {MOST_LEVELS} "
        "levels; write an array, or fewer levels."
    )


def members(
    kernel: str, p: Parameter, value: tuple[Any, ...], member: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """A tuple that contains arrays, as tensors, NumPy arrays and numbers.

    Args:
        member: converts a member of the tuple to one of these, or refuses the member.

    Raises:
        LauncherError: the parameter takes no arrays; or a member of the tuple is of another type.
    """
    if p.role in (Role.TILE, Role.SCALAR):
        raise LauncherError(
            f"kernel {kernel}: {p.name} cannot be {describe(value)}, a tuple with arrays in it.\n"
            "Pass it to a parameter that is declared neither a number nor a na.Tile."
        )

    def checked(v: Any) -> Any:
        converted = member(v)
        if not isinstance(v, (np.generic, int, float, complex, enum.Enum, *_ARRAYS)):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a tuple with {describe(v)} in it; a kernel takes "
                "tuples of tensors, NumPy arrays and numbers."
            )
        return converted

    return replaced(value, checked)


def fingerprint(values: tuple[Any, ...]) -> Hashable:
    """A key that is equal for tuples of equal types, layouts and shapes."""

    def member_key(v: Any) -> Hashable:
        if isinstance(v, Tensor):
            return v.fingerprint
        if isinstance(v, np.ndarray):
            return dtypes.dtype_key(v.dtype), v.shape
        return type(v), type(v) is int and v >= 2**63

    return key_of(values, member_key)


def replaced(values: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The tuple with `change` applied to its members, and to those of nested tuples."""
    made = tuple(replaced(v, change) if isinstance(v, tuple) else change(v) for v in values)
    named: Any = values
    return named._make(made) if _is_named(named) else made


def key_of(values: tuple[Any, ...], member_key: Callable[[Any], Hashable]) -> Hashable:
    """A key of a tuple, and of nested ones, from those of the members."""
    made = tuple(key_of(v, member_key) if isinstance(v, tuple) else member_key(v) for v in values)
    return NamedTupleKey(type(values), made) if _is_named(values) else made


def _is_named(values: Any) -> bool:
    """Whether a tuple is a named one, and no launch's result."""
    return hasattr(values, "_fields") and _is_plain(values)


def flat(values: tuple[Any, ...]) -> Iterator[Any]:
    """The members of a tuple, and of nested tuples."""
    for v in values:
        if isinstance(v, tuple):
            yield from flat(v)
        else:
            yield v


def numbers(parameters: tuple[Parameter, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, with NumPy arrays of no axes as numbers where the kernel takes numbers."""
    for i, p in enumerate(parameters):
        value = values[i]
        if type(value) is np.ndarray and not value.shape and (p.is_number or not p.takes_tensor):
            values = (*values[:i], value[()], *values[i + 1 :])
    return values


def is_open(value: Any) -> bool:
    """Whether a value, or a member of a tuple that is not a launch's result, is not known yet."""
    pending = [value]
    while pending:
        part = pending.pop()
        if part is UNKNOWN:
            return True
        if _is_plain(part):
            pending.extend(part)
    return False


# --- all arguments of a call ---

# Of a value of these types, a compiled kernel's key needs the type alone.
TYPED = frozenset(
    {float, bool, complex, np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
     np.int64, np.uint64, np.float16, np.float32, np.float64, np.complex64, np.complex128}
)  # fmt: skip


class BoundArguments:
    """The arguments of a call, none of them lazy, classified by what they are.

    Attributes:
        values: as passed, in signature order: what the launch returns.
        tensors: position and tensor of each argument that is a tensor, or a partition of one.
        host: position and array of each NumPy array.
        partitions: the arguments that were passed as partitions, by position.
        sources: the tensors whose memory is borrowed from another library.
        unresolved_host: by position, stand-ins for arguments on the device: other libraries' arrays
            in host memory (only the device can tell whether it uses them in place: `resolve_on`),
            and times as integers.
        inouts: position and array of each array that is downloaded again; `host` has these, too.
        literals: positions and values of integers that the kernel is compiled for.
        records: positions of structured scalars, which `host` holds as arrays of no axes: kernels
            receive their address.
        tuples: tuples that contain arrays, by position. Their members are tensors and NumPy arrays,
            which appear in none of the above, and numbers.
    """

    __slots__ = (
        "_given", "_parts", "host", "inouts", "literals", "partitions", "records", "sources",
        "tensors", "tuples", "unresolved_host", "values",
    )  # fmt: skip

    def __init__(
        self, kernel: str, parameters: tuple[Parameter, ...], values: tuple[Any, ...]
    ) -> None:
        self._given = values
        self.values = values = numbers(parameters, values)
        self.tensors: list[tuple[int, Tensor]] = []
        self.host: list[tuple[int, HostArray]] = []
        self.partitions: dict[int, Partition] = {}
        self.sources: tuple[Tensor, ...] = ()
        self.unresolved_host: dict[int, HostArray | np.generic] = {}
        self.inouts: dict[int, HostArray] = {}
        self.literals: dict[int, int] = {}
        self.records: set[int] = set()
        self.tuples: dict[int, Any] = {}
        parts: list[Any] = []
        for i, parameter in enumerate(parameters):
            value = values[i]
            cls = type(value)
            # The common cases come first; `array_of` handles all of them, and the errors of the
            # rest. Tiles have no meaning for an argument that is only read.
            if cls is Partition and parameter.is_output:
                self.partitions[i] = value
                tensor = value.tensor
                self.tensors.append((i, tensor))
                parts.append(value.fingerprint)
                if tensor.source is not None:
                    self._borrow(kernel, parameter, tensor)
            elif cls is Tensor and parameter.takes_tensor:
                self.tensors.append((i, value))
                parts.append(value.fingerprint)
                if value.source is not None:
                    self._borrow(kernel, parameter, value)
            elif cls in TYPED and parameter.takes_number:
                parts.append(cls)
            elif cls is int and parameter.takes_number:
                parts.append(int if -(2**63) <= value < 2**63 else big(kernel, parameter, value))
            elif cls is NoneType and parameter.takes_none:
                parts.append(NoneType)
            elif parameter.role is Role.LITERAL:
                parts.append(self._take_literal(kernel, i, parameter, value))
            elif cls is InOut:
                parts.append(self._take_inout(kernel, i, parameter, value))
            elif issubclass(cls, np.void) and value.dtype.names and parameter.takes_number:
                dtype = np.dtype((np.void, value.dtype))  # covers np.record, too
                with named(kernel, parameter):
                    dtypes.check_dtype(dtype, records=True)
                self.host.append((i, np.asarray(value).view(dtype)))
                self.records.add(i)
                parts.append((np.void, dtype))
            elif holds_arrays(value, kernel, parameter.name):
                parts.append(self._take_tuple(kernel, i, parameter, value))
            else:
                array = array_of(kernel, parameter, value)
                parts.append(self._sort(i, value, array))
                if isinstance(array, Tensor) and array.source is not None:
                    self._borrow(kernel, parameter, array)
        self._parts = parts
        if self.inouts:
            outputs = [(parameters[i].name, array) for i, array in self.inouts.items()]
            others = ((parameters[i].name, a) for i, a in self.uploads() if i not in self.inouts)
            check_apart(kernel, outputs, others)

    def _take_inout(self, kernel: str, i: int, p: Parameter, value: InOut) -> Hashable:
        """Classify an array that is uploaded and downloaded again; returns its part of the
        fingerprint.

        Raises:
            LauncherError: the kernel does not write the array, or requires tiles of it.
        """
        if not p.is_output or (p.role is Role.TILE and value.cut is None):
            problem = (
                "is a na.Tile and needs tiles; pass na.inout(array).partition(tile)"
                if p.is_output else "is only read; pass the array without na.inout"
            )  # fmt: skip
            raise LauncherError(f"kernel {kernel}: {p.name} {problem}.")
        array = self.inouts[i] = value.array
        self.host.append((i, array))
        if value.cut is None:
            return dtypes.dtype_key(array.dtype), array.shape
        self.partitions[i] = value.cut
        return value.cut.fingerprint

    def _take_literal(self, kernel: str, i: int, p: Parameter, value: Any) -> Hashable:
        """Classify an integer that the kernel is compiled for; returns its part of the fingerprint.

        Raises:
            LauncherError: the value is no integer.
            DTypeError: the integer does not fit into 64 bits.
        """
        if not isinstance(value, int | np.integer) or isinstance(value, bool | np.timedelta64):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a na.Literal, an integer that the kernel is "
                f"compiled for, and cannot be {describe(value)}.\n"
                f"Pass an int; or declare {p.name}: float, of which one variant serves all values."
            )
        number = self.literals[i] = int(value)
        if not -(2**63) <= number < 2**63:
            raise DTypeError(f"kernel {kernel}: {p.name} is {number}; a na.Literal is an int64.")
        return int, number

    def _take_tuple(self, kernel: str, i: int, p: Parameter, value: Any) -> Hashable:
        """Classify a tuple that contains arrays; returns its part of the fingerprint."""

        def member(v: Any) -> Any:
            if is_number(v):
                check_integer(kernel, p, v)
                with named(kernel, p):
                    return number(v) if isinstance(v, np.generic) else v
            array = array_of(kernel, p, v)
            if isinstance(array, Tensor) and array.source is not None:
                self._borrow(kernel, p, array)
            return v if array is None else array

        self.tuples[i] = members(kernel, p, value, member)
        return fingerprint(self.tuples[i])

    def uploads(self) -> list[tuple[int, HostArray]]:
        """Position and array of every upload, those in tuples included."""
        return self.host + [(i, a) for i, a in self._members() if isinstance(a, np.ndarray)]

    def _members(self) -> list[tuple[int, Any]]:
        return [(i, v) for i, values in self.tuples.items() for v in flat(values)]

    def given(self) -> tuple[Any, ...]:
        """The values that the launch returns."""
        if not self.inouts:
            return self._given
        return tuple(v.given if type(v) is InOut else v for v in self._given)

    def _borrow(self, kernel: str, parameter: Parameter, tensor: Tensor) -> None:
        if parameter.is_output and tensor.is_readonly:
            raise LauncherError(
                f"kernel {kernel}: {parameter.name} may be written, but {tensor!r} is in memory "
                "that its library lends for reading only.\n"
                "Pass a copy: await t.dup()"
            )
        self.sources = (*self.sources, tensor)

    def _sort(self, i: int, value: Any, array: ArrayArgument | None) -> Hashable:
        """Classify an argument of a rarer type; returns its part of the fingerprint, None for a
        number whose type only the device knows.
        """
        if isinstance(array, Tensor):
            self.tensors.append((i, array))
            return array.fingerprint
        if isinstance(value, TIMES):
            self.unresolved_host[i] = number(value)
            return None
        if array is not None and array is not value and array_protocols.is_foreign(value):
            self.unresolved_host[i] = array
            return None
        if array is not None:
            self.host.append((i, array))
            return dtypes.dtype_key(array.dtype), array.shape
        return None

    def fingerprint(self, device: protocols.Device) -> tuple[Hashable, ...]:
        """A key that is equal for calls with equal types, layouts, shapes and tiles: these share a
        plan.
        """
        parts = self._parts
        if None in parts:
            pairs = zip(parts, self.values, strict=True)
            return tuple(device.scalar_key(v) if p is None else p for p, v in pairs)
        return tuple(parts)

    def resolve_on(self, device: Device) -> tuple[Any, ...]:
        """The values, with each unresolved argument in place on `device`, or as an array to be
        uploaded.
        """
        values = list(self.values)
        for i, x in self.unresolved_host.items():
            values[i] = import_array.in_place(x, device) if isinstance(x, np.ndarray) else x
        return tuple(values)

    def check_aliases(self, kernel: str, parameters: tuple[Parameter, ...]) -> None:
        """Refuse an output in the storage of another argument.

        Raises:
            AliasError: an output shares memory with another argument.
        """
        tuple_tensors = [(i, t) for i, t in self._members() if isinstance(t, Tensor)]
        placed = [(i, t) for i, t in self.tensors + tuple_tensors if t.device is not None]
        for n, (i, a) in enumerate(placed):
            for j, b in placed[n + 1 :]:
                p, q = parameters[i], parameters[j]
                if (p.is_output or q.is_output) and a.storage.overlaps(b.storage):
                    out, reader = (p, q) if p.is_output else (q, p)
                    where = "the same storage" if a.storage is b.storage else "memory that overlaps"
                    raise AliasError(
                        f"kernel {kernel}: {out.name}, which may be written, and {reader.name} are "
                        f"in {where}: {a!r}, {b!r}.\n"
                        "Blocks run in no order, so one may read what another has written. Pass "
                        "a copy (await t.dup()), or, if the kernel is written for it, declare it "
                        "@na.launcher(may_alias=True)."
                    )

    def storages_differ(self) -> bool:
        """Whether no two tensors share memory: the quick test, enough for nearly every call."""
        tensors = self.tensors
        if self.tuples:
            return False
        if len(tensors) == 2:
            return tensors[0][1].storage_id != tensors[1][1].storage_id
        return len({t.storage_id for _, t in tensors}) == len(tensors)

    def by_name(self, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        """The arguments as preconditions see them, by parameter name: a partition as its tensor."""
        arguments = {p.name: v for p, v in zip(parameters, self.values, strict=True)}
        return arguments | {parameters[i].name: a for i, a in self.arrays().items()}

    def arrays(self) -> dict[int, ArrayArgument]:
        """Every array, by position."""
        host = {i: array for i, array in self.host if i not in self.records}
        return dict(self.tensors) | host

    def keys(self, device: protocols.Device) -> list[Hashable]:
        """Each argument's part of a compiled kernel's key."""
        arrays: dict[int, Any] = self.arrays()
        if self.tuples:
            arrays |= self.tuples
        keys = [_key(arrays.get(i), v, device) for i, v in enumerate(self.values)]
        if self.literals:
            from numba.core import types as numba_types

            types: Any = numba_types
            for i, number in self.literals.items():
                keys[i] = types.literal(number)
        return keys


def _key(array: Any, value: Any, device: protocols.Device) -> Hashable:
    if array is None:
        return device.scalar_key(value)
    if isinstance(array, tuple):
        return key_of(
            array, lambda v: _key(v if isinstance(v, Tensor | np.ndarray) else None, v, device)
        )
    if isinstance(array, Tensor):
        return array.key
    return ArrayKey(dtypes.dtype_key(array.dtype), array.ndim, "C")
