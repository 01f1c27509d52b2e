"""Every public function, constructor and method, called with wrong arguments: which calls there
are, which values, and what may come of a call. Names are found, so that a new one is called, too.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import inspect
import re
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from numbasync import algorithms, batch, collective, errors, random, serve, testing
from numbasync.public import NAMES
from numbasync_kernels import image, nn
from tests.common import add_one

Make = Callable[[na.Device], Any]
PACKAGES = (*(str(Path(m.__file__ or "").parents[1]) for m in (na, nn)), "numbasync")


class OwnError(Exception):
    """Raised by the classes below: a caller's own error, which may come through."""


class NoIndex:
    def __index__(self) -> int:
        raise OwnError


class NoRepr:
    def __repr__(self) -> str:
        raise OwnError


class NoTruth:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise OwnError

    def __bool__(self) -> bool:
        raise OwnError


class NoItems:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> object:
        raise KeyError(i)


class NoArray:
    __array_interface__ = {"shape": (-1,), "typestr": "nonsense", "data": (1, False), "version": 3}
    __cuda_array_interface__ = None

    def __dlpack__(self, **given: Any) -> object:
        return object()

    def __dlpack_device__(self) -> str:
        return "x"


class NoStream:
    def __cuda_stream__(self) -> None:
        return None

    def next_stream(self) -> None:
        return None


class Own:
    shape = dtype = property(str)

    def __init__(self, *args: Any) -> None:
        raise OwnError


def refuse(*args: Any, **given: Any) -> Any:
    raise OwnError


def nested(depth: int = 3000) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = (value,)
    return value


def moved(device: na.Device) -> na.Tensor:
    t = na.zeros(4).sync()
    t.take()
    return t


VALUES: dict[str, Make] = {
    "None": lambda d: None, "a text": lambda d: "x", "no text": lambda d: "",
    "minus one": lambda d: -1, "10**30": lambda d: 10**30, "10**5000": lambda d: 10**5000,
    "nan": lambda d: float("nan"), "nested": lambda d: nested(),
    "an object": lambda d: object(), "ragged": lambda d: [[1], [2, 3]],
    "an array": lambda d: np.ones((2, 3), np.float32), "a dict": lambda d: {"a": 1},
    "no index": lambda d: NoIndex(), "no repr": lambda d: NoRepr(), "no truth": lambda d: NoTruth(),
    "no array": lambda d: NoArray(), "a tensor": lambda d: na.zeros(4).sync(),
    "infinite": lambda d: float("inf"), "bytes": lambda d: b"ab", "2**63": lambda d: 2**63,
    "zero": lambda d: 0, "True": lambda d: True, "complex": lambda d: 1j, "set": lambda d: {1},
    "objects": lambda d: np.array([object(), None]), "swapped": lambda d: np.ones(4, ">f4"),
    "masked": lambda d: np.ma.masked_array([1.0, 2.0], [False, True]),
    "texts": lambda d: np.array(["a"]),
    "records": lambda d: np.zeros(3, [("a b", "i4"), ("x", "f8")]), "0-d": lambda d: np.array(3.0),
    "times": lambda d: np.array(["2020-01-01"], "M8[D]"), "65 axes": lambda d: (1,) * 65,
    "huge shape": lambda d: (2**40, 2**40), "()": lambda d: (), "[]": lambda d: [],
    "a class": lambda d: Own, "a function": lambda d: refuse, "no items": lambda d: NoItems(),
    "an iterator": lambda d: iter([1]), "no stream": lambda d: NoStream(), "...": lambda d: ...,
    "a slice": lambda d: slice("a", None), "a module": lambda d: np, "moved": moved,
    "an operation": lambda d: na.zeros(4), "a meta tensor": lambda d: na.meta(4).sync(),
    "a view": lambda d: na.zeros((4, 4)).sync()[1:, ::2], "a stream": lambda d: d.new_stream(),
    "a shared tensor": lambda d: na.zeros(4).sync().shared(), "a launcher": lambda d: add_one,
    "a partition": lambda d: na.zeros(4).sync().partition(2), "a batch": na.CommandBatch,
    "an id": lambda d: na.CommandBatch(d).upload([1.0]), "an error": lambda d: ValueError("x"),
    "objects' dtype": lambda d: np.dtype("O"), "a device": lambda d: d, "range": lambda d: range(3),
}  # fmt: skip

