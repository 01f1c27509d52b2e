"""Whether a kernel's result depends on the order in which blocks and threads run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.arguments import check_number, check_whole, shown, with_type
from numbasync.backend.protocols import Checks
from numbasync.device.device import Device, devices, use_device
from numbasync.dtypes import has_nan, is_extension, row_of
from numbasync.errors import CallerError, DataRaceError, EndlessWaitError
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import from_host
from numbasync.tensors.tensor import Tensor


@dataclass(frozen=True)
class Difference:
    """The first element that differs between two orders.

    Attributes:
        argument: the position of the argument.
        index: of the element.
        values: of the element, under the two orders.
        orders: names of the two orders.
        count: how many elements of the argument differ.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def last_wins(z: na.KernelOutput):
        ...     z[0] = cuda.grid(1)
        >>> race = na.testing.find_race(last_wins[1, 4], [np.zeros(1)])
        >>> race.difference.index, race.difference.values, race.difference.orders
        ((0,), (3.0, 0.0), ('forward', 'reverse'))
    """

    argument: int
    index: tuple[int, ...]
    values: tuple[Any, Any]
    orders: tuple[str, str]
    count: int

    def __str__(self) -> str:
        (a, b), (first_order, second_order) = self.values, self.orders
        return (
            f"element {self.index} of argument {self.argument} is {a} if threads run in "
            f"{first_order} order, and {b} in {second_order} order ({self.count} elements differ)"
        )


@dataclass(frozen=True)
class Race:
    """A race that `find_race` has found.

    Attributes:
        difference: how results differ; None if they are equal in all orders that were tried.
        accesses: two unordered accesses, with their threads and lines; "" if none were seen, for
            example when the result depends on which atomic operation comes first.

    Examples:
        >>> race = na.testing.find_race(saxpy, [np.zeros(6), 2.0, np.ones(6)])
        >>> race is None  # the same result in all orders
        True
    """

    difference: Difference | None
    accesses: str

    def __str__(self) -> str:
        return "\n".join(str(part) for part in (self.difference, self.accesses) if part)


def find_race(
    launch: Callable[..., DeviceOp[Any]],
    args: Sequence[Any],
    *,
    orders: int = 4,
    seed: int = 0,
    rtol: float | None = None,
) -> Race | None:
    """Run a kernel on the CPU device in several orders of blocks and threads, and compare.

    Args:
        launch: the kernel, or a function that builds a launch from such arguments, for example
            `lambda z, x: scale(z.partition(128), x)`.
        args: NumPy arrays, which are copied to new tensors for every run (so an output's array
            holds its initial content), and other values.
        orders: the number of shuffled orders, besides forward and reverse.
        seed: of the first shuffled order.
        rtol: relative difference at which floats count as equal; None: 1e-2 for float16,
            8e-2 for bfloat16, 1e-4 for float32 and 1e-10 for float64, of the largest value.

    Returns:
        The race; None if none was found. None means only that the results are equal in the orders
        that were tried: another order may show a race that the checked accesses do not.

    Raises:
        CallerError: `launch` returns no operation.
        EndlessWaitError: threads wait for later ones in forward order.
        KernelError: the kernel failed in another way.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def collect(z: na.KernelOutput, count: na.KernelOutput):
        ...     z[cuda.atomic.add(count, 0, 1)] = cuda.grid(1)
        >>> race = na.testing.find_race(collect[2, 3], [np.zeros(6), np.zeros(1, np.int32)])
        >>> print(race.difference)
        element (0,) of argument 0 is 0.0 if threads run in forward order, and 5.0 in reverse order
            (6 elements differ)
    """
    for name, value in (("orders", orders), ("seed", seed)):
        check_whole(value, f"{name} of find_race", 0)
    if rtol is not None:
        check_number(rtol, "rtol of find_race")
    if not callable(launch) or not isinstance(args, Sequence):
        raise CallerError(
            f"find_race takes a kernel and a list of arguments, not {with_type(launch)} and "
            f"{with_type(args)}."
        )
    device = devices("cpu")[0]
    accesses = ""
    try:
        _result(device, launch, args, Checks())
    except DataRaceError as error:
        accesses = str(error)
    tried = [("forward", 0), ("reverse", 0)] + [("shuffled", seed + i) for i in range(orders)]
    first: list[Any] = []
    for order, number in tried:
        checks = Checks(order, number, watches=False)  # type: ignore[arg-type]
        try:
            result = _result(device, launch, args, checks)
        except EndlessWaitError:
            if not first:
                raise
            continue  # an order in which a thread comes before the one that it waits for
        first = first or result
        difference = _differ(first, result, rtol, _order_name(order, number))
        if difference is not None:
            return Race(difference, accesses)
    return Race(None, accesses) if accesses else None


def _order_name(order: str, seed: int) -> str:
    return f"shuffled ({seed})" if order == "shuffled" else order


def _result(
    device: Device, launch: Callable[..., DeviceOp[Any]], args: Sequence[Any], checks: Checks
) -> list[Any]:
    """All arrays after one run; None for other arguments."""
    with use_device(device), device.backend.checked(checks):
        arguments = [from_host(a).sync() if isinstance(a, np.ndarray) else a for a in args]
        op = launch(*arguments)
        if not isinstance(op, DeviceOp):
            raise CallerError(
                f"find_race: {shown(launch, 80)} gave {shown(op, 80)} and no operation.\n"
                "Pass the kernel, kernel[grid, block], or a function that gives its launch."
            )
        op.sync()
        return [a.to_host().sync() if isinstance(a, Tensor) else None for a in arguments]


def _differ(
    first: list[Any], second: list[Any], rtol: float | None, order: str
) -> Difference | None:
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if a is None:
            continue
        same = _same(a, b, rtol)
        if not same.all():
            index = tuple(int(k) for k in np.argwhere(~same)[0])
            return Difference(
                i, index, (a[index].item(), b[index].item()), ("forward", order),
                int((~same).sum()),
            )  # fmt: skip
    return None


def _same(a: Any, b: Any, rtol: float | None) -> Any:
    if not has_nan(a.dtype):
        return np.asarray(a == b)
    if rtol is None:
        # Sums of floats in another order differ in their last digits, which is no race.
        rtol = row_of(a.dtype).rtol_reordered
    if is_extension(a.dtype):
        a, b = a.astype(np.float32), b.astype(np.float32)
    finite = np.abs(a[np.isfinite(a)])
    return np.isclose(b, a, rtol=rtol, atol=rtol * float(finite.max(initial=0)), equal_nan=True)
