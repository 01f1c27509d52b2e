"""What is quicker than numba-cuda's own gives the same code, and is lent for a compilation only."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
from numba import cuda, float32, int64
from numba.core.errors import TypingError
from numba.cuda import types

from numbasync.backend.cpu.target import lower, quick_passes

pytestmark = pytest.mark.usefixtures("cpu")

jit: Any = cuda.jit
ARRAY = types.Array(float32, 1, "C")


@jit(device=True)
def clamp(value: Any, low: Any, high: Any) -> Any:
    if value < low:
        value = low
    elif value > high:
        value = high
    return value


@jit
def of_many_forms(z: Any, x: Any, n: Any) -> None:
    shared = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    total, a, b = 0.0, 1, n
    for i, (v, w) in enumerate(zip(x, z)):  # noqa: B905 - Numba has no `strict`
        if v > w:
            total += v // 3 + w % 3
        elif v < 0:
            continue
        else:
            a, b = b, a + i
    while a < b:
        a *= 2
        if a == 17:
            break
    shared[t] = clamp(total, min(a, b), max(2, b))
    cuda.syncthreads()
    pair = (a, b) if n else (b, a)
    cuda.atomic.add(z, 0, shared[-1] + pair[0] - pair[1])


def text() -> str:
    """The kernel's code, without the numbers that Numba gives functions in turn."""
    return re.sub(r"B\d+v\d+B", "", lower(of_many_forms, (ARRAY, ARRAY, int64)).text)


def names() -> list[Any]:
    return [getattr(owner, name) for owner, name, _ in quick_passes._QUICK]


def test_code_is_that_of_numbas_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = text()
    monkeypatch.setattr(quick_passes, "_QUICK", [])
    assert text() == quick


def test_numba_has_its_own_passes_back() -> None:
    before = names()
    lower(of_many_forms, (ARRAY, ARRAY, int64))
    assert names() == before
    with pytest.raises(TypingError):
        lower(of_many_forms, (int64, int64, int64))
    assert names() == before
    with quick_passes.quick_passes():
        assert names() == [value for *_, value in quick_passes._QUICK]
    assert names() == before


@pytest.mark.parametrize(
    ("emit", "takes"),
    [
        (lambda context, builder, signature, args: None, False),
        (lambda context, builder, signature, args, loc: None, True),
        (lambda context, *, loc=None: None, True),
        (functools.wraps(lambda loc: None)(lambda *args: None), True),
        (functools.partial(lambda loc, args: None, 1), False),
    ],
)
def test_location_is_among_the_parameters(emit: Any, takes: bool) -> None:
    assert quick_passes.takes_location(emit) is takes


def test_what_a_version_lacks_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [*quick_passes._QUICK, (quick_passes.ssa, "of_another_version", None)]
    monkeypatch.setattr(quick_passes, "_QUICK", lacking)
    with quick_passes.quick_passes():
        assert not hasattr(quick_passes.ssa, "of_another_version")
