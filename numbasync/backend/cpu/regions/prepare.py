"""From the contract's module to one cut kernel: LLVM's light passes, with memory's addresses
hidden.

Shared arrays are globals in the module, and would become parts of constants when LLVM simplifies;
their addresses are asked for by calls until the kernel is cut, since each block has memory of its
own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import llvmlite.binding as llvm

from numbasync.backend.cpu.regions.counted import drop_sign_tests, drop_unused, test_by_value
from numbasync.backend.cpu.regions.cut import LEVELS, CutKernel, cut
from numbasync.backend.cpu.regions.function_text import parse_module
from numbasync.backend.cpu.regions.llvm_types import end_of_type
from numbasync.backend.cpu.regions.machine_code import run_passes
from numbasync.backend.cpu.regions.turned_loops import cut_with_turned_loops

MOST_THREADS = 1024  # of a block
MOST_BLOCKS = 2147483646  # of a grid along an axis
LARGE = 5000  # lines of LLVM's text
_INLINE = (
    "always_inliner", "global_dead_code_eliminate", "sroa", "simplify_cfg", "instruction_combine",
    "sroa",
)  # fmt: skip
_SIMPLIFY = (
    "new_gvn", "sroa", "simplify_cfg", "instruction_combine",
    # Numba's range computes its next value, by `sext` and `select` of whether anything is left, in
    # the block that tests that. Sunk behind the test, it is known which.
    "sinking", "new_gvn", "instruction_combine", "instruction_namer",
)  # fmt: skip
_PLACE = re.compile(r"@na\.((?:shared|exchange)\.[\w.]+|dynamic|present)(?![\w.])")
_GLOBAL = re.compile(r"(?:\w+(?:\([^)]*\))? )*?(?:global|constant) ")
_SIMPLE = re.compile(r"[-\w$.]+", re.ASCII)
_PURE = "nounwind willreturn memory(none) speculatable"
_MEETS = "convergent noduplicate nounwind"
# Of threadIdx, blockIdx, blockDim and gridDim: one more than the most, and the least.
_RANGES = {
    "t": (MOST_THREADS, 0),
    "b": (MOST_BLOCKS, 0),
    "w": (MOST_THREADS + 1, 1),
    "g": (MOST_BLOCKS + 1, 1),
}
_ASKED = re.compile(r"@na\.([tbwg][xyz]|tid|threads|block|dynamic_bytes|memory)\(")


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of the block that the kernel uses by its address.

    Attributes:
        type: of LLVM.
        alignment: in bytes.
    """

    type: str
    alignment: int


@dataclass(slots=True)
class Prepared:
    """A kernel that is cut, and what its module holds besides.

    Attributes:
        places: by the names that `CutKernel.memory` has, such as `shared.0`.
    """

    kernel: CutKernel
    rest: list[str]
    places: dict[str, Place]


def prepare(text: str, name: str, turn_loops: bool) -> Prepared:
    """Inline, simplify and cut the kernel `name`."""
    module = llvm.parse_assembly(text)
    _name_simply(module, name)
    hidden, places = _hide_places(str(module), name)
    module = llvm.parse_assembly(hidden)
    if hidden.count("\n") > LARGE:
        # Before there are a thousand copies of a small function: it takes ten seconds behind that.
        run_passes(module, ("sroa",))
    run_passes(module, _INLINE)
    run_passes(module, _simplifying(str(module)))
    parsed = parse_module(str(module), name)
    for simplify in (drop_sign_tests, test_by_value, drop_unused):
        simplify(parsed.function)
    kernel = cut_with_turned_loops(parsed.function) if turn_loops else cut(parsed.function)
    return Prepared(kernel, parsed.rest, places)


def _simplifying(text: str) -> Iterator[str]:
    """The passes behind those that inline.

    LLVM ends the process if numbering its values takes one of them up a hundred times, which
    happens in code of ten thousand lines with loops in loops. Such code goes without numbers.
    """
    is_large = text.count("\n") > LARGE
    return (name for name in _SIMPLIFY if not (is_large and name == "new_gvn"))


def _name_simply(module: llvm.ModuleRef, kernel: str) -> None:
    """Rename globals and functions whose names LLVM's text has in quotation marks, such as texts
    to print, which are named by what they say: a `%` or `;` in a name is none of the code's.
    """
    for value in (*module.global_variables, *module.functions):
        if value.name != kernel and not _SIMPLE.fullmatch(value.name):
            value.name = "named"  # and a number


def _hide_places(text: str, name: str) -> tuple[str, dict[str, Place]]:
    """The text with calls in the place of the block's globals, and other functions internal."""
    places: dict[str, Place] = {}
    lines: list[str] = []
    head = -1  # of the function that is being read
    used: set[str] = set()
    declared: set[str] = set()
    for line in text.splitlines():
        if line.startswith("@na."):
            match = _PLACE.match(line)
            if match is not None:
                places[match[1]] = _place(line[match.end() + 3 :])
                continue
        elif line.startswith("@"):
            pass  # its value may be a text, with anything in it
        elif line.startswith("declare"):
            line = _declaration(line)
        elif line.startswith("define"):
            head, used = len(lines), set()
            if not re.match(rf'define .*@"?{re.escape(name)}"?\(', line):
                line = re.sub(
                    r"^define (?:(?:linkonce_odr|weak_odr|internal|private) )?",
                    "define internal ",
                    line,
                )
        elif line == "}" and used:
            first = head + 1
            if re.match(r'("[^"]*"|[-\w$.]+):', lines[first]):
                first += 1
            calls = [f"  %na.{place} = call ptr @na.address.{place}()" for place in sorted(used)]
            lines[first:first] = calls
            declared |= used
        elif "@na." in line:
            used.update(_PLACE.findall(line))
            line = _PLACE.sub(r"%na.\1", line)
        lines.append(line)
    lines += [f"declare nonnull ptr @na.address.{place}() {_PURE}" for place in sorted(declared)]
    return "\n".join(lines), places


def _place(definition: str) -> Place:
    match = _GLOBAL.match(definition)
    start = match.end() if match else 0
    aligned = re.search(r", align (\d+)", definition)
    return Place(
        definition[start : end_of_type(definition, start)], int(aligned[1]) if aligned else 16
    )


def _declaration(line: str) -> str:
    if any(f"{barrier}(" in line for barrier in LEVELS):
        return re.sub(r"\)[^)]*$", f") {_MEETS}", line)
    asked = _ASKED.search(line)
    if asked is None:
        return line
    kind, least = _RANGES.get(asked[1][0], ("", 0)) if len(asked[1]) == 2 else ("", 0)
    if kind:
        line = line.replace("declare i32", f"declare range(i32 {least}, {kind}) i32")
    elif asked[1] == "threads":
        line = line.replace("declare i64", f"declare range(i64 1, {MOST_THREADS + 1}) i64")
    return re.sub(r"\)[^)]*$", f") {_PURE}", line)
