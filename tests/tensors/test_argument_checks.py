"""Errors name the function, the argument, what came and what to write, whatever came."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import arguments
from tests.common import add_one
from tests.wrong_arguments import NoIndex, NoItems, NoRepr, NoTruth, nested

HUGE = 10**30

free: Any = na  # without its types

NAMED: list[tuple[str, Callable[[Any], Any], str]] = [
    ("empty", lambda d: free.empty(HUGE), "shape .*2\\*\\*63 - 1"),
    ("zeros", lambda d: free.zeros((2**40, 2**40)), "shape .*takes more than the 2\\*\\*63 - 1"),
    ("no bytes", lambda d: free.zeros((0, 2**62)), "shape .*takes more"),
    ("65 axes", lambda d: free.zeros((1,) * 65), "shape has at most (32|64) axes, not 65"),
    ("nested", lambda d: free.ones(nested()), "a shape is a whole number or a tuple of them"),
    ("text", lambda d: free.ones(""), "a shape is a whole number or a tuple of them, not ''"),
    ("items", lambda d: free.ones(NoItems()), "a shape is .*NoItems"),
    ("dtype", lambda d: free.empty(4, nested()), "is not a NumPy dtype"),
    ("full", lambda d: free.full(4, [[1], [2, 3]]), "is no element of type float32"),
    ("fill", lambda d: free.fill(na.zeros(4).sync(), NoRepr()), "<NoRepr> is no element of type"),
    ("linspace", lambda d: free.linspace(None, 1, 3), "start of linspace is None: write a number"),
    (
        "count",
        lambda d: free.linspace(0, 1, (2, 3)),
        "count of linspace is \\(2, 3\\): write",
    ),
    ("arange", lambda d: free.arange(0, 4, "a"), "step of arange is 'a': write a number"),
    ("randn", lambda d: free.randn(4, 1j), "mean of randn is 1j: write a number"),
    ("pinned", lambda d: free.pinned(HUGE), "shape .*2\\*\\*63 - 1"),
    ("from_host", lambda d: free.from_host([[1], [2, 3]]), "list .* is no array of numbers"),
    ("unzip", lambda d: free.value((1, 2)).unzip(HUGE), "n in unzip\\(n\\) of .*from 0 to 65,536"),
    ("streams", lambda d: free.StreamPoolRoundRobin(d, 10**9), "number of streams.*1 to 1,024"),
    ("priority", lambda d: d.new_stream(HUGE), "a stream's priority is 10+: write a whole"),
    ("pool", lambda d: d.new_pool("x"), "max_bytes of a pool is 'x': write a whole number"),
    ("policy", lambda d: free.SingleStream(nested()), "a policy needs a device, not tuple"),
    ("event", lambda d: free.Event(None), "an event needs a device, not NoneType"),
    ("timing", lambda d: d.new_event(np.ones(2)), "timing of an event is .*write True or False"),
    ("access", lambda d: d.can_access(3), "can_access takes a device, not int \\(3\\)"),
    ("devices", lambda d: free.devices(NoTruth()), "there is no device kind"),
    ("ordering", lambda d: free.set_ordering(np.ones(2)), "there is no ordering array"),
    ("view", lambda d: free.zeros(4).sync()[2**63], "the shape is \\(4,\\)"),
    ("slice", lambda d: free.zeros(4).sync()["a":], "slice indices.*the shape is \\(4,\\)"),
    ("tile", lambda d: free.zeros(4).sync().partition("x"), "a tile is a whole number.*'x'"),
    ("kernel", lambda d: add_one(nested()), "kernel add_one: z is .*a tuple of tuples in more"),
    ("meta", lambda d: add_one.compile(nested()), "kernel add_one: z is .*a tuple of tuples"),
    ("forall", lambda d: add_one.forall(-1), "kernel add_one: n of forall.*at least 0"),
    (
        "spawn",
        lambda d: free.spawn(na.value(1), policy=NoStreams()),
        "next_stream.*NoneType",
    ),
    ("task_factory", lambda d: free.task_factory(3, na.value(1)), "task_factory takes a"),
]


class NoStreams:
    def next_stream(self) -> None:
        return None


@pytest.mark.parametrize(("call", "text"), [c[1:] for c in NAMED], ids=[c[0] for c in NAMED])
@pytest.mark.filterwarnings("ignore:.*was never awaited")
def test_errors_name_the_argument(call: Callable[[Any], Any], text: str, device: na.Device) -> None:
    with na.use_device(device), pytest.raises(na.errors.CallerError) as caught:
        call(device)
    message = str(caught.value)
    assert re.search(text, message, re.DOTALL), message
    assert len(message) < 500


def test_values_are_nested_to_any_depth(device: na.Device) -> None:
    with na.use_device(device):
        deep = nested()
        assert na.value(deep).sync() is deep
        assert na.zip(na.value(deep), na.value(1)).map(lambda both: both[1]).sync() == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"), ("x" * 1000, "'" + "x" * 59 + "..."), (NoRepr(), "<NoRepr>"),
        (10**5000, "<an integer of about 5000 digits>"), (-(10**5000), "-<an integer of about 5"),
        (nested(), "(((((...),),),),)"), ([1] * 1000, "[1, 1, 1, 1, 1, 1, 1, 1, ...]"),
        ({1: 2}, "{1: 2}"), ([NoRepr()], "[<NoRepr>]"), (np.float64(2), "np.float64(2.0)"),
    ],
    ids=map(str, range(10)),
)  # fmt: skip
def test_what_came_is_shown_in_few_characters(value: object, text: str) -> None:
    shown = arguments.shown(value)
    assert shown.startswith(text) or (text == "np.float64(2.0)" and shown == "2.0")
    assert len(shown) <= 63
    assert arguments.with_type(value).startswith(type(value).__name__ + " (")


@pytest.mark.parametrize(
    "value", [True, np.True_, 1.0, "1", None, NoIndex(), NoItems(), np.ones(2)]
)
def test_what_is_no_whole_number(value: object) -> None:
    assert arguments.as_whole(value) is None
    with pytest.raises(na.errors.CallerError, match=r"n is .*: write a whole number of at least 1"):
        arguments.check_whole(value, "n", 1)


def test_whole_numbers() -> None:
    assert arguments.check_whole(np.int8(3), "n", 1) == 3
    assert type(arguments.check_whole(np.uint64(2**63 - 1), "n")) is int
    with pytest.raises(na.errors.CallerError, match=r"n is 0: write a whole number from 1 to 5"):
        arguments.check_whole(0, "n", 1, 5)
    with pytest.raises(na.errors.ShapeError, match="at least 1, and less than 2"):
        arguments.check_whole(2**63, "n", 1, error=na.errors.ShapeError)


@pytest.mark.parametrize(
    ("value", "wholes"),
    [
        (3, (3,)), ((1, 2), (1, 2)), ([np.int16(1)], (1,)), (np.array([2, 3]), (2, 3)),
        (range(2), (0, 1)), ((), ()), ("12", None), (b"ab", None), ({1: 2}, None), ({1}, None),
        ((1, (2,)), None), (1.0, None), (np.ones((2, 2), int), None), (NoItems(), None),
    ],
)  # fmt: skip
def test_whole_numbers_of_a_shape(value: object, wholes: tuple[int, ...] | None) -> None:
    assert arguments.as_wholes(value) == wholes


def test_the_largest_shape_that_is_taken() -> None:
    na.empty(2**63 - 1, np.int8).suppress_warning()
    with pytest.raises(na.errors.ShapeError, match="takes more"):
        na.empty(2**62, np.int16)
