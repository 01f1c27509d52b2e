"""The choice of a kernel, and the checks before it, are made once for arguments of one kind."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    CallerError,
    DTypeError,
    MovedError,
    NumbasyncError,
    OperationError,
    ShapeError,
)
from numbasync.memo import Memo
from numbasync_kernels import nn
from tests.common import full

MODULES = {name: sys.modules[f"numbasync_kernels.nn.{name}"]
           for name in ("gemm", "dot_product_attention")}  # fmt: skip


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments for which a way was chosen, from now on; none is known yet."""
    arguments: list[Any] = []
    for module in MODULES.values():
        choose = module._way_of

        def noted(p: Any, *more: Any, choose: Any = choose) -> Any:
            arguments.append(p)
            return choose(p, *more)

        monkeypatch.setattr(module, "_way_of", noted)
        monkeypatch.setattr(module, "_ways", Memo(1024))
    return arguments


def matrix(rows: int, columns: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, (rows, columns)).astype(np.float32)


async def product(a: Any, b: Any, **more: Any) -> Any:
    out = await na.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    given = await nn.gemm(out, a, b, **more)
    assert given is out
    return await out.to_host()


async def test_a_product_is_chosen_once_for_a_kind(device: na.Device, chosen: list[Any]) -> None:
    for seed in range(3):
        x, y = matrix(6, 8, seed), matrix(8, 5, seed + 9)
        got = await product(await na.from_host(x), await na.from_host(y))
        np.testing.assert_array_equal(got, x @ y)
    assert len(chosen) == 1
    a, b = await na.zeros((6, 8)), await na.zeros((8, 5))
    out, row, like = await na.zeros((6, 5)), await na.zeros(5), await na.zeros((6, 5))
    t = (await na.zeros((5, 8))).T
    for _ in range(2):  # kernels of other kinds are not compiled here
        nn.gemm(out, a, t).suppress_warning()
        nn.gemm(out, a, b, bias=row, activation="relu").suppress_warning()
        nn.gemm(out, a, b, residual=like).suppress_warning()
    assert len(chosen) == 4


async def test_strides_are_known_where_no_fingerprint_has_them(
    device: na.Device, chosen: list[Any]
) -> None:
    x, y = matrix(1, 8, 1), matrix(8, 5, 2)
    a, b = await na.from_host(x), await na.from_host(y)
    np.testing.assert_array_equal(await product(a, b), x @ y)
    for pitch in (9, 12):  # a row of a wider matrix, of the same fingerprint
        wide = np.zeros((3, pitch), np.float32)
        wide[1, :8] = x
        row = (await na.from_host(wide))[1:2, :8]
        np.testing.assert_array_equal(await product(row, b), x @ y)
    for pitch in (7, 8):  # gaps
        wide = np.zeros((8, pitch), np.float32)
        wide[:, :5] = y
        out = await na.zeros((1, 5))
        nn.gemm(out, a, (await na.from_host(wide))[:, :5]).suppress_warning()
    assert len(chosen) == 5


async def test_a_misfit_is_refused_behind_fitting_products(
    device: na.Device, chosen: list[Any]
) -> None:
    a, b, out = [await na.zeros(shape) for shape in ((4, 4), (4, 4), (4, 4))]
    await nn.gemm(out, a, b)
    nn.gemm(out, a, b, bias=await na.zeros(4), activation="relu").suppress_warning()
    known, short = len(chosen), await na.zeros(3)
    wrong: list[tuple[type[NumbasyncError], Any]] = [
        (OperationError, lambda: nn.gemm(out, a, [1.0])),  # type: ignore[arg-type]
        (OperationError, lambda: nn.gemm(out.partition((4, 4)), a, b)),  # type: ignore[arg-type]
        (OperationError, lambda: nn.gemm(out, a.shared(), b)),  # type: ignore[arg-type]
        (OperationError, lambda: nn.gemm(out, a, b, bias=1.0)),  # type: ignore[arg-type]
        (ShapeError, lambda: nn.gemm(out, a, b, bias=short)),
        (ShapeError, lambda: nn.gemm(out, a[:3], b)),
        (CallerError, lambda: nn.gemm(out, a, b, activation=["relu"])),  # type: ignore[arg-type]
        (CallerError, lambda: nn.gemm(out, a, b, activation="tanh")),
        (CallerError, lambda: nn.gemm(out, a, b, precision=["tf32"])),  # type: ignore[arg-type]
        (DTypeError, lambda: nn.gemm(out, a.reinterpret(np.int32), b)),
    ]
    for _ in range(2):  # what was refused is not remembered
        for error, call in wrong:
            with pytest.raises(error):
                call()
    moved = b.take()
    with pytest.raises(MovedError):
        await nn.gemm(out, a, b)
    await nn.gemm(out, a, moved)
    assert len(MODULES["gemm"]._ways) == known


