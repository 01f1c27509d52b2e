"""What `dir()` shows: what a user may use, and nothing of how it is made."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

import numbasync as na
from numbasync import testing
from numbasync.public import NAMES, Public
from tests.wrong_arguments import INSTANCES, public

NEEDS = {"dask": "distributed", "ray": "ray"}  # the packages that modules need
LAZY = {"CommandBatch", "elementwise", "testing"}


@pytest.mark.parametrize("module", [na, testing])
def test_dir_shows_the_public_names(module: Any) -> None:
    shown = set(dir(module)) - {"__version__"}
    absent = {name for name, package in NEEDS.items() if find_spec(package) is None}
    assert shown == public(module) - absent
    for name in shown:
        assert getattr(module, name) is not None
        exec(f"from {module.__name__} import {name}", {})


def test_what_is_loaded_later_is_shown() -> None:
    assert set(dir(na)) >= LAZY | {"errors", "Stream", "__version__"}
    assert na.testing is testing
    with pytest.raises(AttributeError, match="no attribute 'tenser'"):
        _ = na.tenser


def test_dir_of_public_classes_shows_what_programs_use() -> None:
    with na.use_device("cpu"):
        found = {name: make(na.default_device()) for name, make in INSTANCES.items()}
    assert found.keys() == NAMES.keys()
    for name, names in NAMES.items():
        one = found[name]
        assert isinstance(one, getattr(na, name))
        for shown in names:
            assert shown in object.__dir__(one), (name, shown)
        own = {n for n in dir(one) if not n.startswith("_")}
        assert own == names, name
        assert {n for n in dir(getattr(na, name)) if not n.startswith("_")} == own


def test_dir_of_a_programs_class_shows_its_names() -> None:
    class Mine(na.StreamPoolRoundRobin, Public):
        """A policy of a program."""

        def chosen(self) -> int:
            return 1

    with na.use_device("cpu"):
        mine = Mine(na.default_device())
    mine.note = 2  # type: ignore[attr-defined]
    assert {"chosen", "note"} <= set(dir(mine)) and "chosen" in dir(Mine)


def test_dir_shows_special_methods_without_a_dictionary() -> None:
    class Slotted(na.Tensor):
        """A tensor of a program."""

        __slots__ = ("mine",)

    assert {"__getitem__", "__repr__"} <= set(dir(na.Tensor)) and "__await__" in dir(na.DeviceOp)
    assert {"mine", "shape"} <= set(dir(object.__new__(Slotted)))
