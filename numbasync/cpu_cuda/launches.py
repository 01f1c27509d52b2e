"""Launches of `numba.cuda`'s kernels on the CPU device: `kernel[grid, block](...)`, by the launcher
that a kernel of numbasync has.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
import threading
from collections.abc import Callable, Sequence
from inspect import CO_VARARGS
from typing import Any

import numpy as np
from numba.cuda.args import ArgHint, In
from numba.cuda.cudadrv.devicearray import DeviceNDArrayBase, DeviceRecord

from numbasync.backend.protocols import THREADS_MAY_RETURN
from numbasync.cpu_cuda import arrays
from numbasync.cpu_cuda.host import blocks_at_once, checked_stream, module, refusal, refuse
from numbasync.cpu_cuda.summary import counts_of
from numbasync.device import address_map
from numbasync.device.device import default_device, use_device
from numbasync.errors import (
    KernelCompileError,
    KernelError,
    LauncherError,
    NumbasyncError,
    UnsupportedKernelError,
)
from numbasync.launch.launcher import launcher as launcher_of
from numbasync.launch.plan import with_parameters
from numbasync.memo import Memo
from numbasync.tensors.import_array import as_tensor
from numbasync.tensors.tensor import Tensor

_LAUNCHER = "_numbasync_launcher"  # attributes of a dispatcher
_CONFIGURED = "_numbasync_configured"
_READY = "_numbasync_ready"  # of a configuration
_VARIADIC = "_numbasync_variadic"  # of a kernel with *args: that of each number of arguments
_PLACE = "_numbasync_place"  # of a device array
_MOST_CONFIGURED = 64  # grids of a kernel
# What a dispatcher tells of the code that was compiled for a GPU.
_OF_THE_CODE = (
    "get_const_mem_size", "get_local_mem_per_thread", "get_regs_per_thread",
    "get_shared_mem_per_block", "inspect_asm", "inspect_llvm", "inspect_lto_ptx", "inspect_sass",
    "inspect_sass_cfg", "inspect_types",
)  # fmt: skip
_PLAIN = (int, float, bool, complex, np.number, np.bool_, type(None))
_THREADS = 128  # of a block of `kernel.forall(n)`
After = list[Callable[[], object]]


class _Ready:
    """A kernel with a grid, and what is decided once for all its launches."""

    __slots__ = ("compilations", "counts", "extensions", "integers", "kernel", "remembered")

    def __init__(self, dispatcher: Any, configuration: Any) -> None:
        launcher = vars(dispatcher).get(_LAUNCHER)
        self.counts = counts_of(dispatcher.py_func)
        if launcher is None:
            launcher = vars(dispatcher)[_LAUNCHER] = launcher_of(may_alias=True)(dispatcher)
            self.counts.add(launcher.planner.kernel.seconds)
            setattr(launcher.kernel, THREADS_MAY_RETURN, True)  # before a barrier
        self.compilations, self.remembered = launcher.planner.kernel.seconds, 0
        grid, block = configuration.griddim, configuration.blockdim
        self.kernel = launcher[grid, block, 0, configuration.sharedmem]
        self.extensions = dispatcher.extensions or ()
        self.integers: Any = None
        if dispatcher.specialized:
            self.integers = [_integer(each) for each in next(iter(dispatcher.overloads))]


def _extended(ready: _Ready, args: Any, after: After) -> Any:
    """The arguments, as the kernel's extensions make them of each and of its type in Numba."""
    pairs = [(_type_of(a), a) for a in args]
    for extension in reversed(ready.extensions):
        pairs = [extension.prepare_args(kind, a, stream=0, retr=after) for kind, a in pairs]
    return [a for _, a in pairs]


def _type_of(argument: Any) -> Any:
    """Numba's type of an argument; None if it has none: an extension may know it."""
    with contextlib.suppress(ValueError, module("core.errors").NumbaError):
        return module("typing.typeof").typeof(argument)
    return None


def _first(configuration: Any) -> _Ready:
    """What a configuration decides at its first launch."""
    try:
        return _Ready(configuration.dispatcher, configuration)
    except (LauncherError, KernelCompileError, UnsupportedKernelError) as error:
        raise _numbas(error) from error


def _remember(ready: _Ready, dispatcher: Any, args: Any) -> None:
    """Note the signature of a launch that a kernel was compiled for among those of the kernel."""
    ready.remembered = len(ready.compilations)
    if dispatcher._can_compile:  # else its signatures are declared
        with contextlib.suppress(Exception):  # Numba has no type for it
            compile(dispatcher, tuple(map(dispatcher.typeof_pyval, args)))


