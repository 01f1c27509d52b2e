"""What a contributor meets first: forms, workflows, pages. They parse, and lead somewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".github"
# A source distribution has no folders of a host; what is in them is for checkouts.
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="only a checkout has .github")
FORMS = ["bug", "idea", "performance"]
PAGES = ["README", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT", "CHANGELOG"]


def read(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="needs the extra test")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FORMS)
def test_an_issue_form_asks_for_what_is_needed(name: str) -> None:
    form = read(FOLDER / f"ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    names = [field["id"] for field in fields]
    assert len(names) == len(set(names))
    assert all(field["attributes"]["label"] for field in fields)
    needed = {field["id"] for field in fields if field.get("validations", {}).get("required")}
    assert needed >= ({"task"} if name == "idea" else {"program", "doctor"})


def test_there_is_no_form_that_is_not_tested() -> None:
    files = {path.stem for path in (FOLDER / "ISSUE_TEMPLATE").iterdir()}
    assert files == {*FORMS, "config"}
    assert "issue" in read(FOLDER / "ISSUE_TEMPLATE/config.yml")["contact_links"][0]["about"]


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("workflows/*")), ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_an_end(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_the_workflow_runs_what_contributors_run() -> None:
    runs = [step["run"] for step in steps(read(FOLDER / "workflows/ci.yml")) if "run" in step]
    assert runs == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "`.ci/run`" in (ROOT / "CONTRIBUTING.md").read_text()


def test_a_commit_is_checked_as_ci_begins() -> None:
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    begins = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()]
    first = begins.index("ruff format --check .")
    assert [hook["entry"] for hook in hooks] == begins[first : first + len(hooks)]
    made = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    assert [line.strip() for line in made.splitlines()[1:]] == begins[first : first + len(hooks)]


def test_each_word_of_the_makefile_is_explained() -> None:
    made = (ROOT / "Makefile").read_text()
    words = re.findall(r"^([a-z]+):(.*)$", made, re.M)
    assert {"quick", "room", "core", "mutants", "docs"} <= {word for word, _ in words}
    assert all(" ## " in rest for _, rest in words)
    listed = re.findall(r"^\.PHONY: (.*)$", made, re.M)
    assert listed == [" ".join(word for word, _ in words)]
    assert "make room NAME=" in (ROOT / "CONTRIBUTING.md").read_text()


def test_only_a_tag_is_published() -> None:
    jobs = read(FOLDER / "workflows/release.yml")["jobs"]
    publishing = {name for name, job in jobs.items() if "permissions" in job}
    assert publishing == {"publish"}
    publish = jobs["publish"]
    assert publish["if"] == "github.ref_type == 'tag'" and publish["environment"] == "release"
    assert set(publish["needs"]) == jobs.keys() - publishing


@pytest.mark.parametrize("name", PAGES)
def test_links_of_top_level_pages_lead_somewhere(name: str) -> None:
    text = (ROOT / f"{name}.md").read_text()
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_the_citation_is_whole() -> None:
    citation = read(ROOT / "CITATION.cff")
    needed = {"cff-version", "message", "title", "authors", "version", "license"}
    assert needed <= citation.keys()
    assert citation["cff-version"] == "1.2.0" and citation["title"] == "numbasync"
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_table_of_places_names_existing_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \|$", text.partition("To add something")[2], re.M)
    paths = [path for row in rows for path in re.findall(r"`([\w./]+(?:\.py|\.md|/))`", row)]
    assert len(paths) > 15
    package = ROOT / "numbasync"
    inner = package / "batch/codegen", package / "backend/cpu/target"
    for path in paths:
        assert any((place / path).exists() for place in (ROOT, package, *inner)), path
