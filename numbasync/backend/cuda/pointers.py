"""What the driver knows of an address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from numbasync.backend.cuda.driver import cu


@cache
def _get_attribute() -> Callable[..., int]:
    """The driver's own `cuPointerGetAttribute(result, attribute, address)`. The binding in
    cuda.bindings 13.3 reports GPU 0 for every address.
    """
    function = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
    function.restype = ctypes.c_int
    return function


def ordinal_at(address: int) -> int | None:
    """The GPU, by its ordinal, whose memory is at an address; None: the driver does not know it. A
    context must be current.
    """
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    ordinal = ctypes.c_int(-1)
    if _get_attribute()(ctypes.byref(ordinal), int(attribute), address):
        return None
    return ordinal.value
