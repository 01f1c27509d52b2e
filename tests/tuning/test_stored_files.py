"""Stored measurements that are damaged, or another user's: measured anew."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numbasync import cache_folder
from numbasync.tuning.measurements import Measurements

IDENTITY = {"kernel": "k", "configurations": ["a", "b"]}
ROUNDS = 3


def _table(path: Path) -> Measurements:
    return Measurements(path, IDENTITY, "key", ROUNDS)


@pytest.fixture
def stored(cache: Path) -> Path:
    """The file of a finished table, in which `b` is the fastest."""
    path = cache / "k.json"
    table = _table(path)
    for entry in table.entries:
        entry.checked = True
    for _ in range(ROUNDS):
        table.add(0, 2.0)
        table.add(1, 1.0)
    table.save()
    assert _table(path).best() == 1
    return path


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a document."""
    yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*at, key))


def test_what_no_process_has_used_is_removed(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{'0' * 20}-{'f' * 20}"
    old, used = stored.with_name(f"saxpy-{name}.json"), stored.with_name(f"dot-{name}.json")
    noted: list[Path] = []
    then = time.time() - cache_folder.RETENTION - 60
    stored.with_name(cache_folder.STAMP).unlink(missing_ok=True)
    for path in (old, used):
        path.write_bytes(stored.read_bytes())
        os.utime(path, (then, then))
    with monkeypatch.context() as patch:  # file systems may note a use by themselves
        patch.setattr(cache_folder, "use", noted.append)
        assert _table(used).best() == 1
    assert noted == [used]
    cache_folder.use(used)
    os.utime(stored, (then, then))
    table = _table(stored.with_name("new.json"))
    table.save()
    assert used.exists() and not old.exists() and stored.exists(), "other names stay"
    table.save()
    assert stored.with_name(cache_folder.STAMP).exists()


VALUES: tuple[Any, ...] = (
    "", {}, [], None, True, 0, -1, 1.5, "x", [[]], {"a": 1}, [None], ["1.0"], [True], [1], [-1.0],
    [math.nan], [math.inf], 10**400, "\ud800", "pending", "measured", "wrong",
)  # fmt: skip


def test_any_stored_value_is_used_or_measured_anew(stored: Path) -> None:
    whole = json.loads(stored.read_text())
    for at in list(_places(whole)):
        for value in VALUES:
            changed = {"": copy.deepcopy(whole)}
            inner: Any = changed
            for key in ("", *at)[:-1]:
                inner = inner[key]
            inner[("", *at)[-1]] = value
            stored.write_text(json.dumps(changed[""]))
            _is_sound(_table(stored), at, value)


def test_random_bytes_in_any_place(stored: Path) -> None:
    whole, random_ = stored.read_bytes(), random.Random(1)
    for _ in range(500):
        text = bytearray(whole)
        for _ in range(random_.randint(1, 3)):
            text[random_.randrange(len(text))] = random_.choice(b'"[]{}:,019.-etfn\\\xff\0 ')
        stored.write_bytes(text[: random_.choice((None, random_.randrange(len(text))))])
        _is_sound(_table(stored), bytes(text))


def _is_sound(table: Measurements, *what: Any) -> None:
    """Whether tuning can go on with a table: whatever it holds, every part of it can be used."""
    assert len(table.entries) == 2, what
    table.unchecked()
    table.best()
    results = table.results([{"a": 1}, {"b": 1}])
    for entry, result in zip(table.entries, results, strict=True):
        assert type(entry.samples) is list and all(type(ms) is float for ms in entry.samples), what
        assert result.ms is None or 0 <= result.ms < math.inf, what
        assert entry.checked or not result.chosen, what
        entry.checked = True
    while (index := table.next()) is not None:
        table.add(index, 1.0)
    assert table.done, what


def test_what_has_not_been_checked_is_not_chosen(stored: Path) -> None:
    stored.write_text(stored.read_text().replace('"checked": true', '"checked": false'))
    assert _table(stored).best() is None


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "moved")
    path.symlink_to(path.parent.parent / "moved")


def _linked_folder(path: Path) -> None:
    _link(path.parent)
    path.parent.resolve().chmod(0o777)


SHARED: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.chmod(0o666),
    "link": _link,
    "folder": lambda path: path.parent.chmod(0o777),
    "above": lambda path: path.parent.parent.chmod(0o777),
    "linked folder": _linked_folder,
}


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
@pytest.mark.parametrize("how", SHARED)
def test_measurements_that_others_can_write_choose_nothing(stored: Path, how: str) -> None:
    SHARED[how](stored)
    before = os.stat(stored).st_mtime_ns
    with pytest.warns(RuntimeWarning, match=f"not kept in {stored.parent}: .*NUMBASYNC_CACHE_DIR"):
        table = _table(stored)
    assert table.best() is None
    table.save()  # said once
    is_replaced = how in ("file", "link")  # in a folder that is this user's alone
    assert (os.stat(stored).st_mtime_ns != before) is is_replaced
    assert not stored.is_symlink()
