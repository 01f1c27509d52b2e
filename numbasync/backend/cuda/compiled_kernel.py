"""What a launch, a graph and a report need of a compiled kernel, whichever compiler made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numbasync.backend.protocols import Dim3

if TYPE_CHECKING:
    from numbasync.backend.cuda.debug_exceptions import ExceptionReport
    from numbasync.backend.cuda.gpu import Handled


class Passing(NamedTuple):
    """How a compiler's kernels take arguments, beyond numbers, which all of them take alike.

    Attributes:
        array: the code of arrays in a `BufferLayout`.
        array_head: parameters of an array in front of its extents and strides, as a `struct`
            format.
        array_fields: the attribute of a `CudaArray` that has all of them, as numbers.
        none: the parameter of None, which no kernel reads, as a `struct` format; "" where there is
            no parameter.
    """

    array: str
    array_head: str
    array_fields: str
    none: str

    def array_format(self, ndim: int) -> str:
        """The parameters of an array of rank `ndim`, as a `struct` format."""
        return self.array_head + "qq" * ndim


AS_NUMBA_CUDA = Passing("s", "QQqqQ", "fields", "Q")
AS_MLIR = Passing("m", "QQq", "memref", "")


class CompiledKernel(Protocol):
    """A kernel that is loaded on one GPU.

    Attributes:
        passes: how it takes arguments.
        kernel: `cuda.core`'s.
        argument_types: Numba's type of each argument.
        from_disk: it was loaded from a disk cache, not compiled.
        report: of a debug kernel's exceptions; None of other kernels.
    """

    @property
    def passes(self) -> Passing: ...
    @property
    def kernel(self) -> Any: ...
    @property
    def argument_types(self) -> tuple[Any, ...]: ...
    @property
    def from_disk(self) -> bool: ...
    @property
    def report(self) -> ExceptionReport | None: ...

    @property
    def why_not_packed(self) -> str:
        """Why the compiler's own launch is needed, or an empty string."""
        ...

    def expect_own_launches(self) -> None:
        """Make ready for `launch`."""
        ...

    def launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        """Launch as the compiler's package does."""
        ...

    def ptx(self) -> str: ...
    def cubin(self) -> bytes: ...