async def test_a_choice_is_of_a_device(device: na.Device, chosen: list[Any]) -> None:
    for other in na.devices("cpu")[:2]:
        with na.use_device(other):
            a, b, out = [await na.ones((4, 4)) for _ in range(3)]
            await nn.gemm(out, a, b)
            assert (await out.to_host() == 4).all()
    assert len(chosen) == 2


async def test_ways_are_bounded(
    device: na.Device, chosen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULES["gemm"], "_ways", Memo(2))
    a, b = await na.zeros((8, 4)), await na.zeros((4, 8))
    for rows in (1, 2, 3, 1):
        nn.gemm(await na.zeros((rows, 8)), a[:rows], b).suppress_warning()
        assert len(MODULES["gemm"]._ways) <= 2
    assert len(chosen) == 4


@pytest.mark.parametrize("transposed", [full(False), True])
async def test_a_way_by_warpgroups_takes_other_tensors(device: na.Device, transposed: bool) -> None:
    """On the CPU device, too, which does not choose it: the operations are emulated."""
    if device.limits.tensor_cores not in ("warpgroups", "emulated"):
        pytest.skip("wgmma needs compute capability 9.0")
    module, way, dtype = MODULES["gemm"], None, "float16"
    for seed in range(2):
        x, y = matrix(16, 64, seed).astype(dtype), matrix(64, 64, seed + 5).astype(dtype)
        a = await na.from_host(x)
        b = await na.from_host(np.ascontiguousarray(y.T) if transposed else y)
        out, bias = await na.full((16, 64), np.nan, dtype), await na.full(64, seed, dtype)
        p = module.Arguments(out, a, b.T if transposed else b, bias, "relu")
        way = way or module.by_warpgroups(p)
        assert (await way(p)) is out
        want = np.maximum(x.astype(float) @ y.astype(float) + seed, 0)
        np.testing.assert_array_equal(await out.to_host(), want)


async def test_attention_is_chosen_once_for_a_kind(device: na.Device, chosen: list[Any]) -> None:
    """What it computes is tested elsewhere: here nothing is compiled."""
    out, q, k, v = [await na.zeros((2, 8, 32)) for _ in range(4)]
    mask = await na.zeros((8, 8), np.bool_)

    def arguments(**more: Any) -> Any:
        op: Any = nn.dot_product_attention(out, q, k, v, **more)
        op.suppress_warning()
        return op._first._values

    for _ in range(2):
        out, q, k, v = [await na.zeros((2, 8, 32)) for _ in range(4)]
        values = arguments(causal=True)
        assert [x is y for x, y in zip(values, (out, q, k, v), strict=False)] == [True] * 4
    assert len(chosen) == 1
    lengths, offsets = await na.zeros(1, np.int32), await na.zeros(9, np.int32)
    for _ in range(2):
        mask = await na.zeros((8, 8), np.bool_)
        given = [x for x in arguments(mask=mask) if isinstance(x, na.Tensor)]
        assert given[-1].same_elements(mask.reshape(1, 8, 8))
        assert any(x is lengths for x in arguments(lengths=lengths))
    assert len(chosen) == 3
    out, q, k, v = [x.reshape(16, 1, 32) for x in (out, q, k, v)]
    for n in (4, 4, 5):
        assert any(x is offsets for x in arguments(offsets=offsets, longest=n))
    assert len(chosen) == 5
    with pytest.raises(ShapeError):
        nn.dot_product_attention(out, q, k, v, mask=mask[:7])
    with pytest.raises(OperationError):
        nn.dot_product_attention(out, q, k, v, mask=[True])  # type: ignore[arg-type]
    with pytest.raises(CallerError):
        nn.dot_product_attention(out, q, k, v, offsets=offsets, longest=0)
    assert len(MODULES["dot_product_attention"]._ways) == 5
