"""Runs what `target.lower` gives, a CUDA thread at a time, each in a greenlet that waits at
barriers: the front end by itself, and a judge of what runs the same code as loops.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from typing import Any

import greenlet
import llvmlite.binding as llvm
import numpy as np
from numba.core import types as _types

from numbasync.backend.cpu.kernel import printing
from numbasync.backend.cpu.record import DIVERGED
from numbasync.backend.cpu.target import Module, Options, lower
from numbasync.backend.declared_signatures import type_of
from numbasync.backend.protocols import ArrayKey
from numbasync.dtypes import small_types

types: Any = _types  # type checkers do not know all of its names
_NAMES = [f"{kind}{axis}" for kind in "tbwg" for axis in "xyz"]
_DYNAMIC = 1 << 16
_HELPERS = "\n".join(
    f'define i32 @"na.{name}"() {{\n  %p = getelementptr i32, ptr @na.state, i64 {k}\n'
    "  %v = load i32, ptr %p\n  ret i32 %v\n}"
    for k, name in enumerate(_NAMES)
) + """
define i64 @"na.tid"() {
  %p = getelementptr i32, ptr @na.state, i64 12
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @"na.threads"() {
  %wx = call i32 @"na.wx"()
  %wy = call i32 @"na.wy"()
  %wz = call i32 @"na.wz"()
  %row = mul i32 %wx, %wy
  %all = mul i32 %row, %wz
  %v = zext i32 %all to i64
  ret i64 %v
}
define i64 @"na.dynamic_bytes"() {
  %p = getelementptr i32, ptr @na.state, i64 14
  %v = load i64, ptr %p
  ret i64 %v
}
"""  # fmt: skip


class NoteError(Exception):
    """What a thread noted, with the thread: kind, site, three numbers, block, thread."""


class Kernel:
    """A lowered kernel that can be launched."""

    def __init__(self, kernel: Any, keys: tuple[Any, ...], options: Options | None = None) -> None:
        self.types = tuple(type_of(k) for k in keys)
        self.module: Module = lower(kernel, self.types, options)
        self.printed: list[str] = []
        self.accesses: list[tuple[Any, ...]] = []  # mode, site, address, bytes
        self._engine = _engine(self.module, self._callbacks())
        address = self._engine.get_function_address
        self._state = (ctypes.c_int32 * 16).from_address(
            self._engine.get_global_value_address("na.state")
        )
        self._shared = [
            (self._engine.get_global_value_address(n), size)
            for n, size in _memories(self.module.text)
        ]
        codes = [_ctype(t) for t in self.module.arguments]
        self._call = ctypes.PYFUNCTYPE(ctypes.c_int32, *codes)(address(self.module.name))

    def _callbacks(self) -> dict[str, Any]:
        integer, wide, place = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
        self.callbacks = {
            "na.note": ctypes.PYFUNCTYPE(None, integer, integer, wide, wide, wide)(self._note),
            "na.barrier": ctypes.PYFUNCTYPE(None, integer)(lambda site: self._wait("block", site)),
            "na.grid_barrier": ctypes.PYFUNCTYPE(None, integer)(lambda s: self._wait("grid", s)),
            "na.warp_barrier": ctypes.PYFUNCTYPE(None, integer, integer)(
                lambda site, mask: self._wait("warp", site)
            ),
            "na.access": ctypes.PYFUNCTYPE(integer, integer, integer, place, wide)(self._access),
            # Its own: symbols are the process's, and compiled kernels print, too.
            "turns.print": ctypes.PYFUNCTYPE(integer, place, place, *[integer] * 6)(self._print),
        }
        return self.callbacks

    def _access(self, *access: Any) -> int:
        self.accesses.append(access)
        return 0

    def _print(self, form: int, values: int, *place: int) -> int:
        self.printed.append(printing.formatted(form, values))
        return 0

    def _note(self, *note: int) -> None:
        self._noted.append(note)

    def _wait(self, kind: str, site: int) -> None:
        self._main.switch((kind, site))

    def launch(self, grid: Any, block: Any, *args: Any, dynamic_bytes: int = 0) -> None:
        """Run every block; threads of a block take turns between barriers, in order."""
        grid, block = [(*((x,) if isinstance(x, int) else x), 1, 1)[:3] for x in (grid, block)]
        self._main = greenlet.getcurrent()
        self._noted: list[tuple[int, ...]] = []
        keep: list[Any] = []
        packed = [p for a, t in zip(args, self.types, strict=True) for p in _packed(a, t, keep)]
        if len(packed) != len(self.module.arguments):
            raise AssertionError((len(packed), self.module.arguments))
        blocks: list[Iterator[None] | None] = [
            self._block(number, grid, block, packed, dynamic_bytes)
            for number in range(math.prod(grid))
        ]
        if not self.module.is_cooperative:
            for whole in filter(None, blocks):
                self._put([bytes(size) for _, size in self._shared])
                for _ in whole:
                    pass
            return
        memories = [[bytes(size) for _, size in self._shared]] * len(blocks)
        while blocks:  # a block runs as far as a barrier of the grid
            for b, each in enumerate(list(blocks)):
                self._put(memories[b])
                if each is None or next(each, "end") == "end":
                    blocks[b] = None
                memories[b] = [ctypes.string_at(a, size) for a, size in self._shared]
            memories = [m for m, b in zip(memories, blocks, strict=True) if b is not None]
            blocks = [b for b in blocks if b is not None]

    def _put(self, memory: list[bytes]) -> None:
        for (address, size), content in zip(self._shared, memory, strict=True):
            ctypes.memmove(address, content, size)

    def _block(
        self, number: int, grid: Any, block: Any, packed: list[Any], dynamic_bytes: int
    ) -> Iterator[None]:
        """The block, as far as each barrier of the grid."""
        place = _axes(number, grid)
        count = math.prod(block)
        threads = [greenlet.greenlet(lambda: self._call(*packed)) for _ in range(count)]
        waits: list[Any] = [("start", -1)] * count
        while not all(t.dead for t in threads):
            of_warps = _may_go_on(waits)
            if not any(of_warps):
                self._meet(waits, threads, place, block)
                if any(w and w[0] == "grid" for w in waits):
                    yield
            for t, thread in enumerate(threads):
                if thread.dead or (any(of_warps) and not of_warps[t]):
                    continue
                self._state[:12] = [*_axes(t, block), *place, *block, *grid]
                self._state[12:16] = [t, 0, dynamic_bytes, 0]
                waits[t] = thread.switch()
                if thread.dead:
                    status, waits[t] = waits[t], None
                    if status != 0:
                        raise NoteError(*self._noted[-1], place, _axes(t, block))

    def _meet(self, waits: list[Any], threads: list[Any], place: Any, block: Any) -> None:
        """All threads of the block wait at one barrier; else it is an error."""
        site = next(w[1] for w in waits if w is not None)
        here = [w is not None and w[1] == site for w in waits]
        if not all(here):
            missing = _axes(here.index(False), block)
            raise NoteError(DIVERGED, site, 0, sum(here), len(here), place, missing)


def _may_go_on(waits: list[Any]) -> list[bool]:
    """Which threads may run: those that start, and of each warp those at its first warp barrier."""
    goes_on = [w is not None and w[0] == "start" for w in waits]
    if any(goes_on):
        return goes_on
    for first in range(0, len(waits), 32):
        warp = range(first, min(first + 32, len(waits)))
        sites = [waits[t][1] for t in warp if waits[t] is not None and waits[t][0] == "warp"]
        for t in warp:
            goes_on[t] = bool(sites) and waits[t] == ("warp", sites[0])
    return goes_on


def _axes(number: int, extents: Any) -> tuple[int, ...]:
    x, y, _ = extents
    return number % x, number // x % y, number // x // y


def keys_of(args: Any) -> tuple[Any, ...]:
    return tuple(_key(a) for a in args)


def _key(value: Any) -> Any:
    from numba.cuda.typing.typeof import typeof

    if value is None:
        return types.none
    return typeof(value)


def is_small(numba_type: Any) -> bool:
    return numba_type in small_types()


def _memories(text: str) -> Iterator[tuple[str, int]]:
    for name, count, kind in re.findall(
        r'^@"(na\.(?:shared|exchange|present)[^"]*)" = .*?\[(\d+) x (.*)\], align', text, re.M
    ):
        yield name, int(count) * _nbytes(kind)
    if "@na.dynamic =" in text:
        yield "na.dynamic", _DYNAMIC


def _nbytes(kind: str) -> int:
    module = llvm.parse_assembly(f"@x = global {kind} zeroinitializer")
    data = llvm.create_target_data("")
    return int(data.get_abi_size(module.get_global_variable("x").global_value_type))


def _engine(module: Module, callbacks: dict[str, Any]) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = re.sub(
        r'^declare .*@"?na\.(?:[tbwg][xyz]|tid|threads|dynamic_bytes)"?\(.*\n',
        "",
        module.text,
        flags=re.M,
    )
    text = re.sub(
        r'^(@"na\.(?:shared|exchange|present)[^"]*" =) external global (\[\d+ x .*\])(, .*)$',
        r"\1 global \2 zeroinitializer\3",
        text,
        flags=re.M,
    )
    text = text.replace(
        "@na.dynamic = external global [0 x i8]",
        f"@na.dynamic = global [{_DYNAMIC} x i8] zeroinitializer",
    )
    text = text.replace('"na.print"', '"turns.print"')
    text += "\n@na.state = global [16 x i32] zeroinitializer, align 8\n" + _HELPERS
    whole = llvm.parse_assembly(text)
    whole.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )
    for name, callback in callbacks.items():
        llvm.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value or 0)
    engine = llvm.create_mcjit_compiler(whole, machine)
    engine.finalize_object()
    return engine


_CODES = {
    "i1": ctypes.c_bool, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip


def _ctype(kind: str) -> Any:
    return _CODES.get(kind, ctypes.c_void_p)


def _packed(value: Any, numba_type: Any, keep: list[Any]) -> list[Any]:
    """An argument as Numba flattens it."""
    if isinstance(numba_type, types.Array):
        return [
            None,
            None,
            value.size,
            value.itemsize,
            value.ctypes.data,
            *value.shape,
            *value.strides,
        ]
    if isinstance(numba_type, types.BaseTuple):
        return [p for v, t in zip(value, numba_type, strict=True) for p in _packed(v, t, keep)]
    if isinstance(numba_type, types.Record):
        record = np.array(value)
        keep.append(record)
        return [record.ctypes.data]
    if isinstance(numba_type, types.NoneType):
        return [None]
    if isinstance(numba_type, types.Complex):
        return [value.real, value.imag]
    if isinstance(numba_type, types.Number) and numba_type.bitwidth == 16 and is_small(numba_type):
        value = np.float16(value) if numba_type == types.float16 else np.asarray(value)
        return [int(value.view(np.int16))]
    if isinstance(numba_type, types.EnumMember | types.IntEnumMember):
        return [int(value.value)]
    if isinstance(numba_type, types.NPDatetime | types.NPTimedelta):
        return [int(value.astype(np.int64))]
    return [value]


__all__ = ["ArrayKey", "Kernel", "NoteError", "keys_of"]