# A right value for each name of a parameter: then one of several is wrong.
RIGHT: dict[str, Make] = {
    "shape": lambda d: 4, "dtype": lambda d: np.float32, "value": lambda d: 1, "n": lambda d: 2,
    "device": lambda d: d, "devices": lambda d: [d], "stream": lambda d: d.new_stream(),
    "op": lambda d: na.zeros(4), "tile": lambda d: 2, "axis": lambda d: 0, "key": lambda d: 0,
    "array": lambda d: np.ones(4, np.float32), "backend": lambda d: d.backend,
    "start": lambda d: 0, "stop": lambda d: 1, "count": lambda d: 3, "rows": lambda d: 3,
    "seed": lambda d: 1, "size": lambda d: 1, "rank": lambda d: 0, "mode": lambda d: "auto",
    "build": lambda d: refuse, "then": lambda d: refuse, "change": lambda d: refuse,
    "kernel": lambda d: add_one, "configs": lambda d: [{"threads": 32}], "box": lambda d: 4,
    "function": lambda d: refuse, "loop": lambda d: None, "sigma": lambda d: 1.0,
    "nbytes": lambda d: 4, "heads": lambda d: 2, "features": lambda d: 8, "other": lambda d: d,
    "reference": lambda d: refuse, "args": lambda d: (np.ones(4, np.float32),),
    "factory": lambda d: lambda: na.zeros(4), "first": lambda d: lambda: na.zeros(4),
    "second": lambda d: lambda: na.zeros(4), "fault": lambda d: "alloc", "eps": lambda d: 1e-5,
    "later": lambda d: d.new_event(), "scale": lambda d: 1.0,
    **dict.fromkeys(("preconditions", "values"), lambda d: ()),
    **dict.fromkeys(("key_pages", "value_pages"), lambda d: na.zeros((2, 4, 1, 32)).sync()),
    "page_table": lambda d: na.zeros((4, 2), np.int32).sync(),
    "lengths": lambda d: na.zeros(4, np.int32).sync(),
    "offsets": lambda d: na.zeros(2, np.int64).sync(),
    **dict.fromkeys(
        ("t", "tensor", "dst", "src", "out", "x", "z", "like"), lambda d: na.zeros(4).sync()
    ),
    **dict.fromkeys(("tensors", "parts"), lambda d: [na.zeros(4).sync()]),
    **dict.fromkeys(
        ("a", "b", "q", "k", "v", "levels", "picture", "words"), lambda d: na.zeros((4, 4)).sync()
    ),
}  # fmt: skip


def _scope(d: na.Device) -> tuple[na.Scope, na.ScopeBranch]:
    z, scope = na.zeros(8).sync(), na.CudaGraph.scope(d.new_stream())
    with scope as branch:
        branch.record(na.fill(z, 0))
        fork = branch.fork()
    return scope, fork


def _future(d: na.Device) -> na.DeviceFuture[Any]:
    future = na.value(1).schedule(d.new_stream())
    future.sync()
    return future


def _op(d: na.Device) -> na.DeviceOp[Any]:
    op = na.value(1)
    op.suppress_warning()
    return op


def _batch_graph(d: na.Device) -> na.BatchGraph:
    b = na.CommandBatch(d)
    kept = b.scale(b.upload([1.0]), 2.0)
    graph = b.graph()
    del kept
    return graph


def _context(d: na.Device) -> na.Context:
    found: list[na.Context] = []
    na.with_context(found.append).sync()
    return found[0]


