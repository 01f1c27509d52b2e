"""Functions that numbasync compiles for itself by Numba, and keeps on disk."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numba
import pytest

from numbasync import cache_folder

SOURCE = """
from numba import types
from numbasync.backend.checked_caches import kept

@kept(types.int64(types.int64))
def plus_one(x):
    return x + 1
"""
_number = itertools.count()


class Ran:
    """A pickle of it runs code: it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self._path,)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Imports the module anew, as another process would; how often it was loaded from disk."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "program.py").write_text(SOURCE)

    def imported() -> int:
        spec = importlib.util.spec_from_file_location(
            f"kept_program_{next(_number)}", tmp_path / "program.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.plus_one(2) == 3
        return Counter(module.plus_one.stats.cache_hits).total()

    return imported


@pytest.mark.parametrize("what", ["nbi", "nbc"])
@pytest.mark.parametrize("text", [b"", b"\x80\x05", pickle.dumps(1), pickle.dumps((1, {1: 2}))])
def test_what_is_damaged_is_compiled_again(
    loaded: Callable[[], int], tmp_path: Path, what: str, text: bytes
) -> None:
    assert (loaded(), loaded()) == (0, 1)
    (file,) = (tmp_path / "cache").rglob(f"*.{what}")
    file.write_bytes(text)
    assert (loaded(), loaded()) == (0, 1)


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
def test_what_others_can_write_is_not_loaded(loaded: Callable[[], int], tmp_path: Path) -> None:
    loaded()
    for file in (tmp_path / "cache").rglob("*.nb*"):
        file.write_bytes(pickle.dumps(Ran(tmp_path / "ran")))
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="not kept in .*: others can write .* NUMBA_CACHE_DIR"):
        assert loaded() == 0
    assert not (tmp_path / "ran").exists()
