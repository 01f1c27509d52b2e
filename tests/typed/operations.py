"""Operations: every way to run or to combine them keeps the type of the value."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from typing import Any, assert_type

import numpy as np

import numbasync as na

Array = np.ndarray[Any, Any]


async def number() -> float:
    return 1.0


async def running(op: na.DeviceOp[int], stream: na.Stream) -> None:
    assert_type(await op, int)
    assert_type(op.sync(), int)
    assert_type(op.sync_on(stream), int)
    assert_type(op.async_on(stream), int)
    future = op.schedule(na.SingleStream(stream.device))
    assert_type(future, na.DeviceFuture[int])
    assert_type(await future, int)
    assert_type(na.spawn(op), na.DeviceFuture[int])
    assert_type(na.spawn(op).sync(), int)
    assert_type(na.run(number()), float)
    async with na.Runtime() as rt:
        assert_type(await rt.run(op), int)

    text: str = await op  # type: ignore[assignment]
    text.upper()


def combining(op: na.DeviceOp[int], t: na.Tensor) -> None:
    assert_type(op.map(str), na.DeviceOp[str])
    assert_type(op.then(lambda n: na.value([n])), na.DeviceOp[list[int]])
    assert_type(op.then_with_context(lambda ctx, n: na.value(n / 2)), na.DeviceOp[float])
    assert_type(op.inspect(print), na.DeviceOp[int])
    assert_type(na.defer(lambda: na.value("a")), na.DeviceOp[str])
    assert_type(na.zeros(3).then(lambda t: t.to_host()), na.DeviceOp[Array])

    shared = op.shared()
    a: na.DeviceOp[int] = shared
    b: na.DeviceOp[int] = na.shared(3)
    assert_type(shared.sync(), int)

    op.then(str)  # type: ignore[arg-type]
    op.map(lambda n: n.upper())  # type: ignore[attr-defined]
    na.zip(a, b, t)  # type: ignore[call-overload]


async def several(
    a: na.DeviceOp[int], b: na.DeviceOp[str], many: list[na.DeviceOp[int]],
    mixed: list[na.DeviceOp[Any]],
) -> None:  # fmt: skip
    assert_type(na.zip(a), na.DeviceOp[tuple[int]])
    assert_type(na.zip(a, b), na.DeviceOp[tuple[int, str]])
    assert_type(na.zip(a, b, a, b, a, b), na.DeviceOp[tuple[int, str, int, str, int, str]])
    assert_type(na.zip(*many), na.DeviceOp[tuple[int, ...]])
    assert_type(na.zip(a, b, a, b, a, b, a), na.DeviceOp[tuple[Any, ...]])

    one, two = na.zip(a, b).unzip()
    assert_type(one, na.DeviceOp[int])
    assert_type(two, na.DeviceOp[str])
    assert_type(na.zip(*many).unzip(3), tuple[na.DeviceOp[int], ...])
    u, v, w = na.zip(*mixed).unzip(3)
    assert_type(na.zip(u, v, w).first().sync(), Any)
    assert_type(na.zip(a, b, a).first(), na.DeviceOp[int])
    assert_type(na.zip(a, a, b).last(), na.DeviceOp[str])

    assert_type(await na.gather(a), tuple[int])
    assert_type(await na.gather(a, b), tuple[int, str])
    assert_type(await na.gather(na.spawn(a), b, number()), tuple[int, str, float])
    assert_type(await na.gather(a, b, a, b, a, b), tuple[int, str, int, str, int, str])
    assert_type(await na.gather(*many), list[int])
    assert_type(await na.gather(a, a, a, a, a, a, a), list[int])
    assert_type(await asyncio.gather(a, b), tuple[int, str])
    assert_type(asyncio.create_task(a.coroutine()), asyncio.Task[int])

    x, y, _ = na.zip(a, b).unzip()  # type: ignore[misc]
    await na.gather(a, 3)  # type: ignore[call-overload]
    await na.gather(x, y)


async def tensors(t: na.Tensor, s: na.SharedTensor) -> None:
    op = na.zeros((2, 3))
    assert_type(op, na.DeviceOp[na.Tensor])
    assert_type(await op.to_host(), Array)
    assert_type(op.partition((1, 3)), na.DeviceOp[na.Partition])
    assert_type(op.partition((1, 3)).unpartition(), na.DeviceOp[na.Tensor])
    assert_type(op.reshape(-1).dup().astype(np.int8), na.DeviceOp[na.Tensor])
    assert_type(op.shared_tensor(), na.DeviceOp[na.SharedTensor])
    assert_type(await t.T[0].to_host(), Array)
    assert_type(await t.astype(np.int8), na.Tensor)
    assert_type(await t.item(), Any)
    assert_type(na.concatenate([t, s, op, np.zeros(3)], axis=1), na.DeviceOp[na.Tensor])
    assert_type(na.stack((t, t)), na.DeviceOp[na.Tensor])
    assert_type(na.zeros_like(t, dtype=np.int8), na.DeviceOp[na.Tensor])
    assert_type(na.full_like(np.zeros(3), 2.0), na.DeviceOp[na.Tensor])
    assert_type(na.random_states(3, seed=1), na.DeviceOp[na.Tensor])

    t + 1  # type: ignore[operator]
    if t == s:  # type: ignore[comparison-overlap]
        pass
