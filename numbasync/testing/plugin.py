"""The pytest plugin: the device that tests run on, and async tests.

Installed with numbasync, it is active in every test session of the environment; it adds
the option `--device`, fixtures and a mark, and changes nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from numbasync import runtime
from numbasync.backend import why_unavailable
from numbasync.device import Device, devices, use_device
from numbasync.scheduling import SchedulingPolicy, StreamPoolRoundRobin
from numbasync.stream import Stream
from numbasync.testing import Gate
from numbasync.testing import gate as make_gate


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("numbasync")
    group.addoption(
        "--device",
        choices=["auto", "cpu", "cuda", "all"],
        default="auto",
        help="devices for the `device` fixture: one kind, all that are usable, or auto: a GPU if "
        "there is one, else the CPU device",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs a usable CUDA device; skipped where none is")
    if config.getoption("--device") == "cuda" and not devices("cuda"):
        raise pytest.UsageError(f"--device cuda: {why_unavailable('cuda')}")


def _kinds(config: pytest.Config) -> list[str]:
    wish = config.getoption("--device")
    if wish in ("cpu", "cuda"):
        return [wish]
    usable = [kind for kind in ("cuda", "cpu") if devices(kind)]
    return usable[:1] if wish == "auto" else usable


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        needs_cuda = metafunc.definition.get_closest_marker("cuda") is not None
        kinds = ["cuda"] if needs_cuda else _kinds(metafunc.config)
        metafunc.parametrize("device", kinds, indirect=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None:
        return
    if item.config.getoption("--device") == "cpu":
        pytest.skip("needs CUDA, and --device is cpu")
    if not devices("cuda"):
        pytest.skip(f"needs CUDA: {why_unavailable('cuda')}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests on uvloop, unless they are marked for another plugin."""
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
