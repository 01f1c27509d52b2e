"""A kernel call's arguments: what each is, and whether the parameter takes it.

Everything here is found without a device: roles, kinds, aliases. A `Bound` is what later
stages work with; it knows which arguments are arrays, and which of them came as partitions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from numbasync import foreign, layout
from numbasync.backend import base, interchange
from numbasync.backend.base import ArrayKey
from numbasync.copies import HostArray
from numbasync.device import Device
from numbasync.errors import AliasError, CallerError, DTypeError, LauncherError
from numbasync.execute import describe
from numbasync.future import DeviceFuture
from numbasync.host_arrays import TIMES, column, number, plain
from numbasync.partition import Partition
from numbasync.signature import Parameter, Role
from numbasync.tensor import SharedTensor, Tensor

ArrayArgument: TypeAlias = Tensor | HostArray

# The type of such a value is all that a compiled kernel's key needs of it.
TYPED = frozenset(
    {float, bool, complex, np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
     np.int64, np.uint64, np.float16, np.float32, np.float64, np.complex64, np.complex128}
)  # fmt: skip


class Bound:
    """Arguments that are there, sorted by what they are.

    Attributes:
        values: as passed, in signature order: what the launch gives back.
        tensors: position and tensor of each argument that is one, or a partition of one.
        host: position and array of each NumPy array.
        partitions: those that came as partitions, by position.
        sources: those of the tensors whose memory another library lends.
        unplaced: by position, what stands for an argument on the device: other libraries' arrays
            in the host's memory (whether a device uses them in place, it says itself: `placed`),
            and times as integers.
    """

    __slots__ = ("_parts", "host", "partitions", "sources", "tensors", "unplaced", "values")

    def __init__(
        self, kernel: str, parameters: tuple[Parameter, ...], values: tuple[Any, ...]
    ) -> None:
        self.values = values
        self.tensors: list[tuple[int, Tensor]] = []
        self.host: list[tuple[int, HostArray]] = []
        self.partitions: dict[int, Partition] = {}
        self.sources: tuple[Tensor, ...] = ()
        self.unplaced: dict[int, HostArray | np.generic] = {}
        parts: list[Any] = []
        for i, parameter in enumerate(parameters):
            value = values[i]
            kind = type(value)
            # The common cases first; `_array` knows them all, and what to say of the others.
            if kind is Partition and parameter.is_output:
                self.partitions[i] = value
                tensor = value.tensor
                self.tensors.append((i, tensor))
                parts.append(value.fingerprint)
                if tensor.source is not None:
                    self._borrow(kernel, parameter, tensor)
            elif kind is Tensor and parameter.takes_tensor:
                self.tensors.append((i, value))
                parts.append(value.fingerprint)
                if value.source is not None:
                    self._borrow(kernel, parameter, value)
            elif kind in TYPED and parameter.takes_number:
                parts.append(kind)
            elif kind is int and parameter.takes_number:
                parts.append(int if -(2**63) <= value < 2**63 else _big(kernel, parameter, value))
            else:
                array = _array(kernel, parameter, value)
                parts.append(self._sort(i, value, array))
                if isinstance(array, Tensor) and array.source is not None:
                    self._borrow(kernel, parameter, array)
        self._parts = parts

    def _borrow(self, kernel: str, parameter: Parameter, tensor: Tensor) -> None:
        if parameter.is_output and tensor.is_readonly:
            raise LauncherError(
                f"kernel {kernel}: {parameter.name} may be written, but {tensor!r} is in memory "
                "that its library lends for reading only.\n"
                "Pass a copy: await t.dup()"
            )
        self.sources = (*self.sources, tensor)

    def _sort(self, i: int, value: Any, array: ArrayArgument | None) -> Hashable:
        """File an argument of a rarer kind; its part of the fingerprint, None for a number
        whose type only the device knows.
        """
        if isinstance(value, Partition):
            self.partitions[i] = value
        if isinstance(array, Tensor):
            self.tensors.append((i, array))
            return value.fingerprint if isinstance(value, Partition) else array.fingerprint
        if isinstance(value, TIMES):
            self.unplaced[i] = number(value)
            return None
        if array is not None and array is not value and interchange.is_foreign(value):
            self.unplaced[i] = array
            return None
        if array is not None:
            self.host.append((i, array))
            return layout.dtype_key(array.dtype), array.shape
        return None

    def fingerprint(self, device: base.Device) -> tuple[Hashable, ...]:
        """Equal for calls with equal types, layouts, shapes and tiles: one plan serves them."""
        parts = self._parts
        if None in parts:
            pairs = zip(parts, self.values, strict=True)
            return tuple(device.scalar_key(v) if p is None else p for p, v in pairs)
        return tuple(parts)

    def placed(self, device: Device) -> tuple[Any, ...]:
        """The values, with what is not placed in place on `device`, or to be uploaded there."""
        values = list(self.values)
        for i, x in self.unplaced.items():
            values[i] = foreign.in_place(x, device) if isinstance(x, np.ndarray) else x
        return tuple(values)

    def check_aliases(self, kernel: str, parameters: tuple[Parameter, ...]) -> None:
        """Refuse an output in the storage of another argument.

        Raises:
            AliasError: there is one.
        """
        found = [(i, t) for i, t in self.tensors if t.device is not None]
        for n, (i, a) in enumerate(found):
            for j, b in found[n + 1 :]:
                p, q = parameters[i], parameters[j]
                if (p.is_output or q.is_output) and a.storage.meets(b.storage):
                    out, other = (p, q) if p.is_output else (q, p)
                    where = "the same storage" if a.storage is b.storage else "memory that overlaps"
                    raise AliasError(
                        f"kernel {kernel}: {out.name}, which may be written, and {other.name} are "
                        f"in {where}: {a!r}, {b!r}.\n"
                        "Blocks run in no order, so one may read what another has written. Pass "
                        "a copy (await t.dup()), or, if the kernel is written for it, declare it "
                        "@na.launcher(may_alias=True)."
                    )

    def storages_differ(self) -> bool:
        """Whether no two tensors share memory: the quick answer of nearly every call."""
        tensors = self.tensors
        if len(tensors) == 2:
            return tensors[0][1].storage_id != tensors[1][1].storage_id
        return len({t.storage_id for _, t in tensors}) == len(tensors)

    def by_name(self, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        """The arguments as preconditions see them: a partition as its tensor."""
        found = {p.name: v for p, v in zip(parameters, self.values, strict=True)}
        return found | {parameters[i].name: a for i, a in self.arrays().items()}

    def arrays(self) -> dict[int, ArrayArgument]:
        """Every array, by position."""
        return dict(self.tensors) | dict(self.host)

    def keys(self, device: base.Device) -> list[Hashable]:
        """Each argument's part of a compiled kernel's key."""
        arrays = self.arrays()
        return [_key(arrays.get(i), v, device) for i, v in enumerate(self.values)]


def _big(kernel: str, p: Parameter, value: int) -> str:
    """The fingerprint's part of an integer that only fits unsigned.

    Raises:
        DTypeError: it has more than 64 bits.
    """
    if not 0 <= value < 2**64:
        raise DTypeError(
            f"kernel {kernel}: {p.name} is {value:.3e}, which has more than 64 bits; a kernel's "
            "integers have at most 64. Pass a float, or split it."
        )
    return "big"


def _key(array: ArrayArgument | None, value: Any, device: base.Device) -> Hashable:
    if array is None:
        return device.scalar_key(value)
    if isinstance(array, Tensor):
        return array.key
    return ArrayKey(layout.dtype_key(array.dtype), array.ndim, "C")


def _array(kernel: str, p: Parameter, value: Any) -> ArrayArgument | None:
    """The array that an argument is, None if it is a number; refuses what does not fit."""
    found: ArrayArgument | None = None
    if isinstance(value, Partition):
        if not p.is_output:
            raise LauncherError(
                f"kernel {kernel}: {p.name} is only read, so a partition of it means nothing.\n"
                "Pass the tensor itself, which partition.unpartition() gives, or declare "
                f"{p.name}: na.KernelOutput."
            )
        found = value.tensor
    elif p.role is Role.TILE:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is a na.Tile and needs tiles; pass t.partition(tile), not "
            f"{describe(value)}."
        )
    elif isinstance(value, Tensor):
        found = value
    elif isinstance(value, SharedTensor):
        if p.is_output:
            raise LauncherError(
                f"kernel {kernel}: {p.name} may be written, but {value!r} is shared.\n"
                "Its only holder may write to it as s.partition(tile); everyone else to a copy, "
                "await s.dup()."
            )
        found = value.tensor
    elif isinstance(value, np.ndarray):
        found = _host(kernel, p, value)
    elif _is_number(value) or (isinstance(value, tuple) and _is_numbers(kernel, p, value)):
        if isinstance(value, np.generic):
            with _named(kernel, p):
                number(value)
        if p.role in (Role.INPUT, Role.OUTPUT):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a na.{p.role.value} and takes an array, not "
                f"{describe(value)}."
            )
        return None
    else:
        found = _foreign(kernel, p, value)
        if found is None:
            found = _host(kernel, p, value)
        if found is None:
            raise LauncherError(
                f"kernel {kernel}: {p.name} cannot be {describe(value)}.\n{_instead(p, value)}"
            )
    if p.role is Role.SCALAR:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is annotated as a number, but came as {describe(value)}."
        )
    return found


def _foreign(kernel: str, p: Parameter, value: Any) -> ArrayArgument | None:
    """The array of another library that an argument is, None if it is none."""
    with _named(kernel, p):
        return foreign.argument(value)


def _host(kernel: str, p: Parameter, value: Any) -> HostArray | None:
    """The array that is uploaded for an argument: of NumPy, of a buffer or of a column of numbers;
    None if it is none.
    """
    with _named(kernel, p):
        found: HostArray | None = plain(value) if isinstance(value, np.ndarray) else column(value)
        if found is not None:
            layout.check_dtype(found.dtype, records=True)
    if found is not None and p.is_output:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is written, but an array in host memory is copied to "
            "the device and the result would be lost.\n"
            "Keep a tensor: t = await na.from_host(array)"
        )
    return found


@contextmanager
def _named(kernel: str, p: Parameter) -> Iterator[None]:
    """Errors of the caller say of which parameter they are."""
    try:
        yield
    except CallerError as error:
        raise type(error)(f"kernel {kernel}: {p.name}: {error}") from error.__cause__


def _is_number(value: Any) -> bool:
    if isinstance(value, np.generic):
        return not isinstance(value, np.flexible | np.object_)  # strings, bytes, records
    return isinstance(value, int | float | complex)


def _is_numbers(kernel: str, p: Parameter, values: tuple[Any, ...]) -> bool:
    """Whether a tuple is of numbers, and of tuples of them; False for a launch's result.

    Raises:
        LauncherError: something else is in it.
    """
    if hasattr(type(values), "_output_positions"):
        return False
    for value in values:
        if isinstance(value, tuple):
            _is_numbers(kernel, p, value)
        elif not _is_number(value):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a tuple with {describe(value)} in it; a kernel "
                "takes tuples of numbers only.\nGive each array a parameter of its own."
            )
        elif isinstance(value, np.generic):
            with _named(kernel, p):
                if number(value) is not value:
                    raise DTypeError(f"a time in a tuple ({value!r}).\nWrite x.view(np.int64).")
    return True


def _instead(p: Parameter, value: Any) -> str:
    """What to pass instead of something that a kernel cannot take."""
    positions = getattr(type(value), "_output_positions", None)
    if positions is not None:
        names = type(value)._fields
        element = f"result.{names[positions[0]]}" if positions else f"result.{names[0]}"
        return (
            "That is the result of a launch, a tuple of all its arguments. Pass one of them: "
            f"{element}, or op.output() of the operation that gives it."
        )
    if isinstance(value, DeviceFuture):
        return "It is work under way: await it, and pass what that gives."
    if value is None:
        return f"Pass an array or a number; a kernel that needs no {p.name} does without it."
    if isinstance(value, str | bytes):
        return "Kernels have no text. Pass a number that stands for it."
    if isinstance(value, list):
        return "Write tuple(...) for a few numbers, or np.asarray(...) for an array."
    return (
        "A kernel takes tensors, partitions, NumPy arrays, arrays of other libraries (with "
        "__dlpack__ or __cuda_array_interface__), numbers, tuples of numbers, and operations that "
        "give one of these."
    )
