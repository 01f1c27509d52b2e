"""Types and functions that a program registers with `numba.cuda`, registered for the CPU, too.

`@intrinsic`, `@type_callable` with `@lower_builtin`, types with models and attributes, and
`@overload_method` and `@overload_attribute` register themselves with `numba.cuda`. Those of
programs, not Numba's own, are registered with Numba's CPU compiler here; the code that they emit
is inspected first (`llvm_intrinsics`).
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

from numba import extending
from numba.core import imputils
from numba.core.datamodel.registry import default_manager
from numba.core.typing import templates as cpu_templates

from numbasync.backend.cpu.compiler.llvm_intrinsics import for_the_processor
from numbasync.backend.cpu.library.entry_points import OPTIONS, UNWRAPPED, types


def _of_cuda(name: str) -> Any:
    return importlib.import_module(f"numba.cuda.{name}")


_templates, _imputils = _of_cuda("typing.templates"), _of_cuda("core.imputils")
Intrinsic: Any = _of_cuda("extending")._Intrinsic
_extending: Any = extending
_typing = (_templates.builtin_registry, _of_cuda("cudadecl").registry)
_lowering = (_imputils.builtin_registry, _of_cuda("cudaimpl").registry)
# An overload's indices are not those that `translate` has checked; Numba's check does not say
# where.
OVERLOAD_OPTIONS: Any = {**OPTIONS, **UNWRAPPED, "boundscheck": True}

_intrinsics: dict[Any, Any] = {}
_registered: set[Any] = set()
_read: dict[Any, int] = {}  # of each list of a registry, how many entries are known
_lock = threading.RLock()


def intrinsic_of(value: Any) -> Any:
    """An `@intrinsic` of `numba.cuda` as one of the CPU compiler."""
    with _lock:
        if value not in _intrinsics:
            define, name = value._defn, value._name

            def defined(typingctx: Any, *args: Any, **kws: Any) -> Any:
                definition = define(typingctx, *args, **kws)
                return definition and (definition[0], for_the_processor(name, definition[1]))

            defined.__wrapped__ = define  # type: ignore[attr-defined]  # for its parameters
            make: Any = extending.intrinsic(prefer_literal=value._prefer_literal)
            intrinsic = make(defined)
            intrinsic._numbasync_made_of = value
            _intrinsics[value] = intrinsic
        return _intrinsics[value]


def has_typing(value: Any) -> bool:
    """Whether `@type_callable` gives the types of calls of a program's function or class. They are
    then registered with the CPU compiler, too.
    """
    with _lock:
        if value in _registered:
            return True
        templates = [t for t in _named(value) if issubclass(t, _templates.CallableTemplate)]
        for template in templates:
            parts = {"key": value, "generic": template.generic}
            class_ = type(template.__name__, (cpu_templates.CallableTemplate,), parts)
            cpu_templates.infer(class_)
            cpu_templates.infer_global(value, types.Function(class_))
        if templates:
            for registry in _lowering:
                for emit, key, argument_types in list(registry.functions):
                    if key is not value:
                        continue
                    safe = for_the_processor(value.__name__, emit)
                    extending.lower_builtin(value, *argument_types)(safe)
            _registered.add(value)
        return bool(templates)


def _named(value: Any) -> Iterator[Any]:
    for registry in _typing:
        for key, numba_type in registry.globals:
            if key is value and isinstance(numba_type, types.Function):
                yield from numba_type.templates


def register_extensions() -> None:
    """Register types, attributes and methods that are new with the CPU compiler."""
    with _lock:
        _register_models()
        for registry in _typing:
            for template in _new(registry, "attributes"):
                _register_attribute(template)
        for registry in _lowering:
            for emit, attribute, argument_types in _new(registry, "getattrs"):
                if not _is_users(argument_types[0]):
                    continue
                safe: Any = for_the_processor(f"{argument_types[0]}.{attribute}", emit)
                safe.signature, safe.attr = argument_types, attribute
                imputils.builtin_registry.getattrs.append((safe, attribute, argument_types))


def _new(registry: Any, name: str) -> list[Any]:
    entries = list(getattr(registry, name))
    key = id(registry), name
    seen, _read[key] = _read.get(key, 0), len(entries)
    return entries[seen:]


def _register_models() -> None:
    known: Any = default_manager
    for numba_type, model in list(_of_cuda("models").cuda_data_manager._handlers.items()):
        if _is_users(numba_type) and numba_type not in known._handlers:
            known.register(numba_type, model)


def _register_attribute(template: Any) -> None:
    function = getattr(template, "_overload_func", None)
    if function is not None:
        if not _is_numbas(function):
            is_method = issubclass(template, _templates._OverloadMethodTemplate)
            say = _extending.overload_method if is_method else _extending.overload_attribute
            target_options = {
                "jit_options": OVERLOAD_OPTIONS,
                "prefer_literal": template.prefer_literal,
            }
            say(template.key, template._attr, **target_options)(function)
    elif _is_users(template.key):
        parts = {k: v for k, v in vars(template).items() if not k.startswith("__")}
        class_ = type(template.__name__, (cpu_templates.AttributeTemplate,), parts)
        cpu_templates.infer_getattr(class_)


def _is_users(numba_type: Any) -> bool:
    """Whether a type, or a class of types, is a program's, not Numba's."""
    return not _is_numbas(numba_type if isinstance(numba_type, type) else type(numba_type))


def _is_numbas(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "numba"
