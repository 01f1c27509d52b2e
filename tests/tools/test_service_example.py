"""The service of the examples, in a process of its own, asked by real HTTP clients."""

from __future__ import annotations

import http.client
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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from numbasync_kernels import image

ROOT = Path(__file__).parent.parent.parent
SERVICE = ROOT / "examples/16_service/service.py"
PAGE = ROOT / "docs/how-to/web-service.md"
RUNNING = re.compile(r"Uvicorn running on http://127\.0\.0\.1:(\d+)")


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


def test_pictures_of_many_clients_are_answered_in_batches(service: Running) -> None:
    sizes = [(24, 32), (24, 32), (16, 16)]
    given = [picture(i, sizes[i % 3]) for i in range(60)]
    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(lambda p: service.ask("POST", "/edges", png(p)), given))
    assert [status for status, _ in answers] == [200] * 60
    assert all(is_right(body, p) for (_, body), p in zip(answers, given, strict=True))
    assert service.metric('numbasync_requests_total{batcher="edges",end="answered"}') >= 60
    assert service.metric('numbasync_batch_size_count{batcher="edges"}') < 60


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
    connections = []
    for one in given:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=300)
        connection.request("POST", "/edges", png(one))
        connections.append(connection)
    first = connections[0].getresponse()  # so the others have come, too
    service.process.send_signal(signal.SIGTERM)
    answers = [first, *(connection.getresponse() for connection in connections[1:])]
    assert all(
        a.status == 200 and is_right(a.read(), p) for a, p in zip(answers, given, strict=True)
    )
    for connection in connections:
        connection.close()
    _, said = service.process.communicate(timeout=300)
    assert "Application shutdown complete" in said and "Traceback" not in said, said
    assert "Warning" not in said, said


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
