"""The service of the examples, in a process of its own, asked by real HTTP clients."""

from __future__ import annotations

import asyncio
import gc
import http.client
import importlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from numbasync_kernels import image

ROOT = Path(__file__).parent.parent.parent
SERVICE = ROOT / "examples/16_service/service.py"
WORKERS = SERVICE.with_name("workers.py")
BROKEN = ROOT / "benchmarks/broken_service.py"
PAGE = ROOT / "docs/how-to/web-service.md"
RUNNING = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


class Running:
    """A service, until the test ends."""

    def __init__(self, *program: str, folder: Path = ROOT) -> None:
        paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
        own = {"NUMBASYNC_DEVICE": "cpu", "PYTHONWARNINGS": "default"}
        self.process = subprocess.Popen(
            [sys.executable, *program, "--port", "0"], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}, cwd=folder,
        )  # fmt: skip
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := RUNNING.search(line):
                self.port = int(found[1])
                return
        pytest.fail(f"it does not start: {''.join(said)}")

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        _, text = self.ask("GET", "/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.M)
        assert found is not None, name
        return float(found[1])


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    pytest.importorskip("starlette", reason="needs the extra serve")
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    running = Running(str(SERVICE))
    yield running
    running.process.kill()
    running.process.communicate(timeout=300)


def picture(seed: int, size: tuple[int, int] = (24, 32)) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)


def png(levels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "png")
    return file.getvalue()


def is_right(body: bytes, given: np.ndarray[Any, Any]) -> bool:
    levels = image.grey_reference(given)
    expected = np.minimum(255, image.sobel_reference(levels).astype(np.int64))
    return bool((np.asarray(Image.open(io.BytesIO(body))) == expected).all())


def begun(port: int, body: bytes) -> socket.socket:
    """A request that the service is at: it waits for the body."""
    client = socket.create_connection(("127.0.0.1", port), timeout=300)
    head = f"POST /edges HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        said += client.recv(1)
    assert said.startswith(b"HTTP/1.1 100 "), said
    return client


def test_pictures_of_many_clients_are_answered_in_batches(service: Running) -> None:
    sizes = [(24, 32), (24, 32), (16, 16)]
    given = [picture(i, sizes[i % 3]) for i in range(60)]
    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(lambda p: service.ask("POST", "/edges", png(p)), given))
    assert [status for status, _ in answers] == [200] * 60
    assert all(is_right(body, p) for (_, body), p in zip(answers, given, strict=True))
    assert service.metric('numbasync_requests_total{batcher="edges",end="answered"}') >= 60
    assert service.metric('numbasync_batch_size_count{batcher="edges"}') < 60


