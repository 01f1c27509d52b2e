"""Results of the CUDA driver: their usual causes, the remedies, and which break a context.

`numbasync.errors` says them in its messages.
"""

from __future__ import annotations

# By the name of the result: its cause, and the remedy.
REMEDIES: dict[str, tuple[str, str]] = {
    "CUDA_ERROR_INVALID_VALUE": (
        "an argument is out of the range that this driver accepts.",
        "compare grid, block and shared memory with `numbasync doctor`'s limits of the device.",
    ),
    "CUDA_ERROR_NO_DEVICE": (
        "the driver sees no GPU.",
        "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_INVALID_CONTEXT": (
        "the context was destroyed, by cudaDeviceReset or numba.cuda.close() perhaps.",
        "do not reset the device while tensors or streams of it are alive.",
    ),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": (
        "the kernel was compiled for another compute capability.",
        "remove NUMBA_FORCE_CUDA_CC and the on-disk cache of the kernel.",
    ),
    "CUDA_ERROR_INVALID_PTX": (
        "the driver cannot assemble the kernel's PTX.",
        "update numba-cuda and the CUDA packages together: pip install -U 'numbasync[cuda]'.",
    ),
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
        "the installed toolkit is newer than the driver.",
        "update the driver, or install the toolkit of the driver's CUDA version.",
    ),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (
        "the kernel needs more registers or shared memory per block than there are.",
        "use fewer threads per block, or max_registers= in @cuda.jit.",
    ),
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "a kernel read or wrote outside its arrays.",
        "run it on the CPU device, which checks every index: NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_MISALIGNED_ADDRESS": (
        "a kernel used an address that its element type does not allow.",
        (
            "check views made with reinterpret(), offsets into dynamic shared memory, and accesses "
            "of na.vectors, which the CPU device checks: NUMBASYNC_DEVICE=cpu."
        ),
    ),
    "CUDA_ERROR_LAUNCH_TIMEOUT": (
        "the kernel ran longer than the display driver allows.",
        "split the work, or use a GPU that drives no display.",
    ),
    "CUDA_ERROR_NOT_SUPPORTED": (
        "this driver or GPU lacks the feature.",
        "`numbasync doctor` lists what is used and what was found.",
    ),
    "CUDA_ERROR_NOT_INITIALIZED": (
        "the driver was not initialised, or is shutting down with the interpreter.",
        "finish device work before the program ends; in a forked child, use spawn instead.",
    ),
    "CUDA_ERROR_STUB_LIBRARY": (
        "the toolkit's stub of libcuda was loaded instead of the driver.",
        "remove the toolkit's lib/stubs folder from LD_LIBRARY_PATH.",
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "the kernel module and libcuda are of different driver versions.",
        "reboot after a driver update, or reload the nvidia module.",
    ),
    "CUDA_ERROR_SYSTEM_NOT_READY": (
        "a service that the GPU needs, such as the fabric manager, is not running.",
        "start nvidia-fabricmanager, or ask whoever runs the machine.",
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "forward compatibility packages are installed for a GPU that does not support them.",
        "remove the cuda-compat package, or update the driver.",
    ),
    "CUDA_ERROR_INVALID_HANDLE": (
        (
            "a stream, event or module that the driver does not know: destroyed, or of another "
            "context."
        ),
        "do not reset the device, and keep foreign streams alive while they are used.",
    ),
    "CUDA_ERROR_INVALID_DEVICE": (
        "there is no GPU of that number.",
        "na.devices('cuda') lists them; CUDA_VISIBLE_DEVICES may hide some.",
    ),
    "CUDA_ERROR_DEVICE_UNAVAILABLE": (
        "the GPU is in exclusive mode and another process uses it.",
        "end the other process, or ask for the default compute mode.",
    ),
    "CUDA_ERROR_UNSUPPORTED_LIMIT": (
        "this GPU has no such limit.",
        "`numbasync doctor` lists the limits of the device.",
    ),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": (
        "a kernel ran code that the GPU does not have.",
        "remove NUMBA_FORCE_CUDA_CC and the on-disk cache of the kernel.",
    ),
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": (
        "a kernel used an address of another kind of memory than the instruction is for.",
        "check casts of pointers in linked device code.",
    ),
    "CUDA_ERROR_INVALID_PC": (
        "a kernel jumped to an address without code.",
        "check linked device code and recursion.",
    ),
    "CUDA_ERROR_HARDWARE_STACK_ERROR": (
        "a kernel's stack was corrupted or too small.",
        "use less recursion and smaller local arrays.",
    ),
    "CUDA_ERROR_LAUNCH_FAILED": (
        (
            "a kernel failed in a way that the hardware does not tell, often a wrong address in "
            "shared memory."
        ),
        "run it on the CPU device, which checks every index, or under compute-sanitizer.",
    ),
    "CUDA_ERROR_ASSERT": (
        "an assertion in device code failed.",
        "the kernel's output says which; run it on the CPU device: NUMBASYNC_DEVICE=cpu.",
    ),
    "CUDA_ERROR_ECC_UNCORRECTABLE": (
        "the GPU's memory has an error that it could not correct.",
        "restart the program; if it comes again, `nvidia-smi -q -d ECC` and the GPU's vendor.",
    ),
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": (
        "the link between GPUs has an error that it could not correct.",
        "restart the program; if it comes again, `nvidia-smi nvlink -e` and the vendor.",
    ),
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": (
        "the device's context was destroyed, by cudaDeviceReset or numba.cuda.close() perhaps.",
        "do not reset the device while tensors or streams of it are alive.",
    ),
    "CUDA_ERROR_CONTAINED": (
        "a hardware error that the GPU has contained to this context.",
        "restart the program; if it comes again, see the system log for Xid errors.",
    ),
    "CUDA_ERROR_EXTERNAL_DEVICE": (
        "another device that the GPU works with, a network card say, has failed.",
        "see the system log.",
    ),
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": (
        "a kernel ended without giving its tensor memory back.",
        "check the device code that allocates it.",
    ),
    "CUDA_ERROR_UNKNOWN": (
        "the driver does not say.",
        "`nvidia-smi` and the system log may tell; a restart of the program may help.",
    ),
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": (
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
