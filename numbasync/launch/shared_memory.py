"""Dynamic shared memory of a launch: what the kernel's layout needs, and what the device allows."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from numbasync.backend.protocols import Executable, Limits
from numbasync.backend.shared_layout import SharedLayout
from numbasync.errors import LaunchError
from numbasync.facts.callees import function_of
from numbasync.facts.ir import read
from numbasync.facts.source import captured, nested_codes


def layout_of(kernel: FunctionType) -> SharedLayout | None:
    """The shared layout that a kernel, or a device function of it, uses; None if there is none.

    Raises:
        LaunchError: there are two, or other dynamic shared memory beside the layout. All of them
            begin at the same address.
    """
    functions = list(_functions(kernel, set()))
    layouts = {v for f in functions for v in _named_values(f) if isinstance(v, SharedLayout)}
    if not layouts:
        return None
    if len(layouts) > 1:
        raise LaunchError(
            f"kernel {kernel.__name__} uses {len(layouts)} shared layouts, which begin at the same "
            "address.\nDeclare all arrays in one na.shared_layout; union=True lets them overlap."
        )
    for function in functions:
        line = _line_of_dynamic_array(function)
        if line:
            raise LaunchError(
                f"kernel {kernel.__name__}: cuda.shared.array(0, ...) in line {line} of "
                f"{function.__name__} begins at the same address as the kernel's shared layout.\n"
                "Declare the array in na.shared_layout, or give it a shape of its own."
            )
    return layouts.pop()


def dynamic_bytes(
    kernel: str,
    requested: int,
    layout: SharedLayout | None,
    executable: Executable,
    limits: Limits,
) -> int:
    """The dynamic shared memory of a launch, in bytes: what the call requests, or what the kernel's
    layout needs if the call requests none. Opts in to more than 48 KiB.

    Raises:
        LaunchError: the request is less than the layout needs, or more than the device allows.
    """
    needed = 0 if layout is None else layout.nbytes
    if requested and requested < needed:
        raise LaunchError(
            f"kernel {kernel}: {requested:,} bytes of dynamic shared memory were requested; its "
            f"shared layout needs {needed:,}.\n"
            "Write the layout's nbytes, or leave the bytes out."
        )
    dynamic, static = requested or needed, executable.static_shared_bytes
    if dynamic < 0 or dynamic + static > limits.max_dynamic_shared_bytes:
        raise LaunchError(
            f"kernel {kernel}: a block needs {static:,} bytes of static and {dynamic:,} bytes of "
            f"dynamic shared memory; the device allows 0 to {limits.max_dynamic_shared_bytes:,} "
            "together."
        )
    if dynamic + static > limits.max_shared_bytes:
        executable.allow_large_shared()
    return dynamic


def _functions(function: FunctionType, seen: set[FunctionType]) -> Iterator[FunctionType]:
    """A function, and the device functions that it may call."""
    if function in seen:
        return
    seen.add(function)
    yield function
    for value in _named_values(function):
        inner = function_of(value)
        if inner is not None:
            yield from _functions(inner, seen)


def _named_values(function: FunctionType) -> Iterator[Any]:
    """The values of global names and enclosing variables in a function, the attributes of modules
    and classes among them, and the members of tuples.
    """
    loaded, attributes = _names(function.__code__)
    known = function.__globals__ | captured(function)
    waiting = [known[name] for name in loaded if name in known]
    seen: list[ModuleType | type] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, tuple):
            waiting += value
        elif not isinstance(value, ModuleType | type):
            yield value
        elif value not in seen:
            seen.append(value)
            scopes = [value] if isinstance(value, ModuleType) else value.__mro__
            waiting += [vars(s)[name] for s in scopes for name in attributes if name in vars(s)]


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """The global names and enclosing variables that code loads; all names in it, attributes too."""
    loaded: set[str] = set()
    attributes: set[str] = set()
    for inner in nested_codes(code):
        loaded |= {i.argval for i in dis.get_instructions(inner) if i.opname == "LOAD_GLOBAL"}
        loaded.update(inner.co_freevars)
        attributes.update(inner.co_names)
    return loaded, attributes


def _line_of_dynamic_array(function: FunctionType) -> int:
    """The line in which a function takes dynamic shared memory by `cuda.shared.array`, or 0."""
    from numbasync.kernel_names import cuda

    if all(value is not cuda.shared.array for value in _named_values(function)):
        return 0  # Numba's reading of a function takes long
    names = read(function)
    for statement in names.statements:
        call: Any = getattr(statement, "value", None)
        if getattr(call, "op", "") != "call" or cuda.shared.array not in names.callees(call.func):
            continue
        shape = dict(zip(("shape", "dtype"), call.args, strict=False)) | dict(call.kws)
        extents = names.items(shape["shape"]) or [shape["shape"]]
        if 0 in [names.constant(extent) for extent in extents]:
            return int(statement.loc.line)
    return 0
