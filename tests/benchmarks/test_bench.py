"""The suites of `numbasync bench`: that they run, what is in their reports; no absolute times."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from benchmarks import (
    algorithms,
    alloc,
    asyncio_forms,
    awaiting,
    batches,
    block_collectives,
    chains,
    copying,
    decode,
    devices,
    embeddings,
    graphs,
    host_work,
    interop,
    kernel_waits,
    launch,
    long_wait,
    peer_registry,
    plain_kernels,
    ready_calls,
    ready_kernels,
    replayed,
    report,
    scaling,
    suites,
    traced,
)
from benchmarks.__main__ import main
from benchmarks.replayed import ReplayedGraph
from benchmarks.work import CHAIN, saxpy
from numbasync.testing import Gate, settle
from tests.common import full, waited

TABLES = {
    "one small kernel": ("launch", 6),
    "one small kernel, awaited": ("await", 5),
    "forms of awaiting operations, per op": (None, 12 if sys.version_info >= (3, 12) else 11),
    "a kernel of 500 ms": (None, 4),
    "1,000 in flight, per op": ("flight", 4),
    "a trace": ("trace", 9),
    "three arrays of another library": ("interop", 2),
    "an array of another library, read": ("reading", 1),
    "a new array": ("alloc", 3),
    "copies of 64 MiB": ("copy", 6),
    "round trip of 4 KiB": ("trip", 3),
    "a million elements": ("made", 6),
    "graph launch, host": ("graph", 6),
    "100-node chain, launch to synchronise, per node": ("node", 2),
    "a chain of 1": ("chain", 4),
    "a chain of 10": ("chain", 4),
    "a chain of 100": ("chain", 4),
    "a chain of 1,000": ("chain", 4),
    "a step with 0 us of host work": ("step", 3),
    "a step with 100 us of host work": ("step", 3),
    "a step with 300 us of host work": ("step", 3),
    "a step with 1,000 us of host work": ("step", 3),
    "relu, scale, add of 4,096 float32 of the host": ("batch_host", 3),
    "relu, scale, add of 4,096 float32 of the device": ("batch_chain", 3),
    "sums of 4,096 float32; softmax of 4 x 256": ("batch_reduce", 3),
    "tall matrices of 4,096 float32": ("batch_tall", 3),
    "a batch of 1,024 float32": ("batch_small", 2),
    "add, saxpy and decay of 4,096 float32": ("plain_add", 4),
    "stencil and 2-D add of 4,096 float32": ("plain_neighbours", 2),
    "add of 4,096 elements of other types": ("plain_types", 1),
    "odd lengths and views of 4,096 float32": ("plain_views", 2),
    "small arrays, in graphs of 5 launches": ("plain_small", 4),
    "matrix products": ("products", 2),
    "attention of float16": ("attention", 1),
    "attention for decoding": ("decode", 2),
    "sentence embeddings": ("embeddings", 4),
    "ready kernels, submitted": ("ready_calls", 2),
}
# Whole models, and their parts, whose kernels are many.
MODELS = {
    "matrix products": ready_kernels.products, "attention of float16": ready_kernels.attention,
    "attention for decoding": decode.tables, "sentence embeddings": embeddings.tables,
}  # fmt: skip
OF_A_GPU = {  # behind the kernel of 500 ms; the CPU device computes in this process
    "waiting for kernels of 5 us": (None, 5),
    "waiting for kernels of 1 ms": (None, 5),
}
OF_TWO_GPUS = {
    "peer copy of 4 KiB": ("peer", 1),
    "4 KiB to the other GPU": ("move", 1),
    "two GPUs: latency": (None, 1),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (awaiting, traced):
        monkeypatch.setattr(module, "calls_of_a_round", lambda *_: CHAIN)
    monkeypatch.setattr(traced, "BATCHES", 2)
    monkeypatch.setattr(interop, "CALLS", 5)
    monkeypatch.setattr(long_wait, "SECONDS", 0.02)
    monkeypatch.setattr(kernel_waits, "LENGTHS", ((5e-6, 3), (1e-3, 3)))
    monkeypatch.setattr(copying, "LARGE", 1 << 12)
    monkeypatch.setattr(copying, "ROWS", 1 << 5)
    monkeypatch.setattr(copying, "SMALL_CALLS", 5)
    monkeypatch.setattr(alloc, "CALLS", 20)
    monkeypatch.setattr(asyncio_forms, "COUNT", 20)
    monkeypatch.setattr(chains, "LAUNCHES", 10)
    monkeypatch.setattr(graphs, "CALLS", 2 * replayed.DEPTH)
    monkeypatch.setattr(host_work, "STEPS", 3)
    monkeypatch.setattr(batches, "SMALL_CALLS", 5)
    for name, value in (("LARGE", 4096), ("ROWS", 4)):
        monkeypatch.setattr(batches, name, value)
        monkeypatch.setattr(batches, f"{name}_CPU", value)
    monkeypatch.setattr(batches, "COLUMNS", 256)
    monkeypatch.setattr(plain_kernels, "LARGE", 4096)
    monkeypatch.setattr(plain_kernels, "LAUNCHES", 5)
    for module in (plain_kernels, ready_calls, ready_kernels):
        monkeypatch.setattr(module, "CALLS", 1)
    monkeypatch.setattr(decode, "MANY", decode.FEW)
    monkeypatch.setattr(decode, "CALLS", 1)
    monkeypatch.setattr(devices, "SIZES", {"4 KiB": 4096})
    monkeypatch.setattr(devices, "SMALL_CALLS", 5)
    monkeypatch.setattr(embeddings, "PASSES", 1)
    monkeypatch.setattr(ready_kernels, "PRODUCTS", ready_kernels.FEW_PRODUCTS)
    monkeypatch.setattr(ready_kernels, "ATTENTION", ready_kernels.FEW_ATTENTION)


def bench(device: na.Device, what: str, path: Path) -> dict[str, Any]:
    argv = [what, "--repeats", "3", "--json", str(path), "--device", device.kind]
    assert main(argv) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def that_gives_all_memory_back(part: suites.Part, left: dict[str, int]) -> suites.Part:
    """The part of a suite, which notes the bytes that its tables leave allocated."""

    async def tables(device: na.Device, rounds: int) -> list[report.Record]:
        gc.collect()
        before = device.memory_stats().used_current
        records = await part(device, rounds)
        for used in na.devices(device.kind):  # work of one keeps what it was given of others
            used.synchronize()
        gc.collect()  # the frames of errors inside Numba's compiler hold what its callers have
        after = device.memory_stats().used_current
        if after != before:
            left[f"{part.__module__}.{part.__name__}"] = after - before
        return records

    return tables


def test_the_arrays_of_a_table_end_with_it(device: na.Device) -> None:
    """Not with a garbage collection: the next table's could not be allocated before."""
    plain_kernels.Bench(device, 4096)  # compiles; the frames of errors in Numba hold its arrays
    gc.collect()
    before = device.memory_stats().used_current
    b = plain_kernels.Bench(device, 4096)
    b.add("fill", lambda z=b.z: na.fill(z, 1), b.periods[0])  # type: ignore[misc]
    device.synchronize()
    assert device.memory_stats().used_current > before
    gc.disable()
    try:
        del b
        device.synchronize()  # which lets go of what streams have kept
        assert device.memory_stats().used_current == before
    finally:
        gc.enable()


