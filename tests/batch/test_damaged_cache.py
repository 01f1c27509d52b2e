"""Kernels of batches on disk that are damaged, or that another user could have changed."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import numbasync as na
from numbasync import cache_folder
from numbasync.batch.codegen import kernel_files
from numbasync.batch.run import plan
from numbasync.memo import Memo
from numbasync.testing import counters

CPU = na.devices("cpu")[0]


def _compiled() -> int:
    """Compute with one kernel, as another process would; how many were compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_files, "_made", {})
        patch.setattr(plan, "_plans", Memo(1))
        before = counters().compiles
        b = na.CommandBatch(CPU)
        y = b.upload(np.arange(5, dtype=np.int32)) * 3 + 7
        b.recorder.structure.plans.clear()
        np.testing.assert_array_equal(b.compute_sync(y), np.arange(5) * 3 + 7)
        return counters().compiles - before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a folder `cache` beside it, with what one process has kept there."""
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_files, "folder", lambda: path / "cache/batch")
        assert _compiled() == 1
        assert _compiled() == 0
    shutil.copytree(path / "cache", path / "copy")
    return path / "copy"


@pytest.fixture
def folder(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, in use, as it was: what is kept is of kernels at that place."""
    cache = whole.parent / "cache"
    shutil.rmtree(cache)
    shutil.copytree(whole, cache)
    (tmp_path / "own").mkdir(0o700)
    monkeypatch.setenv(cache_folder.SWITCH, str(cache))
    monkeypatch.setattr(cache_folder, "_told", set())  # of this folder, to the test before
    monkeypatch.setattr(kernel_files, "folder", kernel_files.folder.__wrapped__)
    monkeypatch.setattr(kernel_files, "_private", lambda: tmp_path / "own")
    return cache / "batch"


class Ran:
    """A pickle of it runs code: it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self._path,)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inner").write_text("")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "random": lambda path: path.write_bytes(np.random.default_rng(1).bytes(243)),
    "other": lambda path: path.write_bytes(pickle.dumps([1, 2])),
    "gone": lambda path: path.unlink(),
    "folder": _folder,
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("what", ["*.nbi", "*.nbc", "*.py"])
def test_a_damaged_entry_is_made_anew(folder: Path, what: str, how: str) -> None:
    (path,) = folder.rglob(what)
    DAMAGE[how](path)
    _compiled()
    assert _compiled() == 0
    assert path.is_file() and not list(folder.rglob("*.tmp"))


def test_a_file_for_the_folder_is_no_error(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")
    assert _compiled() == 1


POISON: dict[str, Callable[[Path], object]] = {
    "folder": lambda folder: folder.chmod(0o777),
    "compiled": lambda folder: (folder / "__pycache__").chmod(0o777),
    "above": lambda folder: folder.parent.chmod(0o777),
    "index": lambda folder: next(folder.rglob("*.nbi")).chmod(0o666),
    "data": lambda folder: next(folder.rglob("*.nbc")).chmod(0o666),
}


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
@pytest.mark.parametrize("how", POISON)
@pytest.mark.filterwarnings("ignore:.*not kept in")
def test_what_others_could_have_put_there_never_runs(
    folder: Path, tmp_path: Path, how: str
) -> None:
    for path in [*folder.rglob("*.nbc"), *([] if how == "data" else folder.rglob("*.nbi"))]:
        path.write_bytes(pickle.dumps(Ran(tmp_path / "ran")))
    POISON[how](folder)
    assert _compiled() == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
def test_a_folder_changing_hands_while_processes_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_files, "folder", lambda: folder)  # it was checked
    next(folder.rglob("*.nbi")).write_bytes(pickle.dumps(Ran(tmp_path / "ran")))
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=f"not kept in {folder}: others can write"):
        assert _compiled() == 1
    assert not (tmp_path / "ran").exists()


PRIVATE = """
import os, signal, sys
from numbasync.batch.codegen import kernel_files
print(kernel_files._private(), flush=True)
if sys.argv[1:]:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="Windows has no such locks")
def test_an_ended_processs_private_folder_is_removed_next(
    tmp_path: Path, python: str, python_env: dict[str, str]
) -> None:
    env = {**python_env, "TMPDIR": str(tmp_path)}

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-c", PRIVATE, *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)

    ended = start("killed")
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert [str(path) for path in tmp_path.iterdir()] == [ended.stdout.strip()]
    (tmp_path / "numbasync-batch-of-nobody").mkdir(0o700)  # another process has just made it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        own = kernel_files._private.__wrapped__()  # of a process that lives
    assert start().returncode == 0
    assert set(os.listdir(tmp_path)) == {own.name, "numbasync-batch-of-nobody"}
