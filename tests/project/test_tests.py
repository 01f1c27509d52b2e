"""The tests themselves: they wait for events instead of sleeping, and a file is one concept."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
# A turn of the loop is no sleep. Programs for child processes, which are texts, count too.
SLEEP = re.compile(r"\bsleep\((?!0\))|\btime\.sleep\b|from time import .*\bsleep\b")
# So many in a file: the one timer of tests that measure how late timers are.
ALLOWED = {"waiting.py": 1}


def test_no_test_sleeps() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): [
            line.strip()
            for line in path.read_text(encoding="utf-8").splitlines()
            if SLEEP.search(line)
        ]
        for path in TESTS.rglob("*.py")
    }
    sleeps = {file: lines for file, lines in found.items() if len(lines) != ALLOWED.get(file, 0)}
    assert sleeps == {}, (
        "wait for what is to happen: tests/waiting.py has `happens` and `eventually`"
    )


def test_a_file_of_tests_is_one_concept() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in TESTS.rglob("test_*.py")}
    long = {name for name, lines in lengths.items() if lines > 400}
    assert long <= {"test_store_analysis.py"}, "split them by concept"