@pytest.mark.parametrize("models", [False, full(True)])
def test_all_suites_in_one_run(
    device: na.Device,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    models: bool,
) -> None:
    policy = device.policy
    left: dict[str, int] = {}
    left_out = {} if models else MODELS
    for name, parts in list(suites.SUITES.items()):
        used = [part for part in parts if part not in left_out.values()]
        noted = [that_gives_all_memory_back(part, left) for part in used]
        monkeypatch.setitem(suites.SUITES, name, noted)
    found = bench(device, "all", tmp_path / "all.json")
    assert not left, "bytes that nobody uses any more"
    said = capsys.readouterr().out
    assert device.policy is policy
    assert found["machine"]["device"] == device.name and found["versions"]["numba"]
    two = device.kind == "cuda" and len(na.devices("cuda")) > 1
    tables = dict[str, tuple[str | None, int]]()
    for what, expected in TABLES.items():
        tables[what] = expected
        if what == "a kernel of 500 ms" and device.kind == "cuda":
            tables |= OF_A_GPU
    tables |= OF_TWO_GPUS if two else {}
    assert [one["what"] for one in found["tables"]] == [t for t in tables if t not in left_out]
    assert ("bench devices: skipped, it needs two GPUs" in said) == (not two)
    for one in found["tables"]:
        suite, least = tables[one["what"]]
        names = [t["name"] for t in one["timings"]]
        assert len(names) == len(set(names)) and len(names) >= least, names
        assert (one["base"] in names and "rounds" in one["method"]) or "waits" in one["method"]
        for t in one["timings"]:
            assert 0 < t["low"] <= t["median"] <= t["high"] and t["rounds"] == 3, t
            assert t["name"] in said
        expected_to_be_said(device, suite, one)
        for judged in one["targets"]:
            follows_from_its_table(judged, one)
            assert judged["what"] in said
    assert any(one["targets"] for one in found["tables"])


