"""The kernels of `bench cpu` for NVIDIA Warp's CPU device, as its manual writes them.

Threads of a Warp kernel have no barriers, so cases with shared memory are left out.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from benchmarks.cpu_cases import Array, Case
from benchmarks.cpu_limits import Prepare

NAME = "NVIDIA Warp, cpu"
WITHOUT_BARRIERS = ("saxpy", "histogram")


def of_case(case: Case) -> Prepare | None:
    """`case` by Warp, compiled when it is first called; None without Warp or a kernel for it."""
    if importlib.util.find_spec("warp") is None or case.body.__name__ not in WITHOUT_BARRIERS:
        return None
    wp: Any = importlib.import_module("warp")
    wp.config.log_level = wp.LOG_ERROR  # no greeting between the tables
    wp.config.cache_kernels = False  # so that the first call compiles
    kernel = _kernels(wp)[case.body.__name__]

    def prepare(blocks: int) -> tuple[Callable[[], object], Callable[[], Array]]:
        inputs = case.inputs(blocks)
        args = [wp.array(a, device="cpu") if hasattr(a, "shape") else a for a in inputs]
        threads = next(len(a) for a in reversed(inputs) if hasattr(a, "shape"))

        def run() -> None:
            wp.launch(kernel, dim=threads, inputs=args, device="cpu")
            wp.synchronize_device("cpu")

        return run, args[0].numpy

    return prepare


def _kernels(wp: Any) -> dict[str, Any]:
    def saxpy(out, a, x, y):  # type: ignore[no-untyped-def]
        i = wp.tid()
        out[i] = a * x[i] + y[i]

    def histogram(bins, x):  # type: ignore[no-untyped-def]
        wp.atomic_add(bins, x[wp.tid()], 1)

    floats, integers = wp.array(dtype=wp.float32), wp.array(dtype=wp.int32)
    # Warp reads types from annotations, which must be its own objects.
    saxpy.__annotations__ = {"out": floats, "a": wp.float32, "x": floats, "y": floats}
    histogram.__annotations__ = {"bins": integers, "x": integers}
    return {f.__name__: wp.kernel(f) for f in (saxpy, histogram)}
