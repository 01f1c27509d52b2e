"""The kernels of the tests of tensor cores, one after the other in one process, for a sanitizer.

compute-sanitizer --tool racecheck python -m tests.stress.tensor_core_kernels cuda
"""

from __future__ import annotations

import inspect
import itertools
import sys
from typing import Any

import numbasync as na
from tests.kernels import (
    test_dot_product_attention,
    test_gemm,
    test_matmul_warpgroups,
    test_matmul_warps,
)
from tests.tensor_cores import test_copies, test_fragments, test_products

MODULES = (
    test_fragments, test_copies, test_products, test_gemm, test_matmul_warpgroups,
    test_matmul_warps, test_dot_product_attention,
)  # fmt: skip


def parameters(test: Any) -> list[dict[str, Any]]:
    """The arguments of each case of a parametrised test."""
    cases: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = (
            [n.strip() for n in mark.args[0].split(",")]
            if isinstance(mark.args[0], str)
            else [*mark.args[0]]
        )
        values = [v if len(names) > 1 else (v,) for v in mark.args[1]]
        cases.append([dict(zip(names, value, strict=True)) for value in values])
    return [
        {k: v for part in parts for k, v in part.items()} for parts in itertools.product(*cases)
    ]


def main(kind: str) -> None:
    device = na.devices(kind)[0]
    count = 0
    with na.use_device(device):
        for module in MODULES:
            for name, test in list(vars(module).items()):
                if name.startswith("test_") and inspect.iscoroutinefunction(test):
                    for arguments in parameters(test):
                        na.run(test(device, **arguments))
                        count += 1
    print(f"{count} cases of kernels with tensor cores gave what NumPy gives")


if __name__ == "__main__":
    main(sys.argv[1])
