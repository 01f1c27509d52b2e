"""Tests of programs for `numba.cuda` whose kernels are checked: `--cuda-on-cpu --kernel-races=N`.

A plugin of its own, which a session has if it asks for it: its fixture is used by every test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from numbasync.testing import checked
from numbasync.testing.plugin import needs
from numbasync.testing.plugin.fixtures import Place, places


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
        if "device" not in metafunc.fixturenames:  # which has orders of its own
            orders = places("cpu", True, self.races)
            metafunc.parametrize("cuda_on_cpu_order", orders, ids=str, indirect=True)
