"""Hypothesis strategies for kernels: arguments from a kernel's signature, shapes, tiles, launches.

Hypothesis shrinks a failing example: fewer elements, fewer threads, simpler numbers. Import this
module by its full name: it requires Hypothesis, which numbasync itself does not.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from numbasync.arguments import shown
from numbasync.backend.protocols import Checks
from numbasync.device.device import Device, default_device, devices, use_device
from numbasync.errors import CallerError, MissingExtraError
from numbasync.facts.arrays import axes_of
from numbasync.facts.positions import usage
from numbasync.launch.launcher import Launcher
from numbasync.launch.parameters import Parameter, Role
from numbasync.tensors.create import from_host, meta
from numbasync.tensors.tensor import Tensor
from numbasync.testing.check.closeness import Array
from numbasync.testing.check.fitting_shapes import hold, lengthen
from numbasync.testing.check.guarded_run import Extents, Subject, launcher_of

try:
    from hypothesis import assume
    from hypothesis import strategies as st
    from hypothesis.control import current_build_context
    from hypothesis.extra import numpy as hnp
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    raise MissingExtraError(
        "numbasync.testing.strategies needs Hypothesis, which is not installed.\n"
        "Install it: pip install hypothesis"
    ) from error

# The largest extent of arrays, by their number of axes: several blocks of the usual sizes, and
# quick to run.
LONGEST = {0: 1, 1: 300, 2: 40, 3: 12}
MOST_THREADS = 256

# A value, a strategy for the value, or a function of the arguments that come before it.
Wish: TypeAlias = Any


def shapes(ndim: int = 1, longest: int | None = None, shortest: int = 1) -> SearchStrategy[Any]:
    """Shapes of `ndim` axes, as tuples. Extents shrink to `shortest`.

    Args:
        longest: the largest extent; None: `LONGEST`.

    Raises:
        CallerError: there are no such shapes.

    Examples:
        >>> from hypothesis import find
        >>> from numbasync.testing import strategies
        >>> find(strategies.shapes(2), lambda shape: shape[0] > 2)  # the smallest that is found
        (3, 1)
    """
    most = max(LONGEST.get(ndim, 6), shortest) if longest is None else longest
    if ndim < 0 or not 0 <= shortest <= most:
        raise CallerError(f"shapes({ndim}, {longest}, {shortest}): there are none.")
    return st.tuples(*[st.integers(shortest, most)] * ndim)


def dtypes(kinds: str = "fiu") -> SearchStrategy[np.dtype[Any]]:
    """Element types that devices support: `f` floats of 32 and 64 bits, `i` and `u` integers, `b`
    bools, `c` complex. Examples shrink to float32, or to the first type of `kinds`.

    Examples:
        >>> from hypothesis import find
        >>> from numbasync.testing import strategies
        >>> find(strategies.dtypes("f"), lambda dtype: dtype.itemsize == 8)
        dtype('float64')
    """
    element_types = [np.dtype(c) for kind in kinds for c in _BY_KIND.get(kind, "")]
    if not element_types:
        raise CallerError(f"dtypes({shown(kinds)}): write some of {', '.join(_BY_KIND)}.")
    return st.sampled_from(element_types)


_BY_KIND = {"f": "fd", "i": "iqbh", "u": "IQBH", "b": "?", "c": "FD"}


def elements(dtype: Any) -> SearchStrategy[Any]:
    """Moderate numbers of a type: a sum of some hundred of them neither overflows nor cancels.

    Examples:
        >>> from hypothesis import find
        >>> from numbasync.testing import strategies
        >>> find(strategies.elements(np.int32), lambda n: n > 5)
        6
    """
    letter, width = np.dtype(dtype).kind, _width(dtype)
    if letter == "f":
        return st.floats(-100, 100, width=width, allow_subnormal=False)
    if letter == "c":
        return st.complex_numbers(max_magnitude=100, width=width)
    if letter == "b":
        return st.booleans()
    return st.integers(0 if letter == "u" else -100, 100)  # all of which bfloat16 has


def _width(dtype: Any) -> Any:
    return 8 * np.dtype(dtype).itemsize


def arrays(
    shape: Any = None, dtype: Any = np.float32, values: SearchStrategy[Any] | None = None
) -> SearchStrategy[Array]:
    """NumPy arrays of moderate numbers; shape and dtype may be strategies.

    Examples:
        >>> from hypothesis import given, settings
        >>> from numbasync.testing import strategies
        >>> @settings(max_examples=5, deadline=None)
        ... @given(strategies.arrays(strategies.shapes(2)))
        ... def test(x):
        ...     assert x.ndim == 2 and x.dtype == np.float32
        >>> test()
    """
    extents = shapes() if shape is None else shape
    element_types = dtype if isinstance(dtype, SearchStrategy) else st.just(np.dtype(dtype))
    return element_types.flatmap(lambda d: hnp.arrays(d, extents, elements=values or elements(d)))


def arrays_on(
    device: Device | None = None,
    shape: Any = None,
    dtype: Any = np.float32,
    values: SearchStrategy[Any] | None = None,
) -> SearchStrategy[Tensor]:
    """Tensors on a device; None: the device that is current when they are drawn.

    Args:
        shape, dtype, values: see `arrays`.

    Examples:
        >>> from hypothesis import given, settings
        >>> from numbasync.testing import strategies
        >>> @settings(max_examples=5, deadline=None)
        ... @given(strategies.arrays_on(na.default_device(), strategies.shapes(2)))
        ... def test(t):
        ...     assert isinstance(t, na.Tensor) and t.ndim == 2
        >>> test()
    """

    def upload(array: Array) -> Tensor:
        with use_device(default_device() if device is None else device):
            return from_host(array).sync()

    return arrays(shape, dtype, values).map(upload)


def tiles_for(
    shape: Sequence[int] | int, most_threads: int = MOST_THREADS
) -> SearchStrategy[tuple[int, ...]]:
    """Tiles for a partition of a tensor of this shape, with at most `most_threads` elements. Some
    tiles are larger than the tensor, most do not divide it. Tiles shrink to one element.

    Raises:
        CallerError: no tensor has such a shape, or no block so few threads.

    Examples:
        >>> from hypothesis import given, settings
        >>> from numbasync.testing import strategies
        >>> @settings(max_examples=5, deadline=None)
        ... @given(strategies.tiles_for((10, 20)))
        ... def test(tile):
        ...     assert len(tile) == 2
        >>> test()
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if min(extents, default=0) < 0 or most_threads < 1:
        raise CallerError(f"tiles_for({shape}, {most_threads}): there are none.")

    @st.composite
    def drawn(draw: Any) -> tuple[int, ...]:
        tile: list[int] = []
        for extent in extents:
            threads_left = most_threads // math.prod(tile)
            tile.append(draw(st.integers(1, max(1, min(threads_left, extent + 1)))))
        return tuple(tile)

    return drawn()


