"""Runs tests under NVIDIA's `compute-sanitizer`, and reports its findings by lines of kernels.

The tool prints a block of lines for each finding, all beginning with `=========`: the error, its
place in a kernel and file, and the thread. The text changes from release to release. This module
reads the parts that all releases since 2021 have, and reports a finding with unknown parts
verbatim.
"""

from __future__ import annotations

import linecache
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from numbasync import cache_folder
from numbasync.testing.plugin import isolated

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST_SHOWN = 5  # findings of one test; a wrong index gives one for each thread
_BAR = "========="


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the tool, or equal findings in several threads.

    Attributes:
        what: the error in the tool's words.
        kernel: the kernel's name; "" if the tool does not report it.
        places: file and line of each access; empty without line information.
        thread, block: the accessing thread, as the tool writes it; "" if not reported.
        count: how many findings differ in thread and address alone.
    """

    what: str
    kernel: str
    places: tuple[tuple[str, int], ...]
    thread: str = ""
    block: str = ""
    count: int = 1

    def said(self, root: Path) -> str:
        """The finding as text, with lines of source from files below `root`."""
        thread_text = f", block {self.block}, thread {self.thread}" if self.thread else ""
        count_text = f" (and {self.count - 1} more like it)" if self.count > 1 else ""
        lines = [f"{self.what}, kernel {self.kernel or '?'}{thread_text}{count_text}"]
        for name, number in self.places:
            path = _path_of(name, root)
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
# Lines of a finding's block that do not describe the error in the kernel.
_HOST = ("Saved host backtrace", "Host Frame", "Device Frame")
# Reports of driver calls that fail as a consequence of a finding.
_AFTERWARDS = ("Program hit",)


def parse(text: str) -> list[Finding]:
    """The findings in the tool's output; equal findings of many threads once."""
    findings: dict[tuple[str, str, tuple[tuple[str, int], ...]], Finding] = {}
    for block in _blocks(text.splitlines()):
        finding = _finding(block)
        if finding is None:
            continue
        key = (finding.what, finding.kernel, finding.places)
        if key in findings:
            first = findings[key]
            findings[key] = Finding(
                first.what, first.kernel, first.places, first.thread, first.block, first.count + 1
            )
        else:
            findings[key] = finding
    return list(findings.values())


def _blocks(lines: Iterable[str]) -> Iterable[list[str]]:
    """The lines of each finding: the first is not indented, the others are, an empty line ends
    the block.
    """
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
    kernel_lines = [line for line in block if not line.startswith(_HOST)]
    kernel, places = "", []
    for line in kernel_lines:
        for match in _AT.finditer(line):
            if match["file"]:
                places.append((match["file"], int(match["line"])))
            kernel = kernel or _function_name(match["old"] or match["name"] or "")
    thread_match = next((m for m in map(_BY.search, kernel_lines) if m), None)
    if not kernel and not places and thread_match is None:
        return None  # a notice of the tool, not a finding
    thread, in_block = thread_match.groups() if thread_match else ("", "")
    return Finding(_shortened(head), kernel, tuple(places), thread, in_block)


def _shortened(head: str) -> str:
    """The error without its place, which is reported separately."""
    text = re.sub(r"^(Error|Warning): ", "", head).split(" at ")[0].rstrip(".")
    return re.sub(r" between \w+ access$", "", text)


def _function_name(name: str) -> str:
    """The function's name in Numba's name of a compiled kernel."""
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
    # A coarsened kernel is named after the kernel, and after the positions of its threads.
    return re.sub(r"[\[(<$:].*|_[xyz]\d+_(neighbours|\d+apart)$", "", name.split("::")[-1])


def _path_of(name: str, root: Path) -> Path | None:
    """The path of the file, of whose name the tool often knows only the last part."""
    path = Path(name)
    if path.is_file():
        return path
    candidates = [root / name, *sorted(root.rglob(path.name))[:1]]
    return next((p for p in candidates if p.is_file()), None)


# --- running ------------------------------------------------------------------------------


def command(tool: str) -> list[str]:
    """The tool's command line, without the log file.

    Raises:
        pytest.UsageError: the tool is not installed.
    """
    # An empty or relative part of the PATH would be the folder of the tests.
    named = os.environ.get("PATH", "").split(os.pathsep)
    places = [*filter(os.path.isabs, named), "/usr/local/cuda/bin"]
    binary = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if binary is None:
        raise pytest.UsageError(
            f"--compute-sanitizer={tool}: there is no compute-sanitizer on the PATH, nor in "
            "/usr/local/cuda/bin. It comes with the CUDA toolkit."
        )
    # For host backtraces, the tool keeps Python's frames, which would look like leaks.
    return [binary, "--tool", tool, "--show-backtrace", "no"]


def run(item: pytest.Function, tool: str, options: list[str]) -> None:
    """Run a test under the tool in a separate process. The test fails with the tool's findings."""
    __tracebackhide__ = True
    with cache_folder.temporary() as folder:
        log = folder / "log"
        prefix = [*command(tool), "--log-file", str(log)]
        failed: BaseException | None = None
        try:
            isolated.run(item, [*options, "--kernel-lines"], prefix)
        except (pytest.fail.Exception, pytest.skip.Exception) as error:
            failed = error
        text = log.read_text(errors="replace") if log.exists() else ""
    findings = parse(text)
    if findings:
        pytest.fail(report(tool, findings, item.config.rootpath), pytrace=False)
    if failed is not None:
        raise failed
    if f"{_BAR} " not in text:
        pytest.fail(f"compute-sanitizer has written nothing for {item.nodeid}", pytrace=False)


def report(tool: str, found: Sequence[Finding], root: Path) -> str:
    """The failure message for the findings."""
    texts = [f.said(root) for f in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        texts.append(f"... and {len(found) - MOST_SHOWN} other findings")
    return "\n".join([f"compute-sanitizer {tool} has found:", *texts])
