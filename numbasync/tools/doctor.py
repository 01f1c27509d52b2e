"""`numbasync doctor`: lists installed packages, devices, missing parts and how to get them.

It prints only: drivers and compilers are looked for by `backend/cuda/__init__.py` and `driver.py`.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from importlib import metadata

from numbasync import __version__, native
from numbasync.backend import KINDS, preferred, toolchain, why_unavailable
from numbasync.device.device import Device, devices
from numbasync.errors import DeviceUnavailableError

REQUIRED = ("numba", "numba-cuda", "numpy", "uvloop", "greenlet")
CUDA = ("cuda-core", "cuda-bindings")
EXTRAS = {
    "algorithms": ("cuda-cccl",),
    "demo": ("scikit-image", "scipy", "pillow", "rich"),
    "test": ("pytest", "pytest-xdist", "hypothesis"),
}


def run(kind: str | None) -> int:
    """Run the command. Returns exit status 1 if the requested device cannot be used, else 0."""
    _line("numbasync", __version__)
    _line("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    _packages()
    _core()
    _loop()
    return _devices(kind)


def _line(what: str, says: str) -> None:
    print(f"{what:22} {says}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> None:
    for package in REQUIRED:
        version = _version(package)
        if version is None and (package, sys.platform) in {
            ("numba-cuda", "darwin"),
            ("uvloop", "win32"),
        }:
            _line(package, "not available on this system, and not needed")
        else:
            _line(package, version or f"MISSING: pip install {package}")
    if (version := _version("numba-cuda-mlir")) is not None:
        setting = os.environ.get("NUMBASYNC_COMPILER") or "auto"
        says = "compiles, for GPUs, the kernels that are written for it"
        _line("numba-cuda-mlir", f"{version}, {says}; NUMBASYNC_COMPILER={setting}")
    for package in CUDA:
        _line(
            package,
            _version(package) or "not installed; a GPU needs it: pip install 'numbasync[cuda]'",
        )
    for extra, packages in EXTRAS.items():
        missing = [p for p in packages if _version(p) is None]
        status = (
            f"lacks {', '.join(missing)}: pip install 'numbasync[{extra}]'"
            if missing
            else "complete"
        )
        _line(f"extra {extra}", status)


def _loop() -> None:
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    _line("event loop", "uvloop" if has_uvloop else "asyncio (uvloop is not installed)")
    _line("wake-up", "eventfd" if hasattr(os, "eventfd") else "pipe (this system has no eventfd)")
    # A thread that computes in Python delays every wake-up by this time.
    _line("switch interval", f"{sys.getswitchinterval() * 1e3:g} ms")


def _core() -> None:
    if native.core is not None:
        _line("compiled core", "in use")
    elif native.is_off():
        _line("compiled core", f"not in use: {native.NAME} is 0")
    else:
        _line("compiled core", "missing, so calls cost the host more; with a C compiler:")
        _line("", native.how_to_get())


def _devices(kind: str | None) -> int:
    usable = True
    for device_kind in KINDS:
        candidates = devices(device_kind)
        for device in candidates:
            _device(device)
        if not candidates:
            _line(f"{device_kind} devices", f"none: {why_unavailable(device_kind)}")
            usable = usable and kind != device_kind
    if devices("cuda"):
        for library, status in toolchain().items():
            _line(library, status)
            usable = usable and not (status.startswith("MISSING") and kind == "cuda")
    try:
        chosen = preferred()
        _line("default device", f"{chosen.kind}:{chosen.ordinal}")
    except DeviceUnavailableError as error:
        _line("default device", f"NONE: {error}")
        usable = False
    if not usable:
        print("The device that was asked for cannot be used.", file=sys.stderr)
    return 0 if usable else 1


def _device(device: Device) -> None:
    backend = device.backend
    _line(device.label, device.name)
    major, minor = device.compute_capability
    memory = f"{backend.total_memory / 2**30:.1f} GiB"
    _line("", memory if device.kind == "cpu" else f"compute capability {major}.{minor}, {memory}")
    for component, version in backend.versions.items():
        _line("", f"{component}: {version}")
    _line("", f"completion: {backend.completion.name} ({backend.completion.reason})")
