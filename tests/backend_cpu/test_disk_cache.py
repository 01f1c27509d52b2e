"""Kernels with `cache=True` on the CPU device: what was compiled once is loaded, and only then."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

import numbasync as na
from numbasync import cache_folder
from numbasync.backend.cpu import disk_cache
from numbasync.backend.cpu.races import rules
from numbasync.errors import KernelCompileError, KernelError
from numbasync.testing import counters

MODULE = """
import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice
import numbasync as na
from helpers import FACTOR, scaled

TABLE = np.arange(4, dtype=np.float32)

class OwnError(Exception):
    pass

@na.launcher
@cuda.jit(cache=True)
def one(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = scaled(x[i]) + TABLE[i & 3] + FACTOR + libdevice.cbrtf(x[i])

@na.launcher
@cuda.jit(cache=True)
def meets(z: na.KernelOutput, x: na.KernelInput):
    held = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    held[t] = x[t]
    cuda.syncthreads()
    z[t] = held[7 - t]

@na.launcher
@cuda.jit(cache=True, debug=True, opt=False)
def careful(z: na.KernelOutput, x: na.KernelInput):
    if x[0] > 0:
        raise ValueError("positive")
    z[0] = 1

@na.launcher
@cuda.jit(cache=True)
def own_error(z: na.KernelOutput, x: na.KernelInput):
    if x[0] < 0:
        raise OwnError("negative")
    z[0] = 1

@na.launcher
@cuda.jit
def not_kept(z: na.KernelOutput, x: na.KernelInput):
    z[0] = x[0]
"""
HELPERS = """
from numba import cuda
FACTOR = 10

@cuda.jit(device=True)
def scaled(x):
    return 2 * x
"""
_number = itertools.count()

Load = Callable[[], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports the module anew, as another process would."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    # Bytecode is found by the time in seconds and the size, which these changes leave as they are.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "program.py").write_text(MODULE)
    (tmp_path / "helpers.py").write_text(HELPERS)

    def import_it() -> ModuleType:
        sys.modules.pop("helpers", None)
        importlib.invalidate_caches()
        spec = importlib.util.spec_from_file_location(
            f"program_{next(_number)}", tmp_path / "program.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    with na.use_device(na.devices("cpu")[0]):
        yield import_it


def compiled_by(module: ModuleType, name: str, size: int = 8) -> tuple[int, np.ndarray]:
    """How much a launch compiled, and its result."""
    before = counters().compiles
    z = getattr(module, name)[1, size](na.zeros(size), na.ones(size)).sync()[0]
    return counters().compiles - before, z.to_host().sync()


@pytest.mark.parametrize("name", ["one", "meets"])
def test_what_is_kept_is_loaded_and_right(load: Load, name: str) -> None:
    first, expected = compiled_by(load(), name)
    again, result = compiled_by(load(), name)
    assert (first, again) == (1, 0)
    np.testing.assert_array_equal(result, expected)
    if name == "one":
        np.testing.assert_array_equal(result, 13 + np.arange(8) % 4)


def test_a_kernel_without_it_is_compiled_each_time(load: Load) -> None:
    assert compiled_by(load(), "not_kept")[0] == 1
    assert compiled_by(load(), "not_kept")[0] == 1


def test_other_types_are_another_variant(load: Load) -> None:
    compiled_by(load(), "meets")
    module = load()
    before = counters().compiles
    x = na.ones(8, dtype=np.float64)
    module.meets[1, 8](na.zeros(8, dtype=np.float64), x).sync()
    assert counters().compiles == before + 1


def test_a_device_function_of_another_module_counts(load: Load, tmp_path: Path) -> None:
    compiled_by(load(), "one")
    (tmp_path / "helpers.py").write_text(HELPERS.replace("2 * x", "3 * x"))
    compiles, result = compiled_by(load(), "one")
    assert compiles == 1
    np.testing.assert_array_equal(result, 14 + np.arange(8) % 4)


def test_a_constant_of_another_module_counts(load: Load, tmp_path: Path) -> None:
    compiled_by(load(), "one")
    (tmp_path / "helpers.py").write_text(HELPERS.replace("FACTOR = 10", "FACTOR = 20"))
    compiles, result = compiled_by(load(), "one")
    assert compiles == 1
    np.testing.assert_array_equal(result, 23 + np.arange(8) % 4)


def test_an_array_used_as_a_constant_counts(load: Load) -> None:
    compiled_by(load(), "one")
    module = load()
    module.TABLE[:] = 100
    compiles, result = compiled_by(module, "one")
    assert compiles == 1
    np.testing.assert_array_equal(result, np.full(8, 113))


def test_a_changed_module_is_compiled_again(load: Load, tmp_path: Path) -> None:
    compiled_by(load(), "meets")
    (tmp_path / "program.py").write_text(MODULE.replace("held[7 - t]", "held[7 - t] + 5"))
    compiles, result = compiled_by(load(), "meets")
    assert compiles == 1
    np.testing.assert_array_equal(result, np.full(8, 6))


def test_a_gpu_refused_array_is_refused_despite_caches(load: Load, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MODULE.replace("array(8,", "array(FACTOR,"))
    assert compiled_by(load(), "meets")[0] == 1
    helpers = HELPERS.replace("10", "np.int64(10)").replace("from", "import numpy as np\nfrom", 1)
    (tmp_path / "helpers.py").write_text(helpers)
    with pytest.raises(KernelCompileError, match=r"numpy\.int64.*SIZE = int\(FACTOR\)"):
        compiled_by(load(), "meets")


def test_a_broken_file_is_compiled_again_and_replaced(load: Load, tmp_path: Path) -> None:
    compiled_by(load(), "meets")
    (file,) = (tmp_path / "cache").rglob("*meets*.nbc")
    file.write_bytes(file.read_bytes()[:100])
    compiles, result = compiled_by(load(), "meets")
    assert compiles == 1
    np.testing.assert_array_equal(result, np.ones(8))
    assert compiled_by(load(), "meets")[0] == 0


@pytest.mark.parametrize("what", ["nbi", "nbc"])
@pytest.mark.parametrize("text", [b"", b"\x80\x05", b"N.", b"folder"])
def test_any_damage_is_repaired(load: Load, tmp_path: Path, what: str, text: bytes) -> None:
    compiled_by(load(), "meets")
    (file,) = (tmp_path / "cache").rglob(f"*meets*.{what}")
    file.unlink()
    if text == b"folder":
        file.mkdir()
    else:
        file.write_bytes(text)
    assert compiled_by(load(), "meets")[0] == 1
    assert compiled_by(load(), "meets")[0] == 0


class Ran:
    """A pickle of it runs code: it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self._path,)


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
@pytest.mark.parametrize("shared", ["cache", "cache/*"])
def test_numbas_folder_writable_by_others_is_not_read(
    load: Load, tmp_path: Path, shared: str
) -> None:
    compiled_by(load(), "meets")
    for file in (tmp_path / "cache").rglob("*meets*.nb*"):
        file.write_bytes(pickle.dumps(Ran(tmp_path / "ran")))
    (path,) = tmp_path.glob(shared)
    path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="not kept in .*: others can write .* NUMBA_CACHE_DIR"):
        assert compiled_by(load(), "meets")[0] == 1
    assert not (tmp_path / "ran").exists()
    assert compiled_by(load(), "meets")[0] == 1  # said once


