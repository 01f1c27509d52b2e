"""The pytest plugin: the devices that tests run on, async tests, and the detection of leaks.

The plugin is installed with numbasync, and active in every test session of the environment. It
adds options, fixtures and marks; where none of these is used, its only effect is that async tests
run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Mapping
from importlib import import_module
from typing import Any

import pytest

from numbasync.backend import KINDS, preferred, why_unavailable
from numbasync.device.device import Device, devices
from numbasync.device.storage import MemoryPool
from numbasync.errors import CallerError, DeviceUnavailableError
from numbasync.launch.variants import compile_with_lines
from numbasync.testing.check import settings
from numbasync.testing.plugin import async_tests, cuda_on_cpu, isolated, leaks, needs, sanitizer
from numbasync.testing.plugin.fixtures import Place, clock_of, measured, places, takes_device
from numbasync.testing.plugin.fixtures import benchmark_kernel as benchmark_kernel
from numbasync.testing.plugin.fixtures import device as device
from numbasync.testing.plugin.fixtures import gate as gate
from numbasync.testing.plugin.fixtures import policy as policy
from numbasync.testing.plugin.fixtures import seeds as seeds
from numbasync.testing.plugin.fixtures import stream as stream
from numbasync.testing.plugin.options import Options, add_device_option, add_options, of
from numbasync.testing.timing.benchmark_kernel import Benchmarks, Replay
from numbasync.tuning.settings import requested as tuning_requested
from numbasync.tuning.settings import use as use_tuning

MARKS = (
    "cuda(min_cc=..., min_memory=..., devices=...): needs CUDA, and says of what kind, or skips",
    "isolated: runs in a process of its own",
    "may_leave(why): may leave something behind, also with --strict-leaks",
)
_SENT = "numbasync_benchmarks"  # the key of the results that workers of pytest-xdist send
_before = pytest.StashKey[leaks.Before]()
_pools = pytest.StashKey[Mapping[Device, MemoryPool]]()
_was = pytest.StashKey[settings.Settings]()
_tuned = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Iterator[None]:
    if early_config.known_args_namespace.cuda_on_cpu:  # before a conftest.py imports a program
        import_module("numbasync.cpu_cuda").switch(True)
    yield
    # By now the project's own plugins and conftest.py have added their options; a duplicate name
    # would be an error of the whole session.
    probe = "--device=auto"
    with contextlib.suppress(pytest.UsageError):  # another --device, which does not take "auto"
        _, unknown = parser.parse_known_and_unknown_args([probe])
        if probe in unknown:
            add_device_option(parser, "--device")


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    isolated.check_environment()
    options = of(config)
    if options.device == "cuda" and not devices("cuda"):
        raise pytest.UsageError(f"--device cuda: {why_unavailable('cuda')}")
    if options.sanitizer:
        sanitizer.command(options.sanitizer)  # raises if the tool is not installed
    if options.coverage and os.environ.get("NUMBASYNC_CPU_ENGINE") != "interpreted":
        os.environ["NUMBASYNC_CPU_ENGINE"] = "compiled-lines"  # read when devices are first listed
    if options.cuda_on_cpu:
        config.pluginmanager.register(cuda_on_cpu.Summary())
    if options.cuda_on_cpu and options.races:
        config.pluginmanager.register(cuda_on_cpu.CheckedPrograms(options.races))
    if options.lines:
        compile_with_lines()
    config.stash[_tuned] = use_tuning(bool(tuning_requested))  # else not by itself in tests
    if options.strict:
        for line in leaks.FILTERS:
            config.addinivalue_line("filterwarnings", line)
    config.stash[measured] = Benchmarks()
    if options.benchmarks is not None:
        try:
            options.benchmarks.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--kernel-benchmarks: {error}") from None
    option_text = " ".join(o for o in options.repeated() if not o.startswith("--kernel-seed"))
    root = str(config.rootpath)
    with contextlib.suppress(ValueError):  # the root is on another drive
        root = os.path.relpath(root, config.invocation_params.dir)
    config.stash[_was] = settings.use(
        settings.Settings(options.races, options.seed, option_text, root)
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # exists in a worker of pytest-xdist
    if output is not None:
        output[_SENT] = session.config.stash[measured].entries


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the benchmarks of a worker of pytest-xdist that has ended or crashed."""
    node.config.stash[measured].entries += getattr(node, "workeroutput", {}).get(_SENT, [])


