"""Tests of programs for `numba.cuda`: the summary of what they launched, and checked kernels
(`--cuda-on-cpu --kernel-races=N`).

Plugins of their own, which a session has if it asks for them: a fixture is used by every test.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from numbasync.testing import checked
from numbasync.testing.plugin import needs
from numbasync.testing.plugin.fixtures import Place, places, takes_device

_HOME = "numbasync.cpu_cuda.summary"
_SENT = "numbasync_launched"  # the key of what workers of pytest-xdist send


class Summary:
    """The kernels of the session, told at its end."""

    def __init__(self) -> None:
        self._rows: list[Any] = []  # of workers

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)  # exists in a worker
        if output is not None:
            output[_SENT] = [tuple(row) for row in import_module(_HOME).rows()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect what a worker has launched."""
        self._rows += getattr(node, "workeroutput", {}).get(_SENT, [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        summary = import_module(_HOME)
        lines = summary.lines([*self._rows, *summary.rows()])
        if lines:
            terminalreporter.section("CUDA kernels on the CPU device")
            for line in lines:
                terminalreporter.write_line(line)


class CheckedPrograms:
    """
    Attributes:
        races: orders of threads in which each test runs.
    """

    def __init__(self, races: int) -> None:
        self.races = races

    @pytest.fixture(autouse=True)
    def cuda_on_cpu_order(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """The order of threads; methods of `unittest` have no parameters, and the first order."""
        place: Place = getattr(request, "param", places("cpu", True, 1)[0])
        if place.order is None:
            yield
            return
        with checked(needs.device_of("cpu", True), place.order, place.seed):
            yield

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if not takes_device(metafunc):  # which has orders of its own
            orders = places("cpu", True, self.races)
            metafunc.parametrize("cuda_on_cpu_order", orders, ids=str, indirect=True)
