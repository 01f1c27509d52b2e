"""What the CPU device does not run though a GPU does: the list of the documents, each refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from llvmlite import ir
from numba import cuda, types
from numba.cuda import extending

import numbasync as na
from numbasync.errors import UnsupportedKernelError

pytestmark = pytest.mark.usefixtures("cpu")
DOCUMENT = Path(__file__).parents[2] / "docs" / "cpu-device.md"
_INT = ir.FunctionType(ir.IntType(32), [])


def emitting(emit: Any) -> Any:
    """A kernel with an intrinsic of a program's."""
    intrinsic: Any = extending.intrinsic

    @intrinsic
    def own(typingctx: Any) -> Any:
        return types.int32(), lambda context, builder, signature, args: emit(builder)

    def kernel(z):  # type: ignore[no-untyped-def]
        z[cuda.grid(1)] = own()

    return kernel


def instruction(builder: Any) -> Any:
    name = "llvm.nvvm.read.ptx.sreg.smid"
    return builder.call(ir.Function(builder.module, _INT, name), [])


def assembly(builder: Any) -> Any:
    return builder.asm(_INT, "mov.u32 $0, %warpid;", "=r", [], False)


def address(builder: Any) -> Any:
    place = builder.inttoptr(ir.IntType(64)(64), ir.IntType(32).as_pointer(3))
    return builder.load(place)


elsewhere: Any = cuda.declare_device("of_another_language", "int32(int32)")


def calls_elsewhere(z):  # type: ignore[no-untyped-def]
    z[0] = elsewhere(1)


@cuda.jit(device=True)
def counted(n):  # type: ignore[no-untyped-def]
    cuda.syncthreads()
    if n > 0:
        return counted(n - 1) + 1
    return 0


def meets_in_recursion(z):  # type: ignore[no-untyped-def]
    z[0] = counted(z.shape[0])


FORMS: dict[str, tuple[Any, str]] = {
    "instructions of NVVM": (emitting(instruction), r"a call of llvm\.nvvm\.read\.ptx\.sreg\.smid"),
    "assembly": (emitting(assembly), r"the assembly 'mov\.u32 \$0, %warpid;'"),
    "pointers into an address space": (emitting(address), "a pointer into address space 3"),
    "functions of other languages": (calls_elsewhere, "a call of of_another_language"),
    "a barrier in a function that calls itself": (meets_in_recursion, "a barrier in counted,"),
}


def test_the_documents_list_what_is_refused() -> None:
    text = DOCUMENT.read_text()
    section = text.split("**What it accepts, and what is refused all the same**")[1]
    listed = re.findall(r"^- \*\*(.+?)\*\*", section.split("\n\n")[1], re.M)
    assert listed == list(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_each_is_refused_by_name(form: str) -> None:
    kernel, said = FORMS[form]
    z = na.zeros(4).sync()
    with pytest.raises(UnsupportedKernelError, match=rf"^kernel {kernel.__name__} .*{said}"):
        na.launcher(cuda.jit(kernel))[1, 4](z).sync()
    assert not z.to_host().sync().any()
