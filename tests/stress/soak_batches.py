"""A soak of batches: random programs against NumPy, every broadcast against every axis.

    python -m tests.stress.soak_batches [programs] [device kind] [--seed 0] [--jobs 1] [--most 6]

runs the programs of so many seeds from `--seed`, with the bounds of `tests.stress.trees`, and
prints how many had kernels of each form. Each program is computed, and computed again at once; a
quarter of them also kernel by kernel, and a quarter as a graph that is replayed. The first one
that is wrong ends it, with the seed that repeats it. 297 seeds from 0 have every case of
`tests.stress.random_batches`.

More than `PART` programs, or several jobs, run in processes of their own, each of them with one
part, so that compiled kernels do not add up. Kernels are kept in a folder of the soak's own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import numbasync as na
from numbasync.batch import Tuning
from numbasync.batch.codegen.choose import form
from numbasync.cache_folder import SWITCH
from tests.stress.random_batches import program
from tests.stress.trees import Array, check

PART = 25  # programs of one process
LONG = (33, 70, 600, 9001, 17_000)  # the last ones are more than a block goes through
# On a GPU kernels have other forms by their tunings; the CPU device would compile these for long.
TUNINGS = [None, Tuning(warp_most=0), Tuning(at_once=1), Tuning(elements=1), Tuning(unroll=False)]
TOTAL = "programs"


def lent(array: Array) -> na.Tensor:
    """A tensor with these elements, which begin behind others."""
    behind = np.concatenate([array.reshape(-1)[:1], array.reshape(-1)])
    return na.from_host(behind).sync()[1:].reshape(*array.shape)


def run(seed: int, most: int, device: na.Device) -> set[str]:
    """One program, in several ways; the forms of its kernels.

    Raises:
        AssertionError: a result is not what NumPy computes, or the ways differ.
    """
    tuning = TUNINGS[seed % len(TUNINGS)] if device.kind == "cuda" else None

    def recorded(**options: Any) -> tuple[na.CommandBatch, list[Any]]:
        b = na.CommandBatch(device, tuning=tuning, **options)
        return b, program(seed, most, LONG)(b, lent)

    def computed(**options: Any) -> list[Array]:
        b, values = recorded(**options)
        found = b.compute_sync(*(v.id for v in values))
        have = [found] if len(values) == 1 else list(found)
        for value, array in zip(values, have, strict=True):
            check(value, array)
        return have

    b, values = recorded()
    b.keep(*(v.id for v in values))
    forms = {form(group) for group in b.planned().fusion.groups}
    want = computed()
    others = [computed()]  # it is enqueued at once
    if seed % 4 == 0:
        others.append(computed(fuse=False))
    elif seed % 4 == 2:
        graph = b.graph()
        for _ in range(2):
            results = graph.replay_sync()
            others.append([results[v.id] for v in values])
    for have in others:
        for one, two in zip(want, have, strict=True):
            np.testing.assert_array_equal(one, two)
    return forms


def soak(seeds: range, most: int, device: na.Device) -> Counter[str]:
    """How many programs had kernels of each form; the first wrong one raises."""
    counts: Counter[str] = Counter()
    with na.use_device(device):
        for seed in seeds:
            print(f"seed {seed}", flush=True)
            counts.update([TOTAL, *run(seed, most, device)])
    return counts


def apart(seeds: range, most: int, kind: str, folder: str) -> Counter[str]:
    """The same in a process of its own, which keeps kernels in `folder`."""
    command = [sys.executable, "-m", "tests.stress.soak_batches", str(len(seeds)), kind,
               "--seed", str(seeds.start), "--most", str(most)]  # fmt: skip
    env = {**os.environ, SWITCH: folder}
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    words = [line.split() for line in result.stdout.splitlines()]
    if result.returncode:
        last = next((number for word, number in reversed(words) if word == "seed"), "none")
        raise ChildProcessError(
            f"exit status {result.returncode}, last seed {last}; it is repeated by\n"
            f"python -m tests.stress.soak_batches 1 {kind} --seed {last} --most {most}"
        )
    return Counter({name: int(count) for name, count in words if name != "seed"})


def together(parts: Sequence[range], most: int, kind: str, jobs: int) -> Counter[str]:
    """All parts, some at a time."""
    began, counts = time.perf_counter(), Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="numbasync-soak-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        try:
            for found in pool.map(lambda seeds: apart(seeds, most, kind, folder), parts):
                counts += found
                each = (time.perf_counter() - began) / counts[TOTAL]
                print(f"# {counts[TOTAL]:,} programs, {each:.2f} s each", flush=True)
        except ChildProcessError:
            pool.shutdown(cancel_futures=True)
            raise
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.soak_batches", description=__doc__
    )
    parser.add_argument("programs", nargs="?", type=int, default=2000)
    parser.add_argument("kind", nargs="?", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--most", type=int, default=6, help="operations behind a program's case")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run at once")
    args = parser.parse_args(argv)
    if args.programs < 1 or args.seed < 0 or args.most < 0 or args.jobs < 1:
        parser.error("write at least 1 program and 1 job")
    end = args.seed + args.programs
    if args.programs <= PART and args.jobs == 1:
        counts = soak(range(args.seed, end), args.most, na.devices(args.kind)[0])
    else:
        parts = [range(at, min(at + PART, end)) for at in range(args.seed, end, PART)]
        kind = args.kind or na.devices()[0].kind
        counts = together(parts, args.most, kind, args.jobs)
    for name, count in sorted(counts.items()):
        print(name, count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
