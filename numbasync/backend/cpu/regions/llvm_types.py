"""Types of LLVM as they are written: where one ends, what it consists of, its bytes."""

from __future__ import annotations

import functools
import re


class UnknownFormError(Exception):
    """A form of LLVM's language that the regions do not know: a fault of ours, not of a kernel."""


_PLAIN = re.compile(
    r"(?:i\d+|half|bfloat|float|double|fp128|x86_fp80|void|label|metadata|token"
    r'|ptr(?: addrspace\(\d+\))?|%(?:"[^"]*"|[-\w$.]+))(?![\w.])'
)
_BYTES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "fp128": 16, "x86_fp80": 16, "ptr": 8}
_CLOSING = {"[": "]", "{": "}", "<": ">", "(": ")"}


def end_of_group(text: str, at: int) -> int:
    """The position behind the bracket that closes the one at `at`; texts in quotes are skipped."""
    expected = [_CLOSING[text[at]]]
    i = at + 1
    while expected:
        if i >= len(text):
            raise UnknownFormError(f"a bracket without an end in: {text}")
        c = text[i]
        if c == '"':
            i = text.index('"', i + 1)
        elif c in _CLOSING:
            expected.append(_CLOSING[c])
        elif c == expected[-1]:
            expected.pop()
        i += 1
    return i


def end_of_type(text: str, at: int) -> int:
    """The position behind the type that begins at `at`."""
    if text[at] in "[{<":
        return end_of_group(text, at)
    match = _PLAIN.match(text, at)
    if match is None:
        raise UnknownFormError(f"no type that is known at {text[at : at + 40]!r} of: {text}")
    return match.end()


def split_list(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    parts = []
    start = i = 0
    while i < len(text):
        c = text[i]
        if c in _CLOSING:
            i = end_of_group(text, i)
            continue
        if c == '"':
            i = text.index('"', i + 1)
        elif c == ",":
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    last = text[start:].strip()
    if last:
        parts.append(last)
    return parts


@functools.lru_cache(4096)
def elements_of(type_text: str) -> list[str] | tuple[int, str]:
    """The members of a structure, or the count and type of an array's or vector's elements."""
    if type_text[0] == "{":
        return split_list(type_text[1:-1])
    if type_text.startswith("<{"):
        return split_list(type_text[2:-2])
    match = re.match(r"[\[<](\d+) x (.*)[\]>]$", type_text)
    if match is None:
        raise UnknownFormError(f"a type without elements, or with a name: {type_text}")
    return int(match[1]), match[2]


def element_type(type_text: str, indices: list[int]) -> str:
    """The type of what `extractvalue` takes out."""
    for i in indices:
        found = elements_of(type_text)
        type_text = found[i] if isinstance(found, list) else found[1]
    return type_text


@functools.lru_cache(4096)
def size_and_alignment(type_text: str) -> tuple[int, int]:
    """Bytes from one to the next in an array, and alignment; of x86_64 and aarch64 alike."""
    if type_text in _BYTES:
        nbytes = _BYTES[type_text]
        return nbytes, nbytes
    if match := re.fullmatch(r"i(\d+)", type_text):
        bits = int(match[1])
        if bits > 128:
            raise UnknownFormError(f"an integer of {bits} bits")
        nbytes = max(1, 1 << (bits - 1).bit_length() >> 3)
        return nbytes, nbytes
    if type_text[0] == "[":
        count, one = elements_of(type_text)
        size, alignment = size_and_alignment(str(one))
        return int(count) * size, alignment
    if type_text[0] == "{" or type_text.startswith("<{"):
        members = elements_of(type_text)
        offset, most = 0, 1
        for member in members:
            size, alignment = size_and_alignment(str(member))
            if type_text[0] == "{":
                offset = round_up(offset, alignment)
                most = max(most, alignment)
            offset += size
        return round_up(offset, most), most
    if type_text[0] == "<":
        count, one = elements_of(type_text)
        bits = (
            int(one[1:]) if re.fullmatch(r"i\d+", str(one)) else 8 * size_and_alignment(str(one))[0]
        )
        nbytes = max(1, int(count) * bits + 7 >> 3)
        nbytes = 1 << (nbytes - 1).bit_length()
        return nbytes, nbytes
    raise UnknownFormError(f"a type whose size is not known: {type_text}")


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
