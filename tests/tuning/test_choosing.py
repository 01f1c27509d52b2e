"""Which configuration a call runs: by measured times, by key, and where nothing is tuned."""

from __future__ import annotations

import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError, LaunchError, NotAGraphNodeError, OperationError
from numbasync.tuning import digests, settings
from numbasync.tuning.autotune import ROUNDS
from tests.common import add_one, saxpy, visit_tile
from tests.tuning.conftest import Clock, threads_of

THREE = [{"threads": 32}, {"threads": 64}, {"threads": 128}]


@pytest.fixture
def automatic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls tune by themselves, as outside of tests."""
    monkeypatch.setattr(settings, "automatic", True)


def arguments(n: int = 1000, dtype: Any = np.float32) -> tuple[na.Tensor, float, na.Tensor]:
    return na.ones(n, dtype).sync(), 2.0, na.ones(n, dtype).sync()


def test_the_least_median_is_chosen(device: na.Device, clock: Clock) -> None:
    # The mean of 64 is the largest: one sample was held up. The least sample is of 32.
    clock.ms = {32: [0.5, 2.0], 64: [1.0, 1.0, 100.0, 1.0], 128: 1.5}
    tuned = na.autotune(saxpy, THREE)
    z, a, x = arguments()
    assert tuned.choice(z, a, x) is None
    results = tuned.tune(z, a, x).sync()
    assert clock.measured == [32, 64, 128] * ROUNDS  # in turns
    assert [r.ms for r in results] == [2.0, 1.0, 1.5]
    assert [r.chosen for r in results] == [False, True, False]
    assert tuned.choice(z, a, x) == {"threads": 64}
    assert tuned.results(z, a, x) == results
    launch = tuned(z, a, x)
    assert threads_of(launch) == 64
    assert (launch.output().to_host().sync() == 3).all()
    assert "threads=64 for (z: float32[1024], a: float, x: float32[1024])" in repr(tuned)


def test_results_are_those_of_the_kernel(device: na.Device, clock: Clock) -> None:
    clock.ms = {32: 2.0, 64: 1.0, 128: 2.0}
    tuned = na.autotune(saxpy, THREE)
    z, a, x = arguments()
    tuned.tune(z, a, x).sync()
    result = tuned(z, a, x).sync()
    assert isinstance(result, saxpy.Result)
    assert type(pickle.loads(pickle.dumps(result))) is saxpy.Result


def test_a_hopeless_configuration_is_measured_twice(device: na.Device, clock: Clock) -> None:
    clock.ms = {32: [3.1, 3.1], 64: 1.0, 128: [9.0, 2.9]}
    results = na.autotune(saxpy, THREE).tune(*arguments()).sync()
    assert [r.status for r in results] == ["slow", "measured", "measured"]
    assert [clock.measured.count(t) for t in (32, 64, 128)] == [2, ROUNDS, ROUNDS]


def test_grids_and_blocks_may_depend_on_the_arguments(device: na.Device, clock: Clock) -> None:
    def blocks(size: int) -> Any:
        return lambda z, a, x: -(-z.shape[0] // size)

    configs = [{"grid": blocks(size), "block": size} for size in (64, 128)]
    clock.ms = {64: 2.0}
    tuned = na.autotune(saxpy, configs, reference=lambda z, a, x: a * x + z)
    z, a, x = arguments(1001)
    tuned.tune(z, a, x).sync()
    launch: Any = tuned(z, a, x)
    assert (threads_of(launch), launch._config.grid) == (128, (8, 1, 1))
    assert (launch.output().to_host().sync() == 3).all()


def build(scale: float, threads: int = 32) -> na.Launcher:
    @na.launcher(threads=threads)
    @cuda.jit
    def scaled(z: na.KernelOutput, *, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = scale * x[i] + z[i]

    return scaled


@pytest.mark.full
def test_kernels_that_a_function_makes(device: na.Device, clock: Clock) -> None:
    configs = [{"scale": 2.0}, {"scale": 2.0, "threads": 64}, {"scale": 3.0, "threads": 128}]
    clock.ms = {128: 0.1, 32: 2.0}
    tuned = na.autotune(build, configs)
    z, _, x = arguments()
    first, second, wrong = tuned.tune(z, x=x).sync()
    assert (first.status, second.status, wrong.status) == ("measured", "measured", "wrong")
    assert wrong.reason.startswith("1,000 of 1,000 elements of z differ; first z[0]")
    assert 128 not in clock.measured  # however fast
    assert tuned.choice(z, x=x) == {"scale": 2.0, "threads": 64}
    assert (tuned(z, x=x).output().to_host().sync() == 3).all()

    by_reference = na.autotune(build, configs, reference=lambda z, x: 3 * x + z)
    assert [r.status for r in by_reference.tune(z, x=x).sync()] == ["wrong", "wrong", "measured"]


def test_differences_within_the_tolerance_are_right(device: na.Device, clock: Clock) -> None:
    configs = [{"scale": 2.0}, {"scale": 2.0001}]
    z, _, x = arguments()
    for tolerance, status in ((None, "measured"), (1e-6, "wrong"), (0, "wrong"), (0.1, "measured")):
        tuned = na.autotune(build, configs, tolerance=tolerance)
        assert tuned.tune(z, x=x).sync()[1].status == status


def test_what_the_device_refuses_is_skipped(device: na.Device, clock: Clock) -> None:
    tuned = na.autotune(add_one, [{"threads": 2048}, {"threads": 32}, {"grid": 1, "block": 4096}])
    z = na.zeros(100).sync()
    results = tuned.tune(z).sync()
    assert [r.status for r in results] == ["illegal", "measured", "illegal"]
    assert "2048 threads" in results[0].reason
    assert tuned.choice(z) == {"threads": 32}

    elements = na.autotune(add_one, [{"elements": 4}, {"elements": 3}])
    assert [r.status for r in elements.tune(z).sync()] == ["measured", "illegal"]

    hopeless = na.autotune(add_one, [{"threads": 2048}, {"threads": 4096}])
    for _ in range(2):  # nothing is remembered
        with pytest.raises(LaunchError, match="(?s)threads=2048: illegal: .*threads=4096: illegal"):
            hopeless.tune(z).sync()


# --- keys ---


def test_default_keys_are_buckets_of_powers_of_two(device: na.Device, clock: Clock) -> None:
    tuned = na.autotune(saxpy, THREE)
    tuned.tune(*arguments(1000)).sync()
    assert tuned.choice(*arguments(1024)) == tuned.choice(*arguments(513)) == {"threads": 32}
    assert tuned.choice(*arguments(1025)) is None
    assert tuned.choice(*arguments(1000, np.float64)) is None
    z, a, x = arguments(1000)
    assert tuned.choice(z, 1, x) is None  # another type
    assert tuned.choice(z.partition(10), a, x) is None
    assert tuned.choice(np.ones(1000, np.float32), a, x.shared()) is not None


def test_keys_of_names_and_functions(device: na.Device, clock: Clock) -> None:
    z, a, x = arguments(1000)
    named = na.autotune(saxpy, THREE, key=("x", "a"))
    named.tune(z, a, x).sync()
    assert named.choice(na.ones(5).sync(), a, x) is not None
    assert named.choice(z, 3.0, x) is None
    exact = na.autotune(saxpy, THREE, key=lambda z, a, x: (z.shape[0], str(z.dtype)))
    exact.tune(z.partition(10), a, x).sync()
    assert exact.choice(z, a, x) is not None
    assert exact.choice(*arguments(999)) is None


@pytest.mark.parametrize(
    ("error", "words", "make"),
    [
        (LauncherError, "thread is unknown", lambda: na.autotune(saxpy, [{"thread": 32}])),
        (LauncherError, "grid and block", lambda: na.autotune(saxpy, [{"grid": 1}])),
        (LauncherError, "goes with", lambda: na.autotune(saxpy, [{"shared_bytes": 1}])),
        (LauncherError, "list of dict", lambda: na.autotune(saxpy, {"threads": 32})),  # type: ignore[arg-type]
        (LauncherError, "a dictionary", lambda: na.autotune(saxpy, [32])),  # type: ignore[list-item]
        (LauncherError, "missing", lambda: na.autotune(build, [{"threads": 32}])),
        (
            LauncherError,
            "scales is unknown",
            lambda: na.autotune(build, [{"scale": 1, "scales": 2}]),
        ),
        (LauncherError, "@na.launcher", lambda: na.autotune(7, THREE)),  # type: ignore[call-overload]
        (LauncherError, "names y", lambda: na.autotune(add_one, THREE, key=("y",)).choice(1)),
        (LauncherError, "tuple of par", lambda: na.autotune(add_one, THREE, key="z")),
        (LauncherError, "tuple of par", lambda: na.autotune(add_one, THREE, key=3)),  # type: ignore[call-overload]
        (LauncherError, "on disk", lambda: na.autotune(add_one, THREE, key=lambda z: {}).choice(1)),
        (LaunchError, "is empty", lambda: na.autotune(saxpy, [])),
        (
            LaunchError,
            "threads=32 came twice",
            lambda: na.autotune(saxpy, [*THREE, {"threads": 32}]),
        ),
        (LaunchError, "rounds=1;", lambda: na.autotune(saxpy, THREE, rounds=1)),
        (LaunchError, "tolerance=-1;", lambda: na.autotune(saxpy, THREE, tolerance=-1)),
        (OperationError, "run it first", lambda: na.autotune(add_one, THREE).choice(na.zeros(3))),
    ],
)
def test_what_is_written_wrong_is_refused(error: type, words: str, make: Any) -> None:
    with pytest.raises(error, match=words):
        make()


# --- calls that tune by themselves, and calls that do not ---


async def test_in_tests_calls_do_not_tune(device: na.Device, clock: Clock) -> None:
    tuned = na.autotune(saxpy, THREE)
    z, a, x = arguments()
    launch = tuned(z, a, x)
    assert threads_of(launch) == 32  # the first
    await launch
    await tuned(na.ones(10), a, na.ones(10))
    assert clock.measured == [] and "tuned when asked" in repr(tuned)


@pytest.mark.usefixtures("automatic")
async def test_a_call_without_a_choice_tunes_first(device: na.Device, clock: Clock) -> None:
    clock.ms = {64: 0.5}
    tuned = na.autotune(saxpy, THREE)
    twice = tuned(tuned(na.ones(1000), 2.0, na.ones(1000)).output(), a=2.0, x=na.ones(1000))
    assert (await twice.output().to_host() == 5).all()
    assert len(clock.measured) == 3 * ROUNDS
    z, a, x = arguments()
    launch = tuned(z, a, x)
    assert threads_of(launch) == 64
    await launch.then(lambda r: tuned(r.z, a, x))
    assert (await z.to_host() == 5).all()
    assert len(clock.measured) == 3 * ROUNDS


@pytest.mark.usefixtures("automatic")
@pytest.mark.parametrize("blocks", [True, False])
async def test_a_closure_tunes_with_what_came_before_it(
    device: na.Device, clock: Clock, blocks: bool
) -> None:
    tuned = na.autotune(saxpy, THREE, reference=lambda z, a, x: np.full(1000, 9, np.float32))
    z, a, x = arguments()
    op = na.fill(z, 7).then(lambda z: tuned(z, a, x)).output()
    assert (op.sync() if blocks else await op) is z
    assert len(clock.measured) == 3 * ROUNDS
    assert (await z.to_host() == 9).all()


@pytest.mark.usefixtures("automatic")
def test_a_graph_that_is_captured_runs_the_first(device: na.Device, clock: Clock) -> None:
    tuned = na.autotune(saxpy, THREE)
    z, a, x = arguments()
    with na.CudaGraph.scope(device.new_stream()) as scope:
        scope.record(tuned(z, a, x))
    scope.graph.launch().sync()
    assert clock.measured == [] and (z.to_host().sync() == 3).all()
    with pytest.raises(NotAGraphNodeError, match="Tune before"):
        tuned.tune(z, a, x).graph()


@pytest.mark.parametrize(
    ("switch", "running", "said"),
    [("", "", True), ("", "test_x", False), ("1", "test_x", True), ("0", "", False)],
)
def test_the_switch(monkeypatch: pytest.MonkeyPatch, switch: str, running: str, said: bool) -> None:
    """As a process that begins reads it."""
    monkeypatch.setenv("NUMBASYNC_AUTOTUNE", switch)
    if running:
        monkeypatch.setenv("PYTEST_CURRENT_TEST", running)
    else:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert runpy.run_path(str(settings.__file__))["automatic"] is said


# --- the kernel's code ---


def version(text: str, tmp_path: Path) -> Any:
    namespace: dict[str, Any] = {"cuda": cuda, "__name__": "a_program"}
    exec(compile(text, str(tmp_path / "kernel.py"), "exec"), namespace)
    return namespace["kernel"].py_func


def test_a_digest_changes_with_code_and_uses(tmp_path: Path) -> None:
    text = """
