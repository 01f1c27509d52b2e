"""The tests of tensor cores and of the ready kernels, one after the other in one process, for a
sanitizer; of all their modules, or of those that are named.

compute-sanitizer --tool racecheck python -m tests.stress.tensor_core_kernels cuda test_gemm
"""

from __future__ import annotations

import inspect
import itertools
import sys
from types import ModuleType
from typing import Any

import pytest

import numbasync as na
from tests.kernels import (
    test_attention_threads,
    test_dot_product_attention,
    test_gemm,
    test_matmul_float32,
    test_matmul_warpgroups,
    test_matmul_warps,
    test_nn_short,
    test_paged_attention,
    test_sentence_short,
    test_several_products,
)
from tests.tensor_cores import (
    test_clusters,
    test_copies,
    test_fragments,
    test_products,
    test_storing,
)

MODULES = (
    test_fragments, test_copies, test_products, test_storing, test_gemm, test_matmul_warpgroups,
    test_matmul_warps, test_matmul_float32, test_several_products, test_dot_product_attention,
    test_attention_threads, test_paged_attention, test_nn_short, test_sentence_short,
    test_clusters,
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


def tests_of(module: ModuleType) -> list[Any]:
    """The tests of a module that run on a device."""
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    return [test for test in tests if "device" in inspect.signature(test).parameters]


def case(device: na.Device, test: Any, arguments: dict[str, Any]) -> bool:
    """Run a test; False: it skipped itself."""
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in inspect.signature(test).parameters:
            arguments = {**arguments, "monkeypatch": patch}
        try:
            outcome = test(device, **arguments)
            if inspect.iscoroutine(outcome):
                na.run(outcome)
        except pytest.skip.Exception:
            return False
    return True


def main(kind: str, names: list[str]) -> None:
    device = na.devices(kind)[0]
    known = {module.__name__.rpartition(".")[2]: module for module in MODULES}
    passed = []
    with na.use_device(device):
        for name in names or known:
            for test in tests_of(known[name]):
                passed += [case(device, test, arguments) for arguments in parameters(test)]
    print(f"{sum(passed)} cases gave what NumPy gives, {passed.count(False)} skipped themselves")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
