"""LLVM's text as the regions read it: each form of instruction, types, whole functions."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from numbasync.backend.cpu.regions.function_text import Function, parse_module
from numbasync.backend.cpu.regions.helper_code import helpers
from numbasync.backend.cpu.regions.instructions import parse_instruction
from numbasync.backend.cpu.regions.llvm_types import (
    UnknownFormError,
    element_type,
    size_and_alignment,
    split_list,
)

FORMS = [
    # line, result, opcode, type, uses, labels
    ("%s = add nuw nsw i32 %a, %b", "%s", "add", "i32", "%a %b", ""),
    ("%s = or disjoint i64 %a, 1", "%s", "or", "i64", "%a", ""),
    ("%s = fadd reassoc nnan double %a, 0x3FB99999A0000000", "%s", "fadd", "double", "%a", ""),
    ("%s = fneg float %a", "%s", "fneg", "float", "%a", ""),
    ("%s = udiv exact i8 %a, %b", "%s", "udiv", "i8", "%a %b", ""),
    ("%s = icmp samesign ult i64 %a, %b", "%s", "icmp", "i1", "%a %b", ""),
    ("%s = icmp eq ptr %a, null", "%s", "icmp", "i1", "%a", ""),
    ("%s = fcmp fast olt <4 x float> %a, %b", "%s", "fcmp", "<4 x i1>", "%a %b", ""),
    ("%s = trunc nuw nsw i64 %a to i32", "%s", "trunc", "i32", "%a", ""),
    ("%s = zext nneg i32 %a to i64", "%s", "zext", "i64", "%a", ""),
    ("%s = bitcast <2 x i32> %a to <2 x float>", "%s", "bitcast", "<2 x float>", "%a", ""),
    ("%s = inttoptr i64 %a to ptr", "%s", "inttoptr", "ptr", "%a", ""),
    ("%s = select i1 %c, ptr %a, ptr @g", "%s", "select", "ptr", "%c %a", ""),
    ("%s = select nnan i1 %c, { i64, i1 } %a, { i64, i1 } zeroinitializer", "%s", "select",
     "{ i64, i1 }", "%c %a", ""),
    ("%s = phi i64 [ 0, %top ], [ %b, %loop ]", "%s", "phi", "i64", "%b", ""),
    ("%s = phi nsz float [ %a, %top ], [ undef, %loop ]", "%s", "phi", "float", "%a", ""),
    ("%s = load float, ptr %p, align 4, !tbaa !3", "%s", "load", "float", "%p", ""),
    ("%s = load atomic i32, ptr %p monotonic, align 4", "%s", "load", "i32", "%p", ""),
    ("%s = load volatile { ptr, [2 x i64] }, ptr %p, align 8", "%s", "load", "{ ptr, [2 x i64] }",
     "%p", ""),
    ("store <2 x i64> <i64 1, i64 2>, ptr %p, align 16", "", "store", "void", "%p", ""),
    ("%s = alloca [4 x i8], align 4", "%s", "alloca", "ptr", "", ""),
    ("%s = getelementptr inbounds nuw { i64, [3 x float] }, ptr %p, i64 %i, i32 1, i64 %j", "%s",
     "getelementptr", "ptr", "%p %i %j", ""),
    ("%s = extractvalue { i64, { float, [2 x i8] } } %a, 1, 1, 0", "%s", "extractvalue", "i8", "%a",
     ""),
    ("%s = insertvalue { ptr, i64 } poison, ptr %p, 0", "%s", "insertvalue", "{ ptr, i64 }", "%p",
     ""),
    ("%s = extractelement <4 x half> %a, i64 %i", "%s", "extractelement", "half", "%a %i", ""),
    ("%s = insertelement <4 x i1> %a, i1 %b, i64 0", "%s", "insertelement", "<4 x i1>", "%a %b",
     ""),
    ("%s = shufflevector <2 x i8> %a, <2 x i8> %b, <4 x i32> <i32 0, i32 1, i32 2, i32 3>", "%s",
     "shufflevector", "<4 x i8>", "%a %b", ""),
    ("%s = atomicrmw fadd ptr %p, float %a monotonic, align 4", "%s", "atomicrmw", "float", "%p %a",
     ""),
    ("%s = cmpxchg ptr %p, i32 %a, i32 %b monotonic monotonic, align 4", "%s", "cmpxchg",
     "{ i32, i1 }", "%p %a %b", ""),
    ("fence seq_cst", "", "fence", "void", "", ""),
    ("%s = freeze i64 %a", "%s", "freeze", "i64", "%a", ""),
    ("%s = tail call noundef range(i32 0, 9) i32 @f(ptr nonnull %p, i64 7) #3", "%s", "call", "i32",
     "%p", ""),
    ('%s = call { i64, i1 } @"odd name(x)"(i64 %a), !srcloc !1', "%s", "call", "{ i64, i1 }", "%a",
     ""),
    ("%s = call i32 (ptr, ...) @printf(ptr %a, i32 1)", "%s", "call", "i32", "%a", ""),
    ("call void %f(i32 1)", "", "call", "void", "%f", ""),
    ("ret i32 %a", "", "ret", "void", "%a", ""),
    ("ret void", "", "ret", "void", "", ""),
    ("br label %next", "", "br", "void", "", "%next"),
    ("br i1 %c, label %yes, label %no, !prof !2", "", "br", "void", "%c", "%yes %no"),
    ("switch i32 %a, label %d [ i32 0, label %x i32 1, label %y ]", "", "switch", "void", "%a",
     "%d %x %y"),
    ("unreachable", "", "unreachable", "void", "", ""),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=[f"{f[2]}{n}" for n, f in enumerate(FORMS)])
def test_a_form(form: tuple[str, str, str, str, str, str]) -> None:
    line, result, opcode, kind, uses, labels = form
    i = parse_instruction(line)
    assert (i.result, i.opcode, i.type) == (result, opcode, kind)
    assert " ".join(i.uses) == uses
    assert " ".join(i.labels) == labels
    assert "!" not in i.text


@pytest.mark.parametrize(
    "line",
    [
        "%s = va_arg ptr %p, i32",
        "indirectbr ptr %p, [label %a]",
        "%s = invoke i32 @f() to label %a unwind label %b",
        '%s = call i64 asm "nop", "=r"()',
        "%s = getelementptr float, ptr %p, <4 x i64> %i",
        "%s = newop i32 %a",
        "%s = load %strange, ptr %p",
    ],
)
def test_what_is_not_known_is_refused(line: str) -> None:
    with pytest.raises(UnknownFormError):
        i = parse_instruction(line)
        size_and_alignment(i.type)  # a named type is none that is known


def printed(function: Function) -> list[str]:
    """Lines of the blocks."""
    lines = []
    for name, code in function.blocks.items():
        lines.append(f"{name[1:]}:")
        lines += [f"  {i.result} = {i.text}" if i.result else f"  {i.text}" for i in code]
    return lines


def test_incoming_values_of_a_phi() -> None:
    i = parse_instruction(
        "%s = phi { i64, [2 x i8] } [ %a, %b ], [ { i64 1, [2 x i8] zeroinitializer }, %c ]"
    )
    assert i.incoming == (("%a", "%b"), ("{ i64 1, [2 x i8] zeroinitializer }", "%c"))


def test_arguments_of_a_call() -> None:
    i = parse_instruction(
        "call void @na.note(i32 1, i32 noundef %s, i64 0, i64 add (i64 1, i64 2), i64 %c)"
    )
    assert i.arguments() == ["i32 1", "i32 noundef %s", "i64 0", "i64 add (i64 1, i64 2)", "i64 %c"]
    assert i.callee == "@na.note"


@pytest.mark.parametrize(
    "kind",
    ["i1", "i8", "i17", "i64", "i128", "half", "bfloat", "float", "double", "ptr", "[3 x i16]",
     "{ i8, i64, i8 }", "<{ i8, i64 }>", "{ i8, [3 x { i32, i8 }], ptr }", "<4 x float>",
     "<3 x i8>", "<8 x i1>", "{}", "[0 x i8]"],
)  # fmt: skip
def test_sizes_are_llvms(kind: str) -> None:
    module = llvm.parse_assembly(f"@x = global {kind} zeroinitializer\n@y = global i8 0")
    data = llvm.create_target_data(
        "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
    )
    found = data.get_abi_size(module.get_global_variable("x").global_value_type)
    size, alignment = size_and_alignment(kind)
    assert size == found
    assert alignment == data.get_abi_alignment(module.get_global_variable("x").global_value_type)


def test_elements_of_types() -> None:
    assert element_type("{ i8, [2 x { float, ptr }] }", [1, 0, 1]) == "ptr"
    assert split_list("i32 1, { i8, i8 } { i8 1, i8 2 }, ptr @\"a,b\"") == [
        "i32 1", "{ i8, i8 } { i8 1, i8 2 }", 'ptr @"a,b"',
    ]  # fmt: skip


WHOLE = """
%pair = type { i32, i32 }
@"table.1" = internal constant [2 x i32] [i32 1, i32 2]
declare i32 @f(i32)
define i32 @"odd name"(ptr noalias %"a.1", i64 %n) #0 {
"first block":
  %".4" = icmp sgt i64 %n, 0
  br i1 %".4", label %"loop.1", label %end
