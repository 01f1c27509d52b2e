"""Tests under NVIDIA's `compute-sanitizer`, and what it says of them, by lines of kernels.

The tool prints a block of lines for each finding, all of which begin with `=========`: what, where
in which kernel and file, by which thread. Its text has changed from release to release; what is
read here are the parts that all have had since 2021, and a finding whose parts are not known is
reported as it stands.
"""

from __future__ import annotations

import linecache
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from numbasync.testing.plugin import isolated

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST_SHOWN = 5  # findings of one test; a wrong index gives one for each thread
_BAR = "========="


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the tool has found, or the same thing in several threads.

    Attributes:
        what: its own words.
        kernel: the kernel's name; "" if it does not say.
        places: file and line of each access; empty without line information.
        thread, block: who, as the tool writes it; "" if it does not say.
        count: how many findings differ in thread and address alone.
    """

    what: str
    kernel: str
    places: tuple[tuple[str, int], ...]
    thread: str = ""
    block: str = ""
    count: int = 1

    def said(self, root: Path) -> str:
        """For people: with the lines of source, looked for below `root`."""
        who = f", block {self.block}, thread {self.thread}" if self.thread else ""
        more = f" (and {self.count - 1} more like it)" if self.count > 1 else ""
        lines = [f"{self.what}, kernel {self.kernel or '?'}{who}{more}"]
        for name, number in self.places:
            path = _found(name, root)
            text = linecache.getline(str(path), number).strip() if path else ""
            lines.append(f"  {path or name}:{number}" + (f"    {text}" if text else ""))
        return "\n".join(lines)


# "at kernel(int*)+0x50 in file.py:7", and before 2022 "at 0x50 in file.py:7:kernel(int*)". Types of
# Numba's parameters have parentheses of their own: "kernel(Array<float, (int)1, C>)".
_AT = re.compile(
    r"\bat (?P<name>[^\s(+]+)?(?:\((?:[^()]|\([^()]*\))*\))?(?:\+?0x[0-9a-f]+)?"
    r"(?: in (?P<file>[^:\s]+):(?P<line>\d+)(?::(?P<old>[^\s(]+))?)?"
)
_BY = re.compile(r"by thread (\(\d+,\d+,\d+\)) in block (\(\d+,\d+,\d+\))")
_ENDS = ("ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "COMPUTE-SANITIZER", "Target")
# What follows a finding without being part of what was wrong in a kernel.
_HOST = ("Saved host backtrace", "Host Frame", "Device Frame")
# The driver's calls that fail afterwards, because of what was found.
_AFTERWARDS = ("Program hit",)


def parse(text: str) -> list[Finding]:
    """What the tool has found; equal findings of many threads once."""
    found: dict[tuple[str, str, tuple[tuple[str, int], ...]], Finding] = {}
    for block in _blocks(text.splitlines()):
        one = _finding(block)
        if one is None:
            continue
        key = (one.what, one.kernel, one.places)
        if key in found:
            first = found[key]
            found[key] = Finding(
                first.what, first.kernel, first.places, first.thread, first.block, first.count + 1
            )
        else:
            found[key] = one
    return list(found.values())


def _blocks(lines: Iterable[str]) -> Iterable[list[str]]:
    """A finding's lines: the first is not indented, the others are, an empty one ends it."""
    block: list[str] = []
    for line in lines:
        if not line.startswith(_BAR):
            continue
        text = line[len(_BAR) :]
        is_first = text[:1] == " " and text[1:2] not in ("", " ")
        if (is_first or not text.strip()) and block:
            yield block
            block = []
        if is_first or (block and text.strip()):
            block.append(text.strip())
    if block:
        yield block


def _finding(block: Sequence[str]) -> Finding | None:
    head = block[0]
    if head.startswith((*_ENDS, *_AFTERWARDS)) or head.endswith("Internal Sanitizer Error"):
        return None
    own = [line for line in block if not line.startswith(_HOST)]
    kernel, places = "", []
    for line in own:
        for at in _AT.finditer(line):
            if at["file"]:
                places.append((at["file"], int(at["line"])))
            kernel = kernel or _plain(at["old"] or at["name"] or "")
    by = next((m for m in map(_BY.search, own) if m), None)
    if not kernel and not places and by is None:
        return None  # a notice
    thread, in_block = by.groups() if by else ("", "")
    return Finding(_shortened(head), kernel, tuple(places), thread, in_block)


def _shortened(head: str) -> str:
    """Without the place, which is told beside it."""
    text = re.sub(r"^(Error|Warning): ", "", head).split(" at ")[0].rstrip(".")
    return re.sub(r" between \w+ access$", "", text)


def _plain(name: str) -> str:
    """Of what Numba calls a compiled kernel, the function's name."""
    if name.startswith("0x"):
        return ""
    mangled = re.match(r"_ZN(?:\d+[A-Za-z_]\w*?)*?(\d+)", name)
    if mangled:
        parts, rest = [], name[3:]
        while (size := re.match(r"\d+", rest)) is not None:
            end = size.end() + int(size[0])
            parts.append(rest[size.end() : end])
            rest = rest[end:]
        named = [p for p in parts if not p.startswith(("_3c", "B"))]
        name = (named or parts or [name])[-1]
    return re.sub(r"[\[(<$:].*", "", name.split("::")[-1])


def _found(name: str, root: Path) -> Path | None:
    """The file; the tool often knows its last part only."""
    path = Path(name)
    if path.is_file():
        return path
    near = [root / name, *sorted(root.rglob(path.name))[:1]]
    return next((p for p in near if p.is_file()), None)


# --- running ------------------------------------------------------------------------------


def command(tool: str) -> list[str]:
    """The tool's command line, without where it is to write.

    Raises:
        pytest.UsageError: it is not installed.
    """
    places = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    binary = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if binary is None:
        raise pytest.UsageError(
            f"--compute-sanitizer={tool}: there is no compute-sanitizer on the PATH, nor in "
            "/usr/local/cuda/bin. It comes with the CUDA toolkit."
        )
    # For backtraces of the host it keeps Python's frames, which looks like leaks.
    return [binary, "--tool", tool, "--show-backtrace", "no"]


def run(item: pytest.Function, tool: str, options: list[str]) -> None:
    """Run a test under the tool in a process of its own; it fails with what was found."""
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        under = [*command(tool), "--log-file", str(log)]
        failed: BaseException | None = None
        try:
            isolated.run(item, [*options, "--kernel-lines"], under)
        except (pytest.fail.Exception, pytest.skip.Exception) as error:
            failed = error
        text = log.read_text(errors="replace") if log.exists() else ""
    found = parse(text)
    if found:
        pytest.fail(report(tool, found, item.config.rootpath), pytrace=False)
    if failed is not None:
        raise failed
    if f"{_BAR} " not in text:
        pytest.fail(f"compute-sanitizer has written nothing for {item.nodeid}", pytrace=False)


def report(tool: str, found: Sequence[Finding], root: Path) -> str:
    """What to fail with."""
    shown = [f.said(root) for f in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        shown.append(f"... and {len(found) - MOST_SHOWN} other findings")
    return "\n".join([f"compute-sanitizer {tool} has found:", *shown])