def expected_to_be_said(device: na.Device, suite: str | None, one: dict[str, Any]) -> None:
    """Every library has a case, or a reason why not; on the CPU device, all the same one."""
    if suite is None:
        return
    missing = {m["name"]: m["why"] for m in one["missing"]}
    assert all(missing.values())
    wanted = [name for name, _, suites in peer_registry.PEERS if suite in suites]
    for name in wanted:
        # These have no launch of their own: they are measured by ours, of their arrays.
        case = f"numbasync: {name}" if suite == "interop" and name in ("cuda.core", "RMM") else name
        case = f"numbasync: a tensor of {name}" if suite == "reading" else case
        measured = any(t["name"].startswith(case) for t in one["timings"])
        assert measured or any(m.startswith(name) for m in missing), name
    if device.kind == "cpu":
        assert missing == dict.fromkeys(wanted, "needs a GPU")
        shown = report.markdown(one)
        assert all(f"| {name} |  | not measured: needs a GPU |  |" in shown for name in wanted)


def follows_from_its_table(judged: dict[str, Any], one: dict[str, Any]) -> None:
    medians = {t["name"]: t["median"] for t in one["timings"]}
    if judged["measured"] is None:
        assert judged["why"] and judged["met"] is None
        assert judged["ours"] not in medians or judged["base"] not in medians
        return
    base = 1.0 if judged["base"] is None else medians[judged["base"]]
    assert judged["measured"] == medians[judged["ours"]] / base
    assert judged["met"] == (judged["measured"] <= judged["bound"])
    assert judged["stretch_met"] == (judged["measured"] <= judged["stretch"])
    assert judged["stretch"] < judged["bound"]


