"""Facts that both engines of the CPU device report of their kernels."""

from __future__ import annotations

from typing import NoReturn

from numbasync.backend.cpu.declared_arguments import Formal
from numbasync.backend.executables import Language
from numbasync.backend.protocols import Dim3
from numbasync.errors import DeviceMismatchError


class ProcessorCode:
    """A kernel that runs on the processor: it has no multiprocessors to share, and no PTX.

    Attributes:
        argument_types: Numba's type of each argument.
        formal: how arguments are converted to a declared signature.
        records: positions of structured scalars, which come as arrays.
    """

    argument_types: tuple[object, ...] = ()
    formal: Formal | None = None
    records: tuple[int, ...] = ()

    def allow_large_shared(self) -> None:
        """Nothing to do: memory of a block is the host's."""

    def launch_in_clusters(self, cluster: Dim3) -> None:
        """Nothing to do: only operations for tensor cores reach from block to block."""

    def resources(self, block: Dim3, shared_bytes: int) -> None:
        """None: registers and occupancy are of GPUs."""

    def assembly(self, language: Language) -> NoReturn:
        raise DeviceMismatchError(
            f"{language.upper()} is code of GPUs; this kernel is prepared for the CPU device.\n"
            "Explain it on a GPU: with na.use_device('cuda'): kernel.explain(...)."
        )
