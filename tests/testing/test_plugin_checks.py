"""What the plugin looks for in somebody's tests: races, leaks, lines that no test runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numbasync.errors import CallerError
from numbasync.testing.plugin import needs
from tests.testing.test_plugin import Project

KERNELS = """
import numpy as np, pytest, asyncio
from numba import cuda
import numbasync as na
from numbasync.testing import check_kernel

@na.launcher
@cuda.jit
def double(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] *= 2

@na.launcher
@cuda.jit
def neighbour(z: na.KernelOutput):
    i = cuda.grid(1)
    if i + 1 < z.shape[0]:
        z[i] = z[i + 1]
"""


@pytest.fixture
def project(tmp_path: Path, python: str, python_env: dict[str, str]) -> Project:
    return Project(tmp_path, python, python_env)


def write(project: Project, text: str, name: str = "test_theirs.py") -> None:
    (project.folder / name).write_text(KERNELS + text)


def test_races_are_looked_for_in_every_test(project: Project) -> None:
    write(
        project,
        "async def test_double(device):\n"
        "    await double(await na.ones(8))\n"
        "async def test_neighbour(device):\n"
        "    await neighbour(await na.arange(8))\n",
    )
    assert "2 passed" in project.run("--device", "cpu").stdout
    said = project.run("--device", "cpu", "--kernel-races", "3", "-v").stdout
    assert "3 failed, 3 passed" in said
    for order in ("forward", "reverse", "shuffled0"):
        assert f"FAILED test_theirs.py::test_neighbour[cpu-{order}] - numbasync" in said
    assert "DataRaceError: kernel neighbour, block (0, 0, 0), thread (1, 0, 0): writes" in said
    assert "test_theirs.py:19)" in said


def test_a_report_has_the_line_that_repeats_it(project: Project) -> None:
    write(
        project,
        "@pytest.mark.parametrize('n', [1], ids=[\"it's\"])\n"
        "def test_wrong(device, n):\n    check_kernel(double, [np.ones(8)], lambda z: 3 * z)\n",
    )
    (project.folder / "pytest.ini").write_text("[pytest]\n")
    project.folder = project.folder / "inner"
    project.folder.mkdir()
    options = ("--device", "cpu", "--kernel-seed", "7", "--kernel-races", "1")
    said = project.run(*options, "../test_theirs.py").stdout
    assert "KernelMismatch: kernel double on cpu:0" in said
    (line,) = {s.split("again: ")[1] for s in said.splitlines() if "again: " in s}
    import shlex

    name = "../test_theirs.py::test_wrong[cpu-forward-it's]"
    assert line == (
        f"pytest {shlex.quote(name)} --numbasync-device=cpu --kernel-races=1 --kernel-seed 7"
    )
    assert "check.py" not in said  # whose frames are of no use to them
    again = project.run(*shlex.split(line)[1:])
    assert "1 failed" in again.stdout and "8 of 8 elements" in again.stdout


def test_what_a_test_leaves_behind(project: Project) -> None:
    write(
        project,
        "import threading\nimport pytest\n"
        "kept = []\n"
        "async def test_nothing(device, gate, stream):\n"
        "    z = await na.ones(8)\n"
        "    await double(z)\n"
        "    gate.close()\n"
        "    double(z).async_on(stream)\n"
        "def test_in_a_cycle(device):\n"
        "    a = [na.ones(1000).sync()]\n"
        "    a.append(a)\n"
        "def test_memory(device):\n"
        "    kept.append(na.ones(1000).sync())\n"
        "@pytest.mark.may_leave('a cache')\n"
        "def test_memory_on_purpose(device):\n"
        "    kept.append(na.ones(1000).sync())\n"
        "def test_pool(device):\n"
        "    device.pool = device.new_pool()\n"
        "def test_stream(device):\n"
        "    kept.append(device.new_stream())\n"
        "fixed = na.ones(8).sync_on(na.devices('cpu')[0].new_stream())\n"
        "def test_graph(device, stream):\n"
        "    kept.append(double(fixed).graph_on(stream))\n"
        "def test_never_run(device):\n"
        "    na.ones(1000)\n"
        "def test_never_run_as_said(device):\n"
        "    with pytest.warns(RuntimeWarning, match='never awaited'):\n"
        "        na.ones(1000)\n"
        "async def test_task(device):\n"
        "    kept.append(asyncio.ensure_future(asyncio.Event().wait()))\n"
        "@pytest.fixture\n"
        "def own_pool(device):\n"
        "    before, device.pool = device.pool, device.new_pool()\n"
        "    yield\n"
        "    device.pool = before\n"
        "def test_pool_of_a_fixture(device, own_pool):\n"
        "    na.ones(1000).sync()\n"
        "def test_gate(device):\n"
        "    from numbasync.testing import gate\n"
        "    s = device.new_stream()\n"
        "    kept.append(gate(s))\n"
        "    z = na.ones(8).sync()\n"
        "    kept[-1].close()\n"
        "    double(z).async_on(s)\n"
        "def test_behind_a_gate(device):\n"
        "    pass\n"
        "def test_wrong(device):\n"
        "    z = na.ones(1000).sync()\n"
        "    assert kept == [z]\n"
        "def test_last(device):\n"
        "    kept[-1].open()\n"
        "    device.synchronize()\n",
    )
    said = project.run("--device", "cpu").stdout
    assert "1 failed, 14 passed" in said, said
    result = project.run("--device", "cpu", "--strict-leaks", "-rfE")
    said = result.stdout
    summary = said[said.index("short test summary") :]
    for name, what in (
        ("test_memory", "4,096 bytes of device memory"),
        ("test_pool", "device.pool is another one"),
        ("test_stream", "cpu:0: <Stream"),
        ("test_graph", "leases of 1 buffers, which stand for the launches of a graph"),
        ("test_gate", "1 operations in flight, behind a shut gate"),
    ):
        assert f"ERROR test_theirs.py::{name}[cpu] - Failed: the test has left behind" in summary
        assert what in said
    assert "FAILED test_theirs.py::test_task[cpu]" in summary
    assert "1 tasks are not done" in said
    assert "test_never_run[cpu]" in summary and "test_never_run_as_said" not in summary
    # Its traceback holds the tensor; that it failed is enough.
    assert "FAILED test_theirs.py::test_wrong" in summary
    assert "ERROR test_theirs.py::test_wrong" not in summary
    right = (
        "nothing",
        "in_a_cycle",
        "memory_on_purpose",
        "pool_of_a_fixture",
        "behind_a_gate",
        "last",
    )
    for name in (*right, "last"):
        assert f"test_{name}[" not in summary, said


def test_hypothesis_runs_async_tests(project: Project) -> None:
    write(
        project,
        "from hypothesis import given, settings, strategies as st, HealthCheck\n"
        "seen = []\n"
        "@settings(deadline=None, max_examples=5,\n"
        "          suppress_health_check=list(HealthCheck))\n"
        "@given(n=st.integers(1, 100))\n"
        "async def test_double(device, n):\n"
        "    z = await na.ones(n)\n"
        "    await double(z)\n"
        "    assert (await z.to_host() == 2).all()\n"
        "    seen.append(n)\n"
        "def test_seen(device):\n"
        "    assert seen\n",
    )
    assert "2 passed" in project.run("--device", "cpu", beside_others=True).stdout


PLUGINS = """
@pytest.mark.{mark}
async def test_theirs():
    assert "uvloop" not in type(asyncio.get_running_loop()).__module__

