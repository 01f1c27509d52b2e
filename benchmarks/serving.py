"""A load test of the service in examples/16_service: ways to answer, under the same requests.

Requests come at random times at a given rate, whether earlier ones are answered or not, and a
latency counts from the time at which a request was to be sent. The capacity is what the service
answers in batches when 64 clients ask without a pause. Client and service are processes of one
machine, connected by its loopback interface, so the client has a part of the processor.

    python -m benchmarks.serving --seconds 10 --json serving.json
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
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
WAYS = ("batches", "thread", "blocking")
LOADS = (0.5, 0.9, 1.5)
CLIENTS = 64  # that ask without a pause, for the capacity
MOST_OPEN = 512  # connections; a request that finds none free waits for one
IDLE = 1.0  # seconds; the service closes connections that are not used for 5
HANG = 60.0  # seconds after which something is taken to hang
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

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request on a connection that is kept."""
        async with self._open:
            if self._free and time.perf_counter() - self._free[-1][2] > IDLE:
                self.close()
            if self._free:
                reader, writer, _ = self._free.pop()
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(head_of(method, path, len(body)) + body)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.I)
                answer = await reader.readexactly(int(length[1]) if length else 0)
            except BaseException:
                writer.close()
                raise
            self._free.append((reader, writer, time.perf_counter()))
            return int(head.split(b" ", 2)[1]), answer

    async def metric(self, name: str) -> float:
        _, text = await self.ask("GET", "/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.M)
        return float(found[1]) if found else 0.0

    def close(self) -> None:
        while self._free:
            self._free.pop()[1].close()


def head_of(method: str, path: str, length: int) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


@asynccontextmanager
async def running(way: str, device: str) -> AsyncIterator[Service]:
    """The service, answering in this way."""
    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NUMBASYNC_DEVICE": device}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVICE), "--port", "0", "--way", way,
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
    try:
        yield service
    finally:
        service.close()
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def one(service: Service, pictures: Pictures, seen: Seen, begin: float) -> None:
    i = random.randrange(len(pictures.bodies))  # noqa: S311  # no secret
    try:
        async with asyncio.timeout(HANG):
            status, answer = await service.ask("POST", "/edges", pictures.bodies[i])
    except TimeoutError:
        seen.statuses["hangs"] += 1
        return
    except (OSError, EOFError):
        seen.statuses["connection closed"] += 1
        return
    seen.statuses[str(status)] += 1
    if status == 200:
        seen.latencies.append(time.perf_counter() - begin)
        seen.wrong += not pictures.is_right(i, answer)


async def capacity(service: Service, pictures: Pictures, seconds: float) -> float:
    """Answers a second to clients that ask without a pause."""
    seen, end = Seen(), time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < end:
            await one(service, pictures, seen, time.perf_counter())

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return len(seen.latencies) / (time.perf_counter() - begin)


async def offered(service: Service, pictures: Pictures, rate: float, seconds: float) -> Seen:
    """Send requests at random times, `rate` a second."""
    seen, begin, at = Seen(), time.perf_counter(), 0.0
    async with asyncio.TaskGroup() as tasks:
        while (at := at + random.expovariate(rate)) < seconds:
            await asyncio.sleep(begin + at - time.perf_counter())
            tasks.create_task(one(service, pictures, seen, begin + at))
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
    end = time.perf_counter() + HANG
    while (left := sum([await service.metric(name) for name in names])) and (
        time.perf_counter() < end
    ):
        await asyncio.sleep(0.01)
    used = await service.metric(pool)
    return {"clients": clients, "requests left": left, "pool bytes more": used - before}


async def terminated(service: Service, pictures: Pictures, rate: float) -> dict[str, Any]:
    """SIGTERM under load: how requests that were sent before have ended, those that came with it or
    later, and the process. Of the latter some find no service, or a connection that is closing.
    """
    seen = Seen()
    begin = time.perf_counter()
    asking = [asyncio.ensure_future(one(service, pictures, seen, begin)) for _ in range(CLIENTS)]
    loading = asyncio.ensure_future(offered(service, pictures, rate, 1.0))
    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)  # so all have been sent
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


async def measure(device: Device, seconds: float, ways: Sequence[str]) -> dict[str, Any]:
    pictures, loads = Pictures(), list[Load]()
    async with running("batches", device.kind) as service:
        await capacity(service, pictures, min(seconds, 1.0))
        most = await capacity(service, pictures, seconds)
    show(f"capacity: {most:,.0f} answers a second, in batches")
    for way in ways:
        async with running(way, device.kind) as service:
            await capacity(service, pictures, min(seconds, 1.0))
            for load in LOADS:
                seen = await offered(service, pictures, load * most, seconds)
                p50, p99, p999 = (quantile(seen.latencies, q) for q in (0.5, 0.99, 0.999))
                loads.append(
                    Load(
                        way, load, load * most, len(seen.latencies) / seconds, p50, p99, p999,
                        dict(seen.statuses), seen.wrong,
                    )
                )  # fmt: skip
                show(line(loads[-1]))
    async with running("batches", device.kind) as service:
        await capacity(service, pictures, min(seconds, 1.0))
        left = await hang_ups(service, pictures, 200, device.label)
        end = await terminated(service, pictures, 0.9 * most)
    show(f"clients that hang up: {left}")
    show(f"SIGTERM under load: {end}")
    return {
        "capacity": most, "seconds": seconds, "size": SIZE, "loads": [asdict(one) for one in loads],
        "hang_ups": left, "sigterm": end,
    }  # fmt: skip


def line(load: Load) -> str:
    times = f"p50 {load.p50:9.2f}  p99 {load.p99:9.2f}  p99.9 {load.p999:9.2f} ms"
    rates = f"{load.offered:7.0f} a second offered, {load.answered:7.0f} answered"
    return f"{load.way:<9} {load.load:.1f}  {rates}  {times}  {load.statuses}, {load.wrong} wrong"


def is_sound(result: dict[str, Any]) -> bool:
    """Each request was answered or refused, nothing is wrong, left behind, or hangs."""
    loads, end, left = result["loads"], result["sigterm"], result["hang_ups"]
    statuses = {*end["before"], *(status for one in loads for status in one["statuses"])}
    is_right = statuses <= {"200", "503", "504"} and "hangs" not in end["later"]
    wrong = end["wrong"] + sum(one["wrong"] for one in loads)
    return is_right and not (wrong or left["requests left"] or left["pool bytes more"] > 0)


def show(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Returns the exit status: 0 if the service was sound throughout."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load; default: 10")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    device = pick_device(args.device)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(device, args.seconds, args.ways))
    if args.json is not None:
        method = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
        record = {**report.head("serving", method, device), "serving": result}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if is_sound(result) else 1


if __name__ == "__main__":
    sys.exit(main())
