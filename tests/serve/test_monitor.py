"""`Monitor`: metrics as Prometheus reads them, how late the loop is, and health."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import Any

import pytest

import numbasync as na
from numbasync import errors
from numbasync.serve import MicroBatcher, Monitor
from numbasync.serve.monitor import LAST
from numbasync.serve.statistics import TIMES, Spread
from tests import waiting

LINE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


async def echo(items: list[Any]) -> list[Any]:
    return items


def samples(text: str) -> dict[tuple[str, str], float]:
    """The values of a text, by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            parts = LINE.fullmatch(line)
            assert parts is not None, line
            found[parts[1], parts[2] or ""] = float(parts[3])
    return found


def test_metrics_count_requests_batches_work_and_memory(device: na.Device) -> None:
    async def main() -> None:
        async with MicroBatcher(echo, 4) as batcher, Monitor({'a "b"\n': batcher}) as monitor:
            await asyncio.gather(*map(batcher, range(10)))
            kept = await na.zeros(1000)
            text = monitor.text()
            found = samples(text)
            assert kept.nbytes <= found["numbasync_pool_used_bytes", f'device="{device.label}"']
        name = r'batcher="a \"b\"\n"'
        assert found["numbasync_requests_total", f'{name},end="answered"'] == 10
        assert found["numbasync_requests_waiting", name] == 0
        assert found["numbasync_batch_size_bucket", f'{name},le="2"'] == 1
        assert found["numbasync_batch_size_bucket", f'{name},le="+Inf"'] == 3
        assert found["numbasync_batch_size_sum", name] == 10
        assert found["numbasync_answer_seconds_count", name] == 10
        assert found["numbasync_allocations_total", ""] > 0
        for family in re.findall(r"^# TYPE (\w+) ", text, re.M):
            assert text.count(f"# HELP {family} ") == text.count(f"# TYPE {family} ") == 1

    with na.use_device(device):
        asyncio.run(main())


def test_the_package_shows_the_same() -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="needs the extra serve")

    async def main() -> None:
        async with MicroBatcher(echo) as batcher, Monitor({"echo": batcher}) as monitor:
            await batcher(1)
            registry = prometheus.CollectorRegistry()
            registry.register(monitor)
            theirs = samples(prometheus.generate_latest(registry).decode())
            ours = samples(monitor.text())
        assert {key for key in theirs if not key[0].endswith("_created")} == ours.keys()
        assert all(theirs[key] == value for key, value in ours.items() if "seconds" not in key[0])

    asyncio.run(main())


def test_without_the_package_collecting_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'numbasync\[serve\]'"):
        next(Monitor().collect())


@waiting.loops
def test_a_blocked_loop_is_late_and_not_alive(loop: str) -> None:
    async def main() -> None:
        async with Monitor(interval=0.001, max_lag=0.01) as monitor:
            for _ in range(LAST):
                seen = monitor._lag.histogram().count
                end = time.perf_counter() + 0.03
                while time.perf_counter() < end:
                    pass
                await waiting.eventually(lambda seen=seen: monitor._lag.histogram().count > seen)
            health = await monitor.check(timeout=300)
            assert not health.is_alive and "the event loop is late by" in health.problems[0]
            assert monitor._lag.histogram().largest >= 0.01
        assert "closed" in repr(monitor)

    waiting.run(loop, main())


def test_full_and_closed_batchers_are_not_ready() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def held(items: list[int]) -> list[int]:
            await go.wait()
            return items

        batcher = MicroBatcher(held, 1, 0, max_queue=1)
        async with batcher, Monitor({"held": batcher}) as monitor:
            tasks = [asyncio.ensure_future(batcher(i)) for i in range(2)]
            await waiting.eventually(lambda: batcher.is_full)
            full = await monitor.check(timeout=300)
            go.set()
            await asyncio.gather(*tasks)
            ready = await monitor.check(timeout=300)
            await batcher.close()
            closed = await monitor.check(timeout=300)
        assert (full.is_alive, full.is_ready) == (True, False) and "is full" in full.problems[0]
        assert (ready.is_alive, ready.is_ready, ready.problems) == (True, True, ())
        assert (closed.is_alive, closed.is_ready) == (True, False)

    asyncio.run(main())


def test_a_device_that_fails_is_not_alive(cpu: na.Device) -> None:
    async def main() -> None:
        async with Monitor(devices=[cpu]) as monitor:
            with na.testing.inject(cpu, "allocation"):
                health = await monitor.check(timeout=300)
            assert not health.is_alive and health.problems[0].startswith("cpu:0 does not work")
            assert (await monitor.check(timeout=300)).is_alive

    asyncio.run(main())


def test_a_device_that_does_nothing_is_not_alive(device: na.Device) -> None:
    async def main() -> None:
        stream = device.new_stream()
        await na.zeros(1).schedule(stream)
        async with Monitor(devices=[device]) as monitor:
            before, device.policy = device.policy, na.SingleStream(device)
            try:
                await monitor.check(timeout=300)
                with na.testing.gate(device.policy.next_stream()):
                    health = await monitor.check(timeout=0.01)
            finally:
                device.policy = before
            assert health.problems == (
                f"{device.label} has not done a small operation within 0.01 s",
            )

    asyncio.run(main())


def test_quantiles() -> None:
    spread = Spread(TIMES)
    assert spread.histogram().quantile(0.5) == spread.histogram().mean == 0
    for number in range(1, 101):
        spread.add(number / 1000)
    seen = spread.histogram()
    assert seen.count == 100 and seen.mean == pytest.approx(0.0505)
    for q in (0.01, 0.1, 0.5, 0.9, 0.99, 1.0):
        assert seen.quantile(q) == pytest.approx(q / 10, abs=0.001)
    spread.add(77.0)
    assert spread.histogram().quantile(1) == 77 and spread.histogram().counts[-1] == 1


@pytest.mark.parametrize(
    "make",
    [lambda: Monitor({"x": 3}), lambda: Monitor([1]), lambda: Monitor(devices=["gpu"]),
     lambda: Monitor(interval=0), lambda: Monitor(max_lag=-1), lambda: MicroBatcher(3),
     lambda: MicroBatcher(echo, 0), lambda: MicroBatcher(echo, max_wait=-1),
     lambda: MicroBatcher(echo, max_queue=0), lambda: MicroBatcher(echo, key=3)],
)  # fmt: skip
def test_wrong_arguments_are_refused(make: Any) -> None:
    with pytest.raises(errors.CallerError, match="write "):
        make()
