"""The folders by which processes meet: a group's, and the one of a host's workers."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from numbasync import cache_folder
from numbasync.collective import exchange
from numbasync.collective.exchange import Exchange, GroupKey, forget, new_key
from numbasync.errors import CallerError, CollectiveError, CollectiveTimeoutError, RankLostError
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "send_fds"), reason="processes exchange by Unix sockets"
)
LONG = 30.0  # seconds; nothing waits for so long


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files: what is left there is seen."""
    path = tmp_path / "tmp"
    path.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def _meet(key: GroupKey) -> list[Exchange]:
    """Both ranks of a group, connected."""
    ranks = [Exchange(key, rank, LONG) for rank in range(2)]
    other = threading.Thread(target=ranks[1].connect)
    other.start()
    ranks[0].connect()
    other.join()
    return ranks


def test_a_group_leaves_nothing(temporary: Path) -> None:
    key = new_key(2)
    assert stat.S_IMODE(Path(key.folder).stat().st_mode) == 0o700
    for rank in _meet(key):
        rank.close()
    assert os.listdir(temporary) == []


def test_a_second_rank_0_is_refused_without_harm(temporary: Path) -> None:
    key = new_key(2)
    ranks = _meet(key)
    again = Exchange(key, 0, LONG)
    with pytest.raises(CollectiveError, match="rank 0 of .* was taken before"):
        again.connect()
    again.close()
    assert Path(key.folder).is_dir()
    other = threading.Thread(target=ranks[1].round, args=("a round", None))
    other.start()
    ranks[0].round("a round", None)  # the group lives
    other.join()
    for rank in ranks:
        rank.close()
    assert os.listdir(temporary) == []


def test_a_second_rank_0_before_the_others_come(temporary: Path) -> None:
    key = new_key(2)
    ranks = [Exchange(key, rank, LONG) for rank in range(2)]
    first = threading.Thread(target=ranks[0].connect)
    first.start()
    asyncio.run(eventually(Path(key.folder, "all").exists))
    with pytest.raises(CollectiveError, match="was taken before"):
        Exchange(key, 0, LONG).connect()
    ranks[1].connect()
    first.join()
    for rank in ranks:
        rank.close()
    assert os.listdir(temporary) == []


def test_a_rank_that_is_taken_is_refused(temporary: Path) -> None:
    key = new_key(3)
    ranks = [Exchange(key, rank, LONG) for rank in range(3)]
    twice = Exchange(key, 1, LONG)
    threads = [threading.Thread(target=rank.connect) for rank in ranks[:2]]
    for thread in threads:
        thread.start()
    asyncio.run(eventually(lambda: 1 in ranks[0]._peers))
    with pytest.raises(CollectiveTimeoutError, match="has not reached rank 0"):
        twice.connect()
    ranks[2].connect()
    for thread in threads:
        thread.join()
    for each in (*ranks, twice):
        each.close()
    assert os.listdir(temporary) == []


def test_after_rank_0_has_left(temporary: Path) -> None:
    key = new_key(2)
    for rank in _meet(key):
        rank.close()
    with pytest.raises(RankLostError, match="rank 0 has left"):
        Exchange(key, 1, LONG).connect()
    with pytest.raises(CollectiveError, match="was taken before, or has left"):
        Exchange(key, 0, LONG).connect()


@pytest.mark.parametrize("name", ["precious", "numbasync-precious"])
@pytest.mark.parametrize("files", [[], ["file"], ["made", "file"], ["all"]])
def test_only_folders_made_by_new_key_are_removed(
    temporary: Path, name: str, files: list[str]
) -> None:
    folder = temporary / name
    folder.mkdir(0o700)
    for file in files:
        (folder / file).write_text("precious")
    key = GroupKey(str(folder), 1)
    if "all" not in files:
        alone = Exchange(key, 0, LONG)
        alone.connect()
        alone.close()
    forget(key)
    assert set(files) <= set(os.listdir(folder))


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
@pytest.mark.parametrize("how", ["mode", "link"])
def test_a_folder_of_other_users_is_refused(temporary: Path, how: str) -> None:
    key = new_key(1)
    if how == "mode":
        os.chmod(key.folder, 0o777)
    else:
        os.rename(key.folder, temporary / "moved")
        os.symlink(temporary / "moved", key.folder)
    for rank in range(2):
        with pytest.raises(CollectiveError, match="does not connect: .*(others can|is a link)"):
            Exchange(key, rank, LONG).connect()
    forget(key)
    assert Path(key.folder).is_dir()


def test_a_folder_too_long_for_a_socket(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = temporary / ("a" * 150)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    if os.path.isdir(exchange._OPEN_FILES):
        for rank in _meet(new_key(2)):
            rank.close()
    monkeypatch.setattr(exchange, "_OPEN_FILES", str(temporary / "no such folder"))
    with pytest.raises(CallerError, match="too long for the name of a socket; .* TMPDIR"):
        new_key(2)
    assert os.listdir(long) == []
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    if len(str(temporary)) < exchange.MOST_BYTES - 20:
        for rank in _meet(new_key(2)):
            rank.close()
        assert os.listdir(temporary) == [long.name]
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "no such folder"))
    with pytest.raises(CallerError, match="no folder can be made for the group: .* TMPDIR"):
        new_key(2)
