"""Launches of `numba.cuda`'s kernels on the CPU device: `kernel[grid, block](...)`, by the launcher
that a kernel of numbasync has.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.cuda.args import ArgHint, In

from numbasync.cpu_cuda import arrays
from numbasync.cpu_cuda.host import module, refuse
from numbasync.device.device import default_device, use_device
from numbasync.errors import KernelCompileError, KernelError, UnsupportedKernelError
from numbasync.launch.configured import is_plain
from numbasync.launch.launcher import launcher as launcher_of
from numbasync.memo import Memo
from numbasync.tensors.tensor import Tensor

_LAUNCHER = "_numbasync_launcher"  # attributes of a dispatcher
_CONFIGURED = "_numbasync_configured"
_MOST_CONFIGURED = 64  # grids of a kernel
# What a dispatcher tells of the code that was compiled for a GPU.
_OF_THE_CODE = (
    "get_const_mem_size", "get_local_mem_per_thread", "get_max_threads_per_block",
    "get_regs_per_thread", "get_shared_mem_per_block", "inspect_asm", "inspect_llvm",
    "inspect_lto_ptx", "inspect_sass", "inspect_sass_cfg",
)  # fmt: skip
_PLAIN = frozenset((int, float, bool, complex, np.float32, np.float64, np.int32, np.int64))
_THREADS = 128  # of a block of `kernel.forall(n)`


def call(dispatcher: Any, args: Sequence[Any], configuration: Any) -> None:
    """Run a kernel to its end. Arrays are used where they are."""
    after: list[Callable[[], object]] = []
    for extension in reversed(dispatcher.extensions or ()):
        args = [extension.prepare_args(None, a, stream=0, retr=after)[1] for a in args]
    launcher = vars(dispatcher).get(_LAUNCHER)
    if launcher is None:
        _refuse_captured(dispatcher.py_func)
        launcher = launcher_of(may_alias=True)(dispatcher)
        vars(dispatcher)[_LAUNCHER] = launcher
    configured = launcher[configuration.griddim, configuration.blockdim, 0, configuration.sharedmem]
    given = [a if type(a) in _PLAIN else _argument(a, after) for a in args]
    if dispatcher.specialized:
        (kinds,) = dispatcher.overloads
        given = [_written(k, a) for k, a in zip(kinds, given, strict=True)]
    try:
        operation = configured(*given)
        if default_device() is arrays.cpu():
            operation.sync()
        else:  # where no argument is a tensor, which it would follow
            with use_device(arrays.cpu()):
                operation.sync()
    except (KernelCompileError, UnsupportedKernelError) as error:
        raise _numbas(error) from error
    except KernelError as error:
        if type(error) is KernelError and isinstance(error.__cause__, Exception):
            error.__cause__.args = (str(error),)
            raise error.__cause__ from None  # what the kernel has raised itself
        raise
    for function in after:
        function()


def _refuse_captured(function: Any) -> None:
    """Refuse a kernel that uses device arrays of the names around it: compiled code has a copy of
    arrays that are constants, and would not see what is written to them.
    """
    names = inspect.getclosurevars(function)
    for name, value in {**names.globals, **names.nonlocals}.items():
        if isinstance(value, arrays.Plain):
            raise UnsupportedKernelError(
                f"kernel {function.__name__} uses the device array {name} from outside, which the "
                f"CPU device would copy when it compiles. Pass it as an argument."
            )


def _copied(given: np.ndarray[Any, Any], after: list[Callable[[], object]]) -> Any:
    """A copy that a kernel can use, as a GPU has one of each array of the host: to be copied back
    `after` the launch.
    """
    copied = given.copy()
    if given.flags.writeable:
        after.append(lambda: np.copyto(given, copied))
    return copied


def _argument(given: Any, after: list[Callable[[], object]]) -> Any:
    """An argument as a launcher of numbasync takes it, and what is to be done after the launch."""
    if isinstance(given, arrays.Plain):
        inner = given._ary
        return arrays.tensor_of(given) if isinstance(inner, np.ndarray) else inner
    if isinstance(given, ArgHint):  # of `cuda.In` the kernel has a copy
        given = copy.copy(given.value) if isinstance(given, In) else given.value
        return _argument(given, after)
    if isinstance(given, tuple):
        parts = [_argument(part, after) for part in given]
        return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
    if isinstance(given, np.ndarray):
        fits = given.flags.writeable and given.flags.aligned
        return arrays.tensor_of(given if fits else _copied(given, after))
    if hasattr(given, "__dlpack__") and not isinstance(given, (Tensor, np.generic)):
        return arrays.tensor_of(given)
    return given


def _written(kind: Any, argument: Any) -> Any:
    """An argument of a kernel of one signature: Numba takes its bits, and asks for no type."""
    types = module("types")
    if isinstance(kind, types.Integer) and isinstance(argument, (int, np.integer)):
        dtype = module("np.numpy_support").as_dtype(kind)
        low = int(argument) % (1 << kind.bitwidth)
        return np.array(low, f"u{dtype.itemsize}").view(dtype)[()]
    return argument


def compile(dispatcher: Any, signature: Any, result: Any = None) -> Any:
    """Remember a signature, as the dispatcher does whose code for it has been compiled: it is when
    the kernel is first launched.
    """
    types, declared = module("core.sigutils").normalize_signature(signature)
    result = declared or result
    made = SimpleNamespace(
        signature=None if result is None else result(*types), objectmode=False, entry_point=None
    )
    return dispatcher.overloads.setdefault(types, made)


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

    def nothing(self: object, *args: object, **kwargs: object) -> None:
        """No cache on disk: that of the CPU device keeps all kernels."""

    def itself(self: object, *args: object) -> object:
        return self

    def threads(self: Any, found: object) -> int:
        return self.thread_per_block or _THREADS

    def launch(self: Any, *args: object) -> None:
        call(self.dispatcher, args, self)

    plain = kind.configure

    def configure(
        self: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: Any = 0
    ) -> Any:
        """`kernel[grid, block]`, kept: programs write it at each launch."""
        key = griddim, blockdim, 0, sharedmem  # the stream makes no difference here
        if not is_plain(key):
            return plain(self, griddim, blockdim, stream, sharedmem)
        known = vars(self).get(_CONFIGURED)
        if known is None:
            known = vars(self)[_CONFIGURED] = Memo[Any, Any](_MOST_CONFIGURED)
        found = known.get(key)
        if found is None or found.pre_launch_callbacks:
            found = known[key] = plain(self, griddim, blockdim, stream, sharedmem)
        return found

    made: list[tuple[Any, str, Any]] = [
        (kind, "configure", configure),
        (home._LaunchConfiguration, "__call__", launch), (kind, "call", call),
        (kind, "compile", compile),
        (kind, "enable_caching", nothing), (kind, "specialize", itself),
        (home.ForAll, "_compute_thread_per_block", threads),
    ]  # fmt: skip
    return made + [(kind, name, refuse(f"code for GPUs: {name}")) for name in _OF_THE_CODE]
