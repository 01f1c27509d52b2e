"""All exceptions of numbasync, grouped by cause, and the remedies of driver errors.

`CallerError`: an argument was wrong; nothing was enqueued.
`StateError`: the arguments were right, but the program was not in a state for the call.
`DeviceError`: the device could not do the work, or failed while doing it.
`DriverError`: a driver call failed for a reason that none of the above names.
`InternalError`: a bug in numbasync.

Each exception also derives from the matching built-in one, so that `except MemoryError` and
`except TypeError` catch it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class NumbasyncError(Exception):
    """Base class of every exception that numbasync raises deliberately."""


# --- the caller's argument was wrong; nothing was enqueued -------------------------


class CallerError(NumbasyncError):
    """An argument was wrong. The error was found before anything was enqueued."""


class ShapeError(CallerError, ValueError):
    """A shape, a rank, an index or a tile does not fit."""


class DTypeError(CallerError, TypeError):
    """An element type does not fit, or a tensor cannot hold it."""


class OperationError(CallerError, TypeError):
    """An argument is not an operation where one is required, or has another wrong type."""


class NotAGraphNodeError(OperationError):
    """An operation that a graph cannot replay, because it allocates or waits for the host."""


class LauncherError(CallerError, TypeError):
    """A kernel's declaration, or a call of it, contradicts the kernel's own code."""


class LaunchError(CallerError, ValueError):
    """A grid, a block or a precondition of a launch does not fit."""


class AliasError(CallerError, ValueError):
    """One storage is an output and another argument of the same launch."""


class DeviceMismatchError(CallerError, ValueError):
    """A tensor, stream or pool belongs to another device."""


class ForeignBufferError(CallerError, ValueError):
    """A buffer of one batch was used in another batch."""


class KernelCompileError(CallerError, TypeError):
    """Numba could not compile the kernel for these argument types; `__cause__` has the reason."""


class MissingExtraError(CallerError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


# --- the program is not in a state that allows the call ---------------------------


class StateError(NumbasyncError, RuntimeError):
    """The call is valid, but was made too late, too early or twice."""


class AlreadySubmittedError(StateError):
    """An operation that can run only once was run a second time."""


class BatchStateError(StateError):
    """A batch was read before it ran, or recorded to after it ran."""


class NoResultError(BatchStateError, KeyError):
    """A key is not among the results of a batch."""

    __str__ = Exception.__str__  # KeyError's own __str__ would quote the message


class ReentrancyError(StateError):
    """An operation was run inside another operation's closure, on the same thread."""


class MovedError(StateError):
    """A handle was used after `take()` had moved its storage to another one."""


class SharedStorageError(StateError):
    """Exclusive use was requested of a storage that other handles still hold."""


class AccessConflictError(StateError):
    """Strict ordering: two streams would access one storage with no edge between them."""


class CollectiveError(StateError):
    """The ranks of a group have not called the same collective."""


class RankLostError(CollectiveError, ConnectionError):
    """A process of a group has ended, or has closed its communicator."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A process of a group has not called a collective within the communicator's time limit."""


class GraphUpdateError(StateError):
    """A graph cannot be changed in place in this way, and is unchanged. Capture a new graph."""


# --- the device ------------------------------------------------------------------


class DeviceError(NumbasyncError, RuntimeError):
    """The device cannot do the work, or failed while doing it."""


class DeviceUnavailableError(DeviceError):
    """No device of the requested kind can be used; the message says what is missing."""


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """An allocation did not fit. The device remains usable; a smaller allocation may succeed."""


class KernelError(DeviceError):
    """A kernel raised an exception. The message names kernel, block and thread."""


class BarrierDivergenceError(KernelError):
    """Some threads of a block wait at a barrier that the other threads will not reach."""


class OutOfBoundsError(KernelError, IndexError):
    """A kernel used an index outside its array."""


class MisalignedAccessError(KernelError):
    """A kernel used an address that is no multiple of the bytes of a vector access."""


class UninitialisedReadError(KernelError):
    """A kernel read shared or local memory before writing it. Found in checked kernels."""


class DataRaceError(KernelError):
    """Two threads accessed an element, at least one wrote it, and nothing orders the two accesses.
    Found in checked kernels.
    """