def test_alike_pictures_have_near_embeddings(service: Running) -> None:
    wide = np.zeros((24, 32, 3), np.uint8)
    wide[::4] = 200  # lines across
    tall = np.zeros((24, 32, 3), np.uint8)
    tall[:, ::4] = 200
    vectors = []
    for given in (wide, wide // 2, tall):
        status, body = service.ask("POST", "/embedding", png(given))
        assert status == 200
        vectors.append(np.array(json.loads(body)))
    assert all(v.shape == (512,) and abs(np.linalg.norm(v) - 1) < 1e-4 for v in vectors)
    assert vectors[0] @ vectors[1] > 0.999 and vectors[0] @ vectors[2] < 0.5


def test_objects_of_the_start_are_never_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for needed in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(needed, reason="needs the extra serve")
    monkeypatch.syspath_prepend(str(SERVICE.parent))
    example = importlib.import_module("service")

    async def frozen() -> int:
        app = example.service()
        async with app.router.lifespan_context(app):
            return gc.get_freeze_count()

    gc.unfreeze()
    try:
        assert asyncio.run(frozen()) > 0
    finally:
        gc.unfreeze()
        for module in ("service", "spans"):
            sys.modules.pop(module, None)


def test_health_and_what_is_refused(service: Running) -> None:
    status, body = service.ask("GET", "/health")
    assert status == 200 and json.loads(body) == {"alive": True, "ready": True, "problems": []}
    status, body = service.ask("POST", "/edges", b"no picture")
    assert status == 400 and "no picture" in json.loads(body)["problem"]
    assert service.ask("POST", "/edges", bytes(9 << 20))[0] == 413
    assert service.ask("GET", "/edges")[0] == 405


def test_clients_that_hang_up_leave_nothing_behind(service: Running) -> None:
    body = png(picture(1))
    head = f"POST /edges HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for i in range(20):
        with socket.create_connection(("127.0.0.1", service.port), timeout=300) as client:
            client.sendall(head + body[: len(body) if i % 2 else 10])
    given = picture(2)
    status, answer = service.ask("POST", "/edges", png(given))
    assert status == 200 and is_right(answer, given)
    for name in ("requests_waiting", "requests_running"):
        for _ in range(1000):
            if not service.metric(f'numbasync_{name}{{batcher="edges"}}'):
                break
        else:
            pytest.fail(f"{name} is never 0")


def test_sigterm_answers_those_that_have_asked_and_ends(service: Running) -> None:
    """The last one of this file: the service is gone then."""
    given = [picture(i) for i in range(8)]
    clients = [begun(service.port, png(one)) for one in given]
    service.process.send_signal(signal.SIGTERM)
    for client, one in zip(clients, given, strict=True):
        client.sendall(png(one))
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 200 and is_right(answer.read(), one)
        client.close()
    _, said = service.process.communicate(timeout=300)
    assert "Application shutdown complete" in said and "Traceback" not in said, said
    assert "Warning" not in said, said


def test_a_worker_that_ends_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    program = ["--program", str(BROKEN), "--break-after", "6", "--deadline", "3600"]
    running = Running(str(WORKERS), *program)
    try:
        seen: list[int] = []
        while 503 not in seen or seen[-1] != 200:  # by the next process
            with suppress(ConnectionError):  # a process that ends was not at it yet
                seen.append(running.ask("POST", "/edges", png(picture(1)))[0])
        assert seen[0] == 200 and {*seen} == {200, 503}
    finally:
        running.process.terminate()
        _, said = running.process.communicate(timeout=300)
    assert "worker 0 has ended: 1" in said and running.process.returncode == 0, said


WITH_SPANS = """
import runpy, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
file = open("spans.txt", "w", buffering=1)
formatted = lambda span: f"{span.name} {span.context.trace_id:x} {span.parent is not None}\\n"
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=formatted))
)
trace.set_tracer_provider(provider)
sys.path.insert(0, sys.argv.pop(1))
runpy.run_path(f"{sys.path[0]}/service.py", run_name="__main__")
"""


def test_a_request_has_spans_of_its_steps(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
    (tmp_path / "program.py").write_text(WITH_SPANS)
    running = Running("program.py", str(SERVICE.parent), folder=tmp_path)
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=300)
    try:
        number = "0af7651916cd43dd8448eb211c80319c"  # the client's trace
        headers = {"traceparent": f"00-{number}-b7ad6b7169203331-01"}
        client.request("POST", "/edges", png(picture(1)), headers)
        assert client.getresponse().status == 200
    finally:
        client.close()
        running.process.terminate()
        running.process.communicate(timeout=300)
    lines = [line.rsplit(" ", 2) for line in (tmp_path / "spans.txt").read_text().splitlines()]
    assert [name for name, _, _ in lines] == ["decode", "find edges", "encode", "/edges"]
    assert {(trace, parent) for _, trace, parent in lines} == {(number.lstrip("0"), "True")}


def test_the_service_of_the_documents_answers(tmp_path: Path) -> None:
    for module in ("starlette", "uvicorn"):
        pytest.importorskip(module, reason="needs the extra serve")
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "service.py").write_text(program)
    running = Running("-m", "uvicorn", "service:app", folder=tmp_path)
    try:
        assert running.ask("POST", "/halve", b"[1, 2, 3, 4]") == (200, b"[0.5,1.0,1.5,2.0]")
        for wrong in (b"[1]", b"{}", b"no JSON"):
            assert running.ask("POST", "/halve", wrong)[0] == 400
    finally:
        running.process.kill()
        running.process.communicate(timeout=300)
