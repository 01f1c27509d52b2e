"""One instruction of LLVM's text: what it defines, of which type, and what it uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from numbasync.backend.cpu.regions.llvm_types import (
    UnknownFormError,
    element_type,
    elements_of,
    end_of_group,
    end_of_type,
    split_list,
)

LOCAL = re.compile(r'%(?:"[^"]*"|[-\w$.]+)')
GLOBAL = re.compile(r'@(?:"[^"]*"|[-\w$.]+)')
_LABEL = re.compile(r"label (%[-\w$.]+)")
_RESULT = re.compile(r"(%[-\w$.]+) = ")
_INCOMING = re.compile(r"\[ (.+?), (%[-\w$.]+) \](?=, \[|$)")
_METADATA = re.compile(r"(?:, !\w[\w.]* ![\w.]+)+$")

BINARY = frozenset((
    "add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor",
    "fadd", "fsub", "fmul", "fdiv", "frem",
))  # fmt: skip
CASTS = frozenset((
    "trunc", "zext", "sext", "fptrunc", "fpext", "fptoui", "fptosi", "uitofp", "sitofp",
    "ptrtoint", "ptrtoaddr", "inttoptr", "bitcast", "addrspacecast",
))  # fmt: skip
_FLAGS = (
    r"(?:(?:nuw|nsw|exact|disjoint|nneg|samesign|inbounds|nusw|fast|nnan|ninf|nsz|arcp|contract"
    r"|afn|reassoc|inrange\([^)]*\)) )*"
)
_AFTER_FLAGS = re.compile(r"\w+ " + _FLAGS)
_COMPARISON = re.compile(r"[if]cmp " + _FLAGS + r"\w+ ")
_BEFORE_CALL = re.compile(r"(?:(?:tail|musttail|notail) )?call " + _FLAGS)
_CALL_WORDS = re.compile(
    r"(?:(?:fastcc|coldcc|ccc|cc \d+|noundef|nonnull|noalias|signext|zeroext|inreg"
    r"|nofpclass\([^)]*\)|range\([^)]*\)|align \d+|dereferenceable(?:_or_null)?\(\d+\)) )*"
)
TERMINATORS = frozenset(("ret", "br", "switch", "unreachable"))


@dataclass(slots=True)
class Instruction:
    """An instruction.

    Attributes:
        result: the name of its value, with the `%`; "" without one.
        type: of its value; "void" without one.
        text: the whole of it right of `=`, without metadata.
        uses: the local values that it names, once for each time; not labels.
        labels: of the blocks that it may go on at.
        incoming: of a phi: each value as it is written, with the block that it comes from.
        callee: the global function that it calls, with the `@`.
    """

    result: str
    opcode: str
    type: str
    text: str
    uses: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    incoming: tuple[tuple[str, str], ...] = ()
    callee: str = ""

    def arguments(self) -> list[str]:
        """What a call passes, each with its type and attributes."""
        start = self.text.index("(", self.text.index(self.callee))
        return split_list(self.text[start + 1 : end_of_group(self.text, start) - 1])

    def operands(self) -> list[str]:
        """Its operands as they are written, without their types."""
        return [part.rsplit(" ", 1)[-1] for part in split_list(self.text)]

    def renamed(self, names: Mapping[str, str]) -> str:
        """Its text with other names for the values and labels."""
        return LOCAL.sub(lambda m: names.get(m[0], m[0]), self.text)

    def with_operands(self, names: Mapping[str, str]) -> Instruction:
        """The instruction on other values."""
        if not any(u in names for u in self.uses):
            return self
        uses = tuple(u for u in (names.get(u, u) for u in self.uses) if u[0] == "%")
        incoming = tuple((names.get(v, v), b) for v, b in self.incoming)
        return replace(self, text=self.renamed(names), uses=uses, incoming=incoming)

    def with_label(self, label: str, other: str) -> Instruction:
        """The jump, to another block in the place of one."""
        text = re.sub(rf"label {re.escape(label)}(?![\w.])", f"label {other}", self.text)
        return replace(self, text=text, labels=tuple(_LABEL.findall(text)))


_COMPARED = re.compile(r"icmp (samesign )?(\w+) (i\d+|ptr) (\S+), (\S+)$")
_OPPOSITE = {"slt": "sge", "sle": "sgt", "ult": "uge", "ule": "ugt", "eq": "ne"}
_OPPOSITE |= {opposite: predicate for predicate, opposite in _OPPOSITE.items()}
_MIRRORED = {"slt": "sgt", "sle": "sge", "ult": "ugt", "ule": "uge", "eq": "eq", "ne": "ne"}
_MIRRORED |= {mirrored: predicate for predicate, mirrored in _MIRRORED.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two integers or addresses.

    Attributes:
        has_same_signs: nothing is promised of operands of two signs.
    """

    predicate: str
    type: str
    left: str
    right: str
    has_same_signs: bool = False

    @property
    def kind(self) -> str:
        """Predicate and type, as they are written."""
        return f"{self.predicate} {self.type}"

    @classmethod
    def of(cls, i: Instruction | None) -> Comparison | None:
        """The comparison that an instruction makes; None if it makes none."""
        match = _COMPARED.match(i.text) if i is not None else None
        return match and cls(match[2], match[3], match[4], match[5], bool(match[1]))

    def opposite(self) -> Comparison:
        """What holds where this does not."""
        return replace(self, predicate=_OPPOSITE[self.predicate])

    def mirrored(self) -> Comparison:
        """The same, with its operands exchanged."""
        mirrored = _MIRRORED[self.predicate]
        return replace(self, predicate=mirrored, left=self.right, right=self.left)

    def signed(self) -> Comparison:
        """The same of signed numbers, if the promise of its signs makes it the same."""
        if not self.has_same_signs:
            return self
        return replace(self, predicate=self.predicate.replace("u", "s", 1), has_same_signs=False)