def launch_configs(
    kernel: Any, most_threads: int = MOST_THREADS, most_blocks: int = 8
) -> SearchStrategy[dict[str, Any]]:
    """Ways to launch a kernel, as keywords of `check_kernel`.

    The keywords are the block, with as many axes as the kernel asks `cuda.grid` for, and also the
    grid if the kernel's threads stride over the grid; or instead tiles, if the kernel has
    `na.Tile`s of one axis. Launches shrink to one thread in one block.

    Examples:
        >>> from hypothesis import given, settings
        >>> from numbasync.testing import strategies
        >>> @settings(max_examples=5, deadline=None)
        ... @given(strategies.launch_configs(saxpy))
        ... def test(launch):
        ...     assert launch.keys() <= {"grid", "block"}
        >>> test()
    """
    launcher = launcher_of(kernel)
    tiled = [p.name for p in launcher.parameters if p.role is Role.TILE]
    if tiled:
        indexed = axes_of(launcher.py_func)
        axes = max(indexed.get(name, 1) for name in tiled)
        tile = tiles_for((most_threads,) * axes, most_threads)
        return tile.map(lambda t: {"tile": dict.fromkeys(tiled, t)})
    position = usage(launcher.py_func)
    blocks = tiles_for((most_threads,) * position.rank, most_threads)
    if not position.walks:
        return blocks.map(lambda block: {"block": block})
    most_along_axis = max(1, int(most_blocks ** (1 / position.rank)))
    grids = st.tuples(*[st.integers(1, most_along_axis)] * position.rank)
    return st.builds(lambda grid, block: {"grid": grid, "block": block}, grids, blocks)


