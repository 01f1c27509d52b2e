"""Loads and stores of neighbouring elements by one instruction, in kernels.

`load(x, i, 4)` is the tuple `(x[i], x[i + 1], x[i + 2], x[i + 3])`, and `store(z, i, (a, b, c, d))`
assigns such elements. A GPU moves up to 16 bytes a thread by one instruction; Numba's compiler does
not merge accesses, since it does not know how an array is aligned.

    from numbasync import vectors

    @na.launcher
    @cuda.jit
    def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = 4 * cuda.grid(1)
        if i + 4 <= z.shape[0]:
            a, b = vectors.load(x, i, 4), vectors.load(y, i, 4)
            vectors.store(z, i, (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]))

Arrays are C-contiguous, of numbers or booleans, in global, shared or local memory; the elements lie
along the last axis, and the index is a number, or a tuple for arrays of several axes. An access is
of 2, 4, 8 or 16 bytes.

The caller must see to it that the first element's address is a multiple of these bytes. On a GPU
another address is a fault, after which the process cannot use the GPU any more; the CPU device
raises `MisalignedAccessError`. Tensors begin at such addresses, views of them need not: see
`is_aligned`. Shared arrays do if their call says so:
`cuda.shared.array(64, float32, alignment=16)`.

Outside of kernels the functions do the same with NumPy arrays.

Examples:
    >>> from numbasync import vectors
    >>> @na.launcher
    ... @cuda.jit
    ... def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    ...     i = 4 * cuda.grid(1)
    ...     if i + 4 <= z.shape[0]:
    ...         a, b = vectors.load(x, i, 4), vectors.load(y, i, 4)
    ...         vectors.store(z, i, (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]))
    >>> result = await add.forall(2)(na.zeros(8), na.arange(8), na.ones(8))
    >>> await result.z.to_host()
    array([1., 2., 3., 4., 5., 6., 7., 8.], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbasync.errors import MisalignedAccessError
from numbasync.intrinsics import elements_by_one, intrinsic
from numbasync.kernel_names import TypingError, cgutils, extending, types

__all__ = ["is_aligned", "load", "store"]

BYTES = (2, 4, 8, 16)

_api: Any = extending  # of type Any: type checkers do not know what they define
_types: Any = types
_I64 = ir.IntType(64)


def load(array: Any, index: Any, count: int) -> tuple[Any, ...]:
    """The elements `index` to `index + count - 1` of the last axis, as a tuple.

    Args:
        array: C-contiguous.
        index: of the first element: an integer, or a tuple of one for each axis.
        count: an int that is written there, or a global one.

    Raises:
        KernelCompileError: the kernel's compiler cannot access such an array, or so many elements
            of it; the message says what it can.
        OutOfBoundsError: an element is outside of the array. On the CPU device only.
        MisalignedAccessError: the address is no multiple of the bytes. On the CPU device only.

    Examples:
        >>> from numbasync import vectors
        >>> x = np.arange(8, dtype=np.float32)
        >>> vectors.load(x, 4, 4)
        (np.float32(4.0), np.float32(5.0), np.float32(6.0), np.float32(7.0))
    """
    first = _first(array, index, count)
    if not is_aligned(array, index, count):
        raise MisalignedAccessError(misaligned("array", first[-1], count * array.itemsize))
    return tuple(array[(*first[:-1], first[-1] + k)] for k in range(count))


def store(array: Any, index: Any, values: tuple[Any, ...]) -> None:
    """Assign `values` to the elements `index`, `index + 1` ... of the last axis.

    Args:
        array: C-contiguous.
        index: of the first element: an integer, or a tuple of one for each axis.
        values: a tuple of numbers, which are converted to the array's type.

    Raises:
        KernelCompileError, OutOfBoundsError, MisalignedAccessError: as `load`.

    Examples:
        >>> from numbasync import vectors
        >>> z = np.zeros(8, np.float32)
        >>> vectors.store(z, 4, (1, 2, 3, 4))
        >>> z
        array([0., 0., 0., 0., 1., 2., 3., 4.], dtype=float32)
    """
    first = _first(array, index, len(values))
    if not is_aligned(array, index, len(values)):
        raise MisalignedAccessError(misaligned("array", first[-1], len(values) * array.itemsize))
    for k, value in enumerate(values):
        array[(*first[:-1], first[-1] + k)] = value


def is_aligned(array: Any, index: Any, count: int) -> bool:
    """Whether `load` and `store` may access `count` elements from `index` on.

    Args:
        array: C-contiguous.
        index: of the first element: an integer, or a tuple of one for each axis.
        count: an int that is written there, or a global one.

    Examples:
        >>> from numbasync import vectors
        >>> x = np.zeros(8, np.float32)
        >>> vectors.is_aligned(x, 0, 4), vectors.is_aligned(x, 1, 4)
        (True, False)
    """
    moved = sum(i * s for i, s in zip(_position(array, index), array.strides, strict=True))
    return bool((array.ctypes.data + moved) % (count * array.itemsize) == 0)


def misaligned(name: str, index: int, nbytes: int, source_line: str = "") -> str:
    """The text of a MisalignedAccessError for an array of this name."""
    return (
        f"{nbytes} bytes of {name}, from index {index} of its last axis on, do not begin at a "
        f"multiple of {nbytes} bytes{source_line}\n"
        "A vector access to them is a fault on a GPU. Begin at a multiple of the count; tensors "
        "are aligned, views of them need not be, shared arrays are with alignment=16: "
        "cuda.shared.array(..., alignment=16). vectors.is_aligned tells."
    )


def _position(array: Any, index: Any) -> tuple[int, ...]:
    """An index as a tuple; negative numbers count from the end."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(int(i) + n if i < 0 else int(i) for i, n in zip(parts, array.shape, strict=True))


