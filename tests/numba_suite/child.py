"""The tests of one module, run in a process of their own.

Every test is noted in a file when it begins and when it ends, so that the process that reads
it knows which one a crash belongs to.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tests.numba_suite import launch
from tests.numba_suite.outcome import (
    FAILED,
    NO_DRIVER,
    NO_LAUNCH,
    NO_OUTPUT,
    PASSED,
    SKIPPED,
)

# What the stand-ins do not stand in for says so by one of these.
DRIVER_ERRORS = (
    "CudaAPIError", "CudaDriverError", "CudaSupportError", "LinkerError", "NvvmError",
    "NvvmSupportError", "NvrtcError",
)  # fmt: skip
# Which kernel it was is the test's name; without it, equal reasons are equal.
_PLACE = re.compile(r"^kernel \w+(, block \([^)]*\), thread \([^)]*\))?: ")
HELPERS = ("complex_usecases", "enum_usecases", "recursion_usecases")


def main(
    module: str, out: Path, done: Collection[str], seconds: float, beyond: bool = False
) -> None:
    """Run every test of `module`, such as `cudapy.test_sync`, that is not in `done`."""
    from tests.numba_suite import stand_ins

    warnings.simplefilter("ignore")
    stand_ins.install(beyond)
    with out.open("a", encoding="utf-8") as file:
        try:
            loaded = _import(module)
        except BaseException as error:
            kind, reason = _judged_error(error, launched=False)
            _write(file, {"end": "(module)", "kind": kind, "reason": reason, "seconds": 0})
            return
        suite = unittest.TestSuite(t for t in _tests(loaded) if _name(t) not in done)
        suite.run(Tally(file, seconds))


def suite() -> Path:
    """The folder of the tests of the numba-cuda that is installed."""
    spec = importlib.util.find_spec("numba.cuda.tests")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _import(name: str) -> ModuleType:
    """A test module, under a name of its own: its functions are a user's, not Numba's."""
    package = ModuleType("judged")
    package.__path__ = [str(suite())]
    sys.modules["judged"] = package
    for helper in HELPERS:  # which some tests import by their full names
        made = importlib.import_module(f"judged.cudapy.{helper}")
        sys.modules[f"numba.cuda.tests.cudapy.{helper}"] = made
    return importlib.import_module(f"judged.{name}")


def _tests(module: ModuleType) -> Iterator[unittest.TestCase]:
    loaded = unittest.defaultTestLoader.loadTestsFromModule(module)
    yield from _flat(loaded)
    for name, value in vars(module).items():
        plain = isinstance(value, FunctionType) and not getattr(value, "pytestmark", ())
        if plain and name.startswith("test_"):
            yield unittest.FunctionTestCase(value)


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _name(test: unittest.TestCase) -> str:
    if isinstance(test, unittest.FunctionTestCase):
        return str(test.id())
    return f"{type(test).__name__}.{getattr(test, '_testMethodName', test.id())}"


def _write(file: io.TextIOBase | Any, record: dict[str, Any]) -> None:
    file.write(json.dumps(record) + "\n")
    file.flush()


class Tally(unittest.TestResult):
    """Writes down what becomes of each test."""

    def __init__(self, file: Any, seconds: float) -> None:
        super().__init__()
        self._file = file
        self._seconds = seconds
        self._said: tuple[str, str] | None = None
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        launch.launched.clear()
        launch.attempts.clear()
        launch.refused.clear()
        self._said = None
        self._began = time.perf_counter()
        _write(self._file, {"begin": _name(test)})
        # From a thread that needs no interpreter lock: compiled code may hold that.
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=2)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        kind, reason = self._said or _passed()
        seconds = round(time.perf_counter() - self._began, 3)
        _write(self._file, {"end": _name(test), "kind": kind, "reason": reason, "seconds": seconds})
        super().stopTest(test)

    def _say(self, kind: str, reason: str) -> None:
        self._said = self._said or (kind, reason)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._say(SKIPPED, reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._say(SKIPPED, "is expected to fail")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._say(*_passed())  # what Numba expects of itself

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._say(*_judged_error(err[1], bool(launch.attempts)))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._say(*_judged_error(err[1], bool(launch.attempts)))
        if not isinstance(test, unittest.TestCase):  # setUpClass
            name = str(test)
            kind, reason = self._said or (FAILED, "")
            _write(self._file, {"end": name, "kind": kind, "reason": reason, "seconds": 0})

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._say(*_judged_error(err[1], bool(launch.attempts)))


def _passed() -> tuple[str, str]:
    if not launch.launched and not launch.refused:
        return SKIPPED, NO_LAUNCH
    return PASSED, ""


def _judged_error(error: BaseException, launched: bool) -> tuple[str, str]:
    """Whether the device failed a test, or the test asks for what is not there."""
    chain = [error, error.__cause__, error.__context__]
    if isinstance(error, subprocess.CalledProcessError):
        return SKIPPED, "runs in a process of its own"
    if any(type(e).__name__ in DRIVER_ERRORS for e in chain if e is not None):
        return SKIPPED, NO_DRIVER
    if isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return SKIPPED, str(error)
    if any(isinstance(e, unittest.SkipTest) for e in chain):
        return SKIPPED, NO_OUTPUT
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    where = traceback.extract_tb(error.__traceback__)[-1:]
    at = f"\n{where[0].filename}:{where[0].lineno}" if where else ""
    reason = f"{type(error).__name__}: {_PLACE.sub('', said):.160}{at}"
    if launched:
        return FAILED, reason
    return SKIPPED, f"{NO_LAUNCH} before it fails: {reason}"


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(given["module"], Path(given["out"]), given["done"], given["seconds"], given["beyond"])
