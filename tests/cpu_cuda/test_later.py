"""Parts of packages that the switch replaces when a program imports them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import numbasync as na
from numbasync.cpu_cuda import replacing

NAME = "a_package_of_functions_for_gpus"


def test_a_later_import_has_the_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{NAME}.py").write_text("answer = 'of a GPU'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(
        replacing._LATER, NAME, lambda: [(sys.modules[NAME], "answer", "of the CPU device")]
    )
    finders = list(sys.meta_path)
    with na.cuda_on_cpu():
        assert NAME not in sys.modules
        module = importlib.import_module(NAME)
        assert module.answer == "of the CPU device"
    assert module.answer == "of a GPU"
    with na.cuda_on_cpu():
        assert module.answer == "of the CPU device"
    del sys.modules[NAME]
    assert sys.meta_path == finders
    assert importlib.import_module(NAME).answer == "of a GPU"
    del sys.modules[NAME]


def test_packages_that_are_not_used_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in replacing._LATER:
        if name not in sys.modules:
            monkeypatch.setattr(importlib, "import_module", _refusing(name))
    with na.cuda_on_cpu():
        pass


def _refusing(name: str):  # type: ignore[no-untyped-def]
    own = importlib.import_module

    def import_module(wanted: str, package: str | None = None) -> object:
        assert not wanted.startswith(name)
        return own(wanted, package)

    return import_module
