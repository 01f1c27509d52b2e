"""`numbasync demo`: what it shows, writes, measures and checks, and what it says of mistakes."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import InternalError
from numbasync.tools import cli, demo, demo_pictures, demo_scenes
from tests import waiting
from tests.common import full
from tests.tools.test_cli import one_line

pytest.importorskip("PIL", reason="needs the extra demo")
pytest.importorskip("skimage", reason="needs the extra demo")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    path = tmp_path / "noise.png"
    Image.fromarray(rng.integers(0, 256, (37, 50, 3), np.uint8)).save(path)
    return path


def test_demo_of_a_users_picture(
    device: na.Device, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    assert cli.main(["demo", str(picture), "--device", device.kind]) == 0
    said = capsys.readouterr().out
    used = na.devices(device.kind)[0]
    for part in (
        used.label, "one after the other", "all at once", "turns of the event loop", "longest gap",
        "blur", "All at once", "There the same as NumPy and SciPy",
    ):  # fmt: skip
        assert part in said
    with Image.open(picture.with_name("noise-levels-edges.png")) as image:
        pixels = np.asarray(image)
    strip = 2 * demo_pictures.TITLE
    assert pixels.shape == (strip + 37, 3 * 50, 3)
    assert [pixels[:strip, x : x + 50].max() > 128 for x in (0, 50, 100)] == [True] * 3, "titles"
    assert np.array_equal(pixels[strip:, :50], demo_pictures.read_picture(picture).pixels)


@pytest.mark.parametrize("scene", ["life", *map(full, ("heat", "wave", "bodies"))])
def test_scenes(
    device: na.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from PIL import Image

    make, _ = demo_scenes.SCENES[scene]
    monkeypatch.setitem(demo_scenes.SCENES, scene, (make, 3))
    argv = ["demo", "--scene", scene, "--device", device.kind, "--out", str(tmp_path)]
    assert cli.main(argv) == 0
    assert "12 steps on" in capsys.readouterr().out
    with Image.open(tmp_path / f"{scene}.png") as image:
        pixels = np.asarray(image)
    assert pixels.shape == (2 * demo_pictures.TITLE + 256, 4 * 256, 3)
    frames = np.split(pixels[2 * demo_pictures.TITLE :], 4, axis=1)
    assert (frames[0] != frames[3]).any() and frames[3].any()
    assert "leave them out" in one_line(["demo", "a.png", "--scene", scene], capsys)


@pytest.mark.parametrize("width", [1, 8, 60, 500])
def test_a_title_is_as_large_as_fits(width: int) -> None:
    strip = demo_pictures.title("levels equalised", width)
    assert strip.shape == (2 * demo_pictures.TITLE, width, 3)
    assert width <= 8 or strip[:, 4:].any()
    assert width <= 200 or not strip[:, 200:].any(), "no larger than the others"


def test_a_loss_is_not_sold_as_overlap() -> None:
    gain, none, loss = (demo.compare(1.0, seconds, 0.97) for seconds in (0.8, 1.04, 1.2))
    assert "took 20% less time" in gain
    assert "gained nothing" in none and "less time" not in none
    assert "no gain here: it took 20% longer" in loss and "side by side share" in loss
    assert all("97% of the time" in said for said in (gain, none, loss))


def test_the_loops_turns_and_its_longest_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.0, 1.0, 1.5, 9.0, 9.25]
    left = iter(times)
    seen: list[float] = []

    def perf_counter() -> float:
        seen.append(next(left))
        return seen[-1]

    monkeypatch.setattr(demo, "time", SimpleNamespace(perf_counter=perf_counter))
    work = waiting.eventually(lambda: len(seen) == len(times) - 1)
    assert na.run(demo._measure(work)) == demo.Pass(times[-1], 3, 7.5)


@pytest.fixture(scope="module")
def computed() -> demo_pictures.Picture:
    """A picture of several windows, the last of which are narrow, and the pipeline's results."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (2 * demo.WINDOW + 1, demo.WINDOW + 9, 3), np.uint8)
    picture = demo_pictures.Picture("noise", pixels)
    demo.pipeline(picture).sync_on(na.devices("cpu")[0].new_stream())
    return picture


def test_checking_takes_no_more_than_its_time(computed: demo_pictures.Picture) -> None:
    assert " 1 of 6 windows" in demo.check([computed], 0.0)
    said = demo.check([computed], math.inf)
    assert " 6 of 6 windows of 64 x 64 pixels (100.0% of all), in 1 of 1 pictures" in said


@pytest.mark.parametrize("at", [(0, 0), (64, 63), (128, 72), (70, 70)])
@pytest.mark.parametrize("what", ["grey", "edges", "equalised"])
def test_a_wrong_pixel_is_found_wherever_it_is(
    computed: demo_pictures.Picture, what: str, at: tuple[int, int]
) -> None:
    plane = getattr(computed, what)
    right = plane[at]
    plane[at] = 255 - right
    try:
        with pytest.raises(InternalError, match=r"differs? from (NumPy|SciPy)'s"):
            demo.check([computed], math.inf)
    finally:
        plane[at] = right


def test_demo_keeps_equal_names_apart_in_folders(
    device: na.Device, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder"
    status = cli.main(
        ["demo", str(picture), str(picture), "--out", str(out), "--device", device.kind]
    )
    assert status == 0
    assert len(list(out.glob("*.png"))) == 2


def test_demo_makes_pictures_smaller_on_a_slow_device(
    device: na.Device, picture: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(demo, "SECONDS_A_PASS", 1e-6)
    assert cli.main(["demo", str(picture), "--out", str(tmp_path), "--device", device.kind]) == 0
    assert "--full keeps them" in " ".join(capsys.readouterr().out.split())


def test_the_photographs_are_there() -> None:
    found = demo_pictures.photographs()
    assert len(found) >= 8
    assert all(demo_pictures.read_picture(path).pixels.ndim == 3 for path in found[:2])


def test_demo_says_what_is_wrong(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere.png does not exist" in one_line(["demo", str(tmp_path / "nowhere.png")], capsys)
    text = tmp_path / "text.png"
    text.write_text("no picture")
    assert "no picture that Pillow can read" in one_line(["demo", str(text)], capsys)
    assert "cannot be read" in one_line(["demo", str(tmp_path)], capsys)
    assert "name a folder with --out" in one_line(
        ["demo", str(picture), "--out", str(text / "under")], capsys
    )


@pytest.mark.parametrize("module", ["PIL", "rich", "scipy", "skimage"])
def test_demo_names_a_missing_extra(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == module else find(name, *a)
    )
    said = one_line(["demo"], capsys)
    assert f"needs {module}" in said
    assert "pip install 'numbasync[demo]'" in said
