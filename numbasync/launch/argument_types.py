"""The type of a kernel's argument: an array, a number, or a value that no parameter accepts.

The messages for an argument of a wrong kind, such as a list, are made here; those for a wrong role
or an alias by `arguments`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.errors import CallerError, DTypeError, LauncherError
from numbasync.launch.parameters import Parameter, Role
from numbasync.ops.future import DeviceFuture
from numbasync.ops.run import describe
from numbasync.tensors import import_array
from numbasync.tensors.copies import HostArray
from numbasync.tensors.host_arrays import column, number, plain
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor
from numbasync.tensors.tensor_map import TensorMap

ArrayArgument: TypeAlias = Tensor | HostArray


def array_of(kernel: str, p: Parameter, value: Any) -> ArrayArgument | None:
    """The array that an argument is, None if the argument is a number.

    Raises:
        LauncherError: the parameter does not accept the argument.
    """
    array: ArrayArgument | None = None
    if isinstance(value, Partition):
        array = value.tensor
    elif p.role is Role.TILE:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is a na.Tile and needs tiles; pass t.partition(tile), not "
            f"{describe(value)}."
        )
    elif isinstance(value, Tensor):
        array = value
    elif isinstance(value, TensorMap):
        array = value.mapped
    elif isinstance(value, SharedTensor):
        if p.is_output:
            raise LauncherError(
                f"kernel {kernel}: {p.name} may be written, but {shown(value)} is shared.\n"
                "Its only holder may write to it as s.partition(tile); everyone else to a copy, "
                "await s.dup()."
            )
        array = value.tensor
    elif isinstance(value, np.ndarray):
        array = _host(kernel, p, value)
    elif is_number(value) or (isinstance(value, tuple) and _is_numbers(kernel, p, value)):
        if isinstance(value, np.generic):
            with named(kernel, p):
                number(value)
        else:
            check_integer(kernel, p, value)
        if p.role in (Role.INPUT, Role.OUTPUT):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a na.{p.role.value} and takes an array, not "
                f"{describe(value)}."
            )
        return None
    else:
        array = _foreign(kernel, p, value)
        if array is None:
            array = _host(kernel, p, value)
        if array is None:
            raise LauncherError(
                f"kernel {kernel}: {p.name} cannot be {describe(value)}.\n{_remedy(p, value)}"
            )
    if p.role is Role.SCALAR:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is annotated as a number, but came as {describe(value)}."
        )
    return array


def _foreign(kernel: str, p: Parameter, value: Any) -> ArrayArgument | None:
    """The array of another library that an argument is, None if it is not such an array."""
    with named(kernel, p):
        return import_array.argument(value)


def _host(kernel: str, p: Parameter, value: Any) -> HostArray | None:
    """The array to upload for an argument: a NumPy array, a buffer or a column of numbers; None for
    any other argument.
    """
    with named(kernel, p):
        array: HostArray | None = plain(value) if isinstance(value, np.ndarray) else column(value)
        if array is not None:
            dtypes.check_dtype(array.dtype, records=True)
    if array is not None and p.is_output:
        raise LauncherError(
            f"kernel {kernel}: {p.name} is written, but an array in host memory is copied to "
            "the device and the result would be lost.\n"
            "Write na.inout(array), which is downloaded again; or keep a tensor: "
            "t = await na.from_host(array)"
        )
    return array


@contextmanager
def named(kernel: str, p: Parameter) -> Iterator[None]:
    """Prefix errors of the caller with the kernel and the parameter that they concern."""
    try:
        yield
    except CallerError as error:
        raise type(error)(f"kernel {kernel}: {p.name}: {error}") from error.__cause__


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a member of an enumeration of numbers or tuples of them."""
    if isinstance(value, np.generic):
        return not isinstance(value, np.flexible | np.object_)  # strings, bytes, records
    if isinstance(value, enum.Enum):
        values = value.value if isinstance(value.value, tuple) else (value.value,)
        return all(map(is_number, values))
    return isinstance(value, int | float | complex)


def big(kernel: str, p: Parameter, value: int) -> str:
    """The part of the fingerprint for an integer that fits only as unsigned.

    Raises:
        DTypeError: the integer has more than 64 bits.
    """
    if not 0 <= value < 2**64:
        bits = value.bit_length()
        shown = f"{value:.3e}" if bits < 1000 else f"an integer of {bits} bits"
        raise DTypeError(
            f"kernel {kernel}: {p.name} is {shown}, which has more than 64 bits; a kernel's "
            "integers have at most 64. Pass a float, or split it."
        )
    return "big"


def check_integer(kernel: str, p: Parameter, value: Any) -> None:
    """Refuse an integer of more than 64 bits (`big`), also of an enumeration or in a tuple."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        big(kernel, p, value)


def _is_numbers(kernel: str, p: Parameter, values: tuple[Any, ...]) -> bool:
    """Whether a tuple consists of numbers, and of tuples of numbers; False for a launch's result.

    Raises:
        LauncherError: the tuple has a member that is not a number.
    """
    if hasattr(type(values), "_output_positions"):
        return False
    for value in values:
        if isinstance(value, tuple):
            _is_numbers(kernel, p, value)
        elif not is_number(value):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a tuple with {describe(value)} in it; a kernel "
                "takes tuples of tensors, NumPy arrays and numbers.\nOf an operation, pass what it "
                "gives: value = await op."
            )
        elif isinstance(value, np.generic):
            with named(kernel, p):
                if number(value) is not value:
                    raise DTypeError(
                        f"a time in a tuple ({shown(value)}).\nWrite x.view(np.int64)."
                    )
        else:
            check_integer(kernel, p, value)
    return True


def _remedy(p: Parameter, value: Any) -> str:
    """The remedy for a value that a kernel cannot take."""
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
        return (
            f"Pass an array or a number. A kernel that can do without {p.name} tests for it, "
            f"if {p.name} is not None: ..., or has None as its default."
        )
    if isinstance(value, str | bytes):
        return "Kernels have no text. Pass a number that stands for it."
    if isinstance(value, list):
        return "Write tuple(...) for a few numbers, or np.asarray(...) for an array."
    return (
        "A kernel takes tensors, partitions, NumPy arrays, arrays of other libraries (with "
        "__dlpack__ or __cuda_array_interface__), numbers, tuples of numbers, and operations that "
        "give one of these."
    )
