"""`numbasync bench kernels`: attention for decoding, beside a kernel that reads the same bytes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case
from benchmarks.peer_registry import has_own_processor
from benchmarks.plain_kernels import device_time, repeat
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync import vectors
from numbasync.device.device import Device

PAGE = 16  # tokens
PERIOD = 1_000_003  # elements, a prime number
THREADS = 256
BLOCKS = 8  # of a multiprocessor, that read
WORDS = 4  # of a load
MIXED = 0x5EED  # the last word, and so the exclusive or of all; the others are 0
CALLS = 3  # of a round
RATE = 0.9  # of the reading kernel's
UNIT = "device microseconds a call"
METHOD = (
    "{what}: keys and values in pages of 16 tokens, in random order; heads of 128 features, 8 of "
    "them of keys. Device time between two events of a call that follows another one on the "
    "stream. A kernel that does nothing but read as many bytes is the measure."
)


class Decoding(NamedTuple):
    """Sequences with a query each: their number, their length, heads, key heads and d."""

    sequences: int
    length: int
    heads: int
    key_heads: int
    width: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.sequences} sequences of {self.length:,} keys, {self.heads} heads"

    @property
    def words(self) -> int:
        """Of 4 bytes, that keys and values have."""
        elements = 2 * self.sequences * self.length * self.key_heads * self.width
        return elements * np.dtype(self.dtype).itemsize // 4


MANY = tuple(
    Decoding(sequences, length, heads, 8, 128, "float16")
    for sequences, length, heads in (
        (64, 4096, 32), (8, 32768, 32), (256, 1024, 32), (64, 4096, 8), (64, 4096, 64),
    )
)  # fmt: skip
FEW = (Decoding(2, 32, 4, 2, 32, "float32"),)


@na.launcher(threads=THREADS)
@cuda.jit
def read(out: na.KernelOutput, x: na.KernelInput) -> None:
    """Read all of `x`, whose length is a multiple of 4; `out` is what keeps the loads."""
    step = WORDS * cuda.gridsize(1)
    mixed = int32(0)
    for i in range(WORDS * cuda.grid(1), x.shape[0], 4 * step):
        for k in range(4):  # four loads on their way
            if i + k * step < x.shape[0]:
                a, b, c, d = vectors.load(x, i + k * step, WORDS)
                mixed ^= a ^ b ^ c ^ d
    if mixed == MIXED:
        out[0] = mixed


async def tables(device: Device, rounds: int) -> list[report.Record]:
    own = MANY if has_own_processor(device) else FEW
    stream = device.new_stream()
    cases = [case for decoding in own for case in await _cases(stream, decoding)]
    targets = [
        Target(f"decoding / read, {d.name}", _ours(d), _base(d), round(1 / RATE, 4), 1.0)
        for d in own
    ]
    return [await table(
        device, rounds, "decode", "attention for decoding", cases, calls=CALLS, method=METHOD,
        base=_base(own[0]), targets=targets, unit=UNIT,
    )]  # fmt: skip


def _ours(decoding: Decoding) -> str:
    return f"numbasync: {decoding.name}"


def _base(decoding: Decoding) -> str:
    return f"numbasync: read as {decoding.name}"


async def _cases(stream: na.Stream, decoding: Decoding) -> list[Case]:
    """The reading kernel, and `paged_attention`."""
    from numbasync_kernels.nn import paged_attention

    inputs = Inputs(decoding)
    on_device = await inputs.tensors(stream)
    out = await na.zeros(inputs.q.shape, decoding.dtype).schedule(stream)
    words = await na.zeros(decoding.words, np.int32).schedule(stream)
    first = await na.zeros(1, np.int32).schedule(stream)
    blocks = BLOCKS * stream.device.limits.multiprocessors
    call = partial(paged_attention, out, *on_device)
    reading = partial(read[blocks, THREADS], first, words)

    async def check() -> None:
        await call().schedule(stream)
        inputs.check(await out.to_host().schedule(stream))

    async def check_read() -> None:
        await words[-1:].copy_from(np.full(1, MIXED, np.int32)).schedule(stream)
        await reading().schedule(stream)
        if (await first.to_host().schedule(stream))[0] != MIXED:
            raise AssertionError("the last word was not read")

    return [
        Case(_base(decoding), device_time(stream, reading, reading, 1), check_read),
        Case(_ours(decoding), device_time(stream, call, call, 1), check),
    ]


class Inputs:
    """Random queries and pages in random order; elements of keys and of values repeat, and are
    made on the device.

    Attributes:
        q: the queries.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        rng = np.random.default_rng(0)
        shape = decoding.sequences, decoding.heads, decoding.width
        self.q = rng.standard_normal(shape, np.float32).astype(decoding.dtype)
        self._periods = [
            rng.standard_normal(PERIOD, np.float32).astype(decoding.dtype) for _ in range(2)
        ]
        pages = decoding.sequences * decoding.length // PAGE
        self._table = rng.permutation(pages).astype(np.int32).reshape(decoding.sequences, -1)

    async def tensors(self, stream: na.Stream) -> list[na.Tensor]:
        """Queries, pages of keys and of values, page table and lengths."""
        d = self._decoding
        lengths = np.full(d.sequences, d.length, np.int32)
        hosted = [self.q, self._table, lengths]
        q, table_, counts = [await na.from_host(x).schedule(stream) for x in hosted]
        shape = self._table.size, PAGE, d.key_heads, d.width
        pages = []
        for period in self._periods:
            elements = await na.empty(self._table.size * PAGE * d.key_heads * d.width, d.dtype)
            on_device = await na.from_host(period).schedule(stream)
            await repeat(elements, on_device).schedule(stream)
            pages.append(elements.reshape(shape))
        return [q, *pages, table_, counts]

    def check(self, got: np.ndarray[Any, Any]) -> None:
        """Compare the first key head's result for the last sequence with float64.

        Raises:
            AssertionError: an element is further away than rounding explains.
        """
        from numbasync_kernels.nn import paged_attention_reference

        d = self._decoding
        group = d.heads // d.key_heads
        tokens = self._table[-1][:, None] * PAGE + np.arange(PAGE)
        places = tokens[..., None] * (d.key_heads * d.width) + np.arange(d.width)
        keys, values = (period[places % PERIOD][:, :, None] for period in self._periods)
        order = np.arange(len(tokens), dtype=np.int32)[None]
        want = paged_attention_reference(
            self.q[-1:, :group], keys, values, order, np.array([d.length], np.int32)
        )
        away = np.abs(got[-1:, :group] - want).max()
        if not away <= 2e-3:
            raise AssertionError(f"{d.name}: an error of {away:.1e}")
