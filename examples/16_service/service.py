"""A web service that finds the edges of pictures: many clients, one launch for all who wait.

Needs, from a checkout, `pip install '.[serve,demo]'`. README.md says how to ask it.

    python examples/16_service/service.py --port 8000
"""

import argparse
import asyncio
import io
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import uvicorn
from numba import cuda
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import numbasync as na
from numbasync.errors import BatcherClosedError, OverloadedError
from numbasync_kernels import image

MOST_BYTES = 8 << 20  # of a request
MOST_PIXELS = 1 << 22  # of a picture
MOST_AT_ONCE = 128  # requests, from the first byte to the last; more are refused at once
DEADLINE = 2.0  # seconds, then a client has no use for an answer
TOO_MANY = 503, "too many requests, or the service ends", {"Retry-After": "1"}
GRACE = 10  # seconds that requests have to end when the service does


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


def find_edges(pictures: np.ndarray) -> na.DeviceOp[np.ndarray]:
    """Of pictures of one size, `(n, h, w, 3)`: their edges, `(n, h, w)`. One upload, two launches,
    one download, however many pictures there are.
    """
    n, height, width, _ = pictures.shape
    stacked = pictures.reshape(n * height, width, 3)  # each pixel by itself: so one tall picture
    grey = image.grey(na.empty((n * height, width), np.uint8), stacked).output()
    levels = grey.reshape((n, height, width))
    return edges(na.empty((n, height, width), np.uint8), levels).output().to_host()


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


@asynccontextmanager
async def life(app: Starlette, way: str) -> AsyncIterator[None]:
    """What lives as long as the service."""
    await find_edges(np.zeros((1, 16, 16, 3), np.uint8))  # compiled before the first client comes
    batcher: na.serve.MicroBatcher[np.ndarray, np.ndarray] = na.serve.MicroBatcher(
        find_edges, max_batch=16, max_wait=0.002, max_queue=128,
        key=lambda picture: picture.shape, collate=np.stack, max_running=2,
    )  # fmt: skip
    app.state.requests = 0
    async with batcher, na.serve.Monitor({"edges": batcher}) as monitor:
        app.state.batcher, app.state.monitor = batcher, monitor
        ways: dict[str, Find] = {
            "batches": batcher,
            "blocking": blocking,
            "thread": on_a_thread,
        }
        app.state.find = ways[way]
        yield  # until uvicorn has been told to end, and requests have been answered
        await batcher.close(timeout=GRACE)


async def answer_edges(request: Request) -> Response:
    """POST /edges: a picture in, a PNG out."""
    state = request.app.state
    if state.requests >= MOST_AT_ONCE:  # before its picture costs anything
        return problem(*TOO_MANY)
    state.requests += 1
    try:
        async with asyncio.timeout(DEADLINE):
            return await answer_in_time(request)
    except (OverloadedError, BatcherClosedError):
        return problem(*TOO_MANY)
    except TimeoutError:
        return problem(504, "too late")
    except ClientDisconnect:
        return problem(499, "the client has gone")  # which nobody reads
    finally:
        state.requests -= 1


async def answer_in_time(request: Request) -> Response:
    body = await body_of(request)
    if body is None:
        return problem(413, f"at most {MOST_BYTES} bytes")
    try:
        picture = await asyncio.to_thread(decoded, body)
    except (OSError, ValueError) as error:  # Pillow's
        return problem(400, f"no picture: {error}")
    found = await unless_gone(request, request.app.state.find(picture))
    return Response(await asyncio.to_thread(encoded, found), media_type="image/png")


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


def service(way: str = "batches") -> Starlette:
    routes = [
        Route("/edges", answer_edges, methods=["POST"]),
        Route("/metrics", answer_metrics),
        Route("/health", answer_health),
    ]
    return Starlette(routes=routes, lifespan=partial(life, way=way))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--way", choices=("batches", "blocking", "thread"), default="batches")
    parser.add_argument("--log-level", default="info")
    args = parser.parse_args()
    uvicorn.run(
        service(args.way), host=args.host, port=args.port, loop="uvloop", log_level=args.log_level,
        access_log=False, timeout_graceful_shutdown=GRACE,
    )  # fmt: skip


if __name__ == "__main__":
    main()
