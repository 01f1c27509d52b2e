"""The tutorials run, show what they are kept with, and are on the site as they are."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from tests import tutorials
from tests.common import mostly_full

pytest.importorskip("nbformat", reason="nbformat is not installed")

QUICKEST = tutorials.FOLDER / "heat.ipynb"
ALIKE = 2.0  # mean difference of two pictures of the same thing, of 255
EACH = pytest.mark.parametrize("path", tutorials.NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_tutorials() -> None:
    assert len(tutorials.NOTEBOOKS) >= 7 and QUICKEST in tutorials.NOTEBOOKS


@EACH
def test_a_tutorials_page_is_its_notebook(path: Path) -> None:
    wanted = tutorials.page(path, tutorials.read(path))
    kept = {p.name for p in (path.with_suffix(".md"), *path.parent.glob(f"{path.stem}-*"))}
    assert kept == wanted.keys(), "run: python -m tests.tutorials"
    for name, content in wanted.items():
        data = content if isinstance(content, bytes) else content.encode()
        assert (path.parent / name).read_bytes() == data, f"{name}: run python -m tests.tutorials"


@EACH
def test_a_tutorial_is_of_one_form(path: Path) -> None:
    notebook = tutorials.read(path)
    page = str(tutorials.page(path, notebook)[f"{path.stem}.md"])
    assert 10 <= len(notebook.cells) <= 20
    assert page.startswith("# ") and "\n## On a GPU\n" in page
    assert "$" not in page and "![](" not in page, "the site shows no TeX; a picture has a caption"
    assert re.search(r"!\[.+\]\(", page), "a picture of its own output"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert {o.output_type for o in cell.outputs} <= {"stream", "execute_result"}
            assert "stderr" not in {o.get("name") for o in cell.outputs}
            assert "ipykernel_" not in str(cell.outputs)
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"```.*?```", "", page, flags=re.S)):
        assert (path.parent / target).exists(), target
    assert f"tutorials/{path.stem}.md" in (tutorials.ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize(
    "path", mostly_full(tutorials.NOTEBOOKS, QUICKEST), ids=lambda path: path.stem
)
def test_a_tutorial_runs_and_shows_what_is_kept(
    path: Path, device: na.Device, python_env: dict[str, str]
) -> None:
    for module in ("nbclient", "ipykernel", "PIL", "skimage", "scipy", "starlette", "uvicorn"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    notebook = tutorials.run(path, {**python_env, "NUMBASYNC_DEVICE": device.kind})
    for cell, kept in zip(notebook.cells, tutorials.read(path).cells, strict=True):
        if cell.cell_type == "code":
            is_same_device = device.kind == "cpu"  # they are kept as they ran there
            is_measured = "measured" in cell.metadata.get("tags", ())
            differing = difference(cell.outputs, kept.outputs)
            assert not differing or is_measured or not is_same_device, (cell.source, differing)
            assert bool(cell.outputs) == bool(kept.outputs), cell.source


def difference(shown: list[Any], kept: list[Any]) -> str:
    """What is not the same, in words; nothing for pictures that nobody could tell apart."""
    if len(shown) != len(kept):
        return f"{len(shown)} outputs, {len(kept)} kept"
    for new, old in zip(shown, kept, strict=True):
        if new.get("text") != old.get("text"):
            return f"{new.get('text')!r}, kept {old.get('text')!r}"
        pictures, before = tutorials.pictures_in(new), tutorials.pictures_in(old)
        if pictures.keys() != before.keys():
            return f"pictures {[*pictures]}, kept {[*before]}"
        for kind in pictures:
            first, second = decoded(pictures[kind]), decoded(before[kind])
            if first.shape != second.shape:
                return f"a picture of {first.shape}, kept {second.shape}"
            if (distance := np.abs(first - second).mean()) > ALIKE:
                return f"a picture that differs by {distance:.1f} of 255"
    return ""


def decoded(data: bytes) -> np.ndarray[Any, Any]:
    """All frames of a picture, red, green and blue."""
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(data)) as image:
        frames = [np.asarray(f.convert("RGB"), np.float32) for f in ImageSequence.Iterator(image)]
    return np.stack(frames)


def test_pictures_are_compared_by_what_they_show() -> None:
    pytest.importorskip("PIL")
    shown, kept = tutorials.read(QUICKEST), tutorials.read(QUICKEST)
    assert [difference(a.outputs, b.outputs) for a, b in pairs(shown, kept)] == [""] * len(
        pairs(shown, kept)
    )
    with_pictures = [c.outputs for c in kept.cells if "image/png" in str(c.get("outputs", ""))]
    first, second = with_pictures[:2]
    assert "differs by" in difference(first, second)
    assert "outputs" in difference(first, [])


def pairs(shown: Any, kept: Any) -> list[tuple[Any, Any]]:
    """The cells of code of one notebook and of another."""
    cells = zip(shown.cells, kept.cells, strict=True)
    return [(a, b) for a, b in cells if a.cell_type == "code"]
