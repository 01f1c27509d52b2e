"""Completion of the command: what a shell offers where, tried in the shell."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from numbasync.tools import cli

# Defines what bash's own package for completion does, as far as the script uses it; then presses
# the key behind the words.
PRESS = """
source "$1"; shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"$(complete -p numbasync | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" numbasync "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    pytest.importorskip("shtab", reason="needs the extra test")
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_offers_what_may_come_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "script"
    file.write_text(script("bash", capsys))
    (tmp_path / "photograph.png").touch()

    def offered(*words: str) -> set[str]:
        result = subprocess.run(
            ["bash", "-c", PRESS, "bash", str(file), "numbasync", *words],
            capture_output=True, text=True, timeout=300, cwd=tmp_path,
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (0, "")
        return set(result.stdout.split())

    assert offered("d") == {"demo", "doctor"}
    assert {"bench", "cluster-demo", "new", "completion"} <= offered("")
    assert offered("completion", "z") == {"zsh"}
    assert offered("doctor", "--d") == {"--device"}
    assert offered("doctor", "--device", "c") == {"cpu", "cuda"}
    assert offered("demo", "photo") == {"photograph.png"}
    assert offered("demo", "--out", "photo") == {"photograph.png"}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "numbasync" in text and "cluster-demo" in text and "--strict" not in text


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["completion", "bash"]) == 1
    assert "pip install 'numbasync[completion]'" in capsys.readouterr().err
