"""Finds and lists the devices of both backends; no other module knows that there are two.

A backend is imported on first use. The absence of a usable GPU is not an error here:
`why_unavailable` gives the reason, and the callers decide how to treat it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from functools import lru_cache

from numbasync.arguments import is_one_of, shown, with_type
from numbasync.backend.numba_cuda_arrays import MISSING
from numbasync.backend.protocols import Device
from numbasync.compilers import ONLY_MLIR
from numbasync.errors import CallerError, DeviceMismatchError, DeviceUnavailableError

__all__ = [
    "KINDS", "check_backend", "devices", "named", "preferred", "stream_identity",
    "stream_ordinal", "toolchain", "why_unavailable",
]  # fmt: skip

# The kinds of devices, in the order in which `devices()` lists them.
KINDS = ("cuda", "cpu")

_lock = threading.RLock()


@lru_cache(maxsize=1)
def _cuda() -> tuple[tuple[Device, ...], str]:
    """The CUDA devices, and the reason if there are none."""
    try:
        from numbasync.backend import cuda
    except ImportError as error:
        return (), (
            f"the CUDA packages cannot be imported ({error}).\n"
            "On a machine with an NVIDIA GPU: pip install 'numbasync[cuda]'"
        )
    return cuda.find()


@lru_cache(maxsize=1)
def _cpu() -> tuple[Device, ...]:
    if ONLY_MLIR:  # whose package has no lowering that the CPU device could be made of
        return ()
    from numbasync.backend import cpu

    text = os.environ.get("NUMBASYNC_CPU_DEVICES", "2")
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= 64:
        raise DeviceUnavailableError(
            f"NUMBASYNC_CPU_DEVICES={shown(text)} is not a number of virtual CPU devices.\n"
            "Write a whole number from 1 to 64, or unset it for 2."
        )
    return cpu.find(int(text))


def devices(kind: str | None = None) -> tuple[Device, ...]:
    """The devices of one kind, or all devices, CUDA first."""
    if not is_one_of(kind, (None, *KINDS)):
        raise CallerError(f"there is no device kind {shown(kind)}; write 'cuda', 'cpu' or None.")
    with _lock:
        if kind == "cuda":
            return _cuda()[0]
        if kind == "cpu":
            return _cpu()
        return (*_cuda()[0], *_cpu())


def check_backend(device: object, what: str) -> None:
    """Refuse what is no device of a backend.

    Raises:
        CallerError: the message says that `what` is not what programs call.
    """
    if isinstance(device, type) or not hasattr(device, "host_buffer"):
        raise CallerError(
            f"{what} takes a device of a backend, not {with_type(device)}: write "
            "na.default_device(), and of a device device.new_pool()."
        )


def why_unavailable(kind: str) -> str:
    """The reason why `devices(kind)` is empty; an empty string if it is not."""
    with _lock:
        if kind == "cuda":
            return _cuda()[1]
        return MISSING if ONLY_MLIR else ""


def named(name: str) -> Device:
    """The device of that name: `"cpu"` is the first of its kind, `"cpu:1"` the one numbered 1.

    Raises:
        CallerError: no device has that name.
    """
    by_label = {f"{d.kind}:{d.ordinal}": d for d in devices()}
    for label, device in by_label.items():
        if name in (label, device.kind):
            return device
    why = "" if devices("cuda") else f"\nThere is no CUDA device: {why_unavailable('cuda')}"
    raise CallerError(f"there is no device {shown(name)}; there are {', '.join(by_label)}.{why}")


def stream_identity(number: int) -> Hashable:
    """A value that identifies a driver's stream; None for the legacy default stream.

    Raises:
        DeviceMismatchError: there is no CUDA device.
        CallerError: `number` is the per-thread default stream.
    """
    if not devices("cuda"):
        raise DeviceMismatchError(
            f"a stream of CUDA was given, and no CUDA device can be used: "
            f"{why_unavailable('cuda')}\nOn the CPU device, use device.new_stream()."
        )
    from numbasync.backend import cuda

    return cuda.identity_of(number)


def stream_ordinal(number: int) -> int:
    """The GPU ordinal of a driver's stream that has an identity."""
    from numbasync.backend import cuda

    return cuda.ordinal_of(number)


def toolchain() -> dict[str, str]:
    """The libraries that compile kernels for a GPU: the path of each, or why it is missing."""
    try:
        from numbasync.backend.cuda import driver
    except ImportError as error:
        return {"CUDA packages": f"MISSING ({error}): pip install 'numbasync[cuda]'"}
    return driver.toolchain()


def preferred() -> Device:
    """The device that NUMBASYNC_DEVICE names: `auto` (the default), `cuda` or `cpu`."""
    requested = os.environ.get("NUMBASYNC_DEVICE", "auto").strip().lower() or "auto"
    if requested not in ("auto", *KINDS):
        raise DeviceUnavailableError(
            f"NUMBASYNC_DEVICE={shown(requested)} is not a device kind; write auto, cuda or cpu."
        )
    if requested == "auto":
        if not devices():
            raise DeviceUnavailableError(
                f"there is no device. No GPU: {why_unavailable('cuda')}\nNo CPU device: "
                f"{why_unavailable('cpu')}"
            )
        return devices()[0]
    candidates = devices(requested)
    if not candidates:
        raise DeviceUnavailableError(
            f"NUMBASYNC_DEVICE={requested}, but no such device can be used: "
            f"{why_unavailable(requested)}\n"
            "Write NUMBASYNC_DEVICE=cpu to run on the embedded CPU device."
        )
    return candidates[0]