def launch(configuration: Any, *args: Any) -> None:
    """`kernel[grid, block](...)`: run it to its end. Arrays are used where they are."""
    ready = configuration.__dict__.get(_READY)
    if ready is None:
        dispatcher = configuration.dispatcher
        if dispatcher.py_func.__code__.co_flags & CO_VARARGS:
            known = vars(dispatcher).setdefault(_VARIADIC, {})
            if len(args) not in known:
                known[len(args)] = with_parameters(dispatcher, len(args))
            grid, block = configuration.griddim, configuration.blockdim
            launch(known[len(args)][grid, block, 0, configuration.sharedmem], *args)
            return
        ready = configuration.__dict__[_READY] = _first(configuration)
    ready.counts.launches += 1
    after: After = []
    if ready.extensions:
        args = _extended(ready, args, after)
    given = [a if (read := _readers[type(a)]) is None else read(a, after) for a in args]
    if ready.integers is not None:
        given = [_written(i, a) for i, a in zip(ready.integers, given, strict=True)]
    try:
        operation = ready.kernel(*given)
        if (given and type(given[0]) is Tensor) or default_device() is arrays.cpu():
            operation.sync()  # where the tensor is
        else:
            with use_device(arrays.cpu()):
                operation.sync()
    except (KernelCompileError, UnsupportedKernelError) as error:
        viewed = _viewed(configuration.dispatcher, args)
        if viewed is None:
            raise _numbas(error) from error
        launch(configuration, *viewed)
    except KernelError as error:
        if type(error) is KernelError and isinstance(error.__cause__, Exception):
            error.__cause__.args = (str(error),)
            raise error.__cause__ from None  # what the kernel has raised itself
        raise
    except Exception:
        raise
    except BaseException:  # ^C: the kernel may still run
        threading.Thread(target=_keep, args=(args, after), daemon=True).start()
        raise
    if len(ready.compilations) != ready.remembered:
        _remember(ready, configuration.dispatcher, args)
    for function in after:
        function()


def _keep(*used: object) -> None:
    """Keep what a kernel uses until the device has ended its work: tensors do not."""
    with contextlib.suppress(NumbasyncError):  # which its launch would have raised
        arrays.cpu().synchronize()


# --- arguments, as a launcher of numbasync takes them, and what is to be done after the launch ---


def _of_device(given: Any, after: After) -> Any:
    place: arrays.Place | None = given.__dict__.get(_PLACE)
    if place is None:
        inner: Any = arrays.elements(given)
        if isinstance(given, DeviceRecord):
            return _of_record(inner[()], after)
        place = given.__dict__[_PLACE] = arrays.place_of(inner)
    if place.additions == address_map.additions:
        return place.tensor
    return place.tensor_of(arrays.elements(given))


def _of_host(given: np.ndarray[Any, Any], after: After) -> Tensor:
    """The array where it is; a copy of one that no kernel can use, as a GPU has of each array."""
    if given.flags.behaved:
        return arrays.tensor_of(given)
    copied = given.copy()
    after.append(lambda: copied)  # it lives as long as the launch
    if given.flags.writeable:
        after.append(lambda: np.copyto(given, copied))
    return arrays.tensor_of(copied)


def _of_hint(given: ArgHint, after: After) -> Any:
    value = copy.copy(given.value) if isinstance(given, In) else given.value
    after.append(lambda: value)  # it lives as long as the launch
    return _argument(value, after)


def _of_record(given: np.void, after: After) -> Any:
    """The record where it is, or a copy, which is copied back."""
    if not given.dtype.names:
        return given
    held = np.asarray(given)
    if given.flags.owndata or not held.flags.behaved:
        held = held.copy()
        if given.flags.writeable:
            after.append(lambda: _fill(given, held))
    after.append(lambda: held)  # it lives as long as the launch
    return arrays.tensor_of_scalar(held, given)


def _fill(record: np.void, held: np.ndarray[Any, Any]) -> None:
    for name in held.dtype.names or ():
        record[name] = held[name]


def _of_time(given: np.datetime64 | np.timedelta64, after: After) -> Tensor:
    held = np.asarray(given)
    after.append(lambda: held)  # it lives as long as the launch
    return arrays.tensor_of_scalar(held, given)


def _of_tuple(given: Any, after: After) -> Any:
    parts = [_argument(part, after) for part in given]
    return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)


def _of_other(given: Any, after: After) -> Any:
    if hasattr(given, "__dlpack__"):
        return as_tensor(given, arrays.cpu())
    if hasattr(given, "__cuda_array_interface__"):
        found = arrays.as_cuda_array(given)
        after.append(lambda: found)  # it lives as long as the launch
        return _of_device(found, after)
    return given


def _argument(given: Any, after: After) -> Any:
    read = _readers[type(given)]
    return given if read is None else read(given, after)


_Read = Callable[[Any, After], Any]
_READ: tuple[tuple[Any, _Read | None], ...] = (
    ((np.datetime64, np.timedelta64), _of_time), (np.void, _of_record),
    (_PLAIN, None), (Tensor, None), (np.ndarray, _of_host),
    (DeviceNDArrayBase, _of_device),
    (ArgHint, _of_hint), (tuple, _of_tuple), (np.generic, None), (object, _of_other),
)  # fmt: skip
_WHOLE = (int, np.integer)
_MOST_TYPES = 256


class _Readers(Memo[type, _Read | None]):
    """How arguments of a type are read, decided once for each."""

    def __missing__(self, kind: type) -> _Read | None:
        read = next(read for kinds, read in _READ if issubclass(kind, kinds))
        self[kind] = read
        return read


