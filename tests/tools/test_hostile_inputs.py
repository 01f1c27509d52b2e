"""What a user's folders, pictures and environment may hold: a clear error, and nothing followed."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import numbasync as na
from numbasync import backend, cache_folder
from numbasync.errors import CallerError, DeviceUnavailableError
from numbasync.testing.plugin import isolated, sanitizer
from numbasync.tools import cli, cluster_images, demo_pictures


def _png(path: Path, width: int, height: int, data: bytes = b"") -> Path:
    """A small file that says it has so many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )  # fmt: skip
    return path


@pytest.mark.parametrize("side", [10_000, 20_000, 1_000_000])
def test_a_picture_bomb_is_refused_before_reading(tmp_path: Path, side: int) -> None:
    pytest.importorskip("PIL")
    with pytest.raises(CallerError, match=r"bomb\.png has more than .* pixels; make it smaller"):
        demo_pictures.read_picture(_png(tmp_path / "bomb.png", side, side))


def test_a_damaged_picture_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    whole = _png(tmp_path / "whole.png", 4, 4, bytes(4 * 13)).read_bytes()
    for cut in range(8, 50, 7):
        path = tmp_path / "cut.png"
        path.write_bytes(whole[:cut])
        with pytest.raises(CallerError, match=r"cut\.png"):
            demo_pictures.read_picture(path)


def test_a_picture_is_not_written_through_a_link(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    precious, target = tmp_path / "precious", tmp_path / "result.png"
    precious.write_text("precious")
    target.symlink_to(precious)
    demo_pictures.write_picture(np.zeros((4, 4, 3), np.uint8), target)
    assert precious.read_text() == "precious" and not target.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["precious", "result.png"]


def test_results_do_not_follow_a_linked_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    picture = _png(tmp_path / "small.png", 4, 4, bytes(4 * 13))
    said = "link is a link to .*real; name the folder itself"
    assert cli.main(["demo", str(picture), "--out", str(tmp_path / "link"), "--device", "cpu"]) == 1
    assert re.search(said, capsys.readouterr().err)
    monkeypatch.setattr(cluster_images, "workers_of", lambda client: {})
    with pytest.raises(CallerError, match=said):
        cluster_images.equalise_folder(None, None, tmp_path, tmp_path / "link")
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.parametrize("name", ["~nobody-of-this-name/kernels", "a" * 300, "a/" * 2500 + "b"])
def test_new_says_which_paths_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert cli.main(["new", name, "--in", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said and ("cannot be made" in said or "home folder" in said)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["9" * 5000, "0" * 5000 + "2", "-1", "²", ""])
def test_the_number_of_devices_is_short(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("NUMBASYNC_CPU_DEVICES", text)
    with pytest.raises(DeviceUnavailableError, match="whole number from 1 to 64") as error:
        backend._cpu.__wrapped__()
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("path", [None, "", ":", ".", "::.:bin"])
def test_the_sanitizer_is_none_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "compute-sanitizer").write_text("#!/bin/sh\n")
        (folder / "compute-sanitizer").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    with contextlib.suppress(pytest.UsageError):  # there is none
        assert sanitizer.command("memcheck")[0].startswith("/usr/local/cuda")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert sanitizer.command("memcheck")[0] == str(tmp_path / "bin/compute-sanitizer")


def test_only_sessions_set_the_isolation_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "numbasync-isolated-x"
    made.mkdir(0o700)
    monkeypatch.delenv(isolated._INSIDE, raising=False)
    isolated.check_environment()
    for path in ("1", str(tmp_path / "told"), str(made / "told"), str(made / "other"), ""):
        monkeypatch.setenv(isolated._INSIDE, path)
        with pytest.raises(pytest.UsageError, match="unset it"):
            isolated.check_environment()
    assert os.listdir(made) == []
    (made / "told").touch(0o600)
    monkeypatch.setenv(isolated._INSIDE, str(made / "told"))
    isolated.check_environment()
    if cache_folder.IS_CHECKED:
        made.chmod(0o777)
        with pytest.raises(pytest.UsageError, match="unset it"):
            isolated.check_environment()


PROGRAM = """
import os, signal
from numbasync import cache_folder
with cache_folder.temporary() as folder:
    (folder / "file").write_text("")
    with cache_folder.temporary():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a handler sees")
def test_sigterm_leaves_no_temporary_folder(
    tmp_path: Path, python: str, python_env: dict[str, str]
) -> None:
    env = {**python_env, "TMPDIR": str(tmp_path)}
    done = subprocess.run([python, "-c", PROGRAM], env=env, timeout=300)
    assert done.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


def test_the_programs_own_handler_of_sigterm_stays() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with cache_folder.sigterm_as_exit():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    with cache_folder.sigterm_as_exit():
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_home_everything_works_but_the_cache(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    from numbasync.batch.codegen import kernel_files
    from numbasync.tuning import choices

    for variable in (cache_folder.SWITCH, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert kernel_files.folder.__wrapped__() == kernel_files._private()
    with pytest.warns(RuntimeWarning, match="no home folder; name a folder: HOME, or NUMBASYNC"):
        assert choices._folder() is None
    with na.use_device(na.devices("cpu")[0]):
        b = na.CommandBatch()
        assert b.compute_sync(b.upload(np.ones(3)) + 21).tolist() == [22, 22, 22]
