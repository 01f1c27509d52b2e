"""Names in the code are the field's: what had another name here keeps the standard one."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

import numbasync as na

PACKAGE = Path(str(na.__file__)).parent

# What it was called -> what the field calls it. See the glossary in docs/architecture.md.
STANDARD = {
    "Bound": "BoundArguments", "Contiguous": "ArraySpec", "Doorbell": "Waker",
    "EARLY": "LEAD_S", "FARTHEST": "MAX_UNSIGNALLED", "Forecast": "LatencyEstimate",
    "Form": "FastCall", "Landing": "StagedCopyBack", "Lender": "BorrowedOwner",
    "Link": "ChainOp", "Loan": "Export", "MOST_UNSEEN": "MAX_SPIN_BACKOFF", "Once": "SharedRun",
    "Patience": "Deadline", "Preparation": "Prerequisite", "Reached": "HostMapped",
    "Reading": "HostStaging", "Room": "Capacity", "SOON": "SHORT_S", "Shadow": "ShadowMemory",
    "Submittable": "Operation", "Together": "ParallelCopy", "Turn": "OneShotEvent",
    "WRITTEN": "SOURCE_ATTR", "Word": "CompletionCounter", "afterwards": "on_complete",
    "agreed": "resolve_stream", "claim": "consume", "glance": "spin_poll",
    "has_mark_behind": "is_signalled_after", "has_no_end": "is_trivial",
    "have_marked": "ensure_signalled", "hurry": "expedite", "is_left_alone": "is_orphaned",
    "is_quick": "has_fast_path", "is_sure": "cannot_fail", "is_within": "is_descendant_of",
    "leasing": "submit_lock", "part_of": "as_child", "plain_device": "fast_path_device",
    "refusing": "suppress_unused_warnings", "silence": "suppress_warning",
    "stands_on": "is_current_on", "tell_graphs": "invalidate_graphs",
    "unplaced": "unresolved_host", "vouched": "verified_sequence",
    "_priors": "_dependencies", "_standing": "_attached", "_unmade": "_not_created",
    "before_mark": "before_signal", "go_on": "resume",
    "line_is_finished": "queue_is_drained", "look_at_followed": "poll_followed",
    "makers": "producers_of", "nothing_waits": "queue_is_empty", "unsettled": "in_flight_count",
}  # fmt: skip

# Other things, for which the word is right.
ELSEWHERE = {
    "facts/guards.py": {"Bound"},
    "facts/positions.py": {"Bound"},
    "facts/parts.py": {"Form"},
    "facts/effects.py": {"Form"},
}


def names(path: Path) -> set[str]:
    """Those of `STANDARD` among the names in a file's code, without texts and comments."""
    text = path.read_text()
    if STANDARD.keys().isdisjoint(
        re.findall(r"\w+", text)
    ):  # as most are: it has no tokens to read
        return set()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {t.string for t in tokens if t.type == tokenize.NAME} & STANDARD.keys()


@pytest.mark.parametrize(
    "subpackage", sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists())
)
def test_names_are_standard(subpackage: str) -> None:
    for path in (PACKAGE / subpackage).rglob("*.py"):
        allowed = ELSEWHERE.get(path.relative_to(PACKAGE).as_posix(), set())
        private = names(path) - allowed
        assert not private, (path, {name: STANDARD[name] for name in private})