def _first(array: Any, index: Any, count: int) -> tuple[int, ...]:
    """The position of the first of `count` elements.

    Raises:
        IndexError: one of them is outside of the array.
    """
    first = _position(array, index)
    for axis, (i, n) in enumerate(zip(first, array.shape, strict=True)):
        last = i + count - 1 if axis == len(first) - 1 else i
        if i < 0 or last >= n:
            raise IndexError(f"index {last} is out of bounds for axis {axis} with size {n}")
    return first


# --- rules ---


def refusal(array: Any, index: Any, count: Any) -> str:
    """Why Numba's types do not fit a vector access; empty if they do.

    Args:
        count: Numba's type of the count, or the count.
    """
    if isinstance(count, _types.IntegerLiteral):
        count = count.literal_value
    if not isinstance(array, _types.Array) or not _is_number(array.dtype):
        return f"a vector access to a {array}; write an array of numbers or booleans."
    if array.layout != "C":
        return (
            f"a vector access to {array}, whose elements need not be neighbours; pass a "
            "C-contiguous array."
        )
    parts = list(index) if isinstance(index, _types.BaseTuple) else [index]
    if (
        not parts
        or len(parts) != array.ndim
        or not all(isinstance(p, _types.Integer) for p in parts)
    ):
        return f"a vector access to {array} by {index}; write {array.ndim} integers."
    item = item_bytes(array.dtype)
    counts = [n // item for n in BYTES if n >= item]
    if count not in counts:
        said = f"{count} elements" if isinstance(count, int) else f"a count of type {count}"
        return (
            f"a vector access to {said} of {array}; write {' or '.join(map(str, counts))} (2, 4, 8 "
            "or 16 bytes), as an int or a global one."
        )
    return ""


def item_bytes(dtype: Any) -> int:
    return 1 if isinstance(dtype, _types.Boolean) else int(dtype.bitwidth) // 8


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, _types.Number | _types.Boolean)


# --- on GPUs ---


def _checked(array: Any, index: Any, count: Any) -> None:
    why = refusal(array, index, count)
    if why:
        raise TypingError(why)


@_api.overload(load, prefer_literal=True)
def _load(array, index, count):  # type: ignore[no-untyped-def]
    _checked(array, index, count)
    return lambda array, index, count: load_vector(array, index, count)


@_api.overload(store, prefer_literal=True)
def _store(array, index, values):  # type: ignore[no-untyped-def]
    if not isinstance(values, _types.BaseTuple):
        raise TypingError(f"vectors.store of a {values}; write a tuple of numbers.")
    _checked(array, index, len(values))
    return lambda array, index, values: store_vector(array, index, values)


@_api.overload(is_aligned, prefer_literal=True)
def _is_aligned(array, index, count):  # type: ignore[no-untyped-def]
    _checked(array, index, count)
    nbytes = count.literal_value * item_bytes(array.dtype)
    last = nbytes - 1  # of a power of two
    return lambda array, index, count: vector_address(array, index) & last == 0


def _pointer(context: Any, builder: Any, array: Any, value: Any, index: Any, number: Any) -> Any:
    """A pointer to the element of an index, whose negative numbers count from the end."""
    view = context.make_array(array)(context, builder, value)
    is_tuple = isinstance(index, _types.BaseTuple)
    numbers = cgutils.unpack_tuple(builder, number) if is_tuple else [number]
    shape = cgutils.unpack_tuple(builder, view.shape, array.ndim)
    position: Any = None
    for i, number_type, extent in zip(numbers, index if is_tuple else [index], shape, strict=True):
        wide = _types.int64 if number_type.signed else _types.uint64
        at = context.cast(builder, i, number_type, wide)
        if number_type.signed:
            negative = builder.icmp_signed("<", at, _I64(0))
            at = builder.select(negative, builder.add(at, extent), at)
        position = at if position is None else builder.add(builder.mul(position, extent), at)
    return builder.gep(view.data, [position])


