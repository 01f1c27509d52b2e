"""What ends, chains and zips of the core do as Python does, and what they leave to Python."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.device.storage import MANY_READERS, Storage
from numbasync.errors import DriverError, OperationError
from numbasync.ops.gather import _Enqueued, add_values
from tests.common import add_one, saxpy
from tests.native.null_device import launches

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@contextmanager
def calls_of_finalisers() -> Iterator[list[str]]:
    """The names of the functions in `consume.py` that are called meanwhile."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("consume.py"):
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(before)


MADE: dict[str, Callable[[Any], na.DeviceOp[Any]]] = {
    "launch": add_one,
    "chain": lambda z: add_one(z).then(lambda _: add_one(z)),
    "zeros": lambda z: na.zeros(8),
    "download": lambda z: z.to_host(),
}


@pytest.mark.parametrize("kind", MADE)
def test_python_ends_only_what_was_not_used(null: na.Device, kind: str) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    for _ in range(2):
        MADE[kind](z).sync_on(stream)
    with calls_of_finalisers() as called:
        MADE[kind](z).sync_on(stream)
        assert "__del__" not in called
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            op = MADE[kind](z)
            del op
    assert called.count("__del__") == 1
    (warning,) = said
    assert "was never awaited" in str(warning.message)


def test_a_new_stream_looks_for_finished_readers(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [null.new_stream() for _ in range(MANY_READERS + 1)]
    x, looked = na.ones(8).sync(), []
    forget = Storage.forget_readers

    def forget_readers(self: Storage) -> Any:
        looked.append(self)
        return forget(self)

    monkeypatch.setattr(Storage, "forget_readers", forget_readers)
    ways: list[Callable[[], na.DeviceOp[Any]]] = [lambda: saxpy(na.zeros(8).sync(), 1.0, x)]
    ways.append(x.to_host)
    for way in ways:
        x.storage.readers = {}
        looked.clear()
        for _ in range(3):
            for stream in streams[:-1]:
                way().sync_on(stream)
        assert len(x.storage.readers) == MANY_READERS and x.storage not in looked
        way().sync_on(streams[-1])
        assert list(x.storage.readers) == [streams[-1]] and looked.count(x.storage) == 1


def test_a_missing_number_goes_to_no_closure(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(1).sync()
    add_one(z).sync_on(stream)
    called: list[Any] = []

    def follow(value: Any) -> Any:
        called.append(value)

    numbers: list[Callable[[], na.DeviceOp[Any]]] = [
        lambda: z.item(),
        lambda: na.zip(add_one(z), z.item()),
        lambda: na.zip(add_one(z), na.zip(z.item(), add_one(z))),
    ]  # fmt: skip
    for number in numbers:
        with pytest.raises(OperationError, match=r"would get the number of item\(\)"):
            number().then(follow).async_on(stream)
        with pytest.raises(OperationError, match=r"would get the number of item\(\)"):
            number().async_on(stream)
    assert not called
    nested = na.zip(add_one(z), na.zip(add_one(z), na.value(())))
    assert nested.async_on(stream)[1][1] == ()


def test_a_description_shows_chain_and_zip_ends(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()

    def follow(_: Any) -> na.DeviceOp[Any]:
        return add_one(z)

    chain: na.DeviceOp[Any] = add_one(z)
    for _ in range(4):
        chain = chain.then(follow).map(lambda r: r)
    middle = ".then(follow).map(<lambda>)"
    assert str(chain) == f"add_one(z){middle}.then(follow) ...2 more... .map(<lambda>){middle}"
    zipped = na.zip(*[add_one(z) for _ in range(5)], na.value(1), na.value(2))
    ends = ", ".join(3 * ["add_one(z)"]), "add_one(z), value(int), value(int)"
    assert str(zipped) == f"zip({ends[0]}, ...1 more..., {ends[1]})"
    stream = null.new_stream()
    first = len(launches())
    na.zip(chain, zipped).sync_on(stream)
    assert len(launches()) == first + 10


def test_the_value_of_failed_work_is_its_error(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()

    def enqueued() -> _Enqueued:
        op = add_one(z)
        op.sync_on(stream)
        na.run(awaited(add_one[(1,), (8,), stream](z)))  # which verifies
        return _Enqueued(op, z.storage.writer)

    async def awaited(op: na.DeviceOp[Any]) -> None:
        await op

    enqueued()
    assert enqueued().value().z is z
    failed = enqueued()
    failed.submission.error = ValueError("of the work")
    with pytest.raises(ValueError, match="of the work"):
        failed.value()
    late = enqueued()
    stream.break_with(DriverError("cuStreamQuery", 1, "CUresult 1", ""))
    with pytest.raises(DriverError):
        late.value()


def test_gather_takes_verified_results_without_an_error(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    op = add_one(z)
    op.sync_on(stream)
    submission = z.storage.writer

    def taken() -> int:
        values: list[Any] = []
        add_values((op,), [submission], values)
        return len(values)

    stream.verified = submission.sequence
    assert taken() == 1
    stream.verified -= 1
    assert taken() == 0
    stream.verified += 1
    submission.done = False
    assert taken() == 0
    submission.done, submission.error = True, ValueError("of the work")
    assert taken() == 0


def test_each_operation_knows_its_line(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()

    def there() -> list[Any]:
        return [add_one(z), na.zeros(8), add_one(z)]

    def here() -> list[Any]:
        return [add_one(z), na.zeros(8), add_one(z)]

    def one() -> na.DeviceOp[Any]:
        return add_one(z)

    def other() -> na.DeviceOp[Any]:
        return add_one(z)

    stream = null.new_stream()
    for make in (one, other, one):  # at the same instruction
        op: Any = make()
        op.sync_on(stream)
        assert op._site[0] is make.__code__
    for _ in range(2):
        made = [*there(), *here(), *[add_one(z) for _ in range(2)]]
        sites = [op._site for op in made]
        assert len(set(sites)) == 7 and sites[-1] == sites[-2]
        assert [s[0].co_name for s in sites[:6]] == 3 * ["there"] + 3 * ["here"]
        made[0].async_on(stream)
        first = z.storage.writer.site
        made[2].async_on(stream)
        second = z.storage.writer.site
        assert first != second and first.code is second.code
        for op in made:
            op.suppress_warning()
