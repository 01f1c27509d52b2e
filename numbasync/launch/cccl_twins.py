"""Functions of `cuda.coop`, the block's and the warp's algorithms of CUB, on the CPU device.

They are compiled C++ that a GPU links. Here each is made of what this package has for kernels, with
the meaning that its documentation gives: `make_sum(dtype, threads, ...)` returns what a kernel
calls. What a GPU leaves undefined, as a sum in other threads than the first, is defined here.

Example:
    >>> from numbasync.launch.cccl_twins import make_sum
    >>> block_sum = make_sum(np.int32, 128)  # as coop.block.make_sum
    >>> @cuda.jit(link=block_sum.files)
    ... def total(z, x):
    ...     found = block_sum(x[cuda.threadIdx.x])
    ...     if cuda.threadIdx.x == 0:
    ...         z[0] = found
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import extending, types

from numbasync import block, warp
from numbasync.arguments import shown
from numbasync.dtypes import numba_type
from numbasync.errors import UnsupportedKernelError

_api: Any = extending
_types: Any = types
STORAGE = 16  # bytes of the shared memory that callers give, which is not used here
# Operators of scans that have a name, by each of their names; None: the sum.
_NAMED: dict[Any, Any] = {
    **dict.fromkeys(("+", "add", "plus", np.add, operator.add)),
    **dict.fromkeys(("*", "mul", "multiplies", np.multiply, operator.mul), operator.mul),
    **dict.fromkeys(("min", "minimum", np.minimum), min),
    **dict.fromkeys(("max", "maximum", np.maximum), max),
    **dict.fromkeys(("&", "bit_and", np.bitwise_and, operator.and_), operator.and_),
    **dict.fromkeys(("|", "bit_or", np.bitwise_or, operator.or_), operator.or_),
    **dict.fromkeys(("^", "bit_xor", np.bitwise_xor, operator.xor), operator.xor),
}


def make_sum(
    dtype: Any,
    threads_per_block: Any,
    items_per_thread: int = 1,
    algorithm: str = "warp_reductions",
    methods: Any = None,
) -> Any:
    return make_reduce(dtype, threads_per_block, operator.add, items_per_thread, algorithm, methods)


def make_reduce(
    dtype: Any,
    threads_per_block: Any,
    binary_op: Any,
    items_per_thread: int = 1,
    algorithm: str = "warp_reductions",
    methods: Any = None,
) -> Any:
    kind, op = _number(dtype, methods), _device(binary_op)
    own, flagged = _of_items(op), _where_valid(op)

    def of_numbers(value: Any) -> Any:
        return block.reduce(kind(value), op)

    def of_items(items: Any) -> Any:
        return block.reduce(kind(own(items, items_per_thread)), op)

    def of_first(value: Any, count: Any) -> Any:
        return block.reduce((kind(value), _rank() < count), flagged)[0]

    return _called([of_numbers if items_per_thread == 1 else of_items, of_first])


def make_scan(
    dtype: Any,
    threads_per_block: Any,
    items_per_thread: int,
    initial_value: Any = None,
    mode: str = "exclusive",
    scan_op: Any = "+",
    block_prefix_callback_op: Any = None,
    algorithm: str = "raking",
    methods: Any = None,
) -> Any:
    if block_prefix_callback_op is not None:
        raise _refused("a scan with block_prefix_callback_op=")
    kind = _number(dtype, methods)
    op = _device(_NAMED.get(scan_op, scan_op) or operator.add)
    flagged, exclusive = _where_valid(op), mode == "exclusive"
    has_start = initial_value is not None or items_per_thread > 1
    is_sum = _NAMED.get(scan_op, scan_op) is None
    start = kind.cast_python_value(initial_value or 0)
    has_start = has_start and not is_sum

    @cuda.jit(device=True)
    def before(value):  # type: ignore[no-untyped-def]
        """What the threads before this one have, and whether there is anything."""
        return block.scan((value, True), flagged, True, (kind(start), has_start))

    def of_number(value: Any) -> Any:
        value = kind(value)
        first, is_any = before(value)
        if exclusive:
            return first if is_any else kind(0)
        return kind(op(first, value)) if is_any else value

    def of_items(items: Any, found: Any) -> None:
        total = items[0]
        for i in range(1, items_per_thread):
            total = kind(op(total, items[i]))
        so_far, is_any = before(kind(total))
        for i in range(items_per_thread):
            value = items[i]
            following = kind(op(so_far, value)) if is_any else kind(value)
            if exclusive:
                found[i] = so_far if is_any else kind(0)
            else:
                found[i] = following
            so_far, is_any = following, True

    return _called([of_number] if items_per_thread == 1 else [of_items])


def make_exclusive_sum(
    dtype: Any, threads_per_block: Any, items_per_thread: int, prefix_op: Any = None,
    algorithm: str = "raking", methods: Any = None,
) -> Any:  # fmt: skip
    return make_scan(
        dtype, threads_per_block, items_per_thread, None, "exclusive", "+", prefix_op, algorithm,
        methods,
    )  # fmt: skip


def make_inclusive_sum(
    dtype: Any, threads_per_block: Any, items_per_thread: int, prefix_op: Any = None,
    algorithm: str = "raking", methods: Any = None,
) -> Any:  # fmt: skip
    return make_scan(
        dtype, threads_per_block, items_per_thread, None, "inclusive", "+", prefix_op, algorithm,
        methods,
    )  # fmt: skip


def make_exclusive_scan(
    dtype: Any, threads_per_block: Any, scan_op: Any, items_per_thread: int,
    initial_value: Any = None, prefix_op: Any = None, algorithm: str = "raking",
    methods: Any = None,
) -> Any:  # fmt: skip
    return make_scan(
        dtype, threads_per_block, items_per_thread, initial_value, "exclusive", scan_op, prefix_op,
        algorithm, methods,
    )  # fmt: skip


def make_inclusive_scan(
    dtype: Any, threads_per_block: Any, scan_op: Any, items_per_thread: int,
    initial_value: Any = None, prefix_op: Any = None, algorithm: str = "raking",
    methods: Any = None,
) -> Any:  # fmt: skip
    return make_scan(
        dtype, threads_per_block, items_per_thread, initial_value, "inclusive", scan_op, prefix_op,
        algorithm, methods,
    )  # fmt: skip


def make_load(
    dtype: Any, threads_per_block: Any, items_per_thread: int = 1, algorithm: str = "direct"
) -> Any:
    first, step = _places(threads_per_block, items_per_thread, algorithm)

    def load(source: Any, items: Any) -> None:
        for i in range(items_per_thread):
            items[i] = source[_rank() * first + i * step]

    return _called([load])


def make_store(
    dtype: Any, threads_per_block: Any, items_per_thread: int = 1, algorithm: str = "direct"
) -> Any:
    first, step = _places(threads_per_block, items_per_thread, algorithm)

    def store(target: Any, items: Any) -> None:
        for i in range(items_per_thread):
            target[_rank() * first + i * step] = items[i]

    return _called([store])


def make_exchange(
    block_exchange_type: Any,
    dtype: Any,
    threads_per_block: Any,
    items_per_thread: int,
    warp_time_slicing: bool = False,
    methods: Any = None,
) -> Any:
    if getattr(block_exchange_type, "name", "") != "StripedToBlocked":
        raise ValueError(f"an exchange is StripedToBlocked, not {shown(block_exchange_type)}")
    kind, threads = _number(dtype, methods), _count(threads_per_block)
    size = threads * items_per_thread

    def exchange(items: Any, found: Any) -> None:
        held = cuda.shared.array(size, kind)
        cuda.syncthreads()
        for i in range(items_per_thread):
            held[i * threads + _rank()] = items[i]
        cuda.syncthreads()
        for i in range(items_per_thread):
            found[i] = held[_rank() * items_per_thread + i]

    exchange_to = cuda.jit(device=True)(exchange)

    def in_place(items: Any) -> None:
        exchange_to(items, items)

    return _called([in_place, exchange])


def make_merge_sort_keys(
    dtype: Any, threads_per_block: Any, items_per_thread: int, compare_op: Any, methods: Any = None
) -> Any:
    kind, is_before = _number(dtype, methods), _device(compare_op)
    size = _count(threads_per_block) * items_per_thread

    def sort(keys: Any) -> None:
        held, ordered = cuda.shared.array(size, kind), cuda.shared.array(size, kind)
        first = _rank() * items_per_thread
        cuda.syncthreads()
        for i in range(items_per_thread):
            held[first + i] = keys[i]
        cuda.syncthreads()
        for i in range(items_per_thread):
            place = 0  # as many keys are before this one
            for j in range(size):
                is_equal_or_less = not is_before(keys[i], held[j])
                if is_before(held[j], keys[i]) or (j < first + i and is_equal_or_less):
                    place += 1
            ordered[place] = keys[i]
        cuda.syncthreads()
        for i in range(items_per_thread):
            keys[i] = ordered[first + i]

    return _called([sort])


def make_radix_sort_keys(dtype: Any, threads_per_block: Any, items_per_thread: int) -> Any:
    return make_merge_sort_keys(dtype, threads_per_block, items_per_thread, operator.lt)


def make_radix_sort_keys_descending(
    dtype: Any, threads_per_block: Any, items_per_thread: int
) -> Any:
    return make_merge_sort_keys(dtype, threads_per_block, items_per_thread, operator.gt)


def make_warp_sum(dtype: Any, threads_in_warp: int = 32) -> Any:
    return make_warp_reduce(dtype, operator.add, threads_in_warp)


def make_warp_reduce(
    dtype: Any, binary_op: Any, threads_in_warp: int = 32, methods: Any = None
) -> Any:
    kind, op = _number(dtype, methods), _device(binary_op)
    _check_warp(threads_in_warp)

    def reduce(value: Any) -> Any:
        return warp.reduce(kind(value), op)

    return _called([reduce])


def make_warp_exclusive_sum(dtype: Any, threads_in_warp: int = 32) -> Any:
    kind = _number(dtype, None)
    _check_warp(threads_in_warp)

    def scan(value: Any) -> Any:
        return warp.scan(kind(value), None, True)

    return _called([scan])


def _called(forms: list[Callable[..., Any]]) -> Any:
    """What a kernel calls: the form with so many arguments. Shared memory in front of them is that
    of the caller, of `temp_storage_bytes`, which a GPU's function uses.
    """
    by_count = {form.__code__.co_argcount: cuda.jit(device=True)(form) for form in forms}

    def function(a, b=None, c=None):  # type: ignore[no-untyped-def]
        raise RuntimeError("a function of cuda.coop is called in kernels")

    @_api.overload(function, target="cuda")
    def choose(a, b=None, c=None):  # type: ignore[no-untyped-def]
        count = 3 - warp.is_none(b) - warp.is_none(c)
        has_storage = isinstance(a, _types.Array) and a.dtype == _types.uint8 and count > 1
        form = by_count.get(count - has_storage)
        if form is None:
            return None
        return {
            (1, False): lambda a, b=None, c=None: form(a),
            (2, False): lambda a, b=None, c=None: form(a, b),
            (2, True): lambda a, b=None, c=None: form(b),
            (3, True): lambda a, b=None, c=None: form(b, c),
        }.get((count, has_storage))

    made: Any = function
    made.files, made.temp_storage_bytes, made.temp_storage_alignment = [], STORAGE, STORAGE
    return made


def _of_items(op: Any) -> Any:
    @cuda.jit(device=True)
    def combined(items, count):  # type: ignore[no-untyped-def]
        total = items[0]
        for i in range(1, count):
            total = op(total, items[i])
        return total

    return combined


def _where_valid(op: Any) -> Any:
    """The operator, of values each of which says whether it counts."""

    @cuda.jit(device=True)
    def combined(a, b):  # type: ignore[no-untyped-def]
        if not a[1]:
            return b
        if not b[1]:
            return a
        return (op(a[0], b[0]), True)

    return combined


@cuda.jit(device=True)
def _rank():  # type: ignore[no-untyped-def]
    own, size = cuda.threadIdx, cuda.blockDim
    return own.x + size.x * (own.y + size.y * own.z)


def _places(threads_per_block: Any, items: int, algorithm: str) -> tuple[int, int]:
    """Where a thread's first item is, as a multiple of its rank, and the step to the next."""
    return (1, _count(threads_per_block)) if algorithm == "striped" else (items, 1)