def _words(array: Any, count: int) -> tuple[Any, Any]:
    """LLVM's types of a part (an element, or half of a complex one), and of the vector of words
    that is moved. Words are parts, or hold several of less than 4 bytes: the compiler would split a
    vector of 16 int8.
    """
    item, nbytes = item_bytes(array.dtype), count * item_bytes(array.dtype)
    if isinstance(array.dtype, _types.Complex):
        item //= 2
    if item < 4:
        word = ir.IntType(8 * min(nbytes, 4))
        return ir.IntType(8 * item), ir.VectorType(word, max(nbytes // 4, 1))
    floats = {4: ir.FloatType(), 8: ir.DoubleType()}
    part = ir.IntType(8 * item) if isinstance(array.dtype, _types.Integer) else floats[item]
    return part, ir.VectorType(part, nbytes // item)


def _parts(builder: Any, vector: Any, part: Any) -> list[Any]:
    """The parts that the words of a vector hold."""
    words = [builder.extract_element(vector, _I64(k)) for k in range(vector.type.count)]
    if vector.type.element == part:
        return words
    shifts = range(0, vector.type.element.width, part.width)
    return [builder.trunc(builder.lshr(w, w.type(by)), part) for w in words for by in shifts]


def _vector(builder: Any, parts: list[Any], vector_type: Any) -> Any:
    """The vector whose words hold `parts`."""
    vector, word = ir.Constant(vector_type, ir.Undefined), vector_type.element
    each = len(parts) // vector_type.count
    for k in range(vector_type.count):
        first, *rest = parts[k * each : (k + 1) * each]
        value = builder.zext(first, word) if first.type != word else first
        for n, part in enumerate(rest, start=1):
            shifted = builder.shl(builder.zext(part, word), word(n * part.type.width))
            value = builder.or_(value, shifted)
        vector = builder.insert_element(vector, value, _I64(k))
    return vector


def _loaded_by_one(array, index, count):  # type: ignore[no-untyped-def]
    literal = getattr(count, "literal_value", None)
    return None if literal is None else elements_by_one(array, index, literal)


def _stored_by_one(array, index, values):  # type: ignore[no-untyped-def]
    return elements_by_one(array, index, len(values), is_store=True)


@intrinsic(_loaded_by_one)
def load_vector(typingctx: Any, array: Any, index: Any, count: Any):  # type: ignore[no-untyped-def]
    """As `load`; nothing is checked."""
    if not isinstance(count, _types.IntegerLiteral):
        return None  # Numba then asks again, with the literal
    out = _types.UniTuple(array.dtype, count.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        part, vector_type = _words(array, count.literal_value)
        pointer = _pointer(context, builder, array, args[0], index, args[1])
        nbytes = count.literal_value * item_bytes(array.dtype)
        vector = builder.load(builder.bitcast(pointer, vector_type.as_pointer()), align=nbytes)
        numbers = _numbers(context, builder, array, _parts(builder, vector, part))
        return context.make_tuple(builder, out, numbers)

    return out(array, index, count), codegen


def _numbers(context: Any, builder: Any, array: Any, parts: list[Any]) -> list[Any]:
    """The array's elements, of their parts."""
    model = context.data_model_manager[array.dtype]
    if not isinstance(array.dtype, _types.Complex):
        return [model.from_data(builder, p) for p in parts]
    numbers = []
    for real, imaginary in zip(parts[::2], parts[1::2], strict=True):
        number = context.make_complex(builder, array.dtype)
        number.real, number.imag = real, imaginary
        numbers.append(number._getvalue())
    return numbers


@intrinsic(_stored_by_one)
def store_vector(typingctx: Any, array: Any, index: Any, values: Any):  # type: ignore[no-untyped-def]
    """As `store`; nothing is checked."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, vector_type = _words(array, len(values))
        parts: list[Any] = []
        for value, value_type in zip(cgutils.unpack_tuple(builder, args[2]), values, strict=True):
            number = context.cast(builder, value, value_type, array.dtype)
            if isinstance(array.dtype, _types.Complex):
                complex_ = context.make_complex(builder, array.dtype, value=number)
                parts += [complex_.real, complex_.imag]
            else:
                parts.append(context.data_model_manager[array.dtype].as_data(builder, number))
        pointer = _pointer(context, builder, array, args[0], index, args[1])
        target = builder.bitcast(pointer, vector_type.as_pointer())
        nbytes = len(values) * item_bytes(array.dtype)
        builder.store(_vector(builder, parts, vector_type), target, align=nbytes)
        return context.get_dummy_value()

    return _types.void(array, index, values), codegen


@intrinsic(lambda array, index: lambda array, index: 1)  # as if nothing were aligned
def vector_address(typingctx: Any, array: Any, index: Any):  # type: ignore[no-untyped-def]
    """The address of an element, as an int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, args[0], index, args[1])
        return builder.ptrtoint(pointer, _I64)

    return _types.int64(array, index), codegen
