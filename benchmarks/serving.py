"""A load test of the service in examples/16_service: ways to answer, under the same requests.

Requests come at random times at a given rate, whether earlier ones are answered or not, and a
latency counts from the time at which a request was to be sent. The capacity is what the service
answers in batches when 64 clients ask without a pause. Client and service are processes of one
machine, connected by its loopback interface, so the client has a part of the processor.

Then clients hang up, the device breaks, and the service is told to end, each under load.

    python -m benchmarks.serving --requests 10000 --json serving.json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
import math
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks import report
from numbasync.device.device import Device
from numbasync.tools.cli import pick_device
from numbasync_kernels import image

ROOT = Path(__file__).parent.parent
SERVICE = ROOT / "examples/16_service/service.py"
WORKERS = ROOT / "examples/16_service/workers.py"
BROKEN = ROOT / "benchmarks/broken_service.py"
WAYS = ("batches", "thread", "blocking")
LOADS = (0.5, 0.9, 1.5)
CLIENTS = 64  # that ask without a pause, for the capacity
MOST_OPEN = 512  # connections; a request that finds none free waits for one
IDLE = 1.0  # seconds; the service closes connections that are not used for 5
HANG = 300.0  # seconds after which something is taken to hang
SIZE = (64, 64)


@dataclass
class Load:
    """What clients saw of one way at one rate. Latencies are in milliseconds, of answers."""

    way: str
    load: float
    offered: float
    answered: float
    p50: float
    p99: float
    p999: float
    statuses: dict[str, int]
    wrong: int


@dataclass
class Seen:
    """Answers as they come."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0


class Pictures:
    """Requests, and what has to come back: edges by NumPy."""

    def __init__(self, count: int = 16) -> None:
        from PIL import Image

        rng = np.random.default_rng(0)
        self.bodies, self._edges = [], []
        for _ in range(count):
            levels = rng.integers(0, 256, (*SIZE, 3)).astype(np.uint8)
            file = io.BytesIO()
            Image.fromarray(levels).save(file, "png")
            self.bodies.append(file.getvalue())
            gradient = image.sobel_reference(image.grey_reference(levels))
            self._edges.append(np.minimum(255, gradient.astype(np.int64)))
        self._right: dict[int, bytes] = {}

    def is_right(self, i: int, answer: bytes) -> bool:
        """Whether an answer shows the edges of picture `i`; the same bytes are looked at once."""
        if self._right.get(i) == answer:
            return True
        from PIL import Image

        if not np.array_equal(np.asarray(Image.open(io.BytesIO(answer))), self._edges[i]):
            return False
        self._right[i] = answer
        return True


