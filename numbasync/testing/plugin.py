"""The pytest plugin: the device that tests run on, and async tests.

Installed with numbasync, it is active in every test session of the environment; it adds
the option `--device` (and the same as `--numbasync-device`, for projects with a `--device` of
their own), fixtures and a mark, and changes nothing else.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from numbasync import runtime
from numbasync.backend import KINDS, preferred, why_unavailable
from numbasync.device import Device, devices, use_device
from numbasync.errors import DeviceUnavailableError
from numbasync.scheduling import SchedulingPolicy, StreamPoolRoundRobin
from numbasync.stream import Stream
from numbasync.testing import Gate, isolated
from numbasync.testing import gate as make_gate


def pytest_addoption(parser: pytest.Parser) -> None:
    _add_option(parser, "--numbasync-device")
    parser.getgroup("numbasync").addoption(
        "--numbasync-seeds", type=int, default=20, metavar="N",
        help="how many seeds the `seeds` fixture gives (default: 20)",
    )  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Iterator[None]:
    yield
    # Now the project's own plugins and conftest.py have added theirs; two of a name are an
    # error of the whole session.
    wish = "--device=auto"
    with contextlib.suppress(pytest.UsageError):  # there is one, which does not take "auto"
        _, unknown = parser.parse_known_and_unknown_args([wish])
        if wish in unknown:
            _add_option(parser, "--device")


def _add_option(parser: pytest.Parser, name: str) -> None:
    parser.getgroup("numbasync").addoption(
        name,
        dest="numbasync_device",
        choices=["auto", "cpu", "cuda", "all"],
        default="auto",
        help="devices for the `device` fixture: one kind, all that are usable, or auto: the one "
        "of NUMBASYNC_DEVICE, else a GPU if there is one, else the CPU device",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs a usable CUDA device; skipped where none is")
    config.addinivalue_line("markers", "isolated: runs in a process of its own")
    if _wish(config) == "cuda" and not devices("cuda"):
        raise pytest.UsageError(f"--device cuda: {why_unavailable('cuda')}")


def _wish(config: pytest.Config) -> str:
    return str(config.getoption("numbasync_device"))


def _seeds(config: pytest.Config) -> int:
    count: Any = config.getoption("--numbasync-seeds")
    return int(count)


def _kinds(config: pytest.Config) -> list[str]:
    wish = _wish(config)
    if wish == "all":
        return [kind for kind in KINDS if devices(kind)]
    if wish == "auto":
        try:
            return [preferred().kind]
        except DeviceUnavailableError as error:
            raise pytest.UsageError(str(error)) from None
    return [wish]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        needs_cuda = metafunc.definition.get_closest_marker("cuda") is not None
        kinds = ["cuda"] if needs_cuda else _kinds(metafunc.config)
        metafunc.parametrize("device", kinds, indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None:
        return
    if _wish(item.config) == "cpu":
        pytest.skip("needs CUDA, and --device is cpu")
    if not devices("cuda"):
        pytest.skip(f"needs CUDA: {why_unavailable('cuda')}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests on uvloop, unless they are marked for another plugin; and isolated
    ones in a process of their own.
    """
    if isolated.is_wanted(pyfuncitem):
        wish, count = _wish(pyfuncitem.config), _seeds(pyfuncitem.config)
        isolated.run(pyfuncitem, [f"--numbasync-device={wish}", f"--numbasync-seeds={count}"])
        return True
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if any(pyfuncitem.get_closest_marker(name) for name in ("asyncio", "anyio", "trio")):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    runtime.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device under test, current for the test; one test for each kind of `--device`."""
    with use_device(devices(request.param)[0]) as chosen:
        yield chosen


@pytest.fixture
def stream(device: Device) -> Stream:
    """A stream of the device that nothing else uses."""
    return device.new_stream()


@pytest.fixture
def policy(device: Device) -> SchedulingPolicy:
    """A round robin over four streams of the device that nothing else uses."""
    return StreamPoolRoundRobin(device, 4)


@pytest.fixture
def gate(stream: Stream) -> Iterator[Gate]:
    """An open gate on the `stream` fixture; opened again at the end of the test."""
    held = make_gate(stream)
    yield held
    held.open()


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    """Seeds for `numbasync.testing.seeded`, as many as `--numbasync-seeds` says; the same ones
    in every session, so that a failure can be repeated.
    """
    return range(_seeds(request.config))
