"""A web service of pictures, their edges and embeddings: many clients, one launch for all who wait.

Needs, from a checkout, `pip install '.[serve,demo]'`. README.md says how to ask it.

    python examples/16_service/service.py --port 8000
"""

import argparse
import asyncio
import gc
import io
import math
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import uvicorn
from numba import cuda, float32
from PIL import Image
from spans import span
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import numbasync as na
from numbasync.errors import BatcherClosedError, DeviceLostError, OverloadedError
from numbasync_kernels import image

MOST_BYTES = 8 << 20  # of a request
MOST_PIXELS = 1 << 22  # of a picture
MOST_AT_ONCE = 128  # requests, from the first byte to the last; more are refused at once
DEADLINE = 2.0  # seconds, then a client has no use for an answer
TOO_MANY = 503, "too many requests, or the service ends", {"Retry-After": "1"}
LOST = 503, "the device is lost, and this process ends", {"Retry-After": "1"}
GRACE = 10  # seconds that requests have to end when the service does
CELLS = 8  # of an embedding, across a picture, and along it
DIRECTIONS = 8  # of edges


@na.launcher(axes=(2, 1, 0))
@cuda.jit(cache=True)
def edges(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """The length of each picture's gradient, at most 255; outside, the nearest pixel counts."""
    x, y, i = cuda.grid(3)
    if i < levels.shape[0] and y < levels.shape[1] and x < levels.shape[2]:
        up, down = max(y - 1, 0), min(y + 1, levels.shape[1] - 1)
        left, right = max(x - 1, 0), min(x + 1, levels.shape[2] - 1)
        across = 2 * (np.int64(levels[i, y, right]) - levels[i, y, left])
        across += np.int64(levels[i, up, right]) - levels[i, up, left]
        across += np.int64(levels[i, down, right]) - levels[i, down, left]
        along = 2 * (np.int64(levels[i, down, x]) - levels[i, up, x])
        along += np.int64(levels[i, down, left]) - levels[i, up, left]
        along += np.int64(levels[i, down, right]) - levels[i, up, right]
        length = math.sqrt(float(across * across + along * along))
        out[i, y, x] = min(255, int(length))


@na.launcher
@cuda.jit(cache=True)
def directions(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """Of each cell of each picture: how strong its edges are, in each of eight directions."""
    cell, i = cuda.grid(2)
    if i < out.shape[0] and cell < out.shape[1]:
        height, width = levels.shape[1], levels.shape[2]
        row, column = cell // CELLS, cell % CELLS
        strengths = cuda.local.array(DIRECTIONS, float32)
        for k in range(DIRECTIONS):
            strengths[k] = 0
        for y in range(row * height // CELLS, (row + 1) * height // CELLS):
            for x in range(column * width // CELLS, (column + 1) * width // CELLS):
                up, down = max(y - 1, 0), min(y + 1, height - 1)
                left, right = max(x - 1, 0), min(x + 1, width - 1)
                across = float(levels[i, y, right]) - float(levels[i, y, left])
                along = float(levels[i, down, x]) - float(levels[i, up, x])
                turn = (math.atan2(along, across) / math.pi + 1) / 2  # 0 to 1
                k = min(int(turn * DIRECTIONS), DIRECTIONS - 1)
                strengths[k] += math.sqrt(across * across + along * along)
        for k in range(DIRECTIONS):
            out[i, cell, k] = strengths[k]


def grey_levels(pictures: np.ndarray) -> na.DeviceOp[na.Tensor]:
    """Of pictures of one size, `(n, h, w, 3)`: one upload, one launch for all."""
    n, height, width, _ = pictures.shape
    stacked = pictures.reshape(n * height, width, 3)  # each pixel by itself: so one tall picture
    grey = image.grey(na.empty((n * height, width), np.uint8), stacked).output()
    return grey.reshape((n, height, width))


def find_edges(pictures: np.ndarray) -> na.DeviceOp[np.ndarray]:
    """Of pictures of one size, `(n, h, w, 3)`: their edges, `(n, h, w)`."""
    levels = grey_levels(pictures)
    return edges(na.empty(pictures.shape[:3], np.uint8), levels).output().to_host()


async def embed(pictures: np.ndarray) -> np.ndarray:
    """Of pictures of one size, `(n, h, w, 3)`: vectors of length 1, `(n, 512)`. Pictures whose
    edges run alike have vectors whose product is near 1.
    """
    n = len(pictures)
    out = na.empty((n, CELLS * CELLS, DIRECTIONS), np.float32)
    found = directions[(1, n), (CELLS * CELLS, 1)](out, grey_levels(pictures))  # a thread a cell
    strengths = await found.output().to_host()
    vectors = strengths.reshape(n, -1)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


# --- ways to answer: batches, and two to compare them with ---

Find = Callable[[np.ndarray], Awaitable[np.ndarray]]


async def blocking(picture: np.ndarray) -> np.ndarray:
    """The loop stands still until the device is done."""
    return find_edges(picture[None]).sync()[0]


async def on_a_thread(picture: np.ndarray) -> np.ndarray:
    """A thread of the loop's executor waits."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: find_edges(picture[None]).sync()[0])


# --- the service ---


def batches(f: Callable[[np.ndarray], Any]) -> na.serve.MicroBatcher[np.ndarray, np.ndarray]:
    """Of pictures of one size."""
    return na.serve.MicroBatcher(
        f, max_batch=16, max_wait=0.002, max_queue=128,
        key=lambda picture: picture.shape, collate=np.stack, max_running=2,
    )  # fmt: skip


@asynccontextmanager
async def life(app: Starlette, way: str, grace: float) -> AsyncIterator[None]:
    """What lives as long as the service."""
    first = np.zeros((1, 16, 16, 3), np.uint8)
    await asyncio.gather(find_edges(first), embed(first))  # compiled before the first client comes
    # What the start has made stays. To look through it for garbage, as Python does now and then,
    # would stop all requests for some tenths of a second.
    gc.collect()
    gc.freeze()
    named = {"edges": batches(find_edges), "embeddings": batches(embed)}
    app.state.requests = 0
    async with named["edges"], named["embeddings"], na.serve.Monitor(named) as monitor:
        app.state.monitor = monitor
        ways: dict[str, Find] = {
            "batches": named["edges"],
            "blocking": blocking,
            "thread": on_a_thread,
        }
        app.state.find, app.state.embed = ways[way], named["embeddings"]
        yield  # until uvicorn has been told to end, and requests have been answered
        await asyncio.gather(*(batcher.close(timeout=grace) for batcher in named.values()))


async def answer_edges(request: Request) -> Response:
    """POST /edges: a picture in, a PNG out."""
    return await answer(request, answer_with_edges)


async def answer_embedding(request: Request) -> Response:
    """POST /embedding: a picture in, a list of 512 numbers out."""
    return await answer(request, answer_with_embedding)


async def answer_with_edges(request: Request, picture: np.ndarray) -> Response:
    with span("find edges"):
        found = await unless_gone(request, request.app.state.find(picture))
    with span("encode"):
        return Response(await asyncio.to_thread(encoded, found), media_type="image/png")


async def answer_with_embedding(request: Request, picture: np.ndarray) -> Response:
    with span("embed"):
        vector = await unless_gone(request, request.app.state.embed(picture))
    return JSONResponse(vector.astype(float).round(6).tolist())


async def answer(
    request: Request, with_picture: Callable[[Request, np.ndarray], Awaitable[Response]]
) -> Response:
    """Answer a request with a picture, in time, or say why not."""
    state = request.app.state
    if state.requests >= MOST_AT_ONCE:  # before its picture costs anything
        return problem(*TOO_MANY)
    state.requests += 1
    try:
        with span(request.url.path, request.headers):
            async with asyncio.timeout(state.deadline):
                return await answer_in_time(request, with_picture)
    except (OverloadedError, BatcherClosedError):
        return problem(*TOO_MANY)
    except DeviceLostError:
        state.is_lost = True
        state.end()
        return problem(*LOST)
    except TimeoutError:
        return problem(504, "too late")
    except ClientDisconnect:
        return problem(499, "the client has gone")  # which nobody reads
    finally:
        state.requests -= 1


async def answer_in_time(
    request: Request, with_picture: Callable[[Request, np.ndarray], Awaitable[Response]]
) -> Response:
    body = await body_of(request)
    if body is None:
        return problem(413, f"at most {MOST_BYTES} bytes")
    try:
        with span("decode"):
            picture = await asyncio.to_thread(decoded, body)
    except (OSError, ValueError) as error:  # Pillow's
        return problem(400, f"no picture: {error}")
    return await with_picture(request, picture)


async def body_of(request: Request) -> bytes | None:
    """The body; None of one that is too long, which is not read to its end."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    return bytes(body)


async def unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """The answer, which is cancelled as soon as the client has gone."""
    task, gone = asyncio.ensure_future(answer), asyncio.ensure_future(hung_up(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait([task, gone])
        if not task.cancelled():
            task.exception()  # retrieved, if the request was cancelled at the same moment


async def hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def decoded(body: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(body)) as picture:
        if picture.width * picture.height > MOST_PIXELS:
            raise ValueError(f"more than {MOST_PIXELS} pixels")
        return np.asarray(picture.convert("RGB"))


def encoded(levels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "png", compress_level=1)
    return file.getvalue()


def problem(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"problem": text}, status, headers)


async def answer_metrics(request: Request) -> Response:
    """GET /metrics: for Prometheus."""
    headers = {"content-type": na.serve.CONTENT_TYPE}
    return Response(request.app.state.monitor.text(), headers=headers)


async def answer_health(request: Request) -> Response:
    """GET /health: 200 if requests should come here, else 503; `alive` is false where only a new
    process helps.
    """
    health = await request.app.state.monitor.check()
    told = {"alive": health.is_alive, "ready": health.is_ready, "problems": health.problems}
    return JSONResponse(told, 200 if health.is_ready else 503)


def service(way: str = "batches", deadline: float = DEADLINE, grace: float = GRACE) -> Starlette:
    routes = [
        Route("/edges", answer_edges, methods=["POST"]),
        Route("/embedding", answer_embedding, methods=["POST"]),
        Route("/metrics", answer_metrics),
        Route("/health", answer_health),
    ]
    app = Starlette(routes=routes, lifespan=partial(life, way=way, grace=grace))
    app.state.deadline, app.state.is_lost, app.state.end = deadline, False, lambda: None
    return app


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--fd", type=int, help="a socket that listens already, of workers.py")
    parser.add_argument("--way", choices=("batches", "blocking", "thread"), default="batches")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for an answer")
    parser.add_argument("--grace", type=float, default=GRACE, help="seconds for the last answers")
    parser.add_argument("--log-level", default="info")
    args = parser.parse_args()
    app = service(args.way, args.deadline, args.grace)
    server = uvicorn.Server(
        uvicorn.Config(
            app, host=args.host, port=args.port, loop="uvloop", log_level=args.log_level,
            access_log=False, timeout_graceful_shutdown=math.ceil(args.grace),
        )
    )  # fmt: skip
    app.state.end = partial(setattr, server, "should_exit", True)
    server.run([socket.socket(fileno=args.fd)] if args.fd is not None else None)
    return 1 if app.state.is_lost else 0  # then a new process is needed


if __name__ == "__main__":
    sys.exit(main())
