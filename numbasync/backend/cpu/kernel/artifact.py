"""What is made of a kernel for some types of arguments: machine code, and what is known of it.

It can be kept on disk. Loaded, it is code that runs blocks.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cpu import regions, target
from numbasync.backend.cpu.kernel import accesses, printing
from numbasync.backend.cpu.kernel.arguments import call_of, launch_of
from numbasync.backend.cpu.kernel.lines import PassedLines
from numbasync.backend.cpu.record import Site
from numbasync.backend.protocols import Dim3
from numbasync.errors import CallerError, UnsupportedKernelError

# Whether nothing is kept once for all threads. Tests set it, for kernels that are compiled from
# then on: a value that is wrongly found to be the same for all gives other numbers without it.
everything_apart = False


@dataclass(frozen=True)
class Artifact:
    """
    Attributes:
        code: the machine code, and what it says about memory of a block.
        sites: what numbers of places in the records of blocks mean.
        exceptions: class and arguments of what the kernel may raise.
        is_straight: whether it is known that a thread does a few steps and ends.
        has_atomics: whether blocks may write to the same elements.
        lines: those that threads have passed, if the code was compiled with lines.
    """

    name: str
    code: regions.Code
    sites: tuple[Site, ...]
    exceptions: tuple[tuple[type[BaseException], tuple[Any, ...]], ...]
    is_straight: bool
    has_atomics: bool
    has_fences: bool
    lines: PassedLines | None = None

    def raised(self, number: int) -> BaseException:
        """What the kernel has raised, by its number in a record."""
        kind, arguments = self.exceptions[number]
        return kind(*arguments)


def make(
    function: FunctionType, argument_types: tuple[Any, ...], options: target.Options, row: bool
) -> Artifact:
    """Compile a kernel.

    Args:
        row: for blocks of one row of threads alone, if the kernel does not ask for more.

    Raises:
        KernelCompileError: Numba refuses it, as for a GPU.
        UnsupportedKernelError: it uses what only a GPU has, or a form of code that is not known.
    """
    try:
        module = target.lower(function, argument_types, options)
    except (CallerError, UnsupportedKernelError):
        raise
    except Exception as error:  # Numba raises many classes
        raise compile_error(function, argument_types, error) from error
    text = accesses.with_definitions(module.text) if options.checked else module.text
    lines = PassedLines(module.lines) if options.lines else None
    if lines is not None:
        text = re.sub(r'^declare [^\n]*@"?na\.line"?\([^\n]*\n', "", text, flags=re.M) + lines.text
    try:
        code = regions.build(
            text,
            module.name,
            regions.Settings(
                apart=options.checked or options.debug or everything_apart,
                ordered=options.checked,
                returned_are_missing=options.checked or not options.may_return,
                row=row,
            ),
        )
    except Exception as error:
        raise UnsupportedKernelError(
            f"kernel {function.__name__} is not compiled on the CPU device, though it is for a "
            f"GPU: {type(error).__name__}: {error}"
        ) from error
    return Artifact(
        name=function.__name__,
        code=code,
        sites=tuple(module.sites),
        exceptions=tuple(module.exceptions),
        is_straight=module.is_straight,
        has_atomics=module.has_atomics,
        has_fences=module.has_fences,
        lines=lines,
    )


class LoadedCode:
    """An artifact in memory.

    Attributes:
        run: call it, without the interpreter lock; it raises what stops the kernel. Its arguments
            are those that `blocks` gives, memory of a block, bytes of dynamic shared memory, and
            the kernel's.
        dynamic_offset: of dynamic shared memory in the memory of a block.
    """

    def __init__(
        self, artifact: Artifact, argument_types: tuple[Any, ...], kept: Any = None
    ) -> None:
        """
        Args:
            kept: the function that calls the code, as it was kept on disk; see `arguments.call_of`.
        """
        printing.ready()
        self.artifact = artifact
        self.call = call_of(argument_types, kept)
        self.run: Callable[..., None] = self.call.run
        self._address = artifact.code.load()
        self.dynamic_offset = artifact.code.dynamic_offset
        self._is_row = artifact.code.is_row
        self._latest: tuple[tuple[Dim3, Dim3], Any, int] | None = None  # extents, as they are given

    def memory_bytes(self, threads: int, shared_bytes: int) -> int:
        """Memory of a block of so many threads, with so much dynamic shared memory."""
        return self.artifact.code.memory_bytes(threads, shared_bytes)

    def suits(self, block: Dim3) -> bool:
        """Whether it runs blocks of this shape."""
        return not self._is_row or (block[1] == 1 and block[2] == 1)

    def blocks(self, first: int, end: int, block: Dim3, grid: Dim3) -> tuple[tuple[int, ...], Any]:
        """What `run` takes before memory and arguments, for some blocks; and what to keep."""
        latest = self._latest
        if latest is None or latest[0] != (block, grid):
            launch = launch_of(self._address, block, grid)
            latest = self._latest = (block, grid), launch, ctypes.addressof(launch)
        return (latest[2], first, end), latest[1]