def _count(threads_per_block: Any) -> int:
    several = isinstance(threads_per_block, tuple | list)
    return math.prod(threads_per_block) if several else int(threads_per_block)


def _number(dtype: Any, methods: Any) -> Any:
    if methods is not None:
        raise _refused("a type of methods=")
    return dtype if isinstance(dtype, _types.Type) else numba_type(np.dtype(dtype))


def _device(op: Any) -> Any:
    """An operator as kernels call it."""
    is_plain = isinstance(op, type(_device))
    return cuda.jit(device=True)(op) if is_plain else op


def _check_warp(threads: int) -> None:
    if threads != warp.WARP:
        raise _refused(f"a warp of {threads} threads")


def _refused(what: str) -> UnsupportedKernelError:
    return UnsupportedKernelError(
        f"cuda.coop on the CPU device: {what} is not there.\n"
        "Write it with numbasync.block, which has the same meaning on every device."
    )


_OF_WARP = {
    "make_sum": make_warp_sum,
    "make_reduce": make_warp_reduce,
    "make_exclusive_sum": make_warp_exclusive_sum,
}


def replacements() -> list[tuple[Any, str, Any]]:
    """What `cuda.coop` has in the place of its own, as (module, name, value)."""
    of_block, of_warp = (importlib.import_module(f"cuda.coop.{n}") for n in ("block", "warp"))
    return [
        (module, name, known.get(name) or _refusing(name))
        for module, known in ((of_block, globals()), (of_warp, _OF_WARP))
        for name in vars(module)
        if name.startswith("make_")
    ]


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _refused(name)

    return refuse
