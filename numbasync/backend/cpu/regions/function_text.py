"""A module's text: one function of it as blocks of instructions, and all that is around it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from numbasync.backend.cpu.regions.instructions import (
    LOCAL,
    TERMINATORS,
    Instruction,
    parse_instruction,
)
from numbasync.backend.cpu.regions.llvm_types import (
    UnknownFormError,
    end_of_group,
    end_of_type,
    split_list,
)

_LABEL = re.compile(r'("[^"]*"|[-\w$.]+):')
_OURS = re.compile(r"%na\.(?:(?:shared|exchange)\.|(?:dynamic|present)$)")  # addresses of memory
_COMMENT = re.compile(r"\s*;.*$")


@dataclass(slots=True)
class Function:
    """A function.

    Attributes:
        parameters: type and name of each.
        blocks: instructions by the block's name, which begins with `%`; the entry comes first. The
            last of each is its terminator, and phis come before all others.
    """

    name: str
    parameters: list[tuple[str, str]]
    blocks: dict[str, list[Instruction]]

    @property
    def entry(self) -> str:
        return next(iter(self.blocks))

    def successors(self) -> dict[str, list[str]]:
        return {b: list(dict.fromkeys(code[-1].labels)) for b, code in self.blocks.items()}

    def definitions(self) -> dict[str, tuple[str, Instruction]]:
        """Each value's block and instruction."""
        return {i.result: (b, i) for b, code in self.blocks.items() for i in code if i.result}

    def made(self) -> dict[str, Instruction]:
        """The instruction that makes each value."""
        return {i.result: i for code in self.blocks.values() for i in code if i.result}

    def new_name(self, stem: str) -> str:
        """A name that no block has and that no value will get."""
        number = len(self.blocks)
        while f"%{stem}.{number}" in self.blocks:
            number += 1
        return f"%{stem}.{number}"


@dataclass(slots=True)
class ModuleText:
    """A module around one of its functions.

    Attributes:
        function: the one.
        rest: the lines of everything else: globals, declarations, other functions, attributes.
    """

    function: Function
    rest: list[str] = field(default_factory=list)


def parse_module(text: str, name: str) -> ModuleText:
    """Parse the function `name` of a module as llvmlite prints it.

    Raises:
        UnknownFormError: for a form that is not known here; never a guess.
    """
    lines = text.splitlines()
    quoted = re.compile(rf'define .*@"?{re.escape(name)}"?\(')
    start = next((i for i, line in enumerate(lines) if quoted.match(line)), None)
    if start is None:
        raise UnknownFormError(f"the module has no function {name}")
    end = lines.index("}", start)
    names = _Names(_named_types(lines))
    head = lines[start]
    at = head.index("(", head.index(name))
    parameters = []
    for parameter in split_list(head[at + 1 : end_of_group(head, at) - 1]):
        kind = parameter[: end_of_type(parameter, 0)]
        parameters.append((kind, names.simple(parameter.rsplit(" ", 1)[1])))
    function = Function(name, parameters, _parse_blocks(lines[start + 1 : end], names))
    return ModuleText(function, lines[:start] + lines[end + 1 :])


def _named_types(lines: Iterable[str]) -> set[str]:
    return {line.split(" = ", 1)[0] for line in lines if " = type " in line and line[0] == "%"}


class _Names:
    """Simple names, of letters, digits, `_` and `.`, for those that LLVM's text has.

    They begin with `v.`: a kernel's variable may be called as a label of ours, such as `blocks`.
    """

    def __init__(self, named_types: set[str]) -> None:
        self._simple: dict[str, str] = {t: t for t in named_types}
        self._taken: set[str] = set(named_types)

    def simple(self, name: str) -> str:
        known = self._simple.get(name)
        if known is not None:
            return known
        ours = "" if _OURS.match(name) else "v."
        stem = made = f"%{ours}" + re.sub(r"[^\w.]", "_", name[1:].strip('"'))
        if made in self._taken or name[1] == '"':
            number = 0
            while made in self._taken:
                number += 1
                made = f"{stem}.{number}"
        self._taken.add(made)
        self._simple[name] = made
        return made

    def simplified(self, line: str) -> str:
        return LOCAL.sub(lambda match: self.simple(match[0]), line)


def _parse_blocks(lines: list[str], names: _Names) -> dict[str, list[Instruction]]:
    blocks: dict[str, list[Instruction]] = {}
    code: list[Instruction] | None = None
    i = 0
    while i < len(lines):
        line = lines[i]
        i += 1
        if not line.strip() or line.lstrip().startswith(("#dbg", ";")):
            continue
        label = _LABEL.match(line)
        if label is not None:
            code = blocks[names.simple("%" + label[1])] = []
            continue
        if code is None:
            raise UnknownFormError("a block without a name: the names' pass has not run")
        if 'c"' in line:
            raise UnknownFormError(f"a constant text inside of a function: {line}")
        if ";" in line:
            line = _COMMENT.sub("", line)
        if line.lstrip().startswith("switch "):
            while "]" not in line:
                line += " " + lines[i].strip()
                i += 1
        code.append(parse_instruction(names.simplified(line)))
    for name, code in blocks.items():
        if not code or code[-1].opcode not in TERMINATORS:
            raise UnknownFormError(f"the block {name} has no end that is known here")
    return blocks
