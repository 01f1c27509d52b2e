"""Coarsened kernels: each thread of a GPU computes several positions of a plain kernel.

One thread that computes four neighbours loads and stores 16 bytes at a time. Four positions a
block's width apart start four loads before the first is needed. Either way the compiler must know
that no store changes what a later position loads, which only the launcher can promise: it refuses
overlapping arguments.

The kernel's own bytecode is compiled once for every position, as device functions in which
`cuda.grid` returns that position. A generated kernel calls them, if all positions have work without
a test between them. The positions are computed with 32 bits, so that the compiler knows that an
index is not negative; their type stays that of `cuda.grid`.

Of Numba's inside, this module relies on: the order of a kernel's LLVM arguments, a return slot
before the parameters; `.4` as the name of an array's data pointer. A test looks for the vector
loads in the PTX.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import linecache
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any

import numba
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, extending, nvvmutils, types
from numba.cuda.core.errors import RequireLiteralValue
from numba.cuda.extending import intrinsic

from numbasync.backend.executables import VECTOR_BYTES, Coarsening

# Of type Any: type checkers do not know all of their names.
_extending: Any = extending
_templates: Any = importlib.import_module("numba.cuda.typing.templates")
_types: Any = types
_DATA = ".4"  # suffix of the LLVM argument that is an array's data pointer
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_EXACT = ("nuw", "nsw")
# Passed on to the device functions, and to the kernel.
_DEVICE_OPTIONS = ("fastmath", "lineinfo", "opt")
_KERNEL_OPTIONS = (
    *_DEVICE_OPTIONS, "launch_bounds", "max_registers", "lto", "shared_memory_carveout",
)  # fmt: skip


def coarsened(dispatcher: Any, coarsening: Coarsening) -> Any:
    """See `Coarsener`."""
    function: FunctionType = dispatcher.py_func
    options = dispatcher.targetoptions
    on_device = {k: options[k] for k in _DEVICE_OPTIONS if options.get(k) is not None}

    def at(position: Any, callee: FunctionType) -> Any:
        compiled = cuda.jit(device=True, forceinline=True, **on_device)
        return compiled(_with_grid(callee, position))

    names: dict[str, Any] = {"promise": _promise(aligned=not coarsening.block)}
    for j in range(coarsening.elements):
        position = _position(j, coarsening)
        names[f"grid{j}"] = position
        names[f"body{j}"] = at(position, function)
        if coarsening.guard is not None:
            names[f"guard{j}"] = at(position, coarsening.guard)
    kernel_options = {k: options[k] for k in _KERNEL_OPTIONS if options.get(k) is not None}
    kernel = cuda.jit(**kernel_options)(_kernel(function, coarsening, names))
    if type(dispatcher._cache).__name__ != "NullCache":
        kernel.enable_caching()
    return kernel


def _kernel(function: FunctionType, c: Coarsening, names: dict[str, Any]) -> FunctionType:
    """The generated kernel: all positions at once if each has work, else one by one."""
    code = function.__code__
    parameters = ", ".join(f"p{i}" for i in range(code.co_argcount))
    last = c.elements - 1
    have_work = [f"x{last} < total"]
    if c.guard is not None:
        have_work += [f"guard{j}({parameters})" for j in range(c.elements)]
    lines = ["promise(0)"]
    coordinate = f"[{c.axis}]" if c.rank > 1 else ""
    lines += [f"x{j} = grid{j}({c.rank}){coordinate}" for j in range(c.elements)]
    lines.append(f"if {' and '.join(have_work)}:")
    lines += [f"    body{j}({parameters})" for j in range(c.elements)]
    lines.append("    return")
    for j in range(c.elements):
        lines += [f"if x{j} < total:", f"    body{j}({parameters})"]
    # Numba's disk cache compares the file, the qualified name, the line and the values of free
    # variables, and this module's code is none of them. Free variables have names of their own: the
    # kernel's may be those of the names above. Line information needs the name and the line of a
    # function in the file.
    contents = (*map(_content, function.__closure__ or ()), _own_code())
    free = ", ".join(f"free{i}" for i in range(len(contents)))
    name = function.__name__
    source = "\n".join([
        f"def factory({free}):",
        f"  def kernel({parameters}, total):",
        f"    if 0: {free}",
        *(f"    {line}" for line in lines),
        "  return kernel",
    ])  # fmt: skip
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = code.co_firstlineno  # type: ignore[attr-defined]
    exec(compile(tree, code.co_filename, "exec"), names)  # noqa: S102 - of positions alone
    kernel: FunctionType = names["factory"](*contents)
    kernel.__code__ = kernel.__code__.replace(co_name=name)
    placed = f"{c.block}apart" if c.block else "neighbours"
    suffix = f"_{'xyz'[c.axis]}{c.elements}_{placed}"  # profilers show the name
    kernel.__name__, kernel.__qualname__ = name + suffix, function.__qualname__ + suffix
    kernel.__module__ = function.__module__
    return kernel


@cache
def _own_code() -> str:
    """A digest of this module, whose changes change what is compiled."""
    return hashlib.sha256("".join(linecache.getlines(__file__, globals())).encode()).hexdigest()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet: compiling the kernel as written says so
        return None


def _with_grid(function: FunctionType, position: Any) -> FunctionType:
    """The same function, in which `cuda.grid` is `position`: by its own name, by `cuda`, and by
    `numba.cuda`.
    """
    like_cuda = _Like(cuda, grid=position)
    replaced = {
        id(cuda): like_cuda, id(cuda.grid): position, id(numba): _Like(numba, cuda=like_cuda),
    }  # fmt: skip
    code = function.__code__
    scope = function.__globals__
    names = {n: replaced.get(id(scope[n]), scope[n]) for n in code.co_names if n in scope}
    names |= {n: scope[n] for n in ("__name__", "__builtins__") if n in scope}
    cells = tuple(
        CellType(replaced.get(id(_content(c)), _content(c))) for c in function.__closure__ or ()
    )
    return FunctionType(code, names, function.__name__, function.__defaults__, cells or None)


class _Like:
    """Stands for a module in a kernel, with another value of one attribute."""

    def __init__(self, module: ModuleType, **changed: Any) -> None:
        self._numba_type_ = _LikeType(module, changed)


class _LikeType(_types.Dummy):  # type: ignore[misc]
    def __init__(self, module: ModuleType, changed: dict[str, Any]) -> None:
        self.module, self.changed = module, changed
        values = (f"{name}={id(value)}" for name, value in changed.items())
        super().__init__(name=f"{module.__name__} with {', '.join(values)}")


@_extending.infer_getattr
class _Attributes(_templates.AttributeTemplate):  # type: ignore[misc]
    key = _LikeType

    def generic_resolve(self, like: Any, name: str) -> Any:
        if name in like.changed:
            return self.context.resolve_value_type(like.changed[name])
        return self.context.resolve_getattr(_types.Module(like.module), name)


_extending.register_model(_LikeType)(_extending.core_models.OpaqueModel)


@_extending.lower_getattr_generic(_LikeType)  # type: ignore[untyped-decorator]
def _attribute(context: Any, builder: Any, like: Any, value: Any, name: str) -> Any:
    """Functions, types and modules have no code; the kernel as written has other attributes."""
    if isinstance(getattr(like.module, name), int | float | complex | tuple):
        raise NotImplementedError(f"{like.module.__name__}.{name} in a coarsened kernel")
    return context.get_dummy_value()


def _position(j: int, coarsening: Coarsening) -> Any:
    """`cuda.grid` for position `j` of a thread."""
    elements, block = coarsening.elements, coarsening.block
    coarse = "xyz"[coarsening.axis]

    @intrinsic  # type: ignore[untyped-decorator]
    def grid(typing_context: Any, ndim: Any) -> Any:
        if not isinstance(ndim, types.IntegerLiteral):
            raise RequireLiteralValue(ndim)
        rank = ndim.literal_value

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # Numba keeps this function for all ranks of one argument type.
            is_one = signature.return_type == types.int64
            axes = "x" if is_one else "xyz"[: signature.return_type.count]
            coordinates = [coordinate(builder, axis) for axis in axes]
            return coordinates[0] if is_one else cgutils.pack_array(builder, coordinates)

        def coordinate(builder: Any, axis: str) -> Any:
            def special(name: str) -> Any:
                return nvvmutils.call_sreg(builder, f"{name}.{axis}")

            thread, width = special("tid"), special("ntid")
            if axis == coarse and block:
                width = _I32(block)
            start = builder.mul(special("ctaid"), width, flags=_EXACT)
            if axis != coarse:
                return builder.zext(builder.add(start, thread, flags=_EXACT), _I64)
            if block:
                first = builder.add(
                    builder.mul(start, _I32(elements), flags=_EXACT), thread, flags=_EXACT
                )
                step = j * block
            else:
                place = builder.add(start, thread, flags=_EXACT)
                first, step = builder.mul(place, _I32(elements), flags=_EXACT), j
            # Added behind the extension, so that the compiler folds the step into addresses.
            return builder.add(builder.zext(first, _I64), _I64(step), flags=_EXACT)

        result = types.int64 if rank == 1 else types.UniTuple(types.int64, rank)
        return result(types.int32), generate

    return grid


def _promise(aligned: bool) -> Any:
    """A function for the generated kernel that adds attributes to its pointer parameters: nothing
    else is reached by them; `aligned`: data starts at multiples of `VECTOR_BYTES`. No code.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def promise(typing_context: Any, ignored: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for argument in builder.function.args[1:]:  # the first is the return slot
                if isinstance(argument.type, ir.PointerType):
                    argument.add_attribute("noalias")
                    if aligned and argument.name.endswith(_DATA):
                        argument.attributes.align = VECTOR_BYTES
            return context.get_dummy_value()

        return types.void(ignored), generate

    return promise
