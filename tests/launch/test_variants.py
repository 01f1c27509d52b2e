"""Compiled variants: one compilation a key, whoever asks; failures do not stay."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from numbasync.errors import KernelCompileError
from numbasync.launch.variants import Kernel, compile_count


class FakeDevice:
    """Compiles when the test lets it."""

    kind, ordinal = "fake", 0

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.may_go_on = threading.Event()
        self.error: Exception | None = None

    def compile(self, dispatcher: Any, keys: Any) -> Any:
        self.compiled.append(keys)
        assert self.may_go_on.wait(300)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(keys=keys, from_disk=False)


def kernel() -> Kernel:
    def body(x: Any) -> None: ...

    return Kernel(SimpleNamespace(py_func=body))


def run_all(compilations: list[Any]) -> list[BaseException | None]:
    """Run each on a thread of its own; how each ended."""
    ends: list[BaseException | None] = [None] * len(compilations)

    def one(i: int) -> None:
        try:
            compilations[i].run()
        except Exception as error:
            ends[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(compilations))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    return ends


def test_eight_threads_and_one_key_compile_once() -> None:
    device, k = FakeDevice(), kernel()
    before = compile_count()
    asked = [k.compilation(device, ("f4",)) for _ in range(8)]  # type: ignore[arg-type]
    device.may_go_on.set()
    assert run_all(asked) == [None] * 8
    assert device.compiled == [("f4",)]
    assert compile_count() - before == 1
    assert k.find(device, ("f4",)) is not None  # type: ignore[arg-type]


def test_keys_are_compiled_apart() -> None:
    device, k = FakeDevice(), kernel()
    device.may_go_on.set()
    for keys in (("f4",), ("f8",)):
        k.compilation(device, keys).run()  # type: ignore[arg-type]
    assert device.compiled == [("f4",), ("f8",)]
    assert k.find(device, ("i4",)) is None  # type: ignore[arg-type]


def test_a_failure_reaches_all_askers_and_is_forgotten() -> None:
    device, k = FakeDevice(), kernel()
    device.error = KernelCompileError("no")
    asked = [k.compilation(device, ("f4",)) for _ in range(4)]  # type: ignore[arg-type]
    device.may_go_on.set()
    assert run_all(asked) == [device.error] * 4
    assert len(device.compiled) == 1
    device.error = None
    k.compilation(device, ("f4",)).run()  # type: ignore[arg-type]
    assert k.find(device, ("f4",)) is not None  # type: ignore[arg-type]


def test_two_devices_have_variants_of_their_own() -> None:
    one, two, k = FakeDevice(), FakeDevice(), kernel()
    one.may_go_on.set()
    k.compilation(one, ("f4",)).run()  # type: ignore[arg-type]
    assert k.find(two, ("f4",)) is None  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        two.may_go_on.wait = lambda timeout: False  # type: ignore[assignment, method-assign]
        k.compilation(two, ("f4",)).run()  # type: ignore[arg-type]


def test_an_early_asker_compiles_nothing_a_second_time() -> None:
    device, k = FakeDevice(), kernel()
    device.may_go_on.set()
    first = k.compilation(device, ("f4",))  # type: ignore[arg-type]
    first.run()
    # As if the search for the variant had come before the end of `first`.
    second = k.compilation(device, ("f4",))  # type: ignore[arg-type]
    assert second is not first
    second.run()
    assert device.compiled == [("f4",)]
