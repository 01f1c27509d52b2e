"""Hypothesis strategies for kernels: arguments from a kernel's signature, shapes, tiles, launches.

What fails is made smaller by Hypothesis: fewer elements, fewer threads, simpler numbers. Import
this module by its name; it needs Hypothesis, which numbasync does not.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from numbasync.backend.protocols import Checks
from numbasync.device.device import Device, default_device, devices, use_device
from numbasync.errors import CallerError, MissingExtraError
from numbasync.launch.launcher import Launcher
from numbasync.launch.parameters import Parameter, Role
from numbasync.tensors import create
from numbasync.tensors.tensor import Tensor
from numbasync.testing.check.closeness import Array
from numbasync.testing.check.fitting_shapes import hold, lengthen
from numbasync.testing.check.guarded_run import Extents, Subject, launcher_of
from numbasync.testing.check.source_hints import Usage, usage_of

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

# What the largest arrays have along each axis, by their number of axes: several blocks of the
# usual sizes, and quick to run.
LONGEST = {0: 1, 1: 300, 2: 40, 3: 12}
MOST_THREADS = 256

# A value, a strategy for it, or what makes it of the arguments that come before it.
Wish: TypeAlias = Any


def shapes(ndim: int = 1, longest: int | None = None, shortest: int = 1) -> SearchStrategy[Any]:
    """Shapes of `ndim` axes, as tuples. They shrink to `shortest`.

    Args:
        longest: the largest extent; None: `LONGEST`.

    Raises:
        CallerError: there are no such shapes.
    """
    most = max(LONGEST.get(ndim, 6), shortest) if longest is None else longest
    if ndim < 0 or not 0 <= shortest <= most:
        raise CallerError(f"shapes({ndim}, {longest}, {shortest}): there are none.")
    return st.tuples(*[st.integers(shortest, most)] * ndim)


def dtypes(kinds: str = "fiu") -> SearchStrategy[np.dtype[Any]]:
    """Element types that devices have: `f` floats of 32 and 64 bits, `i` and `u` integers, `b`
    bools, `c` complex. They shrink to float32, or to what comes first.
    """
    found = [np.dtype(c) for kind in kinds for c in _BY_KIND.get(kind, "")]
    if not found:
        raise CallerError(f"dtypes({kinds!r}): write some of {', '.join(_BY_KIND)}.")
    return st.sampled_from(found)


_BY_KIND = {"f": "fd", "i": "iqbh", "u": "IQBH", "b": "?", "c": "FD"}


def elements(dtype: Any) -> SearchStrategy[Any]:
    """Moderate numbers of a type: what a sum of some hundred neither overflows nor cancels."""
    letter, width = np.dtype(dtype).kind, _width(dtype)
    if letter == "f":
        return st.floats(-100, 100, width=width, allow_subnormal=False)
    if letter == "c":
        return st.complex_numbers(max_magnitude=100, width=width)
    if letter == "b":
        return st.booleans()
    return st.integers(-100 if letter == "i" else 0, 100)


def _width(dtype: Any) -> Any:
    return 8 * np.dtype(dtype).itemsize


def arrays(
    shape: Any = None, dtype: Any = np.float32, values: SearchStrategy[Any] | None = None
) -> SearchStrategy[Array]:
    """NumPy arrays of moderate numbers; shape and dtype may be strategies."""
    extents = shapes() if shape is None else shape
    kinds = dtype if isinstance(dtype, SearchStrategy) else st.just(np.dtype(dtype))
    return kinds.flatmap(lambda d: hnp.arrays(d, extents, elements=values or elements(d)))


def arrays_on(
    device: Device | None = None,
    shape: Any = None,
    dtype: Any = np.float32,
    values: SearchStrategy[Any] | None = None,
) -> SearchStrategy[Tensor]:
    """Tensors on a device; None: the one that is current when they are drawn.

    Args:
        shape, dtype, values: see `arrays`.
    """

    def upload(array: Array) -> Tensor:
        with use_device(default_device() if device is None else device):
            return create.from_host(array).sync()

    return arrays(shape, dtype, values).map(upload)


def tiles_for(
    shape: Sequence[int] | int, most_threads: int = MOST_THREADS
) -> SearchStrategy[tuple[int, ...]]:
    """Tiles for a partition of such a tensor, with at most `most_threads` elements; some are
    larger than the tensor, most do not divide it. They shrink to one element.

    Raises:
        CallerError: no tensor has such a shape, or no block so few threads.
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if min(extents, default=0) < 0 or most_threads < 1:
        raise CallerError(f"tiles_for({shape}, {most_threads}): there are none.")

    @st.composite
    def drawn(draw: Any) -> tuple[int, ...]:
        tile: list[int] = []
        for extent in extents:
            left = most_threads // math.prod(tile)
            tile.append(draw(st.integers(1, max(1, min(left, extent + 1)))))
        return tuple(tile)

    return drawn()


def launch_configs(
    kernel: Any, most_threads: int = MOST_THREADS, most_blocks: int = 8
) -> SearchStrategy[dict[str, Any]]:
    """Ways to launch a kernel, as keywords of `check_kernel`.

    The block, as many axes of it as the kernel asks `cuda.grid` for; if its threads stride over
    the grid, the grid, too; if it has `na.Tile`s of one axis, tiles instead. They shrink to one
    thread in one block.
    """
    launcher = launcher_of(kernel)
    usage = usage_of(launcher.py_func)
    tiled = [p.name for p in launcher.parameters if p.role is Role.TILE]
    if tiled:
        axes = max(usage.axes.get(name, 1) for name in tiled)
        tile = tiles_for((most_threads,) * axes, most_threads)
        return tile.map(lambda t: {"tile": dict.fromkeys(tiled, t)})
    sides = tiles_for((most_threads,) * usage.grid_axes, most_threads)
    if not usage.strides:
        return sides.map(lambda block: {"block": block})
    few = max(1, int(most_blocks ** (1 / usage.grid_axes)))
    grids = st.tuples(*[st.integers(1, few)] * usage.grid_axes)
    return st.builds(lambda grid, block: {"grid": grid, "block": block}, grids, sides)


