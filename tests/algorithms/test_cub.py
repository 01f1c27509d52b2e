"""What a sort asks of CUB, of a stand-in that NumPy sorts for; tests/gpu has CUB itself."""

from __future__ import annotations

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

    def room(self, ctx: Context, keys: na.Tensor) -> Steps[int]:
        yield from ()
        return self.BYTES

    def sort(self, stream: Any, count: int, keys: Any, z: Any, room: Any) -> None:
        self.calls += 1
        flat = keys.reshape(-1)
        assert count == flat.size and flat.dtype == self.kind.keys and room.nbytes == self.BYTES
        order = np.argsort(~flat if self.kind.descending else flat, kind="stable")
        z.reshape(-1)[:] = flat[order]


@pytest.fixture
def sorters(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    if not device.label.startswith("cpu"):
        pytest.skip("NumPy sorts, in host memory")
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
    assert [(kind.descending, sorter.calls) for (kind, _), sorter in sorters.items()] == [
        (descending, 1)
    ]


@pytest.mark.parametrize("what", ["floats", "short", "rows"])
def test_what_kernels_here_sort(sorters: dict[Any, Any], device: na.Device, what: str) -> None:
    shape = {"short": (1, 4000), "rows": (2, 3000)}.get(what, (1, 6000))
    x = put(np.zeros(shape, "f4" if what == "floats" else "i4"))
    assert cub.kind_of(x, False) is None


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
