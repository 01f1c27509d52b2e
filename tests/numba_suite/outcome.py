"""What became of one test, and how it is written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
KINDS = (PASSED, FAILED, SKIPPED)

NO_LAUNCH = "launches no kernel"
NO_DRIVER = "needs the driver, or the compiler for it"
NO_OUTPUT = "asks for the compiler's output"
NOT_SIMULATED = "left out by Numba's simulator"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test.

    Attributes:
        file: its module, such as `test_sync`.
        test: class and method.
        kind: passed, failed or skipped.
        reason: why it failed or was skipped.
        seconds: what it took.
    """

    file: str
    test: str
    kind: str
    reason: str
    seconds: float


def by_file(outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """How many of each kind a file has."""
    found: dict[str, Counter[str]] = {}
    for o in outcomes:
        found.setdefault(o.file, Counter())[o.kind] += 1
    return found


def reasons(outcomes: Sequence[Outcome], kind: str) -> list[tuple[str, int]]:
    """The first lines of the reasons, the most frequent first."""
    said = (o.reason.split("\n")[0] for o in outcomes if o.kind == kind and o.reason)
    return Counter(said).most_common()


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The run as tables: files that have launched something, then why tests have failed."""
    total = Counter(o.kind for o in outcomes)
    files = {f: c for f, c in sorted(by_file(outcomes).items()) if c.total() > c[SKIPPED]}
    lines = [
        "| file | passed | failed | skipped |",
        "|---|---:|---:|---:|",
        *(_row(f, c) for f, c in files.items()),
        _row("all files", total),
        "",
    ]
    for kind, title in ((FAILED, "failed because"), (SKIPPED, "skipped because")):
        found = reasons(outcomes, kind)
        if kind == SKIPPED:  # what the simulator says of each test is its own affair
            merged: Counter[str] = Counter()
            for reason, count in found:
                merged[reason.split(":")[0]] += count
            found = merged.most_common()
        lines += [f"| {title} | tests |", "|---|---:|"]
        lines += [f"| {_cell(reason)} | {count} |" for reason, count in found]
        lines.append("")
    return "\n".join(lines)


def _row(name: str, counts: Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counts[kind]) for kind in KINDS) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