def is_plain(i: Instruction) -> bool:
    """Whether a load or store is neither atomic nor volatile."""
    return i.text.split(" ", 2)[1] not in ("atomic", "volatile")


def type_at(text: str, at: int) -> str:
    return text[at : end_of_type(text, at)]


def _after_flags(text: str) -> str:
    match = _AFTER_FLAGS.match(text)
    assert match is not None  # every text begins so
    return type_at(text, match.end())


def _of_comparison(text: str) -> str:
    match = _COMPARISON.match(text)
    if match is None:
        raise UnknownFormError(f"a comparison: {text}")
    operands = type_at(text, match.end())
    return _vector_like(operands, "i1")


def _vector_like(type_text: str, element: str) -> str:
    return f"<{elements_of(type_text)[0]} x {element}>" if type_text[0] == "<" else element


def _of_cast(text: str) -> str:
    return text[text.rindex(" to ") + 4 :]


def _of_select(text: str) -> str:
    match = _AFTER_FLAGS.match(text)
    assert match is not None  # every text begins so
    return type_at(split_list(text[match.end() :])[1], 0)


def _of_load(text: str) -> str:
    match = re.match(r"load (?:atomic )?(?:volatile )?", text)
    assert match is not None  # every text begins so
    return type_at(text, match.end())


def _of_address(text: str) -> str:
    return "ptr"


def _of_gep(text: str) -> str:
    match = _AFTER_FLAGS.match(text)
    assert match is not None  # every text begins so
    kinds = [type_at(operand, 0) for operand in split_list(text[match.end() :])[1:]]
    if any(kind[0] == "<" for kind in kinds):
        raise UnknownFormError(f"a vector of addresses: {text}")
    return "ptr"


def _of_extractvalue(text: str) -> str:
    first, *indices = split_list(text[len("extractvalue ") :])
    return element_type(type_at(first, 0), [int(i) for i in indices])


def _of_first(text: str) -> str:
    return type_at(text, text.index(" ") + 1)


def _of_extractelement(text: str) -> str:
    return str(elements_of(_of_first(text))[1])


def _of_shufflevector(text: str) -> str:
    first, _, mask = split_list(text[len("shufflevector ") :])
    count = elements_of(type_at(mask, 0))[0]
    return f"<{count} x {elements_of(type_at(first, 0))[1]}>"


def _of_rmw(text: str) -> str:
    return type_at(split_list(text)[1], 0)


def _of_cmpxchg(text: str) -> str:
    return f"{{ {type_at(split_list(text)[1], 0)}, i1 }}"


def _no_value(text: str) -> str:
    return "void"


_TYPE_OF: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(BINARY, _after_flags),
    **dict.fromkeys(CASTS, _of_cast),
    "fneg": _after_flags,
    "freeze": _of_first,
    "icmp": _of_comparison,
    "fcmp": _of_comparison,
    "select": _of_select,
    "phi": _after_flags,
    "load": _of_load,
    "store": _no_value,
    "fence": _no_value,
    "alloca": _of_address,
    "getelementptr": _of_gep,
    "extractvalue": _of_extractvalue,
    "insertvalue": _of_first,
    "extractelement": _of_extractelement,
    "insertelement": _of_first,
    "shufflevector": _of_shufflevector,
    "atomicrmw": _of_rmw,
    "cmpxchg": _of_cmpxchg,
    **dict.fromkeys(TERMINATORS, _no_value),
}


def without_metadata(line: str) -> str:
    return _METADATA.sub("", line)


def parse_instruction(line: str) -> Instruction:
    """The instruction of a line, whose names are simple ones.

    Raises:
        UnknownFormError: for an instruction that is not known here.
    """
    line = without_metadata(line.strip())
    match = _RESULT.match(line)
    result = match[1] if match else ""
    text = line[match.end() :] if match else line
    opcode = text.split(" ", 1)[0]
    if opcode in ("tail", "musttail", "notail"):
        opcode = "call"
    if opcode == "call":
        return _parse_call(result, text)
    find_type = _TYPE_OF.get(opcode)
    if find_type is None:
        raise UnknownFormError(f"an instruction of LLVM that is not known here: {line}")
    kind = find_type(text)
    if opcode == "phi":
        incoming = tuple(_INCOMING.findall(text))
        if not incoming or len(incoming) != text.count(" ]"):
            raise UnknownFormError(f"a phi: {text}")
        uses = tuple(name for value, _ in incoming for name in LOCAL.findall(value))
        return Instruction(result, opcode, kind, text, uses, incoming=incoming)
    if opcode in TERMINATORS:
        labels = tuple(_LABEL.findall(text))
        uses = tuple(LOCAL.findall(_LABEL.sub("", text)))
        return Instruction(result, opcode, kind, text, uses, labels)
    return Instruction(result, opcode, kind, text, tuple(LOCAL.findall(text)))


def _parse_call(result: str, text: str) -> Instruction:
    match = _BEFORE_CALL.match(text)
    assert match is not None  # every text begins so
    words = _CALL_WORDS.match(text, match.end())
    assert words is not None  # there may be none of them
    at = words.end()
    kind = type_at(text, at)
    at = end_of_type(text, at) + 1
    if text[at] == "(":  # the type of a function with a variable number of arguments
        at = end_of_group(text, at) + 1
    callee = GLOBAL.match(text, at)
    if callee is None:
        if text.startswith("asm ", at) or LOCAL.match(text, at) is None:
            raise UnknownFormError(f"a call: {text}")
        return Instruction(result, "call", kind, text, tuple(LOCAL.findall(text)))
    return Instruction(result, "call", kind, text, tuple(LOCAL.findall(text)), callee=callee[0])
