"""The tiers of this suite, its order, and fixtures of all its folders."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import numbasync as na
from numbasync import native
from numbasync.backend.cpu.kernel import artifact
from tests.common import compiled

ROOT = Path(__file__).parent.parent

# The one profile of all property tests: how long an example takes depends on what else runs here.
settings.register_profile(
    "beside others", deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
settings.load_profile("beside others")

# Clusters of tests, and of programs that tests start, begin beside whatever else runs here.
os.environ.setdefault("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "600s")

# Files that compile many kernels or start many processes: `--tier all` runs them, too. The longest
# come first: then several workers, which take whole files, end together. The ready kernels come
# before the examples, which find them compiled.
SLOW = (
    "test_nn.py", "test_batch_reductions.py", "test_batch_numbers.py", "test_plugin_checks.py",
    "test_paged_attention.py", "test_attention_threads.py", "test_sentence_short.py",
    "test_plugin.py", "test_examples.py", "test_programs.py", "test_batch_tuning.py",
    "test_cuda_math.py", "test_planted_mistakes.py", "test_project.py", "test_cuda_atomics.py",
    "test_batch_plan.py", "test_cuda_integers.py", "test_random_kernels.py", "test_batch.py",
    "test_cuda_warps.py", "test_bench.py", "test_checked.py", "test_races.py",
    "test_cuda_algorithms.py", "test_cuda_libdevice.py", "test_batch_compute.py",
    "test_upload_waits.py", "test_large_uploads.py", "test_every_moment.py",
    "test_new.py", "test_benchmark_kernel.py", "test_cuda_votes.py", "test_devices.py",
    "test_processes.py", "test_bench_cpu.py", "test_ends.py", "test_pickling.py",
    "test_cuda_barriers.py", "test_sentence_graphs.py", "test_batch_broadcasts.py",
    "test_check_kernel.py", "test_check_mistakes.py", "test_sentence_embeddings.py",
    "test_cuda_features.py", "test_scalars.py", "test_launching.py", "test_strategies.py",
    "test_notebooks.py", "test_random.py", "test_batch_at_once.py", "test_batch_operands.py",
    "test_batch_graph.py", "test_batch_compute_failures.py", "test_staging_ring.py",
    "test_batch_functions.py", "test_pickling_operations.py", "test_cli.py", "test_measuring.py",
    "test_demo.py", "test_tutorials.py",
    "test_mutants.py", "test_dask_killed_workers.py", "test_all_wrong_arguments.py",
    "test_cluster_demo.py", "test_ray_actors.py", "test_bench_clusters.py", "test_damaged_cache.py",
    "test_site.py", "test_large_extents.py", "test_first_operation.py", "test_every_place.py",
    "test_error_page.py", "test_bench_command.py", "test_service_example.py", "test_serving.py",
    "test_reference_examples.py", "test_any_arrays.py", "test_dask_submit.py",
    "test_cluster_images.py", "test_dot_product_attention.py", "test_tensor_cores_page.py",
    "test_of_the_environment.py", "test_softmaxes.py", "test_norms.py", "test_matmul_float32.py",
)  # fmt: skip
SLOW_FOLDERS = ("backend_cpu", "planted_bugs", "stress")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", choices=("quick", "slow", "all"),
        help="quick: without the files that take long, as plain `pytest` does; slow: those alone; "
        "all: everything, and the cases marked full, as whenever files, -k or -m are given",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: a case more of a test, that only --tier all runs")
    if config.option.tier is None:  # workers of pytest-xdist are told
        chosen = config.option.keyword or config.option.markexpr
        is_plain = config.args_source is not pytest.Config.ArgsSource.ARGS and not chosen
        config.option.tier = "quick" if is_plain else "all"
    if os.environ.get("NUMBASYNC_APART"):
        artifact.everything_apart = True
    # Compiling makes so many objects that looking for cycles takes a twentieth of all time.
    gc.set_threshold(20_000, 20, 50)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # which is by numbers of tests


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A test that only lacks a GPU is counted, and has no letter: screens of `s` say nothing."""
    if report.skipped and isinstance(report.longrepr, tuple) and "needs CUDA" in report.longrepr[2]:
        return "skipped", "", "SKIPPED"
    return None


def pytest_report_header(config: pytest.Config) -> str:
    left_out = {"quick": "without the files that take long; --tier all runs everything"}
    tier = f"tier: {config.option.tier} {left_out.get(config.option.tier, '')}".rstrip()
    way = "is used" if native.core else f"is off: {native.NAME} is 0" if native.is_off() else (
        "is not installed: the tests run Python's functions only"
    )  # fmt: skip
    return f"{tier}\nthe compiled core {way}"


def is_slow(path: Path) -> bool:
    """Whether the file belongs to the slow tier."""
    return path.name in SLOW or path.parent.name in SLOW_FOLDERS


def is_of_tier(path: Path, config: pytest.Config) -> bool:
    """Whether the tests of the file are to run."""
    return config.option.tier == "all" or is_slow(path) == (config.option.tier == "slow")


def is_item_of_tier(item: pytest.Item, config: pytest.Config) -> bool:
    """Whether the test is to run: cases with the mark `full` run with all others only."""
    is_case_more = item.get_closest_marker("full") is not None
    return is_of_tier(item.path, config) and (config.option.tier == "all" or not is_case_more)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of the other tier is not even imported, unless it is named."""
    is_of_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_of_tests and not is_of_tier(collection_path, config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {name: i for i, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOW)))
    others = [item for item in items if not is_item_of_tier(item, config)]
    if others:
        items[:] = [item for item in items if is_item_of_tier(item, config)]
        config.hook.pytest_deselected(items=others)


@pytest.fixture(autouse=True, scope="module")
def what_earlier_modules_made_is_not_looked_at() -> None:
    """Numba keeps what it compiled. Tests collect garbage by the thousand, and each collection
    would look at all of it again.

    Not after each test: what is frozen and gets into a cycle later, as a stream that breaks, is
    never collected.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def what_a_test_compiled_is_looked_at() -> Iterator[None]:
    """The frames of errors inside the compiler hold a test's arrays. Here a young collection finds
    them; where arrays are left, the plugin makes a full one.
    """
    yield
    gc.collect(1)


_loaded: set[object] = set()  # devices


@pytest.fixture(autouse=True)
def common_kernels_are_loaded(request: pytest.FixtureRequest) -> None:
    """Whichever test a process runs first: loading a module may wait for a gate that is shut, and
    a test that counts turns of a loop does not count those of a compilation.
    """
    if "device" in request.fixturenames:
        device = request.getfixturevalue("device")
        if device not in _loaded:
            _loaded.add(device)
            compiled()


@pytest.fixture
def cpu() -> Iterator[na.Device]:
    """The CPU device as the current one, whichever device is tested."""
    with na.use_device(na.devices("cpu")[0]) as device:
        yield device


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def python_env() -> dict[str, str]:
    """An environment in which a child process finds this checkout's packages."""
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}


@pytest.fixture
def python() -> str:
    return sys.executable