def kernel_args(
    kernel: Any,
    *,
    dtype: Any = np.float32,
    extents: Mapping[str, Sequence[str | int]] | None = None,
    longest: int | None = None,
    **given: Wish,
) -> SearchStrategy[tuple[Any, ...]]:
    """Arguments for a kernel, from its signature and its code: `@given(kernel_args(saxpy))`.

    What is indexed is an array, of as many axes as it has indices; all arrays are as long as each
    other along each axis. Everything else is a number. The kernel is compiled while they are
    drawn, so that no deadline runs meanwhile.

    Args:
        dtype: of the arrays; a strategy; or a dictionary of these by name.
        extents: names, or numbers, of the axes of arrays that are not all alike:
            `{"a": ("n", "k"), "b": ("k", "m"), "c": ("n", "m")}`. Equal names are equally long.
        longest: the largest extent; None: `LONGEST`.
        given: by name, an argument, a strategy for it, or a function of a dictionary of those
            that come before it in the signature.

    Raises:
        CallerError: a name is of no parameter, or axes are no tuple.
    """
    launcher = launcher_of(kernel)
    usage = usage_of(launcher.py_func)
    names = [p.name for p in launcher.parameters]
    by_name = [*given, *(extents or {}), *(dtype if isinstance(dtype, Mapping) else ())]
    unknown = [n for n in by_name if n not in names]
    if unknown:
        raise CallerError(f"kernel_args: {unknown[0]} is no parameter of {launcher.label}.")
    for name, axes_of in (extents or {}).items():
        if isinstance(axes_of, str):
            raise CallerError(
                f"kernel_args: extents of {name}: a tuple of its axes, as in ({axes_of!r},)."
            )
    axes = {
        p.name: (extents or {}).get(p.name) or _alike(usage.axes.get(p.name, 1))
        for p in launcher.parameters
        if _is_array(p, usage) and p.name not in given
    }
    most = max((len(a) for a in axes.values()), default=1)
    most_long = longest or LONGEST.get(most, 6)
    lengths = st.integers(1, most_long)

    def parts(draw: Any, long: dict[str, int], numbers: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for p in launcher.parameters:
            if p.name in numbers:
                made[p.name] = numbers[p.name]
            elif p.name in given:
                made[p.name] = _wished(draw, given[p.name], made)
            elif p.name in axes:
                shape = tuple(_length(draw, axis, long, lengths) for axis in axes[p.name])
                kind = dtype.get(p.name, np.float32) if isinstance(dtype, Mapping) else dtype
                made[p.name] = draw(arrays(shape, kind))
            else:
                made[p.name] = draw(_number(launcher.py_func.__annotations__.get(p.name)))
        return made

    @st.composite
    def drawn(draw: Any) -> tuple[Any, ...]:
        long: dict[str, int] = {}
        made = parts(draw, long, {})
        if not hold(launcher, made):
            # Most extents may be no multiple of 64: to draw until one is, takes too long.
            numbers = {name: made[name] for name in names if name not in {*axes, *given}}
            assume(lengthen(launcher, made, axes, long, most_long))
            made = parts(draw, long, numbers)
            assume(hold(launcher, made))
        args = tuple(made[name] for name in names)
        _compile(launcher, args)
        return args

    return drawn()


def _is_array(p: Parameter, usage: Usage) -> bool:
    return p.role in (Role.INPUT, Role.OUTPUT, Role.TILE) or p.name in usage.axes


def _alike(count: int) -> list[str | int]:
    """Names of the axes of arrays that are all alike."""
    return [f"axis {k}" for k in range(count)]


def _length(draw: Any, axis: str | int, long: dict[str, int], lengths: SearchStrategy[int]) -> int:
    if isinstance(axis, int):
        return axis
    if axis not in long:
        long[axis] = draw(lengths)
    return long[axis]


def _wished(draw: Any, wish: Wish, made: dict[str, Any]) -> Any:
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
    """Compile for such arguments, plainly and to be watched. What fails will fail in the test."""
    kinds = tuple((a.dtype, a.ndim) if isinstance(a, np.ndarray) else type(a) for a in args)
    here = default_device()
    seen = _compiled.setdefault(launcher, set())
    if (here, kinds) in seen:
        return
    seen.add((here, kinds))
    began = perf_counter()
    # One thread; of a tile, the whole of its array.
    parameters = zip(launcher.parameters, args, strict=True)
    tiles = {p.name: a.shape for p, a in parameters if p.role is Role.TILE}
    extents = Extents(tiles or None, 1, 1)
    cpus = devices("cpu")
    cpu = here if here in cpus else cpus[0]
    for checks in (Checks(), None):
        with suppress(Exception):
            Subject(launcher, args).run(cpu, extents, checks)
    if here is not cpu:
        with suppress(Exception):
            launcher.compile(*(_described(a) for a in args)).sync()
    _leave_out(perf_counter() - began)


def _leave_out(seconds: float) -> None:
    """Leave a compilation out of what Hypothesis takes for the time of drawing, of which its health
    check allows a second for all of a test's arguments.
    """
    with suppress(AttributeError):  # of a Hypothesis that counts otherwise
        current_build_context().data.draw_times["generate:compilation"] = -seconds


def _described(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return create.meta(argument.shape, argument.dtype).sync()
    return argument
