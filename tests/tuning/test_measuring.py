"""What tuning does to a program's data, and what it keeps: interrupted, by several processes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LaunchError
from numbasync.tuning import session, settings
from numbasync.tuning.autotune import ROUNDS
from tests.common import add_one, saxpy, visit_tile
from tests.tuning.conftest import Clock

TWO = [{"threads": 32}, {"threads": 64}]


@na.launcher(may_alias=True)
@cuda.jit
def shift(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = z[i] + x[i]


@na.launcher(may_alias=True)
@cuda.jit
def add_to_both(z: na.KernelOutput, pair: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 1
        pair[0][i] += 2
        pair[1][i] += 3


@na.launcher
@cuda.jit
def add_and_double(z: na.KernelOutput, w: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 1
        w[i] *= 2


def numbers(n: int = 60) -> na.Tensor:
    return na.arange(n, dtype=np.float32).sync()


def in_place(t: na.Tensor) -> list[Any]:
    return [t, 2.0, na.ones(t.shape[0]).sync()]


# --- the program's data ---


@pytest.mark.parametrize(
    ("kernel", "cut"),
    [
        (saxpy, in_place),
        (saxpy, lambda t: in_place(t[3:50])),
        (saxpy, lambda t: in_place(t[50:3:-2])),
        (add_one, lambda t: [t[1:].partition(7)]),
        (visit_tile, lambda t: [t.partition(8).map(3)]),
        (shift, lambda t: [t, t]),
        (shift, lambda t: [t[2:40:2], t[1:39:2]]),
        (add_to_both, lambda t: [t[:20], (t[20:40], t[40:])]),
    ],
)
def test_arguments_stay_as_they_are(
    device: na.Device, clock: Clock, kernel: na.Launcher, cut: Callable[[na.Tensor], list[Any]]
) -> None:
    t = numbers()
    before = t.to_host().sync()
    tuned = na.autotune(kernel, TWO)
    results = tuned.tune(*cut(t)).sync()
    assert [r.status for r in results] == ["measured", "measured"], results
    np.testing.assert_array_equal(t.to_host().sync(), before)
    # An answer is compared with that of the same elements: the kernel alone gives the same ones.
    tuned(*cut(t)).sync()
    after = numbers()
    kernel(*cut(after)).sync()
    np.testing.assert_array_equal(t.to_host().sync(), after.to_host().sync())


def test_arrays_of_the_host_stay_as_they_are(device: na.Device, clock: Clock) -> None:
    z, x = np.arange(50, dtype=np.float32), np.ones(50, np.float32)
    tuned = na.autotune(saxpy, TWO, reference=lambda z, a, x: z + a * x)
    for given in (na.inout(z), na.inout(z).partition(8)):
        results = tuned.tune(given, 2.0, x).sync()
        assert [r.status for r in results] == ["measured", "measured"]
    np.testing.assert_array_equal(z, np.arange(50))
    tuned(na.inout(z), 2.0, x).sync()
    np.testing.assert_array_equal(z, np.arange(50) + 2)


def test_a_reference_gets_arrays_of_its_own(device: na.Device, clock: Clock) -> None:
    def reference(z: np.ndarray[Any, Any], a: float, x: np.ndarray[Any, Any]) -> Any:
        z += a * x
        x[:] = 0
        return z

    z, a, x = in_place(numbers())
    tuned = na.autotune(saxpy, TWO, reference=reference)
    assert {r.status for r in tuned.tune(z, a, x).sync()} == {"measured"}
    assert (x.to_host().sync() == 1).all() and z.to_host().sync()[1] == 1


def test_a_reference_gives_outputs_in_signature_order(device: na.Device, clock: Clock) -> None:
    tuned = na.autotune(add_and_double, TWO, reference=lambda z, w: (z + 1, w * 2))
    z, w = np.ones(60, np.float32), numbers()
    for given in ((na.inout(z), w), (w, na.inout(z))):
        assert {r.status for r in tuned.tune(*given).sync()} == {"measured"}
    one = na.autotune(add_and_double, TWO, reference=lambda z, w: z + 1)
    with pytest.raises(LaunchError, match="reference gives 1 arrays, the kernel writes 2: z, w"):
        one.tune(w, na.inout(z)).sync()


def test_limits_and_strict_ordering_exclude_the_tuner(
    device: na.Device, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "automatic", True)
    z, a, x = in_place(numbers())
    stream = device.new_stream()
    with na.limit(ops=1, bytes=z.nbytes), na.ordering("strict"):
        z = na.autotune(saxpy, TWO)(na.fill(z, 7), a, x).output().sync_on(stream)
    assert len(clock.measured) == 2 * ROUNDS and (z.to_host().sync() == 9).all()


async def test_a_tasks_submissions_wait_for_tuning(device: na.Device, clock: Clock) -> None:
    z, a, x = in_place(numbers())
    tuned = na.autotune(saxpy, TWO, reference=lambda z, a, x: z + a * x)
    tuning = na.spawn(tuned.tune(z, a, x))
    filling = na.spawn(na.fill(z, 7))  # would change what is measured, between two launches
    assert {r.status for r in await tuning} == {"measured"}
    await filling
    assert (await z.to_host() == 7).all()


# --- interrupted, and continued ---


def test_what_was_interrupted_continues(device: na.Device, clock: Clock) -> None:
    z, a, x = in_place(numbers())

    def interrupt() -> None:
        if len(clock.measured) == 5:
            raise KeyboardInterrupt

    clock.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        na.autotune(saxpy, TWO).tune(z, a, x).sync()
    clock.before = lambda: None
    tuned = na.autotune(saxpy, TWO)  # as another process has it
    assert [r.status for r in tuned.results(z, a, x)] == ["pending", "pending"]
    tuned.tune(z, a, x).sync()
    assert clock.measured == [32, 64] * ROUNDS
    na.autotune(saxpy, TWO).tune(z, a, x).sync()
    assert len(clock.measured) == 2 * ROUNDS


async def test_a_cancelled_tuning_stops_and_continues_later(
    device: na.Device, clock: Clock
) -> None:
    z, a, x = in_place(numbers())
    loop = asyncio.get_running_loop()
    cancelled = asyncio.Event()
    clock.before = lambda: loop.call_soon_threadsafe(task.cancel) and cancelled.set()
    tuned = na.autotune(saxpy, TWO)
    task = asyncio.ensure_future(asyncio.wait_for(tuned.tune(z, a, x), 300))
    with pytest.raises(asyncio.CancelledError):
        await task
    clock.before = lambda: None
    results = await tuned.tune(z, a, x)
    assert {r.status for r in results} == {"measured"}
    assert clock.measured == [32, 64] * ROUNDS


def test_threads_that_tune_at_once_share_the_work(device: na.Device, clock: Clock) -> None:
    z, a, x = in_place(numbers())
    tuned = na.autotune(saxpy, TWO)

    def tune() -> Any:
        with na.use_device(device):
            return tuned.tune(z, a, x).sync()

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(tune) for _ in range(6)]
        results = [job.result() for job in jobs]
    assert clock.measured == [32, 64] * ROUNDS
    assert results == [tuned.results(z, a, x)] * 6


def kept_in(cache: Path) -> list[Path]:
    """The measurements in the folder, beside which stands when it was last tidied."""
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: "\0\udcff".encode("utf-8", "surrogateescape"),
        lambda text: text.replace('"measured"', '"fastest"'),
        lambda text: text.replace("1.0", "NaN"),
        lambda text: text.replace("1.0", '"1.0"'),
        lambda text: re.sub(r'"samples": \[[^]]*\]', '"samples": []', text),
        lambda text: json.dumps({**json.loads(text), "entries": []}),
        lambda text: text.replace('"numbasync": "', '"numbasync": "older '),
    ],
)
def test_a_file_that_is_no_good_is_replaced(
    device: na.Device, clock: Clock, cache: Path, damage: Callable[[str], Any]
) -> None:
    z, a, x = in_place(numbers())
    na.autotune(saxpy, TWO).tune(z, a, x).sync()
    (path,) = kept_in(cache)
    whole = path.read_text()
    damaged = damage(whole)
    path.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    tuned = na.autotune(saxpy, TWO)
    assert tuned.choice(z, a, x) is None
    tuned.tune(z, a, x).sync()
    assert len(clock.measured) == 4 * ROUNDS
    assert [p.read_text() for p in kept_in(cache)] == [whole]


def test_a_folder_that_cannot_be_written_is_said(
    device: na.Device, clock: Clock, cache: Path
) -> None:
    cache.write_text("a file")
    z, a, x = in_place(numbers())
    tuned = na.autotune(saxpy, TWO)
    with pytest.warns(RuntimeWarning, match=f"not kept in {cache}: .*NUMBASYNC_CACHE_DIR"):
        tuned.tune(z, a, x).sync()
    assert tuned.choice(z, a, x) == {"threads": 32}


def test_forgotten_measurements_are_made_again(
    device: na.Device, clock: Clock, cache: Path
) -> None:
    z, a, x = in_place(numbers())
    tuned, other = na.autotune(saxpy, TWO), na.autotune(saxpy, [*TWO, {"threads": 96}])
    for each in (tuned, other):
        each.tune(z, a, x).sync()
    assert tuned.choice(z, a, x) == {"threads": 32}
    tuned.forget()
    assert tuned.choice(z, a, x) is None and len(list(kept_in(cache))) == 1
    assert other.choice(z, a, x) == {"threads": 32}


# --- the real clock, and processes ---

PROGRAM = """
import sys
import numpy as np
from numba import cuda
import numbasync as na
from numbasync.errors import LaunchError
from numbasync.tuning import session, settings