class Service:
    """The process of the service."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []
        self._open = asyncio.Semaphore(MOST_OPEN)
        self.said = ""  # on its standard error, known at its end

    async def ask(
        self, method: str, path: str, body: bytes = b"", begun: asyncio.Event | None = None
    ) -> tuple[int, bytes]:
        """One request on a connection that is kept.

        Args:
            begun: set when the service is at the request, for whose word the body waits then.
        """
        async with self._open:
            if self._free and time.perf_counter() - self._free[-1][2] > IDLE:
                self.close()
            if self._free:
                reader, writer, _ = self._free.pop()
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                is_kept = True
                if begun is None:
                    writer.write(head_of(method, path, len(body)) + body)
                    head = await reader.readuntil(b"\r\n\r\n")
                else:
                    writer.write(head_of(method, path, len(body), "Expect: 100-continue\r\n"))
                    head = await reader.readuntil(b"\r\n\r\n")
                    begun.set()
                    is_kept = head.startswith(b"HTTP/1.1 100")
                    if is_kept:
                        writer.write(body)
                        head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.I)
                answer = await reader.readexactly(int(length[1]) if length else 0)
            except BaseException:
                writer.close()
                raise
            if is_kept:
                self._free.append((reader, writer, time.perf_counter()))
            else:
                writer.close()  # the service may still wait for the body
            return int(head.split(b" ", 2)[1]), answer

    async def metric(self, name: str) -> float:
        _, text = await self.ask("GET", "/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.M)
        return float(found[1]) if found else 0.0

    def close(self) -> None:
        while self._free:
            self._free.pop()[1].close()


def head_of(method: str, path: str, length: int, more: str = "") -> bytes:
    first = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
    return f"{first}{more}\r\n".encode()


@asynccontextmanager
async def running(*program: str, device: str) -> AsyncIterator[Service]:
    """The service, as this program runs it."""
    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NUMBASYNC_DEVICE": device}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, "--port", "0", "--log-level", "info",
        stderr=asyncio.subprocess.PIPE, env=env,
    )  # fmt: skip
    assert process.stderr is not None  # a pipe
    said, port = b"", None
    while port is None:
        line = await process.stderr.readline()
        said += line
        if not line:
            raise RuntimeError(f"the service does not start: {said.decode()}")
        port = re.search(rb"running on http://127\.0\.0\.1:(\d+)", line)
    service = Service(process, int(port[1]))
    rest = asyncio.ensure_future(process.stderr.read())  # else its pipe may become full
    try:
        yield service
    finally:
        service.close()
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(HANG):
                await process.wait()
        except TimeoutError:
            process.kill()
        service.said = (await rest).decode()


async def one(
    service: Service,
    pictures: Pictures,
    seen: Seen,
    begin: float,
    begun: asyncio.Event | None = None,
) -> None:
    """One request, and what has come of it.

    Args:
        begun: set when the service is at the request, or when it has ended. A request that the
            service was at, and that has no answer, is lost.
    """
    i = random.randrange(len(pictures.bodies))  # noqa: S311  # no secret
    try:
        async with asyncio.timeout(HANG):
            status, answer = await service.ask("POST", "/edges", pictures.bodies[i], begun)
    except TimeoutError:
        seen.statuses["hangs"] += 1
        return
    except (OSError, EOFError):
        is_lost = begun is not None and begun.is_set()
        seen.statuses["lost" if is_lost else "connection closed"] += 1
        return
    finally:
        if begun is not None:
            begun.set()
    seen.statuses[str(status)] += 1
    if status == 200:
        seen.latencies.append(time.perf_counter() - begin)
        seen.wrong += not pictures.is_right(i, answer)


async def capacity(service: Service, pictures: Pictures, requests: int) -> float:
    """Answers a second to clients that ask without a pause."""
    seen = await asked(service, pictures, requests)
    return len(seen.latencies) / seen.seconds


async def asked(
    service: Service, pictures: Pictures, requests: int, is_begun_told: bool = False
) -> Seen:
    """So many requests of clients that ask without a pause."""
    seen, left, begin = Seen(), iter(range(requests)), time.perf_counter()

    async def client() -> None:
        for _ in left:
            begun = asyncio.Event() if is_begun_told else None
            await one(service, pictures, seen, time.perf_counter(), begun)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seen.seconds = time.perf_counter() - begin
    return seen


async def offered(service: Service, pictures: Pictures, rate: float, requests: int) -> Seen:
    """Send requests at random times, `rate` a second."""
    seen, begin, at = Seen(), time.perf_counter(), 0.0
    async with asyncio.TaskGroup() as tasks:
        for _ in range(requests):
            at += random.expovariate(rate)
            await asyncio.sleep(begin + at - time.perf_counter())
            tasks.create_task(one(service, pictures, seen, begin + at))
    seen.seconds = time.perf_counter() - begin
    return seen


async def hang_ups(
    service: Service, pictures: Pictures, clients: int, device: str
) -> dict[str, float]:
    """Clients that leave before their answer comes; then what is left of their requests."""
    body, pool = pictures.bodies[0], f'numbasync_pool_used_bytes{{device="{device}"}}'
    before = await service.metric(pool)
    for i in range(clients):
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(head_of("POST", "/edges", len(body)) + body[: len(body) if i % 2 else 9])
        await writer.drain()
        writer.close()
    names = [f'numbasync_requests_{name}{{batcher="edges"}}' for name in ("waiting", "running")]

    async def left_and_more() -> tuple[float, float]:
        left = sum([await service.metric(name) for name in names])
        return left, await service.metric(pool) - before

    # A batch that nobody wants any more has its memory until the device has passed it.
    end = time.perf_counter() + HANG
    left, more = await left_and_more()
    while (left or more > 0) and time.perf_counter() < end:
        await asyncio.sleep(0.01)
        left, more = await left_and_more()
    return {"clients": clients, "requests left": left, "pool bytes more": more}


async def broken(pictures: Pictures, requests: int, device: str) -> dict[str, Any]:
    """A device that breaks again and again under load, so that its process ends and another one is
    started: how requests have ended.
    """
    after = 8 + requests // 25  # launches: some times, whatever the batches are
    program = (str(WORKERS), "--program", str(BROKEN), "--break-after", str(after))
    async with running(*program, device=device) as service:
        seen = await asked(service, pictures, requests, is_begun_told=True)
        status, end = 0, time.perf_counter() + HANG
        while status != 200 and time.perf_counter() < end:  # until the next process is there
            with suppress(OSError, EOFError):
                status, _ = await service.ask("GET", "/health")
    ends = service.said.count("has ended: 1")
    return {
        "ends of the process": ends, "statuses": dict(seen.statuses), "wrong": seen.wrong,
        "health": status,
    }  # fmt: skip


async def terminated(service: Service, pictures: Pictures, rate: float) -> dict[str, Any]:
    """SIGTERM under load: how requests that the service was at have ended, those that came with it
    or later, and the process. Of the latter some find no service, or a connection that is closing.
    """
    seen, begun = Seen(), [asyncio.Event() for _ in range(CLIENTS)]
    begin = time.perf_counter()
    asking = [asyncio.ensure_future(one(service, pictures, seen, begin, each)) for each in begun]
    await asyncio.gather(*(each.wait() for each in begun))
    loading = asyncio.ensure_future(offered(service, pictures, rate, CLIENTS))
    service.process.send_signal(signal.SIGTERM)
    told = time.perf_counter()
    try:
        async with asyncio.timeout(HANG):
            await service.process.wait()
    except TimeoutError:
        return {"seconds": HANG, "before": {"the service hangs": 1}, "later": {}, "wrong": 0}
    seconds = time.perf_counter() - told
    await asyncio.gather(*asking)
    load = await loading
    statuses = {"before": dict(seen.statuses), "later": dict(load.statuses)}
    return {"seconds": seconds, **statuses, "wrong": seen.wrong + load.wrong}


def quantile(latencies: Sequence[float], q: float) -> float:
    """Milliseconds."""
    ordered = sorted(latencies)
    return 1000 * ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


async def measure(
    device: Device, requests: int, ways: Sequence[str], options: Sequence[str]
) -> dict[str, Any]:
    pictures, loads, few = Pictures(), list[Load](), max(requests // 10, CLIENTS)

    def answering(way: str) -> AbstractAsyncContextManager[Service]:
        return running(str(SERVICE), "--way", way, *options, device=device.kind)

    async with answering("batches") as service:
        await capacity(service, pictures, few)
        most = await capacity(service, pictures, requests)
    show(f"capacity: {most:,.0f} answers a second, in batches")
    for way in ways:
        async with answering(way) as service:
            await capacity(service, pictures, few)
            for load in LOADS:
                seen = await offered(service, pictures, load * most, requests)
                p50, p99, p999 = (quantile(seen.latencies, q) for q in (0.5, 0.99, 0.999))
                loads.append(
                    Load(
                        way, load, load * most, len(seen.latencies) / seen.seconds, p50, p99, p999,
                        dict(seen.statuses), seen.wrong,
                    )
                )  # fmt: skip
                show(line(loads[-1]))
    async with answering("batches") as service:
        await capacity(service, pictures, few)
        left = await hang_ups(service, pictures, 200, device.label)
        end = await terminated(service, pictures, 0.9 * most)
    fault = await broken(pictures, requests, device.kind)
    result = {
        "capacity": most, "requests": requests, "size": SIZE,
        "loads": [asdict(one) for one in loads], "hang_ups": left, "sigterm": end, "fault": fault,
    }  # fmt: skip
    for said in text(result).splitlines()[1 + len(loads) :]:
        show(said)
    return result


def line(load: Load) -> str:
    times = f"p50 {load.p50:8.2f}  p99 {load.p99:8.2f}  p99.9 {load.p999:8.2f} ms"
    rates = f"{load.offered:6.0f} a second offered, {load.answered:6.0f} answered"
    return (
        f"{load.way:<8} {load.load:.1f} {rates} {times}  {told(load.statuses)}, {load.wrong} wrong"
    )


def tables(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The latencies as tables for plots and pages: one for each quantile, in microseconds."""
    found = []
    for what, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999")):
        rows = [
            {"name": f"{one['way']}, {one['load']}", "median": 1000 * one[key], "unit": "us"}
            for one in result["loads"]
            if not math.isnan(one[key])
        ]
        found.append({"what": what, "timings": rows})
    return found


