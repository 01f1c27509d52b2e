"""What `dir()` shows: what a user may use, and nothing of how it is made."""

from __future__ import annotations

import ast
import inspect
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

import numbasync as na
from numbasync import testing
from numbasync.public import NAMES, Public
from tests.common import add_one

NEEDS = {"dask": "distributed", "ray": "ray"}  # the packages that modules need
LAZY = {"CommandBatch", "elementwise", "testing"}


def public(module: ModuleType) -> set[str]:
    """The names that a module's text makes public: `from x import y as y`, and its own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            found |= {a.name for a in node.names if a.asname == a.name}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if not name.startswith("_")}


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


def instances(device: na.Device) -> dict[str, Any]:
    """One of each public class."""
    z = na.zeros(8).sync()
    stream = device.new_stream()
    b = na.CommandBatch(device)
    scope = na.CudaGraph.scope(stream)
    op = na.value(1)
    op.suppress_warning()
    future = na.value(1).schedule(stream)
    future.sync()
    with scope as branch:
        branch.record(na.fill(z, 0))
        fork = branch.fork()
    found = {
        "Autotuned": na.autotune(add_one, [{"threads": 32}]),
        "BatchPlan": b.plan(), "BufferId": b.upload([1.0, 2.0]), "CommandBatch": b,
        "CudaGraph": scope.graph, "Device": device, "DeviceFuture": future,
        "DeviceGroup": na.DeviceGroup([device]), "DeviceOp": op,
        "Event": device.new_event(), "Launcher": add_one, "MemoryPool": device.new_pool(),
        "Partition": z.partition(4), "PreparedLaunch": add_one.prepare(z),
        "Scope": scope, "ScopeBranch": fork,
        "SharedTensor": na.ones(8).sync().shared(), "Stream": stream, "Tensor": z,
        "TensorMap": na.tensor_map(z, 8),
    }  # fmt: skip
    own = na.CommandBatch(device)
    kept = own.scale(own.upload([1.0]), 2.0)
    found["BatchGraph"] = own.graph()
    del kept
    contexts: list[na.Context] = []
    na.with_context(contexts.append).sync()
    found["Context"] = contexts[0]
    return found


def test_dir_of_public_classes_shows_what_programs_use_and_nothing_else() -> None:
    with na.use_device("cpu"):
        found = instances(na.default_device())
    assert found.keys() == NAMES.keys()
    for name, names in NAMES.items():
        one = found[name]
        assert isinstance(one, getattr(na, name))
        for shown in names:
            assert shown in object.__dir__(one), (name, shown)
        own = {n for n in dir(one) if not n.startswith("_")}
        assert own == names, name
        assert {n for n in dir(getattr(na, name)) if not n.startswith("_")} == own


def test_dir_of_a_class_of_a_program_shows_its_own_names() -> None:
    class Mine(na.StreamPoolRoundRobin, Public):
        """A policy of a program."""

        def chosen(self) -> int:
            return 1

    with na.use_device("cpu"):
        mine = Mine(na.default_device())
    mine.note = 2  # type: ignore[attr-defined]
    assert {"chosen", "note"} <= set(dir(mine)) and "chosen" in dir(Mine)


def test_dir_shows_special_methods_and_works_without_a_dictionary() -> None:
    class Slotted(na.Tensor):
        """A tensor of a program."""

        __slots__ = ("mine",)

    assert {"__getitem__", "__repr__"} <= set(dir(na.Tensor)) and "__await__" in dir(na.DeviceOp)
    assert {"mine", "shape"} <= set(dir(object.__new__(Slotted)))