# One object of each public class.
INSTANCES: dict[str, Make] = {
    "Autotuned": lambda d: na.autotune(add_one, [{"threads": 32}]), "BatchGraph": _batch_graph,
    "BatchPlan": lambda d: na.CommandBatch(d).plan(), "CommandBatch": na.CommandBatch,
    "BufferId": lambda d: na.CommandBatch(d).upload([1.0, 2.0]), "Context": _context,
    "CudaGraph": lambda d: _scope(d)[0].graph, "Device": lambda d: d, "DeviceFuture": _future,
    "DeviceGroup": lambda d: na.DeviceGroup([d]), "DeviceOp": _op,
    "Event": lambda d: d.new_event(), "Launcher": lambda d: add_one,
    "MemoryPool": lambda d: d.new_pool(), "Partition": lambda d: na.zeros(8).sync().partition(4),
    "PreparedLaunch": lambda d: add_one.prepare(na.zeros(8).sync()),
    "Scope": lambda d: _scope(d)[0], "ScopeBranch": lambda d: _scope(d)[1],
    "SharedTensor": lambda d: na.ones(8).sync().shared(), "Stream": lambda d: d.new_stream(),
    "Tensor": lambda d: na.zeros(8).sync(),
    "TensorMap": lambda d: na.tensor_map(na.zeros(8).sync(), 8),
}  # fmt: skip

# Python's own error: the call has not so many arguments, or none of such a name.
COUNT = re.compile(r"\(\) (takes|missing|got an unexpected keyword|got multiple values)")
SPECIAL = ("__call__", "__getitem__", "__add__", "__rtruediv__", "__lt__")
# Calls in a group of processes, which `wrong_group_arguments` makes; and what is Numba's.
LEFT_OUT = {"connect", "recv", "send", "kernel", "py_func"}


class Call(NamedTuple):
    """A public callable: `make(device)` gives it anew, with the object that it belongs to;
    `right` has right values of its parameters, by name.
    """

    name: str
    make: Make
    parameters: tuple[inspect.Parameter, ...]
    right: Mapping[str, Make] = RIGHT


# Made by the library for every batch, operation and capture, and not by programs; errors, which
# take any arguments; and data that numbasync gives to programs, which hold what they are given.
NOT_MADE = (batch.Results, na.Context, na.Scope)


def _is_data(kind: Any) -> bool:
    """Whether a class is one of results or of errors, which hold what they are given."""
    if not isinstance(kind, type):
        return False
    is_result = dataclasses.is_dataclass(kind) and not hasattr(kind, "__post_init__")
    is_protocol = getattr(kind, "_is_protocol", False)
    return is_result or is_protocol or issubclass(kind, tuple | BaseException) or kind in NOT_MADE


def _call(name: str, make: Make, one: Any) -> Iterator[Call]:
    try:
        found = inspect.signature(one).parameters.values()
    except (TypeError, ValueError):  # of a class written in C
        return
    yield Call(name, make, tuple(p for p in found if p.kind is not p.VAR_KEYWORD))


def public(module: types.ModuleType) -> set[str]:
    """The names that a module's text makes public: `from x import y as y`, and its own."""
    found: set[str] = set()
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {a.name for a in node.names if a.asname == a.name}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if not name.startswith("_")}


def _itself(one: Any, device: na.Device) -> Any:
    return one


def functions() -> Iterator[Call]:
    """The functions and classes of the public modules."""
    for module in (na, testing, algorithms, collective, random, batch, serve, nn, image):
        names = public(module)
        for name in dir(module):
            one = getattr(module, name)
            home = getattr(one, "__module__", None) or ""
            if name.startswith("_") or name in LEFT_OUT or not callable(one) or _is_data(one):
                continue
            if isinstance(one, types.ModuleType) or not home.startswith("numbasync"):
                continue
            is_of_kernels = hasattr(one, "inspect_types")  # a device function
            if name not in names or name.endswith("_reference") or is_of_kernels:
                continue
            yield from _call(f"{module.__name__}.{name}", partial(_itself, one), one)


