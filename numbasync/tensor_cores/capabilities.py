"""The compute capability that an operation needs, and the refusal to compile it for another one.

Operations are judged when their code is generated: what a kernel, or a function that it calls, does
not use for the types of its arguments is not refused. Otherwise NVIDIA's assembler would refuse the
kernel, in words of PTX.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numbasync.kernel_names import NumbaError, targetconfig

_NumbaError: Any = NumbaError


class Need(NamedTuple):
    """What an operation needs of a GPU.

    Attributes:
        capability: the least compute capability.
        alone: no other capability will do, no higher one either.
        instead: what to write for other GPUs.
    """

    capability: tuple[int, int]
    instead: str
    alone: bool = False

    def refusal(self, name: str, capability: tuple[int, int]) -> str | None:
        """Why the operation `name` is not for GPUs of a capability; None if it is."""
        if capability == self.capability or (capability > self.capability and not self.alone):
            return None
        needed = f"{self.capability[0]}.{self.capability[1]}"
        more = ", and no other," if self.alone else " or higher"
        return (
            f"tensor_cores.{name} needs compute capability {needed}{more} and the device has "
            f"{capability[0]}.{capability[1]}.\n{self.instead}"
        )


OF_WARPS = Need(
    (8, 0),
    "Write loads, stores and sums of float32 for such a device; device.limits.tensor_cores says "
    "what each has.",
)
OF_MAPS = Need((9, 0), "Write tensor_cores.copy_rows and wait_copies, from capability 8.0 on.")
OF_CLUSTERS = Need(
    (9, 0),
    "Write a kernel whose blocks load all of their tiles themselves, and cuda.syncthreads().",
)
OF_WARPGROUPS = Need(
    (9, 0), "Write tensor_cores.mma of load_a and load_b, from capability 8.0 on.", alone=True
)


class MissingOperationError(_NumbaError):  # type: ignore[misc]
    """An operation that the device has not; ends the compilation of a kernel.

    Attributes:
        refusal: what is told; Numba adds to the message itself.
    """

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal
        super().__init__(refusal)


def check(name: str, need: Need) -> None:
    """Called while the code of an operation is generated.

    Raises:
        MissingOperationError: the GPU that is compiled for does not have the operation.
    """
    flags: Any = targetconfig.ConfigStack.top_or_none()
    major, minor, *_ = flags.compute_capability
    refusal = need.refusal(name, (major, minor))
    if refusal is not None:
        raise MissingOperationError(refusal)


def missing(error: BaseException | None) -> str | None:
    """What a `MissingOperationError` tells that is an error of the compiler, or its cause."""
    while error is not None:
        if isinstance(error, MissingOperationError):
            return error.refusal
        error = error.__cause__ or error.__context__
    return None
