"""A soak of threads that share a device's streams, while other processes keep the device busy.

    python -m tests.stress.soak_threads [seconds] [device kind] [--jobs 1]

Each of `--jobs` processes has four threads. Each thread computes the same operations with numbers
of its own, on the streams of the device's policy, and checks every result; another thread observes
the device all the time. On a GPU with several processes, work waits for the other processes between
any two operations; an order between streams that is missing, or memory that is reused too early,
then gives a thread another thread's numbers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import numbasync as na
from tests.common import saxpy

SIZE = 256
THREADS = 4


LARGE = 700_000  # elements whose copies are staged by copy threads


def step(x: Any) -> na.DeviceOp[na.Tensor]:
    """2 * x + 1"""
    return na.ones(len(x)).then(lambda z: saxpy(z, 2.0, x)).output()


def batch(x: np.ndarray) -> na.DeviceOp[Any]:
    b = na.CommandBatch()
    return b.compute_op(b.upload(x) * 2 + 1)


def ways() -> list[Callable[[np.ndarray], Any]]:
    """Functions that return 2 * x + 1 as an array. All threads share their graphs and tensors."""
    graph: Any = na.graphed(step)
    lock = threading.Lock()
    held = na.zeros(SIZE).sync()
    batch_graph = na.CommandBatch()
    batch_input = batch_graph.upload(np.zeros(SIZE, np.float32))
    batch_output = batch_input * 2 + 1
    replayed = batch_graph.graph()

    def by_a_shared_tensor(x: np.ndarray) -> Any:
        with lock:  # several operations on one tensor, each on a stream of its own
            na.memcpy(held, x).sync()
            saxpy(held, 1.0, x).sync()
            return held.to_host().sync() + 1

    def unsynchronised(x: np.ndarray) -> Any:
        device = na.default_device()
        streams = [device.policy.next_stream() for _ in range(3)]
        z = na.ones(SIZE).async_on(streams[0])
        saxpy(z, 2.0, x).async_on(streams[1])
        return z.to_host().sync_on(streams[2])

    def large(x: np.ndarray) -> Any:
        whole = np.full(LARGE, x[0], np.float32)
        result = step(whole).to_host().sync()
        assert (result == result[0]).all()
        return result[:SIZE]

    def pinned(x: np.ndarray) -> Any:
        source, result = na.pinned(SIZE, np.float32), na.pinned(SIZE, np.float32)
        source[...] = x
        y = na.zip(na.ones(SIZE), na.from_host(source)).then(
            lambda pair: saxpy(pair[0], 2.0, pair[1])
        )
        return y.output().then(lambda t: na.memcpy(result, t)).sync()

    async def gathered(x: np.ndarray) -> Any:
        results = await na.gather(*(step(x + k).to_host() for k in range(3)))
        assert all((r == results[0] + 2 * k).all() for k, r in enumerate(results))
        return results[0]

    return [
        lambda x: graph(x).to_host().sync(),
        lambda x: step(x).to_host().sync(),
        lambda x: batch(x).sync(),
        lambda x: replayed.replay_sync({batch_input: x})[batch_output],
        lambda x: na.run(gathered(x)),
        by_a_shared_tensor, unsynchronised, large, pinned,
    ]  # fmt: skip


def observe(device: na.Device) -> None:
    """Everything that another thread may ask at any time."""
    for stream in {device.policy.next_stream() for _ in range(8)}:
        stream.query()
        repr((stream, stream.pending))
        stream.synchronize()
    event = device.new_event().record(device.policy.next_stream())
    event.wait(device.policy.next_stream())
    event.query()
    event.synchronize()
    device.memory_stats()
    device.synchronize()
    device.pool.trim()


def soak(seconds: float, kind: str) -> tuple[int, int]:
    """The number of operations in `seconds`, and of those with a wrong result."""
    device, each = na.devices(kind)[0], ways()
    end = time.monotonic() + seconds
    right, wrong, errors = [0] * THREADS, [0] * THREADS, list[BaseException]()

    def work(number: int) -> None:
        try:
            with na.use_device(device):
                value = 1000 * number
                while time.monotonic() < end and not errors:
                    value = 1000 * number + (value + 1) % 1000
                    x = np.full(SIZE, value, np.float32)
                    result = each[value % len(each)](x)
                    counts = right if (result == 2 * value + 1).all() else wrong
                    counts[number] += 1
        except BaseException as error:
            errors.append(error)

    def watch() -> None:
        try:
            while time.monotonic() < end and not errors:
                observe(device)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(right) + sum(wrong), sum(wrong)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.soak_threads")
    parser.add_argument("seconds", nargs="?", type=float, default=10)
    parser.add_argument("kind", nargs="?", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args(arguments)
    if asked.jobs == 1:
        operations, wrong = soak(asked.seconds, asked.kind)
        print(f"{operations} operations, {wrong} wrong")
        return 1 if wrong or not operations else 0
    command = [sys.executable, "-m", "tests.stress.soak_threads", str(asked.seconds), asked.kind]
    processes = [subprocess.Popen(command) for _ in range(asked.jobs)]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
