"""The compiled core beside the Python code, which is its specification."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
import numbasync.collective  # of which the core has a part
from numbasync import native
from numbasync.device.callsite import call_site
from numbasync.device.in_flight import LOOK_EVERY
from numbasync.testing import Gate
from tests.common import add_one

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


def declared() -> dict[str, set[str]]:
    """What `_core.pyi` declares: the module's names, and those of each class."""
    tree = ast.parse(Path(str(native.__file__)).with_name("_core.pyi").read_text())
    result: dict[str, set[str]] = {"": set()}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            result[node.name] = {
                n.name if isinstance(n, ast.FunctionDef) else n.target.id  # type: ignore[union-attr]
                for n in node.body if isinstance(n, ast.FunctionDef | ast.AnnAssign)
            }  # fmt: skip
        elif isinstance(node, ast.FunctionDef):
            result[""].add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            result[""].add(node.target.id)
    return result


def test_everything_in_the_core_is_declared() -> None:
    """A Python function that is renamed would leave the core's unused."""
    core = native.core
    taken = {name.replace(".", "_") for name in core.taken_over()}
    own = {
        name for name, value in vars(core).items()
        if callable(value) and not isinstance(value, type) and value.__module__ == core.__name__
    }  # fmt: skip
    types = {
        name: cls for name, cls in vars(core).items()
        if isinstance(cls, type) and cls.__module__ == core.__name__
    }  # fmt: skip
    stub = declared()
    functions = stub.pop("")
    constants = {name for name in functions if name.isupper()}
    # `enter` takes the place of one in the CUDA backend; generators cannot be hidden.
    assert own - taken - {"enter", "await_fast", "await_future"} == functions - constants
    assert all(isinstance(getattr(core, name), int | tuple) for name in constants)
    assert types.keys() == stub.keys()
    for name, cls in types.items():
        members = {m for m in vars(cls) if not m.startswith("__")}
        assert members == {m for m in stub[name] if not m.startswith("__")}, name


def test_methods_that_the_core_replaces_are_compiled() -> None:
    """On a machine without a GPU nothing else looks at those of a CUDA stream."""
    package = Path(str(native.__file__)).parent
    tree = ast.parse((package / "backend/cuda/stream.py").read_text())
    streams = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    marked = {
        node.name for node in streams["CudaStream"].body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark) == "compiled" for mark in node.decorator_list)
    }  # fmt: skip
    assert set(native.core.METHODS) <= marked


def test_the_switch(device: na.Device, on: bool) -> None:
    assert native.core.is_on() is on
    z = na.zeros(8).sync()
    for _ in range(3):
        add_one(z).sync()
    np.testing.assert_array_equal(z.to_host().sync(), 3)


def test_a_class_without_its_slots_is_refused() -> None:
    class Storage:
        pass

    with pytest.raises(TypeError, match=r"Storage\.\w+ is no slot"):
        native.core.know(Storage)


def test_call_sites_are_those_of_python(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync_on(stream)
    lines = []
    for on in (True, False):
        native.switch(on)
        op = add_one(z)
        op.suppress_warning()
        lines.append((call_site(0), op._site, submission_of(z, stream).site))
    assert [str(line) for line in lines[0]] == [str(line) for line in lines[1]]


def test_call_sites_lie_behind_the_packages_frames() -> None:
    package: dict[str, Any] = {"__name__": "numbasync.probe", "call_site": call_site}
    exec("def inner(): return call_site(0)\ndef outer(): return inner()", package)
    sites = []
    for on in (True, False):
        native.switch(on)
        sites.append(str(package["outer"]()))
    assert sites[0] == sites[1] and "test_core.py" in sites[0]


def submission_of(z: na.Tensor, stream: na.Stream) -> Any:
    add_one(z).async_on(stream)
    submission = z.storage.writer
    stream.synchronize()
    return submission


# --- what is kept until the device has passed it ---


def test_tensors_in_use_are_kept(device: na.Device, stream: na.Stream, on: bool) -> None:
    z = na.zeros(2**16).sync_on(stream)
    add_one(z).sync_on(stream)
    used = device.pool.stats().used_current
    gate = Gate(stream)
    gate.close()
    add_one(z).async_on(stream)
    submission = z.storage.writer
    del z
    assert device.pool.stats().used_current == used
    assert not submission.done
    gate.open()
    stream.synchronize()
    assert submission.done
    assert device.pool.stats().used_current < used


def test_streams_without_awaiters_are_looked_at(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    """Nothing is awaited here, and nothing asks the stream: submitting itself retires the work.

    A GPU writes a signal after the call that asks for it has polled. The work before the signal is
    then retired at the next poll, so that twice as much may be in flight.
    """
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    most = 0
    for _ in range(400):
        add_one(z).async_on(stream)
        device.backend.quiesce()
        most = max(most, stream.in_flight_count)
    assert most <= 2 * LOOK_EVERY
    stream.synchronize()
    assert not stream.in_flight_count
    assert stream not in device.busy


def test_work_with_a_host_side_retires_in_order(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    gate = Gate(stream)
    gate.close()
    add_one(z).async_on(stream)
    host = na.spawn(z.to_host(), stream)
    add_one(z).async_on(stream)
    assert stream.in_flight_count == 3
    gate.open()
    np.testing.assert_array_equal(host.sync(), 2)
    stream.synchronize()
    np.testing.assert_array_equal(z.to_host().sync_on(stream), 3)
