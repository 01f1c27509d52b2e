"""The words and sentences of the documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if path.name != "CHANGELOG.md"  # the history, as it was written
)

MOST_WORDS = 30  # of a sentence
MOST_LINES = 60  # of a how-to page
# What had its own name here, and what the field calls it.
STANDARD = {
    r"lent|lends?|lending": "passed, exported",
    r"leas(?:ed?|es|ing)": "kept, bookkeeping",
    r"withdr(?:awn?|aws|ew|awing)": "cancelled",
    r"(?:turns?|turning) on": "keeps running",
    r"stands? in line": "is queued",
    r"rooms?": "package, limit, memory",
}


def prose(text: str) -> str:
    """A page without code, comments, marks and the targets of links."""
    text = re.sub(r"^---.*?^---$", "", text, flags=re.M | re.S)
    text = re.sub(r"^ *```.*?^ *```", "\n\n", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->|</?[a-z][^>]*>|\{ \.\w+ \}", "", text, flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"(?<=\])\([^)]*\)", "", re.sub(r"`[^`]*`", "`x`", text))


def sentences(text: str) -> Iterator[str]:
    """What ends at a full stop or a colon, a cell of a table, or an item of a list."""
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |#|===|\|))|(?<!\|)\|", prose(text)):
        yield from re.split(r"(?<=[.!?:])\*{0,2}\s+(?=[A-Z`*\[(0-9])", " ".join(part.split()))


def long_sentences(text: str) -> list[str]:
    counted = ((len(re.findall(r"\S*\w\S*", one)), one) for one in sentences(text))
    return [f"{words}: {one}" for words, one in counted if words > MOST_WORDS]


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short_and_words_the_fields(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert long_sentences(text) == [], f"at most {MOST_WORDS} words a sentence"
    assert uncommon_word(text) is None


def uncommon_word(text: str) -> str | None:
    """The first word that had its own name here, and what the field calls it."""
    for words, standard in STANDARD.items():
        found = re.search(rf"\b(?:{words})\b", prose(text), re.I)
        if found is not None:
            return f"{found[0]}: the field's word is {standard}"
    return None


def test_a_long_sentence_is_found() -> None:
    words = " ".join(["word"] * MOST_WORDS)
    assert long_sentences(f"A page.\n\n{words} `a b c`.\n\n- {words}.\n") == [f"31: {words} `x`."]
    assert long_sentences(f"| {words} | {words} |\n\n```py\n{words} {words}\n```\n") == []


def test_a_how_to_page_is_one_purposeful_screen() -> None:
    for path in ROOT.glob("docs/how-to/*.md"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MOST_LINES, f"{path}: what is not the task is elsewhere"
        title, lead, *_ = text.split("\n\n")
        assert title.startswith("# ") and len(lead) < 200 and lead[-1] in ".:", path


def test_a_page_for_newcomers_compares_and_names_losses() -> None:
    pages = sorted(ROOT.glob("docs/coming-from/*.md"))
    assert len(pages) == 7
    for path in pages:
        text = path.read_text(encoding="utf-8")
        (columns,) = re.findall(r'<div class="grid" markdown>\n(.*?)</div>', text, re.S)
        assert len(re.findall(r"^```py", columns, re.M)) == 2, f"{path}: two columns of code"
        words = re.search(r"^\| .* \| (numbasync|CPU device) \|\n\|---", text, re.M)
        assert words, f"{path}: a table of words"
        assert "\n## What you lose\n" in text, path


@pytest.mark.parametrize(
    "name",
    ["understand/life", "understand/streams", "understand/grids", "understand/memory",
     "understand/graphs", "understand/cancelling", "cpu-device"],
)  # fmt: skip
def test_a_page_that_explains_has_a_drawing(name: str) -> None:
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    assert re.search(r"!\[.+\]\(.*pictures/\w+\.svg#only-light\)", text)


def test_each_task_has_a_page() -> None:
    tasks = (
        "cancel", "bound-memory", "other-libraries", "streams", "text", "own-streams",
        "web-servers", "processes", "several-devices", "clusters", "cache", "debug", "ci",
    )  # fmt: skip
    assert not [task for task in tasks if not (ROOT / f"docs/how-to/{task}.md").exists()]
    listed = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    pages = {path.name for path in ROOT.glob("docs/how-to/*.md")}
    assert pages == set(re.findall(r"\(how-to/([\w-]+\.md)\)", listed))