_readers = _Readers(_MOST_TYPES)


def _integer(kind: Any) -> tuple[np.dtype[Any], np.dtype[Any]] | None:
    """The dtype of a declared parameter, and that of its bits; None if it is no integer."""
    if not isinstance(kind, module("types").Integer):
        return None
    dtype = module("np.numpy_support").as_dtype(kind)
    return dtype, np.dtype(f"u{dtype.itemsize}")


def _written(integer: tuple[np.dtype[Any], np.dtype[Any]] | None, argument: Any) -> Any:
    """An argument of a kernel of one signature: Numba takes its bits, and asks for no type."""
    if integer is None or not isinstance(argument, _WHOLE):
        return argument
    dtype, bits = integer
    number = int(argument)
    if dtype == np.int64 and -(2**63) <= number < 2**63:
        return number  # as it is, and faster
    return np.array(number % (1 << 8 * dtype.itemsize), bits).view(dtype)[()]


def _viewed(dispatcher: Any, args: Sequence[Any]) -> list[Any] | None:
    """The arguments of a kernel of one signature, arrays of other types than the declared as if
    they were of those: Numba takes the bits. None if there is none.
    """
    if not dispatcher.specialized:
        return None
    kinds = next(iter(dispatcher.overloads))
    viewed = [_as_declared(kind, a) for kind, a in zip(kinds, args, strict=True)]
    return viewed if any(new is not old for new, old in zip(viewed, args, strict=True)) else None


def _as_declared(kind: Any, argument: Any) -> Any:
    given = getattr(argument, "dtype", None)
    if given is None or not isinstance(kind, module("types").Array):
        return argument
    wanted = module("np.numpy_support").as_dtype(kind.dtype)
    is_other = given != wanted and given.itemsize == wanted.itemsize
    return argument.view(wanted) if is_other else argument


def compile(dispatcher: Any, signature: Any, result: Any = None) -> Any:
    """Remember a signature, as the dispatcher does whose code for it has been compiled: it is when
    the kernel is first launched.
    """
    types, declared = module("core.sigutils").normalize_signature(signature)
    result = declared or result
    made = _Overload(None if result is None else result(*types))
    return dispatcher.overloads.setdefault(types, made)


class _Overload:
    """A kernel for one signature, as `kernel.overloads[signature]` gives it."""

    objectmode, entry_point = False, None

    def __init__(self, signature: Any) -> None:
        self.signature = signature

    @property
    def max_threads_per_block(self) -> int:
        return arrays.cpu().limits.max_threads_per_block

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """The blocks of a grid that synchronises: those that a small GPU has at once."""
        return blocks_at_once(math.prod(blockdim) if isinstance(blockdim, tuple) else blockdim)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(f"code for GPUs: {name}")


def _numbas(error: Exception) -> BaseException:
    """Numba's own error, which programs catch by its class, with the text of ours: `numba.cuda` and
    `numba.core` have a class of that name each.
    """
    name = type(error.__cause__).__name__
    homes = module("core.errors"), importlib.import_module("numba.core.errors")
    classes = dict.fromkeys(getattr(home, name) for home in homes if hasattr(home, name))
    if not classes:
        return error
    made: BaseException = type(name, (*classes, type(error)), {})(str(error))
    return made


def replacements() -> list[tuple[Any, str, Any]]:
    """What `numba.cuda`'s kernels have in the place of their own, as (class, name, value)."""
    home = module("dispatcher")
    kind = home.CUDADispatcher

    def itself(self: object, *args: object) -> object:
        return self

    def threads(self: Any, found: object) -> int:
        return self.thread_per_block or _THREADS

    plain, state_of = kind.__getitem__, home._LaunchConfiguration.__getstate__

    def configured(self: Any, given: Any) -> Any:
        """`kernel[grid, block]`, kept: programs write it at each launch."""
        key = given
        if len(given) > 2:  # all streams are one
            checked_stream(given[2])
            key = (*given[:2], 0, *given[3:]) if any(given[3:]) else given[:2]
        known = self.__dict__.get(_CONFIGURED)
        if known is None:
            known = self.__dict__[_CONFIGURED] = Memo[Any, Any](_MOST_CONFIGURED)
        found = known.get(key)
        if found is None or found.pre_launch_callbacks:
            found = known[key] = plain(self, given)
        return found

    def state(self: Any) -> Any:
        kept = state_of(self)
        kept.pop(_READY, None)
        return kept

    def call(self: object, args: Sequence[Any], configuration: Any) -> None:
        launch(configuration, *args)

    made: list[tuple[Any, str, Any]] = [
        (kind, "__getitem__", configured),
        (home._LaunchConfiguration, "__call__", launch), (kind, "call", call),
        (home._LaunchConfiguration, "__getstate__", state),
        (kind, "compile", compile),
        (kind, "specialize", itself),
        (home.ForAll, "_compute_thread_per_block", threads),
    ]  # fmt: skip
    return made + [(kind, name, refuse(f"code for GPUs: {name}")) for name in _OF_THE_CODE]
