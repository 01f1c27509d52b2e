"""One process of the service for each GPU, on one port. One that ends is started anew.

    python examples/16_service/workers.py --workers 2 --port 8000

On SIGTERM and ^C all of them end as the service does. Other options are given on to service.py.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

SERVICE = Path(__file__).with_name("service.py")
PAUSE = 0.5  # seconds before a process is started anew


def gpu_of(worker: int) -> dict[str, str]:
    """The environment in which a worker sees one GPU of those that this process sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = seen.split(",") if seen else []
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[worker] if gpus else str(worker)}


async def keep(program: Sequence[str], worker: int, fd: int, is_ending: asyncio.Event) -> None:
    """One worker, again and again, until the end."""
    told = asyncio.ensure_future(is_ending.wait())
    while not is_ending.is_set():
        process = await asyncio.create_subprocess_exec(
            *program, "--fd", str(fd), pass_fds=[fd], env=gpu_of(worker), start_new_session=True
        )
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED)
        if is_ending.is_set():
            if not ended.done():
                process.terminate()
            await ended
            return
        print(f"worker {worker} has ended: {process.returncode}", file=sys.stderr, flush=True)
        await asyncio.wait([told], timeout=PAUSE)


async def serve(program: Sequence[str], count: int, host: str, port: int) -> None:
    """Keep `count` workers until SIGTERM or ^C. Meanwhile clients wait in the socket's queue."""
    is_ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, is_ending.set)
    with socket.create_server((host, port), backlog=1024) as listening:
        at = "http://{}:{}".format(*listening.getsockname()[:2])
        print(f"running on {at}, {count} workers", file=sys.stderr, flush=True)
        workers = [keep(program, i, listening.fileno(), is_ending) for i in range(count)]
        await asyncio.gather(*workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1, help="how many; one for each GPU")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--program", default=str(SERVICE), help="default: service.py")
    args, rest = parser.parse_known_args()
    program = [sys.executable, args.program, *rest]
    asyncio.run(serve(program, args.workers, args.host, args.port))


if __name__ == "__main__":
    main()
