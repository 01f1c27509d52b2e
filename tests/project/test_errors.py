"""Errors say whose fault it is, and fit the built-in that a caller would catch."""

from __future__ import annotations

import inspect
import re

import pytest

from numbasync import errors

CLASSES = [
    c for _, c in inspect.getmembers(errors, inspect.isclass)
    if issubclass(c, errors.NumbasyncError) and c is not errors.NumbasyncError
]  # fmt: skip
FAULTS = (
    errors.CallerError, errors.StateError, errors.DeviceError, errors.DriverError,
    errors.InternalError,
)  # fmt: skip


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_a_culprit_and_a_meaning(error: type) -> None:
    assert sum(issubclass(error, fault) for fault in FAULTS) == 1
    assert error.__doc__ and len(error.__doc__) > 30


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(errors.ShapeError, ValueError), (errors.DTypeError, TypeError),
     (errors.OutOfDeviceMemoryError, MemoryError), (errors.StateError, RuntimeError),
     (errors.MissingExtraError, ImportError), (errors.LaunchError, ValueError),
     (errors.UnsupportedKernelError, NotImplementedError)],
)  # fmt: skip
def test_errors_are_the_builtin_that_fits(error: type, builtin: type) -> None:
    assert issubclass(error, builtin)


def test_a_driver_error_names_cause_and_remedy() -> None:
    error = errors.DriverError("cuLaunchKernel", 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument")
    for part in ("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "(1)", "Cause:", "Remedy:"):
        assert part in str(error)
    assert (error.call, error.code) == ("cuLaunchKernel", 1)


@pytest.mark.parametrize("name", errors.REMEDIES, ids=str)
def test_remedies_are_sentences(name: str) -> None:
    cause, remedy = errors.REMEDIES[name]
    assert re.fullmatch(r"CUDA_ERROR_[A-Z0-9_]+", name)
    assert cause.endswith(".") and len(remedy) > 10


def test_every_context_breaking_fault_has_a_remedy() -> None:
    assert set(errors.REMEDIES) >= errors.STICKY


@pytest.mark.parametrize("name", sorted(errors.STICKY.union(errors.REMEDIES)))
def test_the_names_are_the_drivers(name: str) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert hasattr(driver.CUresult, name)
