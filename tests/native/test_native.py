"""Whether the core is used, and what says so."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from numbasync import native
from numbasync.tools import cli

WITHOUT = """
import sys
sys.modules["numbasync._core"] = None  # as where it is not installed
import numbasync
print(numbasync.native.core)
"""


def ran(code: str, env: dict[str, str], **settings: str) -> subprocess.CompletedProcess[str]:
    env = {**{k: v for k, v in env.items() if k != native.NAME}, **settings}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_where_it_must_be_there(python_env: dict[str, str]) -> None:
    """This session itself fails to import where NUMBASYNC_NATIVE is 1 and the core is missing."""
    assert os.environ.get(native.NAME) != "1" or native.core is not None
    assert os.environ.get(native.NAME) != "0" or native.core is None
    missing = ran(WITHOUT, python_env, NUMBASYNC_NATIVE="1")
    assert missing.returncode == 1
    assert (
        "ImportError: NUMBASYNC_NATIVE is 1, and numbasync is installed without" in missing.stderr
    )
    assert native.how_to_get() in missing.stderr
    assert ran(WITHOUT, python_env).stdout == "None\n"
    wrong = ran("import numbasync", python_env, NUMBASYNC_NATIVE="yes")
    assert "ImportError: NUMBASYNC_NATIVE='yes': write 0 or 1, or leave it out." in wrong.stderr
    off = ran("import numbasync; print(numbasync.native.core)", python_env, NUMBASYNC_NATIVE="0")
    assert off.stdout == "None\n"


def test_a_core_of_other_sources_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def know(cls: type) -> None:
        raise TypeError(f"{cls.__name__}.gone is no slot")

    monkeypatch.setattr(native, "core", SimpleNamespace(know=know, __file__="/of/another/_core.so"))
    with pytest.raises(ImportError, match=r"/of/another/_core.so does not fit .*gone is no slot"):
        native.known(Path)


@pytest.mark.parametrize("core", [object(), None])
@pytest.mark.parametrize("setting", ["", "0"])
def test_doctor_says_it(
    core: object, setting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "core", core)
    monkeypatch.setenv(native.NAME, setting)
    assert cli.main(["doctor", "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(said) if line.startswith("compiled core"))
    if core is not None:
        assert said[at].endswith(" in use")
    elif setting == "0":
        assert said[at].endswith(" not in use: NUMBASYNC_NATIVE is 0")
    else:
        assert said[at].endswith("missing, so calls cost the host more; with a C compiler:")
        assert said[at + 1].split(maxsplit=1) == ["pip", native.how_to_get().removeprefix("pip ")]


# Where a package came from, as pip notes it, and the source that the command installs.
INDEX = "numbasync==1.2.3"
FOLDER = "/some/where with a space"
ORIGINS = {
    None: INDEX,
    '{"url": "file:///some/numbasync-1.2.3-py3-none-any.whl", "archive_info": {}}': INDEX,
    '{"url": "file:///some/where%20with%20a%20space", "dir_info": {}}': FOLDER,
    '{"url": "file:///some/numbasync-1.2.3.tar.gz", "archive_info": {}}':
        "/some/numbasync-1.2.3.tar.gz",
    '{"url": "https://host/a/b.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}':
        "git+https://host/a/b.git@0123abc",
}  # fmt: skip


@pytest.mark.parametrize(("origin", "source"), ORIGINS.items())
def test_the_command_installs_from_where_the_package_came(
    origin: str | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = SimpleNamespace(version="1.2.3", read_text=lambda name: origin)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: package)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "numbasync" / "native.py"))
    words = shlex.split(native.how_to_get())
    assert words[:2] == ["pip", "install"] and words[-1] == source
    # pip would not install the same version again, and would take the wheel that it has built.
    assert {"--force-reinstall", "--no-cache-dir", "--no-binary", "--no-deps"} <= set(words)


def test_the_command_of_a_checkout(root: Path) -> None:
    assert shlex.split(native.how_to_get()) == ["pip", "install", "-e", str(root)]
