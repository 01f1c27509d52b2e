"""Values that functions of the package cannot take: refused where they are given, by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import CallerError, DTypeError, LaunchError, OperationError, ShapeError
from numbasync.testing import inject
from tests.common import add_one, saxpy


def new_stream() -> na.Stream:
    return na.default_device().new_stream()


def new_event() -> na.Event:
    return na.default_device().new_event()


def no_device(what: str) -> str:
    return rf"{what} takes a device, not str \('cpu'\): write na\.devices\('cpu'\)\[0\]"


CASES: dict[str, tuple[type, str, Callable[[], Any]]] = {
    "limit of no device": (
        CallerError, no_device("limit"), lambda: na.limit(1, device="cpu")),  # type: ignore[arg-type]
    "buffer of no device": (
        CallerError, no_device("a page-locked array"), lambda: na.pinned(3, device="cpu")),  # type: ignore[arg-type]
    "buffer of device number 0": (
        CallerError, r"not int \(0\)", lambda: na.pinned(3, device=0)),  # type: ignore[arg-type]
    "runtime of no device": (
        CallerError, no_device("Runtime"), lambda: na.Runtime("cpu")),  # type: ignore[arg-type]
    "tensor on no device": (
        CallerError, no_device("as_tensor"), lambda: na.as_tensor(np.ones(1), "cpu")),  # type: ignore[arg-type]
    "a class as policy": (
        OperationError, "no scheduling policy",
        lambda: na.value(1).schedule(na.SingleStream)),  # type: ignore[arg-type]
    "a priority in words": (
        CallerError, "a stream's priority is 'high': write a whole number",
        lambda: na.Priority(na.default_device(), "high")),  # type: ignore[arg-type]
    "an event where a stream goes": (
        CallerError, r"wait_for takes a stream, not Event \(<Event",
        lambda: new_stream().wait_for(new_event())),  # type: ignore[arg-type]
    "a device where a stream goes": (
        CallerError, r"record takes a stream, not Device",
        lambda: new_event().record(na.default_device())),  # type: ignore[arg-type]
    "wait of no stream": (
        CallerError, r"wait takes a stream, not int \(3\)", lambda: new_event().wait(3)),  # type: ignore[arg-type]
    "time to no event": (
        CallerError, r"elapsed_ms takes an event, not Stream",
        lambda: new_event().elapsed_ms(new_stream())),  # type: ignore[arg-type]
    "long doubles": (
        DTypeError, "cannot hold .*; use .* a float of at most 64 bits",
        lambda: na.zeros(3, np.longdouble)),
    "then of no function": (
        OperationError, r"then takes a function, not int \(3\)",
        lambda: na.zeros(3).then(3)),  # type: ignore[arg-type]
    "then of an operation": (
        OperationError, r"then takes a function, not Full \(<DeviceOp ones\(\(3,\)\), not run>",
        lambda: na.zeros(3).then(na.ones(3))),  # type: ignore[arg-type]
    "inspect of no function": (
        OperationError, r"inspect takes a function, not NoneType",
        lambda: na.zeros(3).inspect(None)),  # type: ignore[arg-type]
    "defer of an operation": (
        OperationError, "defer takes a function", lambda: na.defer(na.ones(3))),  # type: ignore[arg-type]
    "with_context of no function": (
        OperationError, "with_context takes a function", lambda: na.with_context(3)),  # type: ignore[arg-type]
    "first of nothing": (
        OperationError, r"gave an empty tuple", lambda: na.value(()).first().sync()),
    "fill of an operation": (
        OperationError, r"fill takes a tensor, not <DeviceOp.*await op, .*na\.fill\(t, \.\.\.\)",
        lambda: na.fill(na.zeros(3), 1)),  # type: ignore[arg-type]
    "memcpy to an operation": (
        OperationError, r"dst of memcpy .*not Full \(<DeviceOp(.|\n)*await op",
        lambda: na.memcpy(na.zeros(3), np.zeros(3))),  # type: ignore[arg-type]
    "arange of text": (DTypeError, "stop of arange is 'a'", lambda: na.arange("a")),  # type: ignore[arg-type]
    "arange without end": (
        ShapeError, "arange from 0 to inf by 1 has no end", lambda: na.arange(float("inf"))),
    "arange to no number": (ShapeError, "finite", lambda: na.arange(float("nan"))),
    "a dtype as seed": (
        DTypeError, r"seed=.*dtype=np\.float64", lambda: na.rand(4, np.float64)),  # type: ignore[arg-type]
    "a seed below 0": (DTypeError, "seed=-1", lambda: na.randn(4, seed=-1)),
    "one text of preconditions": (
        CallerError, r"is a list of conditions, not one text; write preconditions=\['z.size > 1'\]",
        lambda: na.launcher(preconditions="z.size > 1")(add_one.kernel)),
    "two are missing": (
        CallerError, "add_two.*: z and x are missing", lambda: na.launcher(add_two)()),  # type: ignore[call-arg]
}  # fmt: skip


def add_two(z, x):
    z[0] = x[0] + 2


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_value_is_refused_where_given(device: na.Device, case: str) -> None:
    error, message, call = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor does what was refused warn that it never ran
        with pytest.raises(error, match=message):
            call()


def test_a_device_takes_policies_and_pools_not_none(device: na.Device) -> None:
    policy, pool = device.policy, device.pool
    for wrong in (3, na.SingleStream):
        with pytest.raises(CallerError, match="has next_stream"):
            device.policy = wrong  # type: ignore[assignment]
    with pytest.raises(CallerError, match=r"int \(3\) is no pool"):
        device.pool = 3  # type: ignore[assignment]
    assert device.policy is policy and device.pool is pool


@pytest.mark.parametrize("n", [-1, "a"])
def test_unzip_makes_a_number_of_elements(device: na.Device, n: Any) -> None:
    op = na.value((1, 2)).map(lambda pair: pair)
    with pytest.raises(OperationError, match=r"n in unzip\(n\) of value.*: write a whole number"):
        op.unzip(n)
    assert [part.sync() for part in op.unzip(2)] == [1, 2]  # it is there still


async def test_a_future_whose_operation_failed_says_so(device: na.Device) -> None:
    with inject(device, "kernel"):
        future = na.spawn(add_one(na.zeros(4)))
        with pytest.raises(na.errors.KernelError):
            await future
    assert repr(future).startswith("<DeviceFuture add_one(z), failed, on <Stream")


async def test_runtime_runs_what_can_be_awaited(device: na.Device) -> None:
    nothing: Any = 3
    async with na.Runtime(device) as rt:
        with pytest.raises(CallerError, match=r"not int \(3\).*Runtime\.call"):
            await rt.run(nothing)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**40])
def test_numbers_above_64_bits_are_refused_by_name(device: na.Device, number: int) -> None:
    z, x = na.zeros(4).sync(), na.ones(4).sync()
    with pytest.raises(DTypeError, match=r"kernel saxpy: a is .*e\+.*more than 64 bits"):
        saxpy(z, number, x)


@pytest.mark.parametrize("count", ["a", 1.5, None], ids=str)
def test_shared_memory_is_counted_in_whole_bytes(device: na.Device, count: Any) -> None:
    for configure in (lambda: saxpy[1, 32, 0, count], lambda: saxpy.forall(8, sharedmem=count)):
        with pytest.raises(LaunchError, match=r"kernel saxpy: dynamic shared memory is a whole"):
            configure()


@pytest.mark.parametrize("threads", ["a", 1.5, -1, None], ids=str)
def test_forall_counts_threads(device: na.Device, threads: Any) -> None:
    with pytest.raises(LaunchError, match="n of forall.*: write a whole number of at least 0"):
        add_one.forall(threads)
