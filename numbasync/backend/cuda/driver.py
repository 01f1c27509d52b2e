"""Driver calls: results as exceptions, and the current context of each thread; and where the
compiler's libraries are, or what installs them (`toolchain`).
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from cuda.bindings import driver

from numbasync.errors import (
    REMEDIES,
    STICKY,
    CallerError,
    DeviceLostError,
    DeviceUnavailableError,
    DriverError,
    OutOfDeviceMemoryError,
)
from numbasync.fork import in_child
from numbasync.native import compiled, core

cu: Any = driver
CUB = "NUMBASYNC_CUB"  # of the environment variable
NOT_READY = int(cu.CUresult.CUDA_ERROR_NOT_READY)


def name_of(result: Any) -> str:
    """The driver's name of a result, such as `CUDA_ERROR_INVALID_VALUE`."""
    error, text = cu.cuGetErrorName(result)
    return f"CUresult {int(result)}" if error or text is None else text.decode()


def error_of(result: Any, call: str) -> Exception:
    """The exception for a result that is not success."""
    name = name_of(result)
    error, text = cu.cuGetErrorString(result)
    detail = "" if error or text is None else text.decode()
    if name in STICKY:
        remedy = REMEDIES.get(name)
        advice = "" if remedy is None else f"\nCause: {remedy.cause}\nRemedy: {remedy.remedy}"
        return DeviceLostError(
            f"a fault has broken the CUDA context: {name} ({detail}), reported by {call}.{advice}\n"
            "Every later operation on this device fails; restart the process."
        )
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        return OutOfDeviceMemoryError(f"{call}: the device is out of memory.")
    return DriverError(call, int(result), name, detail)


def fail(result: Any, call: str) -> NoReturn:
    raise error_of(result, call)


def driver_version() -> str:
    """The installed driver's version, such as `580.159.04`, or `unknown`."""
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
        try:
            return str(nvml.system_get_driver_version())
        finally:
            nvml.shutdown()
    except Exception:  # NVML is missing or fails: no code depends on it
        return "unknown"


def toolchain() -> dict[str, str]:
    """The paths of the compiler's libraries, or the commands that install them."""
    from cuda import pathfinder

    paths = {}
    for library in ("nvvm", "nvrtc", "nvJitLink"):
        try:
            paths[library] = str(pathfinder.load_nvidia_dynamic_lib(library).abs_path)
        except Exception:  # the finder raises classes of its own
            paths[library] = "MISSING: pip install 'numbasync[cuda]'"
    return paths


def load_cupti() -> Any | None:
    """The module `cupti.cupti`; None where `cupti-python` is not installed."""
    from cuda import pathfinder

    if find_spec("cupti") is None:
        return None
    with suppress(Exception):  # the finder raises classes of its own; CUPTI may be found otherwise
        pathfinder.load_nvidia_dynamic_lib("cupti")
    return import_module("cupti.cupti")


@cache
def has_cub() -> bool:
    """Whether `cuda.compute` is installed, and the environment does not say to go without it.

    Raises:
        CallerError: the variable is neither 0 nor 1.
    """
    setting = os.environ.get(CUB, "")
    if setting not in ("", "0", "1"):
        raise CallerError(f"{CUB}={setting!r:.20}: write 0 (without CUB) or 1, or leave it out.")
    return setting != "0" and find_spec("cuda.compute") is not None


class _Thread(threading.local):
    ordinal = -1
    context = 0


_thread = _Thread()
_forked = False


@in_child
def _after_fork() -> None:
    global _forked
    _forked = True
    if core is not None:
        core.forget_current()
    _thread.ordinal = -1  # so that `enter` checks `_forked`


def _current() -> int:
    """The context that is current on this thread, as a number."""
    result, context = cu.cuCtxGetCurrent()
    if result:
        fail(result, "cuCtxGetCurrent")
    return int(context)


@compiled
def enter(device: Any) -> None:
    """Make the device's primary context current on this thread, if it is not.

    The context stays current afterwards, as in Numba, CuPy and PyTorch. The driver is asked which
    one is current, because another library may have switched since: it reads a variable of the
    thread.
    """
    if _thread.ordinal != device.ordinal or _current() != _thread.context:
        if _forked:
            raise DeviceUnavailableError(
                "CUDA cannot be used in a forked process whose parent has used it.\n"
                'Start processes with multiprocessing.get_context("spawn").'
            )
        device.core.set_current()
        _thread.ordinal = device.ordinal
        _thread.context = _current()
