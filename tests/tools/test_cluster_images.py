"""The pictures of `numbasync cluster-demo --images`: each is what NumPy gives for the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from tests.tools.test_cluster_demo import command

pytest.importorskip("distributed", reason="needs the extra dask")
pytest.importorskip("skimage", reason="needs the extra demo")
Image = pytest.importorskip("PIL.Image", reason="needs the extra demo")

from numbasync.errors import CallerError, InternalError  # noqa: E402
from numbasync.tools import cluster_images  # noqa: E402
from numbasync_kernels import image  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five pictures of several sizes and forms, and a file that is none."""
    folder, rng = tmp_path / "pictures", np.random.default_rng(0)
    folder.mkdir()
    for i, shape in enumerate([(1, 1, 3), (30, 70, 3), (65, 33), (40, 40, 4), (8, 9, 3)]):
        pixels = rng.integers(10 * i, 50 + 20 * i, shape, np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.{'tif' if i == 2 else 'png'}")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def check(folder: Path, out: Path) -> None:
    """Compare every result with what NumPy gives for the whole folder."""
    paths = cluster_images.pictures_of(folder)
    levels = [image.grey_reference(cluster_images._pixels(path)) for path in paths]
    counts = sum(image.histogram_reference(one).astype(np.int64) for one in levels)
    table = image.equalisation_table_reference(np.asarray(counts))
    assert len(list(out.iterdir())) == len(paths)
    for path, one in zip(paths, levels, strict=True):
        with Image.open(cluster_images.target_of(path, str(out))) as result:
            np.testing.assert_array_equal(result, image.look_up_reference(one, table))


def test_both_passes(device: na.Device, folder: Path, tmp_path: Path) -> None:
    """Without a cluster; tasks may run again."""
    paths = cluster_images.pictures_of(folder)
    assert [Path(path).name for path in paths] == ["0.png", "1.png", "2.tif", "3.png", "4.png"]

    async def run() -> None:
        parts = [await cluster_images.count_levels(part) for part in (paths[:3], paths[3:])]
        counts = np.sum(parts, axis=0)
        assert counts.sum() == 1 + 30 * 70 + 65 * 33 + 40 * 40 + 8 * 9
        table = image.equalisation_table_reference(counts)
        for part in (paths[:3], paths[2:]):
            await cluster_images.equalise(part, table, str(tmp_path / "out"))

    (tmp_path / "out").mkdir()
    na.run(run())
    check(folder, tmp_path / "out")


def test_the_command(python: str, python_env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results" / "of today"
    process = command(python, python_env, "--images", str(folder), "--out", str(out))
    printed, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    for part in ("2 workers, 5 pictures, 2 tasks", "million pixels/s", "busy", "same as NumPy"):
        assert part in printed
    check(folder, out)


def test_results_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("a.tif", "a.tif.png"):
        Image.new("L", (3, 3)).save(folder / name)
    with pytest.raises(CallerError, match=r"2 pictures of .* have the result a.tif.png"):
        cluster_images.equalise_folder(Here(), None, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Here:
    """A cluster of this process, as far as the client asks."""

    def scheduler_info(self, n_workers: int) -> Any:
        return {"workers": {"here": n_workers}}

    def run(self, function: Any) -> Any:
        return {"here": function()}


def test_a_wrong_result_is_an_error(
    device: na.Device, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    def run_tasks(
        client: Any, console: Any, label: str, function: Any, columns: Any, *_: Any
    ) -> Any:
        async def run() -> list[Any]:
            return [await function(*row) for row in zip(*columns, strict=True)]

        return cluster_images.Finished(na.run(run()), 1.0, {})

    monkeypatch.setattr(cluster_images, "run_tasks", run_tasks)
    console, out = Console(quiet=True), tmp_path / "out"
    cluster_images.equalise_folder(Here(), console, folder, out)
    check(folder, out)
    monkeypatch.setattr(cluster_images, "_write", lambda levels, target: None)
    Image.fromarray(np.zeros((8, 9), np.uint8)).save(out / "4.png")
    with pytest.raises(InternalError, match=r"4\.png: the levels differ from NumPy's"):
        cluster_images.equalise_folder(Here(), console, folder, out)
    with pytest.raises(CallerError, match="name another one"):
        cluster_images.equalise_folder(Here(), console, folder, folder)


def test_the_photographs_are_dark(tmp_path: Path) -> None:
    cluster_images.write_samples(tmp_path, 13)
    paths = cluster_images.pictures_of(tmp_path)
    assert len(paths) == 13
    assert all(cluster_images._pixels(path).max() < 160 for path in paths)
