"""What NumPy has for arrays, asked of a tensor: refused with what to write instead."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import DTypeError, OperationError
from numbasync.tensors.array_methods import OF_ALGORITHMS, OF_BATCHES
from tests.common import host

METHODS = sorted(name for name in dir(np.ndarray) if callable(getattr(np.ndarray, name))
                 and not name.startswith("_") and not hasattr(na.Tensor, name))  # fmt: skip


@pytest.fixture
def both(device: na.Device) -> list[Any]:
    t = na.ones((2, 3)).sync()
    return [t, t.shared()]


@pytest.mark.parametrize("name", [*METHODS, "numpy", "cpu", "to", "get"])
def test_methods_of_numpys_arrays_say_what_to_write(both: list[Any], name: str) -> None:
    for t in both:
        assert not hasattr(t, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'") as raised:
            getattr(t, name)(axis=0)
        text = str(raised.value)
        assert repr(t) in text and "write" in text
        # What it says exists: of tensors, of the package, of batches, or of NumPy's arrays.
        for owner, found in re.findall(r"(\bt|\bna|\bb|to_host\(\)\))\.(\w+)", text):
            exists = {"t": na.Tensor, "na": na, "b": na.CommandBatch}.get(owner, np.ndarray)
            assert hasattr(exists, found), text


def test_batches_have_what_is_said_of_them() -> None:
    t = na.zeros(3).sync()
    for name in OF_BATCHES:
        with pytest.raises(AttributeError, match=rf"y = b\.{name}\(b\.use\(t\)"):
            getattr(t, name)
    assert all(hasattr(na.CommandBatch, name) for name in OF_BATCHES)


@pytest.mark.parametrize("name", sorted(OF_ALGORITHMS))
def test_algorithms_have_what_is_said_of_them(name: str) -> None:
    t = na.zeros(3).sync()
    with pytest.raises(AttributeError, match=rf"await na\.algorithms\.{name}\(t"):
        getattr(t, name)
    assert callable(getattr(na.algorithms, name))


def test_other_names_are_plainly_missing(both: list[Any]) -> None:
    for t in both:
        for name in ("sun", "__array_struct__", "_sum", "shapes", "__array_wrap__"):
            with pytest.raises(AttributeError) as raised:
                getattr(t, name)
            assert str(raised.value).endswith(f"object has no attribute {name!r}")
    same = pickle.loads(pickle.dumps(copy.copy(both[0])))
    assert host(same).tolist() == [[1] * 3] * 2


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "np.sum(t)": (np.sum, r"np\.sum\(<.*Tensor[^\n]*\nWrite await na\.algorithms\.sum\(t\);"),
    "np.max(t)": (lambda t: np.max(t, axis=0), r"np\.max\(<"),
    "np.prod(t)": (np.prod, r"np\.prod\(<"),
    "np.all(t)": (np.all, r"np\.all\(<"),
    "np.add.reduce": (np.add.reduce, r"np\.sum\(<"),
    "np.logaddexp.reduce": (np.logaddexp.reduce, r"np\.logaddexp\.reduce\(<"),
    "np.add.accumulate": (np.add.accumulate, r"np\.add\.accumulate\(<"),
    "np.sqrt(t)": (np.sqrt, r"np\.sqrt\(<"),
    "np.maximum(t, 0)": (lambda t: np.maximum(t, 0), r"np\.maximum\(<.*, 0\)"),
    "np.add(t, 1)": (lambda t: np.add(t, 1), r"> \+ 1"),
    "array + t": (lambda t: np.ones(3) + t, r"an array of shape \(3,\) \+ <"),
    "array == t": (lambda t: np.ones(3) == t, r"an array of shape \(3,\) == <"),
    "number * t": (lambda t: np.float32(2) * t, r"np\.float32\(2\.0\) \* <"),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_of_numpy_say_what_to_write(both: list[Any], case: str) -> None:
    call, shown = FUNCTIONS[case]
    for t in both:
        with pytest.raises(
            OperationError, match=rf"(?s){shown}.*b\.use\(t\).*await t\.to_host\(\)"
        ):
            call(t)


def test_numpy_gets_no_array(both: list[Any]) -> None:
    for t in both:
        for call in (np.asarray, np.array, np.mean, np.sort, np.ravel, np.nansum, np.isnan):
            with pytest.raises(TypeError, match=r"await t\.to_host\(\)"):
                call(t)
        with pytest.raises(TypeError, match=r"await t\.to_host\(\)"):
            np.dot(t, t)
        assert np.shape(t) == (2, 3)
    with pytest.raises(OperationError, match=r"await p\.tensor\.to_host\(\)"):
        np.asarray(both[0].partition((2, 2)))
    with pytest.raises((TypeError, DTypeError)):
        array = np.zeros((2, 3))
        array += both[0]


def test_shared_tensors_have_a_length_and_rows(both: list[Any]) -> None:
    for t in both:
        rows = list(t)
        assert len(t) == len(rows) == 2 and all(type(row) is type(t) for row in rows)
        assert [row.shape for row in rows] == [(3,), (3,)]
