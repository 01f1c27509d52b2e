"""What a release is made of: one version, a description that any page can show, and its files."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import numbasync as na

ROOT = Path(__file__).parent.parent.parent
HOST = "https://github.com/numbasync/numbasync"
BYTES = "https://raw.githubusercontent.com/numbasync/numbasync"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """`hatch_build.py`, as the builder loads it."""
    pytest.importorskip("hatchling", reason="needs the extra test")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    metadata: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return metadata


@pytest.mark.parametrize(
    ("relative", "absolute"),
    [
        ("[a](docs/a.md)", f"[a]({HOST}/blob/v1/docs/a.md)"),
        ("[a](docs/a.md#b)", f"[a]({HOST}/blob/v1/docs/a.md#b)"),
        ("[`a`](b) [c](d)", f"[`a`]({HOST}/blob/v1/b) [c]({HOST}/blob/v1/d)"),
        ("![a](a.svg)", f"![a]({BYTES}/v1/a.svg)"),
        ("[![a](a.png)](b.md)", f"[![a]({BYTES}/v1/a.png)]({HOST}/blob/v1/b.md)"),
        ('<img alt="a" src="a.gif">', f'<img alt="a" src="{BYTES}/v1/a.gif">'),
        (
            '<a href="b"><source srcset="a.webp" src="a.jpg"></a>',
            (
                f'<a href="{HOST}/blob/v1/b"><source srcset="{BYTES}/v1/a.webp" '
                f'src="{BYTES}/v1/a.jpg"></a>'
            ),
        ),
        ("[a](https://b.c/d)", None),
        ("[a](#b)", None),
        ("[a](mailto:b@c.d)", None),
        ("`f[a](b)`", None),
        ("```py\nf[a](b)\n```", None),
        ("f[a] (b)", None),
    ],
)
def test_links_lead_to_the_files_of_the_release(
    relative: str, absolute: str | None, hook: ModuleType
) -> None:
    assert hook.make_links_absolute(relative, "v1") == (absolute or relative)


def test_the_description_has_no_relative_link(hook: ModuleType) -> None:
    metadata = {"version": "1.2.3"}
    hook.Description(str(ROOT), {}).update(metadata)
    readme: Any = metadata["readme"]
    assert readme["content-type"] == "text/markdown"
    prose = re.sub(r"```.*?```|`[^`]*`", "", readme["text"], flags=re.S)
    links = re.findall(r"\]\(([^)]+)\)|(?:href|src|srcset)=[\"']?([^\"'\s>]+)", prose)
    targets = [one or other for one, other in links]
    ours = [target for target in targets if "/v1.2.3/" in target]
    assert len(ours) > 10
    for target in targets:
        assert target.startswith(("https://", "#")), target
    for target in ours:  # and it is there in the repository
        assert (ROOT / re.sub(r".*/v1\.2\.3/|#.*", "", target)).exists(), target
    headings = re.findall(r"^#+ (.*)", readme["text"], re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert {target[1:] for target in targets if target.startswith("#")} <= anchors


def test_the_version_is_written_once(project: dict[str, Any]) -> None:
    assert set(project["dynamic"]) == {"version", "readme"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", na.__version__)
    (newest, *older) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest == na.__version__, "CHANGELOG.md begins with the version in the making"
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {na.__version__}\n" in citation
    parts = [tuple(map(int, version.split("."))) for version in (newest, *older)]
    assert parts == sorted(parts, reverse=True) and len(set(parts)) == len(parts)


def test_the_changelog_has_each_kind_once_a_version() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    for release in releases:
        kinds = re.findall(r"^### (.*)", release, re.M)
        known = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
        assert kinds == [kind for kind in known if kind in kinds] and kinds, release[:20]
        entries = re.findall(r"^- .*(?:\n  .*)*", release, re.M)
        assert len(entries) == len(set(entries)), "an entry stands twice"


def test_the_addresses_are_those_of_one_repository(
    project: dict[str, Any], hook: ModuleType
) -> None:
    assert f"https://github.com/{hook.REPOSITORY}" == HOST == project["urls"]["Homepage"]
    for address in project["urls"].values():
        assert address.startswith(HOST)
        path = re.sub(r"^/?(?:(?:tree|blob)/HEAD/)?", "", address.removeprefix(HOST))
        assert path == "issues" or (ROOT / path).exists(), address


def test_a_wheel_holds_the_two_packages_only(hook: ModuleType) -> None:
    from hatchling.builders.wheel import WheelBuilder

    paths = {
        file.distribution_path.replace("\\", "/")
        for file in WheelBuilder(str(ROOT)).recurse_included_files()
    }
    assert {path.split("/")[0] for path in paths} == {"numbasync", "numbasync_kernels"}
    assert {"numbasync/py.typed", "numbasync_kernels/py.typed", "numbasync/_core.pyx"} <= paths
    for path in paths:
        assert not re.search(r"(^|/)(tests?|test_\w+\.py|benchmarks|peers)(/|$)", path), path


def test_a_source_distribution_suffices_to_build_and_test(hook: ModuleType) -> None:
    from hatchling.builders.sdist import SdistBuilder

    paths = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert {"hatch_build.py", "core_table.py", "LICENSE", "README.md", "CHANGELOG.md"} <= paths
    assert {"numbasync/_core.pyx", "numbasync/core/slots.pxi", "tests/conftest.py",
            "benchmarks/__main__.py"} <= paths  # fmt: skip
    assert not any(path.startswith((".ci/", ".github/")) or path.endswith(".so") for path in paths)
