"""`numbasync bench kernels`: matrix products and attention of the ready kernels.

The times are the device's, between two events on a stream; products that take less than the host
takes to launch them are launched by a graph. On the CPU device the sizes are small, and the same
tables show that the suite runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case
from benchmarks.peer_registry import has_own_processor
from benchmarks.plain_kernels import device_time
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

LONG = 5e11  # operations that take longer than the host takes to launch them
LAUNCHES = 100  # of a graph, at most
SCRATCH = 2**30  # bytes that the launches of a graph may allocate
CALLS = 3  # of a round
EVERY = 37  # each so manieth row of a result is checked
UNIT = "device microseconds a call"
METHOD = (
    "{what}: device time between two events of a call that follows another one on the stream; what "
    "takes less than a millisecond or two, in a graph of up to 100 launches. Elements are normal "
    "random numbers."
)


class Product(NamedTuple):
    """A matrix product: the dtype of operands and result, its extents, whether b is a transposed
    view, and the least share of PyTorch's rate that is expected. If `by_mma`, of the kernel for
    devices without `wgmma`, on whichever the device is.
    """

    dtype: str
    m: int
    n: int
    k: int
    transposed: bool
    precision: str
    rate: float
    by_mma: bool = False

    @property
    def name(self) -> str:
        dtype = self.dtype if self.precision == "float32" else self.precision
        dtype += " by mma" if self.by_mma else ""
        size = (
            f"{self.m:,}" if self.m == self.n == self.k else f"{self.m:,} x {self.n:,} x {self.k:,}"
        )
        return f"{dtype}, {size}{', b transposed' if self.transposed else ''}"

    @property
    def launches(self) -> int:
        return LAUNCHES if 2 * self.m * self.n * self.k < LONG else 1

    def operands(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """A and b, in float32; for int8, small integers."""
        rng = np.random.default_rng(0)
        if self.dtype == "int8":
            shapes = (self.m, self.k), (self.k, self.n)
            left, right = (rng.integers(-8, 9, s).astype(np.float32) for s in shapes)
            return left, right
        a = rng.standard_normal((self.m, self.k), np.float32)
        return a, rng.standard_normal((self.k, self.n), np.float32)

    def check(
        self, got: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]
    ) -> None:
        """Compare some rows of a result with float64.

        Raises:
            AssertionError: an element is further away than rounding explains.
        """
        want = a[::EVERY].astype(np.float64) @ b.astype(np.float64)
        units = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "int8": 0.0}
        unit = units.get(self.dtype, 2.0**-9)
        away = np.abs(got[::EVERY].astype(np.float64) - want).max() / np.abs(want).max()
        if not away <= unit:
            raise AssertionError(f"{self.name}: an error of {away:.1e} of the largest element")


def _square(
    dtype: str,
    n: int,
    rate: float,
    transposed: bool = False,
    how: str = "float32",
    by_mma: bool = False,
) -> Product:
    return Product(dtype, n, n, n, transposed, how, rate, by_mma)


PRODUCTS = (
    _square("float16", 1024, 0.9, True), _square("float16", 2048, 0.9, True),
    _square("float16", 4096, 0.97), _square("float16", 4096, 0.97, True),
    _square("float16", 8192, 0.97), _square("bfloat16", 4096, 0.97),
    _square("bfloat16", 8192, 0.97), _square("float32", 4096, 0.95, True, "tf32"),
    _square("float32", 8192, 0.95, True, "tf32"), _square("float32", 4096, 0.95),
    _square("float32", 4096, 0.95, False, "tf32x3"),
    Product("float16", 4000, 3999, 4001, False, "float32", 0.8),
    _square("int8", 4096, 0.9, True), _square("int8", 8192, 0.9, True),
    _square("float16", 2048, 0.6, True, by_mma=True), _square("float16", 4096, 0.6, by_mma=True),
    _square("float16", 4096, 0.6, True, by_mma=True),
    _square("float16", 8192, 0.6, True, by_mma=True),
    _square("bfloat16", 4096, 0.6, True, by_mma=True),
    _square("float32", 4096, 0.6, True, "tf32", by_mma=True),
)  # fmt: skip
FEW_PRODUCTS = (
    _square("float16", 64, 0.9), _square("float32", 64, 0.95), _square("int8", 64, 0.9, True),
    _square("float16", 64, 0.6, by_mma=True),
)  # fmt: skip


class Attention(NamedTuple):
    """Attention of float16: heads in all, their length and width, and the least share of PyTorch's
    rate that is expected.
    """

    heads: int
    length: int
    width: int
    causal: bool
    rate: float

    @property
    def name(self) -> str:
        seen = "causal" if self.causal else "all keys"
        return f"{self.heads} heads of {self.length:,} x {self.width}, {seen}"

    @property
    def launches(self) -> int:
        return LAUNCHES if 4 * self.heads * self.length**2 * self.width < LONG else 1

    def operands(self) -> list[np.ndarray[Any, Any]]:
        """q, k and v."""
        rng = np.random.default_rng(0)
        shape = self.heads, self.length, self.width
        return [rng.standard_normal(shape, np.float32).astype(np.float16) for _ in range(3)]

    def check(self, got: np.ndarray[Any, Any], q: Any, k: Any, v: Any) -> None:
        """Compare some rows of the first head with float64.

        Raises:
            AssertionError: an element is further away than rounding explains.
        """
        from numbasync_kernels.nn import dot_product_attention_reference

        first = self.length - self.length // EVERY - 1
        want = dot_product_attention_reference(q[:1, first:], k[:1], v[:1], self.causal)
        away = np.abs(got[:1, first:] - want).max()
        if not away <= 4e-3:
            raise AssertionError(f"{self.name}: an error of {away:.1e}")


ATTENTION = tuple(
    Attention(heads, length, width, causal, 0.97 if width == 128 else 0.95)
    for width in (128, 64)
    for causal in (False, True)
    for heads, length in ((256, 512), (64, 2048), (64, 4096), (16, 16384))
)
FEW_ATTENTION = (Attention(1, 64, 64, True, 0.95),)


def _case(
    stream: na.Stream,
    name: str,
    call: Callable[[], na.DeviceOp[Any]],
    judge: Callable[[np.ndarray[Any, Any]], None],
    launches: int = 1,
) -> Case:
    """A case of `call`, which gives a result.

    Args:
        judge: refuses a wrong result.
        launches: of a graph, where it is more than 1.
    """

    async def check() -> None:
        out = await call().schedule(stream)
        judge(await out.to_host().schedule(stream))

    op: Callable[[], na.DeviceOp[Any]] = call
    launches = _launches(call, stream, launches) if has_own_processor(stream.device) else 1
    if launches > 1:
        op = na.zip(*[call() for _ in range(launches)]).graph_on(stream).launch
    return Case(f"numbasync: {name}", device_time(stream, op, op, launches), check)


def _launches(call: Callable[[], na.DeviceOp[Any]], stream: na.Stream, most: int) -> int:
    """At most so many launches of a graph that its memory stays below `SCRATCH`.

    A graph keeps what each of its launches allocates: a product of odd extents packs its operands,
    64 MB a launch.
    """
    used = stream.device.memory_stats().used_current
    one = call().graph_on(stream)
    scratch = stream.device.memory_stats().used_current - used
    del one
    return max(1, min(most, SCRATCH // scratch)) if scratch > 0 else most


def _target(name: str, rate: float) -> Target:
    ours, base = f"numbasync: {name}", f"PyTorch: {name}"
    return Target(f"{ours} / PyTorch", ours, base, round(1 / rate, 4), 1.0)


async def products(device: Device, rounds: int) -> list[report.Record]:
    from numbasync_kernels.fits import dtype_of
    from numbasync_kernels.nn import gemm
    from numbasync_kernels.nn.gemm import Arguments, by_warps

    own = PRODUCTS if has_own_processor(device) else FEW_PRODUCTS
    stream = device.new_stream()
    cases = []
    for product in own:
        a, b = (x.astype(dtype_of(product.dtype)) for x in product.operands())
        left = await na.from_host(a).schedule(stream)
        right = await na.from_host(b.T.copy() if product.transposed else b).schedule(stream)
        if product.transposed:
            right = right.T
        result = np.int32 if product.dtype == "int8" else a.dtype
        out = await na.zeros((product.m, product.n), result).schedule(stream)
        call = partial(gemm, out, left, right, precision=product.precision)
        if product.by_mma:
            arguments = Arguments(out, left, right)
            call = partial(by_warps(arguments), arguments)
        judge = partial(product.check, a=a, b=b)
        cases.append(_case(stream, product.name, call, judge, product.launches))
    return [
        await table(
            device, rounds, "products", "matrix products", cases, calls=CALLS, method=METHOD,
            base=f"PyTorch: {own[0].name}", targets=[_target(p.name, p.rate) for p in own],
            unit=UNIT,
        )
    ]  # fmt: skip


async def attention(device: Device, rounds: int) -> list[report.Record]:
    from numbasync_kernels.nn import dot_product_attention

    own = ATTENTION if has_own_processor(device) else FEW_ATTENTION
    stream = device.new_stream()
    cases = []
    for attention in own:
        q, k, v = attention.operands()
        tensors = [await na.from_host(x).schedule(stream) for x in (q, k, v)]
        out = await na.zeros(q.shape, np.float16).schedule(stream)
        call = partial(dot_product_attention, out, *tensors, causal=attention.causal)
        judge = partial(attention.check, q=q, k=k, v=v)
        cases.append(_case(stream, attention.name, call, judge, attention.launches))
    return [
        await table(
            device, rounds, "attention", "attention of float16", cases, calls=CALLS, method=METHOD,
            base=f"PyTorch: {own[0].name}", targets=[_target(a.name, a.rate) for a in own],
            unit=UNIT,
        )
    ]  # fmt: skip
