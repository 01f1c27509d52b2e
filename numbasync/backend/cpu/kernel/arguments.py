"""The way from Python into machine code: a function for each list of argument types.

It takes five integers and the kernel's arguments, unpacks these, and calls the code without the
interpreter lock. The code reads them from slots of 8 bytes, in the order in which Numba flattens
them. One function serves all kernels of the same argument types. It is written in LLVM's language
here, and not by Numba, whose compiler for the processor takes longer to start than a kernel takes
to compile.

What Python's and NumPy's objects look like in memory: the tables of Python's C API, and NumPy's
`PyArrayObject_fields`; a scalar of NumPy has its value behind the object's head. The symbols of
Python's exceptions are those that Numba registers, which stand for the objects themselves.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba import _dynfunc

from numbasync import dtypes
from numbasync.backend.cpu.library.options import types
from numbasync.backend.cpu.races.words import STATE, THREAD_ORDER
from numbasync.backend.cpu.regions.machine_code import loaded, target_machine
from numbasync.backend.protocols import Dim3
from numbasync.errors import UnsupportedKernelError

# What the function takes before the kernel's arguments: address of a `launch_of`, first block, end,
# address of the block's memory, bytes of dynamic shared memory.
LEADING = 5
_LAUNCH = ctypes.c_int64 * 7
_HEAD = 16  # bytes of every object, before what is its own

_DECLARED = """
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare double @PyFloat_AsDouble(ptr)
declare { double, double } @PyComplex_AsCComplex(ptr)
declare i32 @PyObject_IsTrue(ptr)
declare i64 @numba_extract_np_datetime(ptr)
declare i64 @numba_extract_np_timedelta(ptr)
declare ptr @numba_extract_record_data(ptr, ptr)
declare void @numba_release_buffer(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_GetAttrString(ptr, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@PyExc_IndexError = external global i8
@_Py_NoneStruct = external global i8
@value = internal constant [6 x i8] c"value\\00"
@stopped = internal constant [8 x i8] c"stopped\\00"
"""
_BUFFER_BYTES = 256  # more than Python's Py_buffer has
_CODE = "ptr, ptr, i64, i64, i32, i32, i32, i32, i32, i32, i64, ptr"


def launch_of(address: int, block: Dim3, grid: Dim3) -> Any:
    """What is the same for all parts of a launch: the address of the code, and extents."""
    return _LAUNCH(address, *block, *grid)


class Call:
    """A function that calls machine code.

    Attributes:
        object_code: the function's own code.
        run: the function; it raises IndexError if a block has stopped, whose record says why.
    """

    def __init__(self, object_code: bytes) -> None:
        self.object_code = object_code
        engine = loaded(object_code)
        address = engine.get_function_address("call")
        environment = _dynfunc.Environment({})
        self.run: Callable[..., None] = _dynfunc.make_function(
            sys.modules[__name__], "call", "", address, environment, (engine,)
        )


_known: dict[tuple[Any, ...], Call] = {}
_making = threading.Lock()


def call_of(argument_types: tuple[Any, ...], object_code: bytes | None = None) -> Call:
    """The function for arguments of these types, which are Numba's for a GPU.

    Args:
        object_code: its code, as an earlier process has made it.

    Raises:
        UnsupportedKernelError: an argument has no form in which kernels of this device take it.
    """
    with _making:
        if argument_types not in _known:
            _known[argument_types] = Call(object_code or _compiled(argument_types))
        return _known[argument_types]


def _compiled(argument_types: tuple[Any, ...]) -> bytes:
    module = binding.parse_assembly(_Writer().text(argument_types))
    code: bytes = target_machine().emit_object(module)
    return code


class _Writer:
    """Writes the text of a function that unpacks arguments and calls code."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._values = 0
        self._slots = 0
        self._records: list[tuple[str, int]] = []  # each object, and the slot of its address

    def text(self, argument_types: tuple[Any, ...]) -> str:
        numbers = [self._integer(self._item("%args", i)) for i in range(LEADING)]
        for i, argument_type in enumerate(argument_types):
            self._unpack(self._item("%args", LEADING + i), argument_type)
        wrong = self._set("call ptr @PyErr_Occurred()")
        is_wrong = self._set(f"icmp ne ptr {wrong}, null")
        self._lines.append(f"br i1 {is_wrong}, label %failed, label %records")
        head = [f"%slots = alloca [{max(self._slots, 1)} x i64], align 16"]
        for i in range(len(self._records)):
            head.append(f"%buffer.{i} = alloca [{_BUFFER_BYTES} x i8], align 16")
            head.append(f"store [{_BUFFER_BYTES} x i8] zeroinitializer, ptr %buffer.{i}")
        unpacking, self._lines = self._lines, []
        self._call(numbers)
        define = "define ptr @call(ptr %self, ptr %args, ptr %names) {"
        return "\n".join([_DECLARED, define, *head, *unpacking, *self._lines, "}"])

    # --- arguments ---

    def _unpack(self, item: str, kind: Any) -> None:
        """Store the parts of one argument into slots."""
        kind = types.unliteral(kind)
        if isinstance(kind, types.BaseTuple):
            for i, part in enumerate(kind):
                self._unpack(self._item(item, i), part)
        elif isinstance(kind, types.Array):
            self._array(item, kind)
        elif isinstance(kind, types.EnumMember):
            value = self._set(f"call ptr @PyObject_GetAttrString(ptr {item}, ptr @value)")
            self._unpack(value, kind.dtype)
            self._lines.append(f"call void @Py_DecRef(ptr {value})")
        elif isinstance(kind, types.Record):
            self._records.append((item, self._slots))
            self._slots += 1
        elif isinstance(kind, types.Complex):
            both = self._set(f"call {{ double, double }} @PyComplex_AsCComplex(ptr {item})")
            for i in range(2):
                self._float(self._set(f"extractvalue {{ double, double }} {both}, {i}"), kind)
        elif kind in dtypes.small_types():
            place = self._set(f"getelementptr i8, ptr {item}, i64 {_HEAD}")
            self._store("i16", self._set(f"load i16, ptr {place}"))
        elif isinstance(kind, types.Float):
            self._float(self._set(f"call double @PyFloat_AsDouble(ptr {item})"), kind)
        else:
            self._store("i64", self._word(item, kind))

    def _word(self, item: str, kind: Any) -> str:
        """The value of an argument that is an integer for the processor."""
        if isinstance(kind, types.Integer):
            return self._integer(item, kind.signed)
        if isinstance(kind, types.Boolean):
            return self._set(
                f"zext i32 {self._set(f'call i32 @PyObject_IsTrue(ptr {item})')} to i64"
            )
        if isinstance(kind, types.NPDatetime):
            return self._set(f"call i64 @numba_extract_np_datetime(ptr {item})")
        if isinstance(kind, types.NPTimedelta):
            return self._set(f"call i64 @numba_extract_np_timedelta(ptr {item})")
        if isinstance(kind, types.NoneType):
            return "0"
        raise UnsupportedKernelError(f"kernels of the CPU device take no argument of type {kind}.")

    def _integer(self, item: str, signed: bool = True) -> str:
        function = "PyLong_AsLongLong" if signed else "PyLong_AsUnsignedLongLongMask"
        return self._set(f"call i64 @{function}(ptr {item})")

    def _float(self, value: str, kind: Any) -> None:
        if kind in (types.float32, types.complex64):
            self._store("float", self._set(f"fptrunc double {value} to float"))
        else:
            self._store("double", value)

    def _array(self, item: str, kind: Any) -> None:
        """No owner, number and size of elements, address, extents, strides."""
        data, _, extents, strides = (
            self._set(f"load ptr, ptr {self._set(f'getelementptr i8, ptr {item}, i64 {offset}')}")
            for offset in (_HEAD, _HEAD, _HEAD + 16, _HEAD + 24)
        )
        lengths, steps = (
            [
                self._set(f"load i64, ptr {self._set(f'getelementptr i64, ptr {where}, i64 {i}')}")
                for i in range(kind.ndim)
            ]
            for where in (extents, strides)
        )
        count = "1"
        for length in lengths:
            count = self._set(f"mul i64 {count}, {length}")
        size = str(_item_bytes(kind.dtype))
        for word in ("0", "0", count, size):
            self._store("i64", word)
        self._store("ptr", data)
        for word in (*lengths, *steps):
            self._store("i64", word)

    # --- the call ---

    def _call(self, numbers: list[str]) -> None:
        launch, first, end, memory, dynamic = numbers
        self._lines.append("records:")
        for i, (item, slot) in enumerate(self._records):
            arguments = f"ptr {item}, ptr %buffer.{i}"
            place = self._set(f"call ptr @numba_extract_record_data({arguments})")
            self._lines.append(f"store ptr {place}, ptr {self._slot(slot)}")
        wrong = self._set("call ptr @PyErr_Occurred()")
        is_wrong = self._set(f"icmp ne ptr {wrong}, null")
        self._lines += [f"br i1 {is_wrong}, label %released, label %run", "run:"]
        words = self._set(f"inttoptr i64 {launch} to ptr")
        code, *extents = (
            self._set(f"load i64, ptr {self._set(f'getelementptr i64, ptr {words}, i64 {i}')}")
            for i in range(7)
        )
        block = self._set(f"inttoptr i64 {memory} to ptr")
        # Only checked code reads the order of threads, and only then there is a state.
        state = self._set(f"getelementptr i64, ptr {block}, i64 {STATE}")
        checks = self._set(f"load ptr, ptr {state}")
        order = self._set(f"getelementptr i64, ptr {checks}, i64 {THREAD_ORDER}")
        short = [f"i32 {self._set(f'trunc i64 {e} to i32')}" for e in extents]
        function = self._set(f"inttoptr i64 {code} to ptr")
        passed = [
            "ptr %slots", f"ptr {block}", f"i64 {first}", f"i64 {end}", *short, f"i64 {dynamic}",
            f"ptr {order}",
        ]  # fmt: skip
        thread = self._set("call ptr @PyEval_SaveThread()")
        status = self._set(f"call i32 ({_CODE}) {function}({', '.join(passed)})")
        self._lines.append(f"call void @PyEval_RestoreThread(ptr {thread})")
        is_bad = self._set(f"icmp ne i32 {status}, 0")
        self._lines += [f"br i1 {is_bad}, label %stop, label %good", "stop:"]
        releases = [
            f"call void @numba_release_buffer(ptr %buffer.{i})" for i in range(len(self._records))
        ]
        self._lines += [
            "call void @PyErr_SetString(ptr @PyExc_IndexError, ptr @stopped)",
            "br label %released",
            "good:",
            *releases,
            "call void @Py_IncRef(ptr @_Py_NoneStruct)",
            "ret ptr @_Py_NoneStruct",
            "released:",
            *releases,
            "br label %failed",
            "failed:",
            "ret ptr null",
        ]

    # --- text ---

    def _set(self, instruction: str) -> str:
        """The name of a new value."""
        self._values += 1
        name = f"%v{self._values}"
        self._lines.append(f"{name} = {instruction}")
        return name

    def _item(self, tuple_: str, i: int) -> str:
        return self._set(f"call ptr @PyTuple_GetItem(ptr {tuple_}, i64 {i})")

    def _slot(self, i: int) -> str:
        return self._set(f"getelementptr i64, ptr %slots, i64 {i}")

    def _store(self, kind: str, value: str) -> None:
        self._lines.append(f"store {kind} {value}, ptr {self._slot(self._slots)}")
        self._slots += 1


def _item_bytes(dtype: Any) -> int:
    return int(dtypes.numpy_dtype(dtype).itemsize)
