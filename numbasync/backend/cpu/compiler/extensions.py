"""What a program has told `numba.cuda`'s compiler about types and functions, for the processor.

`@intrinsic`, `@type_callable` with `@lower_builtin`, types with models and attributes, and
`@overload_method` and `@overload_attribute` register themselves with `numba.cuda`. Of what is
a program's own, the same is registered with Numba's compiler for the processor; what it emits is
looked at first (see `emitted`).
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
from numbasync.backend.cpu.library.entry_points import OPTIONS, types


def _of_cuda(name: str) -> Any:
    return importlib.import_module(f"numba.cuda.{name}")


_templates, _imputils = _of_cuda("typing.templates"), _of_cuda("core.imputils")
Intrinsic: Any = _of_cuda("extending")._Intrinsic
_extending: Any = extending
_typing = (_templates.builtin_registry, _of_cuda("cudadecl").registry)
_lowering = (_imputils.builtin_registry, _of_cuda("cudaimpl").registry)
# An overload's indices are not those that `translate` has checked; Numba's check does not say
# where.
OVERLOAD_OPTIONS: Any = {**OPTIONS, "boundscheck": True}

_intrinsics: dict[Any, Any] = {}
_told: set[Any] = set()
_read: dict[Any, int] = {}  # of each list of a registry, how many entries are known
_lock = threading.RLock()


def intrinsic_of(value: Any) -> Any:
    """An `@intrinsic` of `numba.cuda` as one for the processor."""
    with _lock:
        if value not in _intrinsics:
            define, name = value._defn, value._name

            def defined(typingctx: Any, *args: Any, **kws: Any) -> Any:
                found = define(typingctx, *args, **kws)
                return found and (found[0], for_the_processor(name, found[1]))

            defined.__wrapped__ = define  # type: ignore[attr-defined]  # for its parameters
            make: Any = extending.intrinsic(prefer_literal=value._prefer_literal)
            made = make(defined)
            made._numbasync_made_of = value
            _intrinsics[value] = made
        return _intrinsics[value]


def has_typing(value: Any) -> bool:
    """Whether `@type_callable` says of what type a call of a program's function or class is; then
    the processor's compiler is told, too.
    """
    with _lock:
        if value in _told:
            return True
        found = [t for t in _named(value) if issubclass(t, _templates.CallableTemplate)]
        for template in found:
            parts = {"key": value, "generic": template.generic}
            made = type(template.__name__, (cpu_templates.CallableTemplate,), parts)
            cpu_templates.infer(made)
            cpu_templates.infer_global(value, types.Function(made))
        if found:
            for registry in _lowering:
                for emit, key, kinds in list(registry.functions):
                    if key is value:
                        safe = for_the_processor(value.__name__, emit)
                        extending.lower_builtin(value, *kinds)(safe)
            _told.add(value)
        return bool(found)


def _named(value: Any) -> Iterator[Any]:
    for registry in _typing:
        for key, kind in registry.globals:
            if key is value and isinstance(kind, types.Function):
                yield from kind.templates


def tell() -> None:
    """Tell the processor's compiler of types, attributes and methods that are new."""
    with _lock:
        _tell_models()
        for registry in _typing:
            for template in _new(registry, "attributes"):
                _tell_attribute(template)
        for registry in _lowering:
            for emit, attribute, kinds in _new(registry, "getattrs"):
                if _is_users(kinds[0]):
                    safe: Any = for_the_processor(f"{kinds[0]}.{attribute}", emit)
                    safe.signature, safe.attr = kinds, attribute
                    imputils.builtin_registry.getattrs.append((safe, attribute, kinds))


def _new(registry: Any, name: str) -> list[Any]:
    entries = list(getattr(registry, name))
    key = id(registry), name
    seen, _read[key] = _read.get(key, 0), len(entries)
    return entries[seen:]


def _tell_models() -> None:
    known: Any = default_manager
    for kind, model in list(_of_cuda("models").cuda_data_manager._handlers.items()):
        if _is_users(kind) and kind not in known._handlers:
            known.register(kind, model)


def _tell_attribute(template: Any) -> None:
    function = getattr(template, "_overload_func", None)
    if function is not None:
        if not _is_numbas(function):
            is_method = issubclass(template, _templates._OverloadMethodTemplate)
            say = _extending.overload_method if is_method else _extending.overload_attribute
            wishes = {"jit_options": OVERLOAD_OPTIONS, "prefer_literal": template.prefer_literal}
            say(template.key, template._attr, **wishes)(function)
    elif _is_users(template.key):
        parts = {k: v for k, v in vars(template).items() if not k.startswith("__")}
        made = type(template.__name__, (cpu_templates.AttributeTemplate,), parts)
        cpu_templates.infer_getattr(made)


def _is_users(kind: Any) -> bool:
    """Whether a type, or a class of types, is none of Numba's."""
    return not _is_numbas(kind if isinstance(kind, type) else type(kind))


def _is_numbas(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "numba"