def kernel_args(
    kernel: Any,
    *,
    dtype: Any = np.float32,
    extents: Mapping[str, Sequence[str | int]] | None = None,
    longest: int | None = None,
    **given: Wish,
) -> SearchStrategy[tuple[Any, ...]]:
    """Arguments for a kernel, from its signature and its code: `@given(kernel_args(saxpy))`.

    A parameter that is indexed becomes an array with as many axes as it has indices; all arrays
    have equal extents along each axis. Every other parameter becomes a number. The kernel is
    compiled while the arguments are drawn, so that compilation does not count against a deadline.

    Args:
        dtype: of the arrays; a strategy; or a dictionary of dtypes or strategies by name.
        extents: names, or numbers, for the axes of arrays that are not all alike:
            `{"a": ("n", "k"), "b": ("k", "m"), "c": ("n", "m")}`. Equal names mean equal extents.
        longest: the largest extent; None: `LONGEST`.
        given: by name, an argument, a strategy for it, or a function of a dictionary of the
            arguments that come before it in the signature.

    Raises:
        CallerError: a name is not that of a parameter, or the axes are not a tuple.

    Examples:
        >>> from hypothesis import given, settings
        >>> from numbasync.testing import check_kernel, strategies
        >>> @settings(max_examples=3, deadline=None)
        ... @given(strategies.kernel_args(saxpy))
        ... def test(args):
        ...     check_kernel(saxpy, args, lambda z, a, x: a * x + z, races=0)
        >>> test()
    """
    launcher = launcher_of(kernel)
    indexed = axes_of(launcher.py_func)
    names = [p.name for p in launcher.parameters]
    by_name = [*given, *(extents or {}), *(dtype if isinstance(dtype, Mapping) else ())]
    unknown = [n for n in by_name if n not in names]
    if unknown:
        raise CallerError(f"kernel_args: {unknown[0]} is no parameter of {launcher.label}.")
    for name, own_axes in (extents or {}).items():
        if isinstance(own_axes, str):
            raise CallerError(
                f"kernel_args: extents of {name}: a tuple of its axes, as in ({shown(own_axes)},)."
            )
    axes = {
        p.name: (extents or {}).get(p.name) or _common_axes(indexed.get(p.name, 1))
        for p in launcher.parameters
        if _is_array(p, indexed) and p.name not in given
    }
    most_axes = max((len(a) for a in axes.values()), default=1)
    most_long = longest or LONGEST.get(most_axes, 6)
    lengths = st.integers(1, most_long)

    def draw_arguments(draw: Any, long: dict[str, int], numbers: dict[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for p in launcher.parameters:
            if p.name in numbers:
                arguments[p.name] = numbers[p.name]
            elif p.name in given:
                arguments[p.name] = _drawn_value(draw, given[p.name], arguments)
            elif p.name in axes:
                shape = tuple(_length(draw, axis, long, lengths) for axis in axes[p.name])
                array_dtype = dtype.get(p.name, np.float32) if isinstance(dtype, Mapping) else dtype
                arguments[p.name] = draw(arrays(shape, array_dtype))
            else:
                arguments[p.name] = draw(_number(launcher.py_func.__annotations__.get(p.name)))
        return arguments

    @st.composite
    def drawn(draw: Any) -> tuple[Any, ...]:
        long: dict[str, int] = {}
        arguments = draw_arguments(draw, long, {})
        if not hold(launcher, arguments):
            # The conditions may ask for multiples of 64, say: drawing until they hold is too slow.
            numbers = {name: arguments[name] for name in names if name not in {*axes, *given}}
            assume(lengthen(launcher, arguments, axes, long, most_long))
            arguments = draw_arguments(draw, long, numbers)
            assume(hold(launcher, arguments))
        args = tuple(arguments[name] for name in names)
        _compile(launcher, args)
        return args

    return drawn()


def _is_array(p: Parameter, indexed: Mapping[str, int]) -> bool:
    return p.role in (Role.INPUT, Role.OUTPUT, Role.TILE) or p.name in indexed


def _common_axes(count: int) -> list[str | int]:
    """Names for the axes of an array; arrays with equal names have equal extents."""
    return [f"axis {k}" for k in range(count)]


def _length(draw: Any, axis: str | int, long: dict[str, int], lengths: SearchStrategy[int]) -> int:
    if isinstance(axis, int):
        return axis
    if axis not in long:
        long[axis] = draw(lengths)
    return long[axis]


def _drawn_value(draw: Any, wish: Wish, made: dict[str, Any]) -> Any:
    if isinstance(wish, SearchStrategy):
        return draw(wish)
    return wish(dict(made)) if callable(wish) else wish


def _number(annotation: Any) -> SearchStrategy[Any]:
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if name == "int":
        return st.integers(-10, 10)
    if name == "bool":
        return st.booleans()
    return st.floats(-10, 10, width=32)


_compiled: weakref.WeakKeyDictionary[Launcher, set[Any]] = weakref.WeakKeyDictionary()


def _compile(launcher: Launcher, args: tuple[Any, ...]) -> None:
    """Compile for such arguments, unchecked and checked. The test will report any failure."""
    types = tuple((a.dtype, a.ndim) if isinstance(a, np.ndarray) else type(a) for a in args)
    device = default_device()
    seen = _compiled.setdefault(launcher, set())
    if (device, types) in seen:
        return
    seen.add((device, types))
    began = perf_counter()
    # One thread, with tiles as large as their arrays.
    parameters = zip(launcher.parameters, args, strict=True)
    tiles = {p.name: a.shape for p, a in parameters if p.role is Role.TILE}
    extents = Extents(tiles or None, 1, 1)
    cpus = devices("cpu")
    cpu = device if device in cpus else cpus[0]
    for checks in (Checks(), None):
        with suppress(Exception):
            Subject(launcher, args).run(cpu, extents, checks)
    if device is not cpu:
        with suppress(Exception):
            launcher.compile(*(_described(a) for a in args)).sync()
    _leave_out(perf_counter() - began)


def _leave_out(seconds: float) -> None:
    """Subtract a compilation from Hypothesis' time of drawing, of which its health check allows a
    second for all of a test's arguments.
    """
    with suppress(AttributeError):  # another version of Hypothesis may count differently
        current_build_context().data.draw_times["generate:compilation"] = -seconds


def _described(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return meta(argument.shape, argument.dtype).sync()
    return argument