@pytest.mark.skipif(not cache_folder.IS_CHECKED, reason="folders of Windows have no such bits")
def test_nothing_is_read_beside_a_writable_source(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba's own next choice is the user's cache folder."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    compiled_by(load(), "meets")
    beside = tmp_path / "__pycache__"
    assert list(beside.glob("*.nbc"))
    for file in beside.glob("*.nb*"):
        file.write_bytes(pickle.dumps(Ran(tmp_path / "ran")))
    beside.chmod(0o777)
    assert [compiled_by(load(), "meets")[0] for _ in range(2)] == [1, 0]
    assert not (tmp_path / "ran").exists()


def test_a_relative_folder_stays_where_it_was(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(numba.config, "CACHE_DIR", f"relative-{tmp_path.name}")
    monkeypatch.chdir(tmp_path)
    assert compiled_by(load(), "meets")[0] == 1
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert compiled_by(load(), "meets")[0] == 0
    assert not list((tmp_path / "elsewhere").rglob("*.nb*"))


def test_data_replaced_by_another_process_is_not_loaded(load: Load) -> None:
    """Numba numbers the data of an index: two processes may take the same number at once."""
    module = load()
    compiled_by(module, "meets")
    store = disk_cache.Store(module.meets.kernel.py_func)
    (key,) = store._file._load_index()
    assert store.load(key) is not None
    _, *data = store._file.load(key)
    other = disk_cache.Store(module.meets.kernel.py_func)
    other._file._load_index = dict  # read before the first was saved
    other._file._save_index = lambda overloads: None  # and written before
    other._file.save("another kernel", ("another kernel", *data))
    assert store.load(key) is None


def test_errors_of_what_was_loaded_say_where(load: Load) -> None:
    said = []
    for _ in range(2):
        with pytest.raises(KernelError) as error:
            compiled_by(load(), "careful")
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "thread (0, 0, 0): ValueError: positive" in said[0]
    assert "program.py:" in said[0]


def test_what_has_no_lasting_name_is_not_kept(load: Load) -> None:
    assert [compiled_by(load(), "own_error")[0] for _ in range(2)] == [1, 1]


def test_an_unwritable_directory_costs_only_time(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load()

    def full(*args: object, **at: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(os, "rename", full)
    assert compiled_by(module, "meets")[0] == 1


def test_a_second_process_compiles_nothing(
    tmp_path: Path, python: str, python_env: dict[str, str], load: Load
) -> None:
    compiled_by(load(), "meets")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import program, numbasync as na\n"
        "from numbasync.testing import counters\n"
        "program.meets[1, 8](na.zeros(8), na.ones(8)).sync()\n"
        "print(counters().compiles, na.compile_count(), program.meets.cpu_engine())"
    )
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program, str(tmp_path)],
        env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("CpuEngine")[0].strip() == "0 0"


@pytest.mark.full
def test_the_library_of_checks_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiled(Exception):
        pass

    def njit(*_: object, **__: object) -> None:
        raise Compiled

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first = rules.library()
    monkeypatch.setattr(rules, "njit", njit)
    again = rules.library()
    assert again is not first
    assert again.signature == first.signature
    with monkeypatch.context() as other:
        other.setattr(disk_cache, "_version", lambda: "of other sources")
        with pytest.raises(Compiled):
            rules.library()
    for path in tmp_path.rglob("*.nbc"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Compiled):  # half a file
        rules.library()
    monkeypatch.setattr(rules, "Store", lambda _: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(Compiled):  # nowhere to keep it
        rules.library()