def pytest_unconfigure(config: pytest.Config) -> None:
    path, benchmarks = of(config).benchmarks, config.stash.get(measured, None)
    is_whole = not hasattr(config, "workerinput") and isolated.is_outside()
    if path is not None and benchmarks is not None and benchmarks.entries and is_whole:
        benchmarks.save(path)
    previous = config.stash.get(_was, None)
    if previous is not None:
        settings.use(previous)
    if _tuned in config.stash:
        use_tuning(config.stash[_tuned])
    if of(config).cuda_on_cpu:
        import_module("numbasync.cpu_cuda").switch(False)


def _kinds(options: Options) -> list[str]:
    if options.device == "all":
        return [kind for kind in KINDS if devices(kind)]
    if options.device == "auto":
        try:
            return [preferred().kind]
        except DeviceUnavailableError as error:
            raise pytest.UsageError(str(error)) from None
    return [options.device]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if takes_device(metafunc):
        options = of(metafunc.config)
        needs_cuda = metafunc.definition.get_closest_marker("cuda") is not None
        kinds = ["cuda"] if needs_cuda else _kinds(options)
        all_places: list[Place] = []
        for kind in kinds:
            is_host = kind == "cpu"  # only this device can order threads
            all_places += places(kind, is_host, options.races if is_host else 0)
        metafunc.parametrize("device", all_places, ids=str, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark reads its mark
def pytest_runtest_setup(item: pytest.Item) -> None:
    isolated.check(item)
    if of(item.config).strict:
        item.stash[_pools] = leaks.pools()
    names = getattr(item, "fixturenames", ())
    if "benchmark_kernel" in names and "benchmark" in names:
        item.stash[clock_of] = clock = Replay()
        mark = item.get_closest_marker("benchmark")
        arguments = {} if mark is None else mark.kwargs
        item.add_marker(pytest.mark.benchmark(**{**arguments, "timer": clock}), append=False)
    if item.get_closest_marker("cuda") is None:
        return
    try:
        requirements = needs.wished(item.iter_markers("cuda"))
    except CallerError as error:
        pytest.fail(str(error), pytrace=False)
    if of(item.config).device == "cpu":
        pytest.skip("needs CUDA, and --device is cpu")
    gpus = devices("cuda")
    why = needs.lacking(requirements, gpus) if gpus else why_unavailable("cuda")
    if why:
        pytest.skip(f"needs CUDA: {why}" if not gpus else f"needs {why}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests on uvloop, unless they are marked for another plugin. Run isolated
    tests, and tests under compute-sanitizer, each in a separate process.
    """
    options = of(pyfuncitem.config)
    if options.sanitizer and _is_on_cuda(pyfuncitem) and isolated.is_outside():
        sanitizer.run(pyfuncitem, options.sanitizer, options.repeated())
        return True
    if isolated.is_wanted(pyfuncitem):
        isolated.run(pyfuncitem, options.repeated())
        return True
    if not async_tests.is_ours(pyfuncitem):
        return None
    return async_tests.run(pyfuncitem, options.strict and not _may_leave(pyfuncitem)) or None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    isolated.tell(report)


def _is_on_cuda(item: pytest.Function) -> bool:
    place = item.callspec.params.get("device") if hasattr(item, "callspec") else None
    on_device = isinstance(place, Place) and place.kind == "cuda"
    return on_device or item.get_closest_marker("cuda") is not None


# --- leaks ------------------------------------------------------------------------------


def _may_leave(item: pytest.Item) -> bool:
    return item.get_closest_marker("may_leave") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    strict = of(item.config).strict and not _may_leave(item)
    if strict:
        # After the setup, so that fixtures do not count.
        item.stash[_before] = leaks.Before(item.stash[_pools])
    try:
        return (yield)
    except BaseException:
        if strict:
            del item.stash[_before]  # a failed test's objects are held by the traceback
        raise


# This wrapper is the outermost, so that objects which pytest keeps of a test, such as log records
# with their tracebacks, are released before the leak check.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    before = item.stash.get(_before, None)
    if before is not None:
        del item.stash[_before]
        getattr(item, "funcargs", {}).clear()  # as pytest itself does later
        left = before.left()
        if left:
            pytest.fail(leaks.report(left), pytrace=False)
