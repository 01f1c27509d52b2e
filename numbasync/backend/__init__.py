"""The only place that knows there are two kinds of device: finds, lists and explains them.

A backend is loaded when it is first asked for. Finding no usable GPU is not an error
here: `why_unavailable` keeps the reason, and the stages above decide what it means.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from functools import lru_cache

from numbasync.backend.protocols import Device
from numbasync.errors import CallerError, DeviceMismatchError, DeviceUnavailableError

KINDS = ("cuda", "cpu")

_lock = threading.RLock()


@lru_cache(maxsize=1)
def _cuda() -> tuple[tuple[Device, ...], str]:
    """CUDA devices, and why there are none."""
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
    from numbasync.backend import cpu

    text = os.environ.get("NUMBASYNC_CPU_DEVICES", "2")
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise DeviceUnavailableError(
            f"NUMBASYNC_CPU_DEVICES={text!r} is not a number of virtual CPU devices.\n"
            "Write a whole number from 1 to 64, or unset it for 2."
        )
    return cpu.find(int(text))


def devices(kind: str | None = None) -> tuple[Device, ...]:
    """Devices of one kind, or all of them, CUDA first."""
    if kind is not None and kind not in KINDS:
        raise CallerError(f"there is no device kind {kind!r}; write 'cuda', 'cpu' or None.")
    with _lock:
        if kind == "cuda":
            return _cuda()[0]
        if kind == "cpu":
            return _cpu()
        return (*_cuda()[0], *_cpu())


def why_unavailable(kind: str) -> str:
    """Why `devices(kind)` is empty; an empty text if it is not."""
    with _lock:
        return _cuda()[1] if kind == "cuda" else ""


def named(name: str) -> Device:
    """The device that is called so: `"cpu"` is the first of its kind, `"cpu:1"` one of them.

    Raises:
        CallerError: there is none.
    """
    found = {f"{d.kind}:{d.ordinal}": d for d in devices()}
    for label, device in found.items():
        if name in (label, device.kind):
            return device
    why = "" if devices("cuda") else f"\nThere is no CUDA device: {why_unavailable('cuda')}"
    raise CallerError(f"there is no device {name!r}; there are {', '.join(found)}.{why}")


def stream_identity(number: int) -> Hashable:
    """What tells a driver's stream from all others; None of the legacy default stream.

    Raises:
        DeviceMismatchError: there is no CUDA device.
        CallerError: it is the per-thread default stream.
    """
    if not devices("cuda"):
        raise DeviceMismatchError(
            f"a stream of CUDA was given, and no CUDA device can be used: "
            f"{why_unavailable('cuda')}\nOn the CPU device, use device.new_stream()."
        )
    from numbasync.backend import cuda

    return cuda.identity_of(number)


def stream_ordinal(number: int) -> int:
    """The GPU of a driver's stream that has an identity."""
    from numbasync.backend import cuda

    return cuda.ordinal_of(number)


def toolchain() -> dict[str, str]:
    """What compiles kernels for a GPU: each library's path, or why it is not there."""
    try:
        from numbasync.backend.cuda import driver
    except ImportError as error:
        return {"CUDA packages": f"MISSING ({error}): pip install 'numbasync[cuda]'"}
    return driver.toolchain()


def preferred() -> Device:
    """The device that NUMBASYNC_DEVICE names: `auto` (the default), `cuda` or `cpu`."""
    wish = os.environ.get("NUMBASYNC_DEVICE", "auto").strip().lower() or "auto"
    if wish not in ("auto", *KINDS):
        raise DeviceUnavailableError(
            f"NUMBASYNC_DEVICE={wish!r} is not a device kind; write auto, cuda or cpu."
        )
    if wish == "auto":
        return devices()[0]
    found = devices(wish)
    if not found:
        raise DeviceUnavailableError(
            f"NUMBASYNC_DEVICE={wish}, but no such device can be used: {why_unavailable(wish)}\n"
            "Write NUMBASYNC_DEVICE=cpu to run on the embedded CPU device."
        )
    return found[0]
