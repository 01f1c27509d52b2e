"""Kernels that many tests use, and how this suite chooses its devices."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What takes longest comes first: then several workers, which take whole files, end together.
LONG = (
    "test_plugin_checks.py", "test_batch.py", "test_plugin.py", "test_examples.py",
    "test_programs.py", "test_batch_tuning.py", "test_nn.py", "test_cuda_math.py",
    "test_planted_mistakes.py", "test_project.py", "test_cuda_atomics.py",
    "test_batch_plan.py", "test_cuda_integers.py", "test_compiled_programs.py",
    "test_checked.py", "test_cuda_warps.py", "test_bench.py", "test_large_uploads.py",
    "test_cuda_made_arrays.py", "test_cuda_algorithms.py", "test_cuda_libdevice.py",
    "test_new.py", "test_benchmark_kernel.py", "test_cuda_votes.py", "test_devices.py",
    "test_processes.py", "test_bench_cpu.py", "test_behaviours_ends.py",
    "test_cuda_barriers.py", "test_sentence_graphs.py", "test_batch_broadcasts.py",
    "test_check_kernel.py", "test_sentence_embeddings.py", "test_cuda_features.py",
    "test_launching.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # Compiling makes so many objects that looking for cycles takes a twentieth of all time.
    gc.set_threshold(20_000, 20, 50)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # which is by numbers of tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


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
