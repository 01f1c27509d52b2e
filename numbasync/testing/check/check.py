"""`check_kernel`: a kernel against its reference, on every device, in many orders.

The kernel runs on the CPU device first, where a wrong index is an error with a location, so that
a wrong kernel does not break a GPU. There the kernel runs once with checked accesses, once
unchanged, and then in other orders of blocks and threads. If the current device is another one,
the kernel runs there last, and the results of the two devices are compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.arguments import as_items, as_whole, shown
from numbasync.backend.protocols import Checks, Writers
from numbasync.device.device import Device, default_device, devices
from numbasync.dtypes import is_extension
from numbasync.errors import (
    CallerError,
    EndlessWaitError,
    KernelError,
    UnsupportedKernelError,
)
from numbasync.facts.effects import only_stored_to
from numbasync.testing.check import settings
from numbasync.testing.check.closeness import Array, Tolerance, wider
from numbasync.testing.check.failures import KernelFailure, kind_of
from numbasync.testing.check.guarded_run import Extents, Result, Subject, Tile, launcher_of
from numbasync.testing.check.judge import Judge
from numbasync.testing.check.poison import poisoned, told_apart


def check_kernel(
    kernel: Any,
    args: Sequence[Any],
    reference: Callable[..., Any] | None,
    *,
    tile: Tile | None = None,
    grid: Any = None,
    block: Any = None,
    shared_bytes: int = 0,
    grids: Sequence[tuple[Any, Any]] = (),
    rtol: float | None = None,
    atol: float | None = None,
    ulp: float | None = None,
    poison: bool | Collection[str] = True,
    races: int | bool = settings.DEFAULT_RACES,
    seed: int | None = None,
) -> None:
    """Run a kernel on copies of `args`, and fail with a report unless its results are correct.

    The kernel runs on the CPU device: once with every access checked, once unchanged, and then
    with blocks and threads in reverse, checked again, and in shuffled orders. If the current
    device is another one, the kernel also runs there, and its results are compared with the
    reference and with those of the CPU device. Guard zones around every array must not change, nor
    may inputs. Outputs that the kernel only stores to hold NaN or noise before the launch.

    Args:
        kernel: made by `@na.launcher`, or by `@cuda.jit` alone.
        args: in signature order: NumPy arrays, numbers, tuples of numbers. An output's array
            holds the output's content before the launch.
        reference: called with copies of `args`, floats in higher precision; returns the expected
            output, or a tuple in the order of the outputs, with None for an output that is not
            checked. If the function returns None alone, it has changed its arguments to the
            expected outputs. None instead of a function: devices and orders are only compared
            with each other.
        tile: partition every output into such tiles; or a dictionary of tiles by output name.
        grid, block: of the launch, as in `kernel[grid, block]`; None: the launcher's choice.
        shared_bytes: of dynamic shared memory.
        grids: further launches to try, `(grid, block)` each, of whole outputs.
        rtol, atol, ulp: an element may differ by `atol + rtol * |expected|`, or by `ulp` spacings
            of its type. If all are None: 1e-5 for float32 (float16 5e-3, bfloat16 4e-2, float64
            1e-12) of the value, plus a tenth of that of the largest value; integers are exact.
        poison: whether to fill outputs before the launch; or the names of the outputs to fill.
        races: the number of shuffled orders; 0 or False: no other orders and no checked accesses.
        seed: of the orders and of the values that outputs are filled with.

    Raises:
        KernelMismatch, KernelRace, OutOfBounds, UninitialisedRead, BarrierDivergence,
        InputModified: the check failed; all are `AssertionError`.
        KernelError: the kernel raised an exception.
        EndlessWaitError: on the CPU device a thread waits for one that runs after it.
        CallerError: the arguments do not fit the kernel, or the reference does not fit them.

    Examples:
        >>> x = np.arange(1, 6, dtype=np.float32)
        >>> na.testing.check_kernel(saxpy, [np.ones_like(x), 2.0, x], lambda z, a, x: a * x + z)

        A wrong result, or here a wrong expectation, is an error with a report:

        >>> na.testing.check_kernel(saxpy, [np.ones_like(x), 2.0, x], lambda z, a, x: a * x)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.KernelMismatch: kernel saxpy on cpu:0, grid (1, 1, 1),
            block (256, 1, 1): 5 of 5 elements of z are wrong (default tolerance)
          first at (0,): got 3.0, want 2.0: off by 1, 4.19e+06 ulp
          written by block (0, 0, 0), thread (0, 0, 0) (the last that changed it)
          blocks (1 block along x; # all wrong, + some, . none):
            #
        again: ...
    """
    __tracebackhide__ = True
    if reference is not None and not callable(reference):
        raise CallerError(
            f"check_kernel: the reference is a function of the arguments, not {shown(reference)}; "
            "write lambda *args: ... for what is known already."
        )
    for name, value in (("args", args), ("grids", grids)):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise CallerError(f"check_kernel: {name}={shown(value)}: write a tuple or a list.")
    subject = Subject(launcher_of(kernel), tuple(args))
    subject.check_tile(tile)
    plan = Plan.of(races, seed, Tolerance(rtol, atol, ulp))
    launches = [Extents(tile, grid, block, shared_bytes)]
    launches += [Extents(None, *_pair(pair), shared_bytes) for pair in grids]
    subject = _with_poison(subject, poison, plan.seed)
    wants = _expected(subject, reference)
    replacements = {
        n: told_apart(subject.arrays[n], w) for n, w in wants.items() if n in subject.filled
    }
    if any(replacement is not None for replacement in replacements.values()):
        subject = subject.filled_with({n: a for n, a in replacements.items() if a is not None})
        wants = _expected(subject, reference)  # the reference may keep the outputs' content
    for extents in launches:
        Check(subject, extents, plan, None if reference is None else wants).run()


def _pair(launch: Any) -> tuple[Any, Any]:
    if not isinstance(launch, Sequence) or len(launch) != 2:
        raise CallerError(
            f"check_kernel: grids= has {shown(launch)}; write (grid, block) for each launch, as in "
            "grids=[(1, 1), (7, 64)]."
        )
    return launch[0], launch[1]


MOST_RACES = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a check.

    Attributes:
        orders: the number of shuffled orders; 0: no other orders and no checked accesses.
    """

    orders: int
    seed: int
    tolerance: Tolerance

    @staticmethod
    def of(races: int | bool, seed: int | None, tolerance: Tolerance) -> Plan:
        """The plan from the arguments of `check_kernel` and the options of the session."""
        options = settings.current()
        asked = (("races", races, MOST_RACES), ("seed", 0 if seed is None else seed, 2**63 - 1))
        for name, value, most in asked:
            number = int(value) if isinstance(value, bool) else as_whole(value)
            if number is None or not 0 <= number <= most:
                raise CallerError(
                    f"check_kernel: {name}={shown(value)}: a whole number from 0 to {most:,}."
                )
        orders = settings.DEFAULT_RACES if races is True else int(races)
        orders = max(orders, options.races) if orders else 0
        return Plan(orders, options.seed if seed is None else int(seed), tolerance)


def _with_poison(subject: Subject, poison: bool | Collection[str], seed: int) -> Subject:
    if poison is False:
        return subject
    names: Collection[str]
    if poison is True:
        names = only_stored_to(subject.kernel.py_func) & set(subject.outputs) - subject.shared
    else:
        listed = (poison,) if isinstance(poison, str) else as_items(poison)
        if listed is None or not all(isinstance(n, str) for n in listed):
            raise CallerError(
                f"check_kernel: poison={shown(poison)}: True, False, or names of outputs."
            )
        names = listed
        unknown = sorted(set(names) - set(subject.outputs))
        if unknown:
            raise CallerError(
                f"check_kernel: poison={shown(poison)}: {unknown[0]} is no output of "
                f"{subject.kernel.label}; its outputs are {', '.join(subject.outputs) or 'none'}."
            )
    generator = np.random.default_rng(seed)
    arrays = subject.arrays
    return subject.filled_with({n: poisoned(arrays[n], generator) for n in sorted(names)})


def _expected(subject: Subject, reference: Callable[..., Any] | None) -> dict[str, Array]:
    """The expected values of the outputs that the reference determines, by name."""
    if reference is None:
        return {}
    outputs = subject.outputs
    arguments = [wider(value) for value in subject.values]
    with np.errstate(all="ignore"):
        expected = reference(*arguments)
    if expected is None:
        arguments_by_name = dict(zip(subject.names, arguments, strict=True))
        expected = tuple(arguments_by_name[name] for name in outputs)
    parts = expected if isinstance(expected, tuple) else (expected,)
    if len(parts) != len(outputs):
        raise CallerError(
            f"check_kernel: the reference gave {len(parts)} arrays, and {subject.kernel.label} has "
            f"{len(outputs)} outputs: {', '.join(outputs) or 'none'}. Return a tuple of one array "
            "each, in this order; None for one that may be anything."
        )
    arrays, wants = subject.arrays, {}
    for name, part in zip(outputs, parts, strict=True):
        if part is not None:
            wants[name] = _fitting(name, part, arrays[name])
    return wants


def _fitting(name: str, part: Any, array: Array) -> Array:
    try:
        want = np.asarray(part)
    except ValueError:  # lists of different lengths
        raise CallerError(
            f"check_kernel: the reference gave {shown(part)} for {name}, which is no array."
        ) from None
    kinds = "biufc" if array.dtype.kind == "c" else "biuf"
    fits = want.dtype.kind in kinds or is_extension(want.dtype)
    if not (fits if array.dtype.names is None else want.dtype.names == array.dtype.names):
        advice = "; return its .real" if want.dtype.kind == "c" else ""
        raise CallerError(
            f"check_kernel: the reference gave {want.dtype} for {name}, which is {array.dtype}"
            f"{advice}."
        )
    try:
        return np.broadcast_to(want, array.shape)
    except ValueError:
        raise CallerError(
            f"check_kernel: the reference gave an array of shape {want.shape} for {name}, which "
            f"has shape {array.shape}."
        ) from None


class Check:
    """One launch of `check_kernel`, on all devices and in all orders."""

    def __init__(
        self, subject: Subject, extents: Extents, plan: Plan, wants: dict[str, Array] | None
    ) -> None:
        self._subject = subject
        self._extents = extents
        self._plan = plan
        self._judge = Judge(subject, extents, plan.tolerance, wants, plan.seed)

    def run(self) -> None:
        __tracebackhide__ = True
        here, cpus = default_device(), devices("cpu")
        cpu = here if here in cpus else cpus[0]
        try:
            plain = self._on_cpu(cpu)
        except UnsupportedKernelError as error:
            if cpu is here:
                raise
            warnings.warn(f"checked on {here.label} alone: {error}", RuntimeWarning, stacklevel=3)
            plain = None
        if cpu is not here:
            self._judge.other(self._launch(here, None), here, cpu, plain)

    def _on_cpu(self, device: Device) -> Result:
        __tracebackhide__ = True
        writers = self._watched(device) if self._plan.orders else None
        plain = self._launch(device, None)
        self._judge.first(plain, device, writers)
        if self._plan.orders:
            # Watched, too: what one order of the threads hides, the other may show.
            self._reordered(device, Checks("reverse"), "reverse", plain)
        for i in range(self._plan.orders):
            seed = self._plan.seed + i
            checks = Checks("shuffled", seed, watches=False)
            self._reordered(device, checks, f"shuffled (seed {seed})", plain)
        return plain

    def _reordered(self, device: Device, checks: Checks, name: str, plain: Result) -> None:
        __tracebackhide__ = True
        try:
            result = self._launch(device, checks)
        except EndlessWaitError:
            return  # an order in which a thread comes before the one that it waits for
        self._judge.reordered(result, device, name, plain)

    def _watched(self, device: Device) -> Writers | None:
        __tracebackhide__ = True
        try:
            result = self._launch(device, Checks("forward"))
        except EndlessWaitError:
            raise
        except UnsupportedKernelError:
            return None  # if the kernel cannot run unchecked either, the next launch raises
        self._judge.first(result, device, result.writers)
        return result.writers

    def _launch(self, device: Device, checks: Checks | None) -> Result:
        __tracebackhide__ = True
        try:
            return self._subject.run(device, self._extents, checks)
        except KernelError as error:
            cls = kind_of(error)
            report = self._judge.about(device, checks)
            if cls is None:
                error.add_note(report)
                raise
            failure: KernelFailure = cls(f"{error}\n{report}")
            raise failure from None  # it says what the error says