class InputModifiedError(KernelError):
    """A kernel wrote the memory of an input. Found in checked kernels."""


class TileOverrunError(KernelError):
    """A block wrote outside its tile of a partition. Found in checked kernels."""


class IndexOverflowError(KernelError, OverflowError):
    """A kernel truncated an index to 32 bits in which it does not fit. Found in checked kernels."""


class UnsupportedKernelError(DeviceError, NotImplementedError):
    """This device cannot run a construct that the kernel uses. The message names the construct."""


class EndlessWaitError(UnsupportedKernelError):
    """A thread waits for one that runs after it, for ever. Found in checked kernels."""


class DeviceLostError(DeviceError):
    """A fault broke the device's context: every operation fails until the program restarts."""

    device: object = None  # the `Device` that the fault has broken, once that is known


class InterpretedKernelWarning(RuntimeWarning):
    """`NUMBASYNC_CPU_ENGINE=interpreted`, or pytest's `--kernel-coverage`, makes kernels run as
    Python code on the CPU device: about a hundred times slower than compiled, and with Python's
    numbers instead of a GPU's. Given once in a process.
    """


# --- the driver, and numbasync --------------------------------------------------


class DriverError(NumbasyncError, RuntimeError):
    """A CUDA driver call failed.

    Attributes:
        call: name of the driver function.
        code: the function's numeric result.
        name: the result's name, such as `CUDA_ERROR_INVALID_VALUE`.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        self.call = call
        self.code = code
        self.name = name
        self._made_of = call, code, name, text
        remedy = REMEDIES.get(name)
        lines = [f"{call} failed: {name} ({code}): {text}"]
        if remedy is not None:
            lines += [f"Cause: {remedy.cause}", f"Remedy: {remedy.remedy}"]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of, self.__dict__


class InternalError(NumbasyncError, RuntimeError):
    """A bug in numbasync itself. Please report it, with the traceback."""


class Remedy(NamedTuple):
    """The usual cause of a driver result, and the remedy."""

    cause: str
    remedy: str


REMEDIES: dict[str, Remedy] = {
    "CUDA_ERROR_INVALID_VALUE": Remedy(
        "an argument is out of the range that this driver accepts.",
        "compare grid, block and shared memory with `numbasync doctor`'s limits of the device.",
    ),
    "CUDA_ERROR_NO_DEVICE": Remedy(
        "the driver sees no GPU.",
        "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_INVALID_CONTEXT": Remedy(
        "the context was destroyed, by cudaDeviceReset or numba.cuda.close() perhaps.",
        "do not reset the device while tensors or streams of it are alive.",
    ),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": Remedy(
        "the kernel was compiled for another compute capability.",
        "remove NUMBA_FORCE_CUDA_CC and the on-disk cache of the kernel.",
    ),
    "CUDA_ERROR_INVALID_PTX": Remedy(
        "the driver cannot assemble the kernel's PTX.",
        "update numba-cuda and the CUDA packages together: pip install -U 'numbasync[cuda]'.",
    ),
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": Remedy(
        "the installed toolkit is newer than the driver.",
        "update the driver, or install the toolkit of the driver's CUDA version.",
    ),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": Remedy(
        "the kernel needs more registers or shared memory per block than there are.",
        "use fewer threads per block, or max_registers= in @cuda.jit.",
    ),
    "CUDA_ERROR_ILLEGAL_ADDRESS": Remedy(
        "a kernel read or wrote outside its arrays.",
        "run it on the CPU device, which checks every index: NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_MISALIGNED_ADDRESS": Remedy(
        "a kernel used an address that its element type does not allow.",
        "check views made with reinterpret(), offsets into dynamic shared memory, and accesses of "
        "na.vectors, which the CPU device checks: NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_LAUNCH_TIMEOUT": Remedy(
        "the kernel ran longer than the display driver allows.",
        "split the work, or use a GPU that drives no display.",
    ),
    "CUDA_ERROR_NOT_SUPPORTED": Remedy(
        "this driver or GPU lacks the feature.",
        "`numbasync doctor` lists what is used and what was found.",
    ),
    "CUDA_ERROR_NOT_INITIALIZED": Remedy(
        "the driver was not initialised, or is shutting down with the interpreter.",
        "finish device work before the program ends; in a forked child, use spawn instead.",
    ),
    "CUDA_ERROR_STUB_LIBRARY": Remedy(
        "the toolkit's stub of libcuda was loaded instead of the driver.",
        "remove the toolkit's lib/stubs folder from LD_LIBRARY_PATH.",
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": Remedy(
        "the kernel module and libcuda are of different driver versions.",
        "reboot after a driver update, or reload the nvidia module.",
    ),
    "CUDA_ERROR_SYSTEM_NOT_READY": Remedy(
        "a service that the GPU needs, such as the fabric manager, is not running.",
        "start nvidia-fabricmanager, or ask whoever runs the machine.",
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": Remedy(
        "forward compatibility packages are installed for a GPU that does not support them.",
        "remove the cuda-compat package, or update the driver.",
    ),
    "CUDA_ERROR_INVALID_HANDLE": Remedy(
        "a stream, event or module that the driver does not know: destroyed, or of another "
        "context.",
        "do not reset the device, and keep foreign streams alive while they are used.",
    ),
    "CUDA_ERROR_INVALID_DEVICE": Remedy(
        "there is no GPU of that number.",
        "na.devices('cuda') lists them; CUDA_VISIBLE_DEVICES may hide some.",
    ),
    "CUDA_ERROR_DEVICE_UNAVAILABLE": Remedy(
        "the GPU is in exclusive mode and another process uses it.",
        "end the other process, or ask for the default compute mode.",
    ),
    "CUDA_ERROR_UNSUPPORTED_LIMIT": Remedy(
        "this GPU has no such limit.",
        "`numbasync doctor` lists the limits of the device.",
    ),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": Remedy(
        "a kernel ran code that the GPU does not have.",
        "remove NUMBA_FORCE_CUDA_CC and the on-disk cache of the kernel.",
    ),
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": Remedy(
        "a kernel used an address of another kind of memory than the instruction is for.",
        "check casts of pointers in linked device code.",
    ),
    "CUDA_ERROR_INVALID_PC": Remedy(
        "a kernel jumped to an address without code.",
        "check linked device code and recursion.",
    ),
    "CUDA_ERROR_HARDWARE_STACK_ERROR": Remedy(
        "a kernel's stack was corrupted or too small.",
        "use less recursion and smaller local arrays.",
    ),
    "CUDA_ERROR_LAUNCH_FAILED": Remedy(
        "a kernel failed in a way that the hardware does not tell, often a wrong address in "
        "shared memory.",
        "run it on the CPU device, which checks every index, or under compute-sanitizer.",
    ),
    "CUDA_ERROR_ASSERT": Remedy(
        "an assertion in device code failed.",
        "the kernel's output says which; run it on the CPU device: NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_ECC_UNCORRECTABLE": Remedy(
        "the GPU's memory has an error that it could not correct.",
        "restart the program; if it comes again, `nvidia-smi -q -d ECC` and the GPU's vendor.",
    ),
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": Remedy(
        "the link between GPUs has an error that it could not correct.",
        "restart the program; if it comes again, `nvidia-smi nvlink -e` and the vendor.",
    ),
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": Remedy(
        "the device's context was destroyed, by cudaDeviceReset or numba.cuda.close() perhaps.",
        "do not reset the device while tensors or streams of it are alive.",
    ),
    "CUDA_ERROR_CONTAINED": Remedy(
        "a hardware error that the GPU has contained to this context.",
        "restart the program; if it comes again, see the system log for Xid errors.",
    ),
    "CUDA_ERROR_EXTERNAL_DEVICE": Remedy(
        "another device that the GPU works with, a network card say, has failed.",
        "see the system log.",
    ),
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": Remedy(
        "a kernel ended without giving its tensor memory back.",
        "check the device code that allocates it.",
    ),
    "CUDA_ERROR_UNKNOWN": Remedy(
        "the driver does not say.",
        "`nvidia-smi` and the system log may tell; a restart of the program may help.",
    ),
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": Remedy(
        "the call is not allowed while a graph is being captured.",
        "allocate and compile before the capture begins.",
    ),
}

# Results after which every call in the context fails with the same error.
STICKY: frozenset[str] = frozenset(
    {
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    }
)
