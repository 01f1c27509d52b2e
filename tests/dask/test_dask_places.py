"""The folder in which a host's workers count themselves: of this user alone."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from numbasync.dask import worker_device
from numbasync.errors import StateError

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no file locks of that kind"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"numbasync-workers-{os.getuid()}"


def _take() -> int:
    return worker_device._place.__wrapped__()


def test_places_are_counted(folder: Path) -> None:
    assert [_take(), _take(), _take()] == [0, 1, 2]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", ["writable", "link", "owner", "file"])
def test_a_folder_that_another_user_made_is_refused(folder: Path, tmp_path: Path, how: str) -> None:
    theirs = tmp_path / "theirs"
    if how == "file":
        folder.write_text("")
    elif how == "link":
        theirs.mkdir(0o700)
        folder.symlink_to(theirs)
    elif how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root gives folders away")
        folder.mkdir(0o700)
        os.chown(folder, 12345, -1)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(StateError, match=f"{folder}, which cannot be used: .* TMPDIR"):
        _take()
    assert how in ("file", "link") or os.listdir(folder) == []
    assert not theirs.exists() or os.listdir(theirs) == []


def test_a_linked_place_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(0o700)
    (folder / "0").symlink_to(tmp_path / "made")
    with pytest.raises(StateError, match="cannot be used"):
        _take()
    assert not (tmp_path / "made").exists()