SIZE = 4
@cuda.jit(device=True)
def twice(x):
    return 2 * x
@cuda.jit
def kernel(z):
    z[0] = twice(z[SIZE])
"""
    digest = digests.of_function(version(text, tmp_path))
    for old, new, equal in [
        ("SIZE = 4", "SIZE = 5", False), ("2 * x", "3 * x", False), ("z[0] =", "z[1] =", False),
        ("return", "# a comment\n    return", True),
    ]:  # fmt: skip
        changed = digests.of_function(version(text.replace(old, new), tmp_path))
        assert (changed == digest) is equal, new


def test_functions_made_by_exec_have_a_digest() -> None:
    namespace: dict[str, Any] = {}
    exec("def one():\n    return 1\n", namespace)
    namespace["one"].__module__ = None
    assert digests.of_function(namespace["one"]) == digests.of_function(namespace["one"])


def test_tiles_are_rebuilt_with_other_threads(device: na.Device, clock: Clock) -> None:
    t = na.zeros(70, np.int32).sync()
    tuned = na.autotune(visit_tile, [{"threads": 32}, {"threads": 64}])
    before = na.compile_count()
    assert {r.status for r in tuned.tune(t.partition(32)).sync()} == {"measured"}
    assert na.compile_count() - before <= 1  # the launchers share what is compiled
    tuned(t.partition(32)).sync()
    assert (t.to_host().sync() == 1).all()