def text(result: dict[str, Any]) -> str:
    """All of it, as lines."""
    fault = result["fault"]
    lines = [f"capacity: {result['capacity']:,.0f} answers a second, in batches"]
    lines += [line(Load(**one)) for one in result["loads"]]
    lines.append(f"clients that hang up: {told(result['hang_ups'])}")
    end = result["sigterm"]
    lines.append(
        f"SIGTERM: ended after {end['seconds']:.2f} s; at work {told(end['before'])}; "
        f"later {told(end['later'])}; {end['wrong']} wrong"
    )
    lines.append(
        f"a device that breaks: {fault['ends of the process']} new processes; "
        f"{told(fault['statuses'])}; {fault['wrong']} wrong; then /health {fault['health']}"
    )
    return "\n".join(lines)


def told(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {number:,.0f}" for name, number in sorted(counts.items()))


def is_sound(result: dict[str, Any]) -> bool:
    """Each request was answered or refused, nothing is wrong, left behind, or hangs."""
    loads, end, left, fault = (result[k] for k in ("loads", "sigterm", "hang_ups", "fault"))
    statuses = {*end["before"], *(status for one in loads for status in one["statuses"])}
    is_right = statuses <= {"200", "503", "504"} and "hangs" not in end["later"]
    # A connection that is kept may be closed before the service was at its next request.
    is_right &= {*fault["statuses"]} <= {"200", "503", "504", "connection closed"}
    wrong = end["wrong"] + fault["wrong"] + sum(one["wrong"] for one in loads)
    is_left = left["requests left"] or left["pool bytes more"] > 0
    return is_right and not wrong and not is_left and fault["health"] == 200


def show(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Returns the exit status: 0 if the service was sound throughout."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--requests", type=int, default=10_000, help="of each load; default: 10,000"
    )
    parser.add_argument("--deadline", help="seconds for an answer; default: the service's")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    device = pick_device(args.device)
    options = [] if args.deadline is None else ["--deadline", args.deadline, "--grace", str(HANG)]
    gc.collect()
    gc.freeze()  # as the service does: else clients wait while garbage is looked for here
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(device, args.requests, args.ways, options))
    gc.unfreeze()
    if args.json is not None:
        method = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
        head = report.head("serving", method, device)
        texts = {"load test": text(result)}
        record = {**head, "tables": tables(result), "texts": texts, "serving": result}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if is_sound(result) else 1


if __name__ == "__main__":
    sys.exit(main())