async def test_ours(device):
    import sys
    z = await na.ones(8)
    await double(z)
    if sys.platform != "win32":
        assert "uvloop" in type(asyncio.get_running_loop()).__module__
"""


@pytest.mark.parametrize(("mark", "package"), [("asyncio", "pytest_asyncio"), ("anyio", "anyio")])
def test_other_plugins_run_what_is_theirs(project: Project, mark: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    fixture = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    write(project, fixture + PLUGINS.format(mark=mark))
    said = project.run("--device", "cpu", beside_others=True).stdout
    assert "2 passed" in said, said


@pytest.mark.full
def test_workers_share_the_machine(project: Project) -> None:
    assert importlib.util.find_spec("xdist")
    write(
        project,
        "import os\n"
        "@pytest.mark.parametrize('n', range(4))\n"
        "async def test_share(device, n):\n"
        "    await double(await na.ones(8))\n"
        "    with open(f'said-{os.getpid()}-{n}', 'w') as file:\n"
        "        file.write(f'{device.pool.max_bytes} {device.backend.total_memory}')\n"
        "@pytest.mark.isolated\n"
        "def test_alone(device):\n"
        "    pass\n",
    )
    result = project.run("--device", "cpu", "-p", "xdist", "-n", "2")
    assert "5 passed" in result.stdout, result
    said = [path.read_text().split() for path in project.folder.glob("said-*")]
    assert len(said) == 4
    assert all(int(most) == int(int(total) * needs.FREE / 2) for most, total in said)


# In the place of coverage.py: what it keeps of this file, and of which it is told.
COVERAGE = """
import sys
from types import SimpleNamespace
seen = set()
data = SimpleNamespace(
    measured_files=lambda: {__file__}, has_arcs=lambda: False,
    add_lines=lambda lines: seen.update(lines.get(__file__, ())),
)
session = SimpleNamespace(get_data=lambda: data)
sys.modules["coverage"] = SimpleNamespace(Coverage=SimpleNamespace(current=lambda: session))
"""


def test_lines_of_kernels_are_seen(project: Project) -> None:
    write(
        project,
        COVERAGE + "def test_double(device):\n"
        "    double(na.ones(8)).sync()\n"
        "    first = double.kernel.py_func.__code__.co_firstlineno\n"
        "    print('seen', sorted(n - first for n in seen), double.cpu_engine().name)\n",
    )
    assert "seen [] compiled" in project.run("--device", "cpu", "-s").stdout
    said = project.run("--device", "cpu", "-s", "--kernel-coverage").stdout
    assert "seen [3, 4, 5] compiled" in said, said


def test_barrier_kernels_lines_where_warnings_are_errors(project: Project) -> None:
    write(
        project,
        COVERAGE + "from numba import float32\n"
        "@na.launcher\n"
        "@cuda.jit\n"
        "def turned(z: na.KernelOutput):\n"
        "    own = cuda.shared.array(8, float32)\n"
        "    own[cuda.threadIdx.x] = cuda.threadIdx.x\n"
        "    cuda.syncthreads()\n"
        "    if own[7] != 7:\n"
        "        z[0] = 1\n"
        "    z[cuda.threadIdx.x] = own[7 - cuda.threadIdx.x]\n"
        "def test_turned(device):\n"
        "    z = turned[1, 8](na.zeros(8)).output().to_host().sync()\n"
        "    assert z.tolist() == list(range(7, -1, -1))\n"
        "    first = turned.kernel.py_func.__code__.co_firstlineno\n"
        "    print('lines', sorted(n - first for n in seen))\n",
    )
    (project.folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    result = project.run("--device", "cpu", "-s", "--kernel-coverage")
    assert "1 passed" in result.stdout, result
    # The line of the branch that no thread takes is missing.
    lines = next(line for line in result.stdout.splitlines() if "lines [" in line)
    assert lines.endswith("3, 4, 5, 6, 8]"), lines


def device(capability: tuple[int, int], nbytes: int) -> Any:
    backend = SimpleNamespace(total_memory=nbytes)
    return SimpleNamespace(compute_capability=capability, label="cuda:0", backend=backend)


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({}, ""),
        ({"min_cc": (9, 0), "min_memory": 2**30, "devices": 1}, ""),
        ({"min_cc": 8.9}, ""),
        ({"min_cc": (9, 1)}, "compute capability 9.1, and cuda:0 has 9.0"),
        ({"min_cc": 10.0}, "compute capability 10.0, and cuda:0 has 9.0"),
        ({"min_memory": 2**40}, "1,099,511,627,776 bytes of device memory, and cuda:0 has 2,147"),
        ({"devices": 2}, "2 CUDA devices, and there are 1"),
    ],
)
def test_what_a_mark_asks_for(wishes: dict[str, Any], why: str) -> None:
    assert needs.lacking(wishes, [device((9, 0), 2**31)]).startswith(why)
    assert bool(needs.lacking(wishes, [device((9, 0), 2**31)])) == bool(why)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (pytest.mark.cuda(cc=9), r"cuda\(cc=...\): it takes min_cc, min_memory, devices"),
        (pytest.mark.cuda(9.0), r"cuda\(9.0\): say what it is, as in min_cc=9.0"),
        (pytest.mark.cuda(min_cc="9"), "min_cc='9'"),
        (pytest.mark.cuda(min_cc=(9, "0")), r"min_cc=\(9, '0'\)"),
        (pytest.mark.cuda(min_memory="2GB"), "min_memory='2GB'.: a whole number"),
        (pytest.mark.cuda(devices=0), "devices=0.: a whole number of at least 1"),
    ],
    ids=str,
)
def test_marks_that_ask_for_something_else(mark: Any, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        needs.wished([mark.mark])


def test_marks_of_a_class_and_of_its_tests() -> None:
    near, far = pytest.mark.cuda(devices=2), pytest.mark.cuda(min_cc=8.0, devices=1)
    assert needs.wished([near.mark, far.mark]) == {"devices": 2, "min_cc": 8.0}


def test_what_a_session_cannot_be_asked_for(project: Project) -> None:
    write(
        project,
        "@pytest.mark.cuda(min_mem=3)\n"  # also where nothing is asked of the mark
        "def test_mark(device):\n"
        "    pass\n",
    )
    said = project.run("--device", "cpu").stdout
    assert "1 error" in said and "cuda(min_mem=...): it takes min_cc" in said, said
    for option in ("--kernel-races=-1", "--kernel-seed=-1", "--numbasync-seeds=0"):
        assert "a whole number of at least" in project.run(option).stderr


def test_the_sanitizer_must_be_there(project: Project) -> None:
    write(project, "def test_nothing():\n    pass\n")
    path = str(Path(sys.executable).parent)
    result = project.run("--compute-sanitizer", "memcheck", PATH=path)
    if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        assert "there is no compute-sanitizer on the PATH" in result.stderr
    assert "invalid choice" in project.run("--compute-sanitizer", "leakcheck").stderr
