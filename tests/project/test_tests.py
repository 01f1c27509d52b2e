"""The tests themselves: they wait for events instead of sleeping, and a file is one concept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests import conftest

TESTS = Path(__file__).parent.parent
# A turn of the loop is no sleep. Programs for child processes, which are texts, count too.
SLEEP = re.compile(r"\bsleep\((?!0\))|\btime\.sleep\b|from time import .*\bsleep\b")
# So many in a file: the one timer of tests that measure how late timers are; and virtual time.
ALLOWED = {"waiting.py": 1, "virtual_time.py": 1}


def test_no_test_sleeps() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): [
            line.strip()
            for line in path.read_text(encoding="utf-8").splitlines()
            if "sleep" in line and SLEEP.search(line)  # the first is fast
        ]
        for path in TESTS.rglob("*.py")
    }
    sleeps = {file: lines for file, lines in found.items() if len(lines) != ALLOWED.get(file, 0)}
    assert sleeps == {}, (
        "wait for what is to happen: tests/waiting.py has `happens` and `eventually`"
    )


@pytest.mark.parametrize(
    ("outcome", "reason", "letter"),
    [("skipped", "needs CUDA: no driver", ""), ("skipped", "needs Ray", None),
     ("failed", "needs CUDA: no driver", None)],
)  # fmt: skip
def test_only_a_missing_gpu_has_no_letter(outcome: Any, reason: str, letter: str | None) -> None:
    report = pytest.TestReport("x", ("x", 1, "x"), {}, outcome, ("x", 1, reason), "call")
    shown = conftest.pytest_report_teststatus(report)
    assert (shown and shown[1]) == letter


def test_a_file_of_tests_is_one_concept() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in TESTS.rglob("test_*.py")}
    assert not {name for name, lines in lengths.items() if lines > 800}, "split them by concept"


# A limit on hanging, which a test that passes never reaches: as long as a busy machine may need.
HANG = 300
LIMIT = re.compile(
    r"(?:\.wait\(|\.join\(|\basyncio\.timeout\(|\btimeout=|\bseconds=|\bwait_for\(.*, |"
    r"perf_counter\(\) \+ )"
    r"(\d+(?:\.\d+)?)[,)\n]"
)
WORDS = ("wait", ".join(", "timeout", "seconds", "perf_counter")  # one is in each such line
# Tests of limits themselves; programs that people run by hand.
WITHOUT = (
    "gpu/", "numba_suite/", "stress/soak", "native/mutants.py", "project/test_tests.py",
    "ops/test_asyncio_forms.py", "collective/test_library_errors.py",
)  # fmt: skip


def test_no_test_fails_because_the_machine_is_busy() -> None:
    short, own = [], []
    for path in TESTS.rglob("*.py"):
        name = path.relative_to(TESTS).as_posix()
        text = path.read_text(encoding="utf-8")
        if not name.startswith(WITHOUT):
            lines = [line for line in text.splitlines(True) if any(w in line for w in WORDS)]
            found = [float(limit) for limit in LIMIT.findall("".join(lines))]
            # Less is a wait that is to end in vain, or an argument of what is tested.
            short += [f"{name}: {limit}" for limit in found if 5 <= limit < HANG]
        is_own = name not in ("conftest.py", "testing/test_plugin_checks.py")  # of another process
        if is_own and re.search(r"\bsettings\([^)]*\bdeadline=", text):
            own.append(name)
    assert short == [], f"a limit on hanging is {HANG} s or more"
    assert own == [], "tests/conftest.py has the one profile, without a deadline"


def test_names_have_at_most_eight_words() -> None:
    """A name says which rule a test holds; what more there is to say stands in the test."""
    found = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.M)
    long = [
        f"{path.relative_to(TESTS).as_posix()}: {name}"
        for path in TESTS.rglob("test_*.py")
        for name in found.findall(path.read_text(encoding="utf-8"))
        if name.count("_") > 8
    ]
    assert long == []
