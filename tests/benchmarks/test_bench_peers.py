"""The peers of `numbasync bench` that call the driver, with a driver that computes on the host."""

from __future__ import annotations

import ctypes
import importlib
import json
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numbasync as na
from benchmarks import alloc, peer_registry
from benchmarks.__main__ import main
from benchmarks.measure import Case, Measured, Missing, measure
from benchmarks.peers import core_peer, driver, floor, host_callback, raw, raw_graph, simulator
from benchmarks.work import BLOCKS, THREADS, N


class FakeDriver:
    """As much of `cuda.bindings.driver` as is called. Work is done when it is enqueued; host
    functions are called on a thread of their own.
    """

    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUdeviceptr = int

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.streams: list[int] = []
        self.launches = 0
        self.result = 0
        self.factor = 1.0  # what the kernel multiplies its result by: 1 is right
        self.callers: set[int] = set()
        self.capturing: dict[int, list[tuple[Any, ...]]] = {}  # launches, by stream
        self.graphs: list[list[tuple[Any, ...]]] = []

    def cuCtxGetCurrent(self) -> tuple[int, str]:
        return 0, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[int]:
        assert context == "context"
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:
        return (0,)

    def cuKernelGetFunction(self, handle: int) -> tuple[int, int]:
        return 0, handle

    def cuStreamCreate(self, flags: int) -> tuple[int, int]:
        assert flags == 1, "it would wait for the legacy default stream"
        self.streams.append(100 + len(self.streams))
        return 0, self.streams[-1]

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        assert stream in self.streams and stream not in self.capturing
        return (self.result,)

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        block = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(block)
        self.memory[address] = block
        return 0, address

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int, int]:
        assert flags == 3
        return self.cuMemAlloc(nbytes)

    def cuMemHostGetDevicePointer(self, host: int, flags: int) -> tuple[int, int]:
        return 0, host

    def cuMemAllocAsync(self, nbytes: int, stream: int) -> tuple[int, int]:
        return self.cuMemAlloc(nbytes)

    def cuMemFreeAsync(self, pointer: int, stream: int) -> tuple[int]:
        del self.memory[pointer]
        return (0,)

    def cuMemcpyHtoDAsync(self, pointer: int, host: int, nbytes: int, stream: int) -> tuple[int]:
        assert stream in self.streams
        ctypes.memmove(pointer, host, nbytes)
        return (0,)

    def cuMemcpyDtoHAsync(self, host: int, pointer: int, nbytes: int, stream: int) -> tuple[int]:
        return self.cuMemcpyHtoDAsync(host, pointer, nbytes, stream)

    def cuMemsetD32(self, pointer: int, bits: int, count: int) -> tuple[int]:
        self.of(pointer, count).view(np.uint32)[:] = bits
        return (0,)

    def cuMemcpyDtoH(self, host: int, pointer: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(host, pointer, nbytes)
        return (0,)

    def cuStreamWriteValue32(self, stream: int, address: int, value: int, flags: int) -> tuple[int]:
        ctypes.c_uint32.from_address(address).value = value
        return (0,)

    def cuLaunchKernel(self, function: int, *rest: Any) -> tuple[int]:
        gx, gy, gz, bx, by, bz, shared, stream, params, extra = rest
        assert (function, gy, gz, by, bz, shared, params) == (7, 1, 1, 1, 1, 0, 0)
        assert (gx, bx) == (BLOCKS, THREADS) and stream in self.streams
        kind, data, size_kind, size, end = (ctypes.c_void_p * 5).from_address(extra)
        assert (kind, size_kind, end) == (1, 2, None)
        assert ctypes.c_size_t.from_address(size).value == 28
        work = struct.unpack("@QdQi", ctypes.string_at(data, 28))
        if stream in self.capturing:
            self.capturing[stream].append(work)
        else:
            self.saxpy(*work)
        return (self.result,)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:
        assert mode == 2 and self.launches, "what a first launch loads is loaded by a capture"
        self.capturing[stream] = []
        return (0,)

    def cuStreamEndCapture(self, stream: int) -> tuple[int, list[tuple[Any, ...]]]:
        return 0, self.capturing.pop(stream)

    def cuGraphInstantiate(self, graph: list[tuple[Any, ...]], flags: int) -> tuple[int, int]:
        assert flags == 0
        self.graphs.append(graph)
        return 0, len(self.graphs) - 1

    def cuGraphUpload(self, graph: int, stream: int) -> tuple[int]:
        assert stream in self.streams and self.graphs[graph]
        return (0,)

    def cuGraphLaunch(self, graph: int, stream: int) -> tuple[int]:
        assert stream in self.streams
        for work in self.graphs[graph]:
            self.saxpy(*work)
        return (self.result,)

    def cuLaunchHostFunc(self, stream: int, function: int, argument: int) -> tuple[int]:
        def call() -> None:
            self.callers.add(threading.get_ident())
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(argument)

        self.threads.submit(call)
        return (0,)

    def CUhostFn(self, init_value: int) -> int:
        return init_value

    def of(self, address: int, count: int) -> np.ndarray[Any, Any]:
        assert address in self.memory, "an address that was never allocated"
        return np.frombuffer(self.memory[address], np.float32, count)

    def saxpy(self, z: int, a: float, x: int, n: int) -> None:
        assert n == N
        self.launches += 1
        out = self.of(z, n)
        out += np.float32(a * self.factor) * self.of(x, n)

    threads: Any


class FakeCore:
    """As much of `cuda.core` as is called."""

    LaunchConfig = staticmethod(lambda grid, block: (grid, block))

    def __init__(self, cu: FakeDriver) -> None:
        self.cu = cu

    def Device(self, ordinal: int) -> Any:
        stream = SimpleNamespace(sync=lambda: None)
        return SimpleNamespace(set_current=lambda: None, create_stream=lambda: stream)

    def Program(self, source: str, kind: str) -> Any:
        assert "saxpy" in source and kind == "c++"
        kernel = SimpleNamespace(handle=7)
        code = SimpleNamespace(get_kernel=lambda name: {"saxpy": kernel}[name])
        return SimpleNamespace(compile=lambda target: {"cubin": code}[target])

    def launch(self, stream: Any, config: Any, kernel: Any, z: int, a: Any, x: int, n: Any) -> None:
        assert config == (BLOCKS, THREADS) and kernel.handle == 7
        assert (a.dtype, n.dtype) == (np.float64, np.int32)
        self.cu.saxpy(z, float(a), x, int(n))


@pytest.fixture
def cu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    from concurrent.futures import ThreadPoolExecutor

    fake = FakeDriver()
    modules = {"cuda.bindings.driver": fake, "cuda.core": FakeCore(fake)}
    real: Callable[..., Any] = importlib.import_module

    def module(name: str, package: str | None = None) -> Any:
        return modules.get(name) or real(name, package)

    monkeypatch.setattr(importlib, "import_module", module)
    native = floor.SIGNATURE(lambda *args: fake.cuLaunchKernel(*args)[0])
    monkeypatch.setattr(floor, "native", lambda: native)
    driver.of.cache_clear()
    with ThreadPoolExecutor(1) as fake.threads:
        yield fake
    driver.of.cache_clear()


def measured(make: Callable[[int], list[Case]]) -> Measured:
    async def run() -> Measured:
        return await measure(peer_registry.excusable(make(0)), calls=20, rounds=3)

    return na.run(run())


def of_node(ordinal: int) -> list[Case]:
    return [replace(case, calls=200) for case in raw_graph.of_node(ordinal)]


def of_chain(ordinal: int) -> list[Case]:
    return raw_graph.of_chain(ordinal, 10)


def of_step(ordinal: int) -> list[Case]:
    return raw_graph.of_step(ordinal, 30, 1)


SUITES = [
    (floor.of_launch, 1), (raw.of_launch, 3), (raw.of_await, 2), (raw.of_flight, 1),
    (raw.of_alloc, 1), (raw.of_batch_small, 1), (host_callback.of_await, 1),
    (host_callback.of_flight, 1),
    (core_peer.of_launch, 1), (raw_graph.of_graph, 4), (of_node, 2), (of_chain, 2), (of_step, 2),
]  # fmt: skip
SAXPYS = [s for s in SUITES if s[0] is not raw.of_alloc]


def name_of(suite: Any) -> str:
    return f"{suite[0].__module__.split('.')[-1]}.{suite[0].__name__}"


@pytest.mark.parametrize("suite", SUITES, ids=name_of)
def test_every_case_gives_the_right_answer(cu: FakeDriver, suite: Any) -> None:
    make, count = suite
    found = measured(make)
    assert found.missing == []
    assert len(found.figures) == count
    assert cu.launches > 3 * 20 or make is raw.of_alloc
    if make is raw.of_alloc:
        assert cu.memory == {}, "not given back"


@pytest.mark.parametrize("suite", SAXPYS, ids=name_of)
def test_a_wrong_answer_is_a_reason(cu: FakeDriver, suite: Any) -> None:
    cu.factor = 1.5
    found = measured(suite[0])
    # What writes a word does not launch.
    launching = [t.name for t in found.figures if "WriteValue" not in t.name]
    assert launching == []
    assert found.missing and all("Mismatched elements" in m.why for m in found.missing)


def test_a_driver_that_refuses_is_a_reason(cu: FakeDriver) -> None:
    cu.result = 209
    found = measured(raw.of_launch)
    assert [t.name for t in found.figures] == []
    assert found.missing[0] == Missing(
        "cuda.bindings: packed launch", "RuntimeError: cuLaunchKernel says 209"
    )


def test_failing_launches_in_compiled_loops_are_a_reason(cu: FakeDriver) -> None:
    cu.result = 209
    (missing,) = measured(floor.of_launch).missing
    assert missing.why == "RuntimeError: cuLaunchKernel says 209"


def test_host_callbacks_come_from_another_thread(cu: FakeDriver) -> None:
    assert measured(host_callback.of_await).missing == []
    assert cu.callers and threading.get_ident() not in cu.callers


def test_a_raw_graph_launches_its_nodes(cu: FakeDriver) -> None:
    raw_graph.of_chain(0, 10)
    assert [len(graph) for graph in cu.graphs] == [10]
    raw_graph.of_graph(0)
    assert [len(graph) for graph in cu.graphs] == [10, 1, 100]


def test_a_graph_the_driver_refuses_is_a_reason(cu: FakeDriver) -> None:
    cases = raw_graph.of_graph(0)
    cu.result = 700
    found = measured(lambda _: cases)
    assert found.figures == [] and all("700" in m.why for m in found.missing)


def test_flights_use_all_streams_and_a_row_each(cu: FakeDriver) -> None:
    rows = raw.Rows(driver.of(0))
    assert len(set(rows.zs)) == 1000 and len(set(rows.streams)) == 4


def test_who_is_not_installed_is_named(cu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {n: f"no {n} here" for n in ("cupy", "torch", "triton", "numba_cuda_mlir.cuda")}
    known: Callable[..., Any] = importlib.import_module

    def absent_first(name: str, package: str | None = None) -> Any:
        if name in absent:
            raise ModuleNotFoundError(absent[name])
        return known(name, package)

    monkeypatch.setattr(importlib, "import_module", absent_first)
    only = tuple(p for p in peer_registry.PEERS if p[1] != "numba_peer")
    monkeypatch.setattr(peer_registry, "PEERS", only)
    found = peer_registry.of("launch", SimpleNamespace(kind="cuda", ordinal=0))  # type: ignore[arg-type]
    assert {m.name: m.why for m in found.missing} == {
        "CuPy RawKernel": "ModuleNotFoundError: no cupy here",
        "PyTorch": "ModuleNotFoundError: no torch here",
        "Triton": "ModuleNotFoundError: no triton here",
        "numba-cuda-mlir": "ModuleNotFoundError: no numba_cuda_mlir.cuda here",
    }
    assert len(found.cases) == 5 and all(case.peer for case in found.cases)


@pytest.mark.parametrize(
    "command",
    [["alloc"], ["cpu", "--only", "saxpy, 100 k", "--limit", "0.5"]],
    ids=lambda command: command[0],
)
def test_contestants_are_in_the_tables_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(alloc, "CALLS", 5)
    monkeypatch.setattr(simulator, "measured", lambda cases, limit: [])
    path = tmp_path / "figures.json"
    assert main([*command, "--repeats", "3", "--json", str(path)]) == 0
    run = json.loads(path.read_text())
    if command[0] == "cpu":
        others = [r["by"] for r in run["results"] if not r["by"].startswith("numbasync")]
    else:
        (table,) = run["tables"]
        others = [missing["name"] for missing in table["missing"]]
        others += [t["name"] for t in table["timings"] if not t["name"].startswith("numbasync")]
    assert others


def test_every_peer_has_the_suites_listed_for_it() -> None:
    for _, module, suites in peer_registry.PEERS:
        if module in ("triton_peer", "mlir_peer"):
            continue  # each imports its library
        for suite in suites:
            assert callable(getattr(peer_registry.module(module), f"of_{suite}"))
