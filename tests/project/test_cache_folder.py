"""The guard of every folder whose contents are trusted: what another user made is never used."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numbasync import cache_folder
from numbasync.cache_folder import UntrustedError, opened

pytestmark = pytest.mark.skipif(
    not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits"
)
OTHER = 12345


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a path another user's: really for root, else in what `stat` says of it."""
    if os.geteuid() == 0:
        return lambda path: os.chown(path, OTHER, -1, follow_symlinks=False)
    given: set[tuple[int, int]] = set()

    def lying(call: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def status_of(*args: Any, **kwargs: Any) -> os.stat_result:
            status = call(*args, **kwargs)
            if (status.st_dev, status.st_ino) not in given:
                return status
            return os.stat_result([*status[:4], OTHER, *status[5:]])

        return status_of

    def note(path: Path) -> None:
        status = path.lstat()
        given.add((status.st_dev, status.st_ino))

    monkeypatch.setattr(os, "stat", lying(os.stat))
    monkeypatch.setattr(os, "fstat", lying(os.fstat))
    return note


def _read(folder: Path, name: str = "entry") -> bytes:
    with opened(folder) as kept:
        return kept.read(name)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with one entry."""
    path = tmp_path / "above" / "kept"
    before = os.umask(0)
    try:
        with opened(path, make=True) as folder:
            folder.write("entry", b"mine")
    finally:
        os.umask(before)
    return path


def test_what_is_made_is_this_users_alone(kept: Path) -> None:
    assert _read(kept) == b"mine"
    for path, mode in ((kept, 0o700), (kept.parent, 0o700), (kept / "entry", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("which", ["entry", ".", ".."])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_what_others_can_write_is_refused(kept: Path, which: str, mode: int) -> None:
    (kept / which).chmod(mode)
    with pytest.raises(UntrustedError, match="others can write to"):
        _read(kept)


@pytest.mark.parametrize("which", ["entry", ".", ".."])
def test_what_another_user_has_made_is_refused(
    kept: Path, give: Callable[[Path], None], which: str
) -> None:
    give((kept / which).resolve())
    with pytest.raises(UntrustedError, match="belongs to another user"):
        _read(kept)


def test_a_sticky_folder_above_is_as_good(kept: Path) -> None:
    kept.parent.chmod(0o1777)
    assert _read(kept) == b"mine"
    kept.chmod(0o1777)  # in it, others can make what is not there yet
    with pytest.raises(UntrustedError, match="others can write to"):
        _read(kept)


def test_own_links_are_followed_and_others_are_not(
    kept: Path, give: Callable[[Path], None]
) -> None:
    link = kept.parent / "link"
    link.symlink_to("./kept/../kept")
    assert _read(link) == b"mine"
    (kept.parent / "absolute").symlink_to(link)
    assert _read(kept.parent / "absolute") == b"mine"
    give(link)
    with pytest.raises(UntrustedError, match="the link .* belongs to another user"):
        _read(kept.parent / "absolute")
    with pytest.raises(UntrustedError, match="is a link"), opened(link, above=False):
        pass


def test_a_link_in_a_writable_folder_is_refused(kept: Path, tmp_path: Path) -> None:
    """Where it leads is well, and may be elsewhere at the next moment."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(kept)
    shared.chmod(0o777)
    with pytest.raises(UntrustedError, match="others can write to"):
        _read(shared / "link")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError):
        _read(tmp_path / "a")


def test_a_folder_replaced_after_the_check_is_unused(kept: Path, tmp_path: Path) -> None:
    with opened(kept) as folder:
        kept.rename(tmp_path / "moved")
        kept.mkdir()
        (kept / "entry").write_bytes(b"theirs")
        assert folder.read("entry") == b"mine"
        folder.write("entry", b"again")
    assert (kept / "entry").read_bytes() == b"theirs"
    assert (tmp_path / "moved/entry").read_bytes() == b"again"


def test_a_link_placed_between_steps_is_not_followed(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give: Callable[[Path], None]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "entry").write_bytes(b"theirs")
    real = os.open

    def replacing(name: Any, *args: Any, **kwargs: Any) -> int:
        if name == "kept" and not kept.is_symlink():
            kept.rename(tmp_path / "moved")
            kept.symlink_to(theirs)
            give(kept)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", replacing)
    with pytest.raises(UntrustedError, match="belongs to another user"):
        _read(kept)


def test_a_linked_entry_is_refused_and_replaced(kept: Path) -> None:
    target = kept.parent / "precious"
    target.write_bytes(b"precious")
    (kept / "entry").unlink()
    (kept / "entry").symlink_to(target)
    with pytest.raises(UntrustedError, match="is a link"):
        _read(kept)
    with opened(kept) as folder:
        folder.write("entry", b"new")
    assert target.read_bytes() == b"precious"
    assert not (kept / "entry").is_symlink() and _read(kept) == b"new"


@pytest.mark.parametrize("kind", ["folder", "full folder", "pipe"])
def test_a_non_file_is_an_error_and_replaced(kept: Path, kind: str) -> None:
    (kept / "entry").unlink()
    if kind == "pipe":
        os.mkfifo(kept / "entry")
    else:
        (kept / "entry").mkdir()
        if kind == "full folder":
            (kept / "entry" / "inner").write_text("")
    with pytest.raises(OSError):
        _read(kept)  # without waiting for a writer
    with opened(kept) as folder:
        folder.write("entry", b"new")
    assert _read(kept) == b"new" and os.listdir(kept) == ["entry"]


def test_a_write_that_fails_leaves_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with opened(kept) as folder, pytest.raises(OSError, match="No space"):
        folder.write("entry", b"new")
    assert os.listdir(kept) == ["entry"] and _read(kept) == b"mine"


@pytest.mark.parametrize("name", ["../entry", "a/b", "/etc/hostname", "..", ""])
def test_names_are_of_entries(kept: Path, name: str) -> None:
    with opened(kept) as folder, pytest.raises(OSError, match="not the name of an entry"):
        folder.read(name)


@pytest.mark.parametrize("variable", [cache_folder.SWITCH, "XDG_CACHE_HOME"])
def test_a_relative_folder_stays_where_it_was_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv(cache_folder.SWITCH, raising=False)
    monkeypatch.setattr(cache_folder, "_resolved", {})
    monkeypatch.setenv(variable, "relative")
    monkeypatch.chdir(tmp_path)
    first = cache_folder.root()
    monkeypatch.chdir("/")
    assert cache_folder.root() == first and first.is_relative_to(tmp_path / "relative")


def test_a_homeless_user_is_told_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (cache_folder.SWITCH, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    with pytest.raises(
        OSError, match=f"no home folder; name a folder: HOME, or {cache_folder.SWITCH}"
    ):
        cache_folder.root()