@na.launcher
@cuda.jit
def add(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += x[i]

measured = []
own = session.milliseconds

def milliseconds(*args):
    if not measured:  # the choice was looked for, and not found
        print("measures", flush=True)
        sys.stdin.readline()
    measured.append(1)
    return own(*args)

session.milliseconds = milliseconds
session.FLUSH = 2**20
tuned = na.autotune(add, [{"threads": t} for t in (32, 256, 1024)], rounds=3)
z, x = na.zeros(5000).sync(), na.ones(5000).sync()
assert (tuned(z, x).output().to_host().sync() == 1).all()
print(tuned.choice(z, x), len(measured))
"""


@pytest.mark.full
def test_simultaneous_tuners_find_one_choice(
    device: na.Device, tmp_path: Path, python: str, python_env: dict[str, str], cache: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {**python_env, "NUMBASYNC_AUTOTUNE": "1", "NUMBASYNC_DEVICE": device.kind}

    def start() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [python, str(program)], env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    both = [start(), start()]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "measures\n", process.communicate("\n")
    for process in both:  # neither has found what the other measures
        out, err = process.communicate("\n")
        assert process.returncode == 0, err
        assert out.startswith("{'threads': ") and not out.endswith(" 0\n")
    (path,) = kept_in(cache)  # no temporary file is left
    assert len(json.loads(path.read_text())["entries"]) == 3
    out, err = start().communicate("\n")
    assert out.startswith("{'threads': ") and out.endswith(" 0\n"), err


def test_times_are_of_the_device(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FLUSH", 2**20)
    tuned = na.autotune(add_one, TWO, rounds=2)
    for result in tuned.tune(na.zeros(1000).sync()).sync():
        assert result.ms is not None and result.low is not None and result.high is not None
        assert 0 < result.low <= result.ms <= result.high


def test_the_host_is_not_measured(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is given work first, then the launch between two events, and is waited for last:
    while it works, the host enqueues.
    """
    z, stream = na.zeros(1000).sync(), device.new_stream()
    flush = na.empty(2**20, np.uint8).sync()
    add_one(z).sync_on(stream)
    told: list[str] = []

    def note(kind: type, name: str) -> None:
        call = getattr(kind, name)

        def noted(self: Any, *args: Any) -> Any:
            if told[-1:] != [name]:  # a stream may hand it to its queue
                told.append(name)
            return call(self, *args)

        monkeypatch.setattr(kind, name, noted)

    for kind, names in (
        (type(stream.backend), ("fill", "record", "launch", "synchronize")),
        (type(stream.backend.open()), ("fill", "launch")),
    ):
        for name in names:
            note(kind, name)
    assert session.milliseconds(add_one(z), stream, flush) > 0
    assert told[:4] == ["fill", "record", "launch", "record"]