"loop.1":
  %k = phi i64 [ 0, %"first block" ], [ %"k.2", %"loop.1" ]
  %p = getelementptr %pair, ptr %"a.1", i64 %k, i32 1
  %v = load i32, ptr %p
  %"k.2" = add i64 %k, 1
  %r = call i32 @f(i32 %v)
  switch i32 %r, label %end [
    i32 0, label %"loop.1"
    i32 1, label %other
  ]
other:
  br label %end
end:
  ret i32 0
}
attributes #0 = { nounwind }
"""


def test_llvmlites_text_is_read_and_written_back() -> None:
    """Pins llvmlite's text: a new version that prints otherwise fails here first."""
    text = str(llvm.parse_assembly(WHOLE))
    parsed = parse_module(text, "odd name")
    function = parsed.function
    assert [kind for kind, _ in function.parameters] == ["ptr", "i64"]
    assert [len(code) for code in function.blocks.values()] == [2, 6, 1, 1]
    assert function.successors()[list(function.blocks)[1]] == [
        "%v.end", list(function.blocks)[1], "%v.other",
    ]  # fmt: skip
    parameters = ", ".join(f"{kind} {name}" for kind, name in function.parameters)
    again = "\n".join(
        [*parsed.rest, f"define i32 @again({parameters}) {{", *printed(function), "}"]
    )
    llvm.parse_assembly(again).verify()


def test_a_constant_text_in_a_function_is_refused() -> None:
    text = 'define void @f(ptr %p) {\ntop:\n  store [3 x i8] c"a%b", ptr %p\n  ret void\n}'
    with pytest.raises(UnknownFormError, match="constant text"):
        parse_module(text, "f")


def test_only_called_helpers_are_written() -> None:
    assert helpers(["  ret i32 0"]) == []
    (filled,) = helpers(["  call void @na.fill(ptr %p, i64 0, i64 %n, i32 1)"])
    assert "define internal void @na.fill(" in filled
    diverged = helpers(["  call void @na.diverged(ptr %record)"])  # which calls another one
    assert [text.count("define ") for text in diverged] == [1, 1]
    assert "define internal void @na.record(" in diverged[1]