@pytest.mark.full
def test_the_same_work_on_more_devices(
    device: na.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of devices has a row, and the model one for those that are not here, too."""
    small: dict[str, Any] = {
        "STEPS": 3, "ELEMENTS": 4096, "SIDE": 256, "PARTS": 4, "PART_ELEMENTS": 4096,
        "PART_STEPS": 60, "SIZES": {"4 KiB": 4096}, "POINTS": 512, "LAUNCHES": 5,
    }  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(scaling, name, value)
    found = bench(device, "scaling", tmp_path / "scaling.json")["tables"]
    here = [count for count in scaling.COUNTS if count <= len(na.devices(device.kind))]
    if len(here) < 2:
        assert found == []
        return
    for table in found:
        names = [timing["name"] for timing in table["timings"]]
        ours = [name for name in names if name.startswith("numbasync: ")]
        said = [name for name in names if name.startswith("model: ")]
        if "reduce" in table["what"] or "gather" in table["what"]:
            assert len(ours) == 2 * len(here[1:])
            assert len(said) == (3 if "all_reduce" in table["what"] else 0)
        else:
            processes = len(here[1:]) if table["what"] == "one process or many" else 0
            assert len(ours) == len(here) + processes
            assert len(said) >= 2, "of four and of eight"
        of_peers = "collective" if "of 4 KiB" in table["what"] else None
        expected_to_be_said(device, of_peers, table)
        for judged in table["targets"]:
            follows_from_its_table(judged, table)


@pytest.mark.full
def test_algorithms_beside_others(
    device: na.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "LARGE", algorithms.FEW)
    monkeypatch.setattr(block_collectives, "LARGE", block_collectives.FEW)
    one, blocks = bench(device, "algorithms", tmp_path / "algorithms.json")["tables"]
    names = {t["name"] for t in one["timings"]}
    beside = ["NumPy"] if device.kind == "cpu" else []
    wanted = {f"{who}: {what}" for who in ("numbasync", *beside) for what in algorithms.REFERENCES}
    assert names >= wanted and one["base"] in names
    assert len(blocks["timings"]) >= len(block_collectives.REFERENCES)
    for table in (one, blocks):
        for judged in table["targets"]:
            follows_from_its_table(judged, table)


def test_one_suite_alone(device: na.Device, tmp_path: Path) -> None:
    found = bench(device, "alloc", tmp_path / "alloc.json")
    assert [one["what"] for one in found["tables"]] == ["a new array"]
    assert found["what"] == "bench alloc"


def test_parts_of_suites_by_their_names(device: na.Device, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    only = ["--only", "batches.small", "alloc"]
    assert main(["all", *only, "--repeats", "3", "--json", str(path), "--device", device.kind]) == 0
    found = json.loads(path.read_text())
    assert [one["what"] for one in found["tables"]] == ["a new array", "a batch of 1,024 float32"]


async def test_waiting_that_holds_up_loops_is_a_gap(device: na.Device) -> None:
    held = 0.0

    async def holds(kernel: Any, end: na.Event) -> None:
        nonlocal held
        began = time.perf_counter()
        while (held := time.perf_counter() - began) < long_wait.TICK:
            pass

    gap = await long_wait._gap(device, None, holds)  # type: ignore[arg-type]
    assert gap >= held * 1e3


@pytest.mark.parametrize(("module", "launches"), [("replayed", 99), ("chains", 101)])
def test_a_graph_losing_a_launch_ends_the_run(
    device: na.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, launches: int
) -> None:
    zipped = replayed.zipped
    owner = {"replayed": replayed, "chains": chains}[module]
    # Only chains of 100 are wrong, so tables before them are there.
    monkeypatch.setattr(owner, "zipped", lambda z, x, n: zipped(z, x, launches if n == 100 else n))
    with pytest.raises(AssertionError, match="Mismatched"):
        bench(device, "graph", tmp_path / "graph.json")


async def test_a_step_ends_behind_launch_and_computing(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = await ReplayedGraph.on(device.new_stream(), 3)
    computed = list[tuple[int, int]]()

    def compute(work: int) -> None:
        computed.append((work, graph.graph.statistics().launches))

    monkeypatch.setattr(host_work, "compute", compute)
    for case in host_work.cases(graph, 300):
        await case.check()
        computed.clear()
        before = graph.graph.statistics().launches
        await case.run(2)
        assert computed == [(300, before + 1), (300, before + 2)], case.name


async def test_an_async_step_computes_while_the_device_does(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = await ReplayedGraph.on(stream, 3)
    sync, *others = host_work.cases(graph, 300)
    await sync.check()
    monkeypatch.setattr(host_work, "compute", lambda work: gate.open())
    assert len(others) == 2
    for case in others:
        gate.close()
        step = asyncio.ensure_future(waited(case.run(1)))
        await settle(device)
        is_open = gate.is_open  # else it waits before it computes, or does not compute at all
        gate.open()
        await step
        assert is_open, case.name


def test_a_wrong_answer_ends_the_run(
    device: na.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        prepare = staticmethod(saxpy.prepare)

        def __call__(self, part: na.Partition, a: float, x: na.Tensor) -> na.DeviceOp[Any]:
            return saxpy(part, a + 1, x)

    monkeypatch.setattr(launch, "saxpy", Wrong())
    with pytest.raises(AssertionError, match="Mismatched"):
        bench(device, "launch", tmp_path / "launch.json")
