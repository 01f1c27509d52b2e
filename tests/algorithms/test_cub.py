"""What a sort asks of CUB, of a stand-in that NumPy sorts for; tests/gpu has CUB itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms import cub
from numbasync.extending import Context, Steps
from tests.common import host, put


class StandIn:
    """A sorter whose temporary memory is `BYTES` large."""

    BYTES = 40

    def __init__(self, kind: cub.Kind, capability: tuple[int, int]) -> None:
        self.kind = kind
        self.calls = 0

    def room(self, ctx: Context, given: list[na.Tensor]) -> Steps[int]:
        yield from ()
        return self.BYTES

    def sort(self, stream: Any, count: int, of: Sequence[Any], to: Sequence[Any]) -> None:
        self.calls += 1
        keys = of[0].reshape(-1)
        assert count == keys.size and keys.dtype == self.kind.keys and to[-1].nbytes == self.BYTES
        order = np.argsort(~keys if self.kind.descending else keys, kind="stable")
        for x, z in zip(of, to[:-1], strict=True):
            z.reshape(-1)[:] = x.reshape(-1)[order]


@pytest.fixture
def sorters(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(type(device.backend), "has_cub", True)
    monkeypatch.setattr(cub, "Sorter", StandIn)
    monkeypatch.setattr(cub, "_sorters", kept)
    monkeypatch.setattr(cub, "LEAST", 5000)
    return kept


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
@pytest.mark.parametrize("descending", [False, True])
def test_what_is_sorted(
    sorters: dict[Any, Any], device: na.Device, dtype: str, descending: bool
) -> None:
    x = np.random.default_rng(2).integers(-99, 99, (2, 3000)).astype(dtype)
    flat = x.reshape(-1)
    key = ~flat if descending else flat
    order = np.argsort(key, kind="stable")
    sorted_ = algorithms.sort(put(x), None, descending=descending)
    np.testing.assert_array_equal(host(sorted_), flat[order])
    places = algorithms.argsort(put(flat), descending=descending)
    np.testing.assert_array_equal(host(places), order)
    weights = np.arange(6000, dtype=np.float32)
    keys, moved = algorithms.sort_by_key(put(flat), weights, descending=descending).sync()
    assert moved.dtype == np.float32
    np.testing.assert_array_equal(host(moved), weights[order])
    np.testing.assert_array_equal(host(keys), flat[order])
    kinds = [kind for kind, _ in sorters]
    assert [kind.values for kind in kinds] == [None, np.uint64, np.uint32]
    assert [sorter.calls for sorter in sorters.values()] == [1, 1, 1]


@pytest.mark.parametrize("what", ["floats", "short", "rows", "complex values"])
def test_what_kernels_here_sort(sorters: dict[Any, Any], device: na.Device, what: str) -> None:
    x = np.arange(6000)[::-1]
    shape = {"short": (4000,), "rows": (2, 3000)}.get(what, (6000,))
    tensor = put(x[: np.prod(shape)].reshape(shape).astype("f4" if what == "floats" else "i4"))
    kind = cub.kind_of(
        tensor.reshape((-1, shape[-1])), False, np.dtype("c16") if "complex" in what else None
    )
    assert kind is None


def test_a_graph_has_kernels(sorters: dict[Any, Any], device: na.Device) -> None:
    x = np.random.default_rng(2).integers(-99, 99, 6000, np.int32)
    graph = algorithms.sort(put(x)).graph()
    z = graph.take_output()
    assert z is not None
    graph.launch().sync()
    np.testing.assert_array_equal(host(z), np.sort(x))
    assert not sorters


def test_without_a_compiler(
    sorters: dict[Any, Any], device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ImportError("no NVRTC")

    monkeypatch.setattr(cub, "Sorter", fail)
    x = np.arange(6000, dtype=np.int32)[::-1]
    with pytest.warns(RuntimeWarning, match=r"no NVRTC.*numbasync's kernels sort"):
        np.testing.assert_array_equal(host(algorithms.sort(put(x))), np.sort(x))
    np.testing.assert_array_equal(host(algorithms.sort(put(x))), np.sort(x))  # asked once