def _method(make: Make, name: str, device: na.Device) -> Any:
    return getattr(make(device), name)


def methods(device: na.Device) -> Iterator[Call]:
    """The methods of the public classes."""
    assert INSTANCES.keys() == NAMES.keys(), "a public class without an instance here"
    for kind, make in INSTANCES.items():
        one = make(device)
        for name in (*sorted(NAMES[kind]), *SPECIAL):
            method = None
            with contextlib.suppress(errors.NumbasyncError):  # of a property
                method = getattr(one, name, None)
            if name in LEFT_OUT or not callable(method) or _is_data(method):
                continue
            yield from _call(f"{kind}.{name}", partial(_method, make, name), method)


def _right(call: Call, p: inspect.Parameter, device: na.Device) -> Any:
    make = call.right.get(p.name)
    return None if make is None else make(device)


def _arguments(
    call: Call, wrong: int, value: Any, d: na.Device
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, of which the one numbered `wrong` is `value`."""
    args, named = [], {}
    for i, p in enumerate(call.parameters):
        if i != wrong and (p.default is not p.empty or p.kind is p.VAR_POSITIONAL):
            continue
        given = value if i == wrong else _right(call, p, d)
        if p.kind is p.KEYWORD_ONLY or (
            p.default is not p.empty and p.kind is not p.POSITIONAL_ONLY
        ):
            named[p.name] = given
        else:
            args.append(given)
    return args, named


async def _awaited(value: Any) -> Any:
    return await value


def _use(value: Any, runner: asyncio.Runner) -> None:
    """Do with a result what a program does: run it, enter it, show it."""
    if isinstance(value, na.DeviceOp):
        value = value.sync()
    elif inspect.iscoroutine(value):
        value = runner.run(value)
    elif hasattr(value, "__enter__") and hasattr(value, "__exit__"):
        with value:
            pass
    if type(value).__module__.startswith("numbasync"):
        with contextlib.suppress(OwnError):
            repr(value)


def _is_of_the_package(name: str) -> bool:
    return name.startswith(PACKAGES) or name.endswith((".pyx", ".pxi"))


def fault_of(error: BaseException) -> str | None:
    """What is wrong with the error of a call with wrong arguments; None: nothing is."""
    if isinstance(error, errors.NumbasyncError) and not isinstance(error, errors.InternalError):
        return None if str(error).strip() else "says nothing"
    if isinstance(error, OwnError):
        return None
    inside = [f for f in _frames(error) if _is_of_the_package(f)]
    if isinstance(error, TypeError) and (not inside or COUNT.search(str(error))):
        return None
    return f"{type(error).__name__} ({error!s:.120}), from {inside[-1] if inside else 'outside'}"


def _frames(error: BaseException) -> list[str]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return found


def _some(call: Call, i: int, most: int) -> list[str]:
    """The names of `most` wrong values for argument `i`: others for other arguments and calls."""
    start = zlib.crc32(f"{call.name} {call.parameters[i].name}".encode())
    names = [*VALUES]
    return [names[(start + 7 * k) % len(names)] for k in range(min(most, len(names)))]


def faults(
    calls: Iterable[Call], most: int, device: na.Device, runs: bool = True
) -> tuple[int, list[str]]:
    """The number of calls, with `most` wrong values in the place of each argument, and what was
    wrong with how they ended.

    Args:
        runs: what calls give is used, too: an operation is run.
    """
    made, found = 0, []
    with asyncio.Runner() as runner, na.use_device(device):
        for call in calls:
            for i, parameter in enumerate(call.parameters):
                for label in _some(call, i, most):
                    made += 1
                    try:
                        args, named = _arguments(call, i, VALUES[label](device), device)
                        value = call.make(device)(*args, **named)
                        if runs:
                            _use(value, runner)
                    except (Exception, asyncio.CancelledError) as error:
                        fault = fault_of(error)
                        if fault is not None:
                            found.append(f"{call.name}, {parameter.name} = {label}: {fault}")
    return made, found
