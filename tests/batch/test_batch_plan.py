"""Plans for people; and kernels as modules: readable, kept on disk, made once."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import cache_folder
from numbasync.batch.codegen import kernel_files
from numbasync.batch.codegen.choose import write
from numbasync.batch.fusion.groups import fuse
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.record.recorder import Recorder
from numbasync.errors import CallerError, DTypeError
from tests import sessions
from tests.common import full

ROOT = Path(__file__).parent.parent.parent
CPU = na.devices("cpu")[0]


def documented() -> na.BatchPlan:
    """The plan of docs/batches.md."""
    b = na.CommandBatch(CPU)
    x, w = b.upload(np.ones((64, 1000), np.float32)), b.upload(np.ones(1000, np.float32))
    odds = b.softmax(b.gelu(x * w))
    columns = b.sum(odds, axis=0)
    b.keep(odds, columns)
    return b.plan()


def test_the_page_shows_the_table_and_the_picture() -> None:
    page = (ROOT / "docs/batches.md").read_text()
    plan = documented()
    assert plan.table() in page
    assert f"```dot\n{plan.to_dot()}\n```" in page


def test_a_plan_describes_itself_and_runs_nothing() -> None:
    plan = documented()
    assert repr(plan) == "<BatchPlan of 2 kernels>"
    assert str(plan) == plan.table()
    assert plan.kernels[1].startswith("batch_sum")
    assert plan.peak_bytes < plan.naive_bytes
    assert plan.source(0) in plan.source()


def test_a_source_is_short_and_explains_itself() -> None:
    b = na.CommandBatch(CPU)
    x = b.upload(np.zeros(10, np.float32))
    y = b.relu(x) * 2 + x
    source = b.plan().source()
    assert y.number == 4
    assert "def batch_relu_mul_add(y0, x0, c0, n):" in source
    assert "fmul_rn" in source and "larger" in source
    assert len(source.splitlines()) < 60
    compile(source, "<source>", "exec")


@pytest.mark.parametrize("elements", [1, full(2), 4, full(8)])
def test_tuning_changes_the_text_and_not_the_result(elements: int) -> None:
    x = np.arange(5000, dtype=np.float32)
    b = na.CommandBatch(CPU, tuning=Tuning(threads=128, elements=elements))
    y = b.upload(x) + 1
    source = b.plan().source()
    assert f"cuda.blockIdx.x * {128 * elements}\n" in source
    assert source.count("= load4(") == elements // 4
    assert source.count("= x0[") == 1 + elements % 4
    b.execute_sync()
    np.testing.assert_array_equal(b.read_sync(y), x + 1)


def shared_bytes(source: str) -> int:
    arrays = re.findall(r"shared\.array\((\d+), np\.(\w+)\)", source)
    return sum(int(count) * np.dtype(kind).itemsize for count, kind in arrays)


@pytest.mark.parametrize("cols", [512, 1024, 2048, 4096])
def test_no_block_exceeds_its_shared_memory(cols: int) -> None:
    found = []
    for count in range(1, 7):
        b = na.CommandBatch(CPU)
        x = b.upload(np.empty((2, cols)))
        wide = [b.exp(x * (k + 2.0)) for k in range(count)]
        shares = [w / b.sum(w, 1, True) for w in wide]
        high = b.max(shares[0], 1, True)
        ids = [w * high for w in wide]
        found += [shared_bytes(text.source) for text in b.plan().prepared.texts]
        del ids
    assert Tuning().shared_bytes // 2 < max(found) <= Tuning().shared_bytes


# Alone in a block, and shared by blocks, which takes a little memory more; 3 would fill it.
@pytest.mark.parametrize(("rows", "counters"), [(9, 0), full(4096, 1)])
def test_reductions_of_columns_share_what_there_is(rows: int, counters: int) -> None:
    a = np.random.default_rng(1).normal(0, 1, (rows, 3))
    tuning = Tuning(unroll=False, shared_bytes=3 * 256 * 8)
    found = []
    for more in (0, 2):
        b = na.CommandBatch(CPU, tuning=tuning)
        x = b.upload(a)
        sums = [b.sum(x * (k + 2.0), 0) for k in range(more)]
        total = b.sum(x, 0)
        (text,) = b.plan().prepared.texts
        assert text.counters == counters
        assert shared_bytes(text.source) <= tuning.shared_bytes
        if not counters:  # rounds, and a barrier between them
            assert text.source.count("cuda.syncthreads()") == (3 if more else 1)
        b.execute_sync()
        for k, y in enumerate(sums):
            np.testing.assert_allclose(b.read_sync(y), (a * (k + 2)).sum(0), rtol=1e-10)
        found.append(b.read_sync(total))
    np.testing.assert_array_equal(*found)  # its bits do not depend on what else there is


def test_blocks_of_many_threads_have_enough_registers() -> None:
    b = na.CommandBatch(CPU, tuning=Tuning(threads=1024))
    y = b.sum(b.upload(np.ones((600, 5), np.float32)), 0)
    assert "max_registers=64" in b.plan().source()
    b.execute_sync()
    assert b.read_sync(y).tolist() == [600] * 5


def test_compilers_are_told_registers_for_loads_in_flight() -> None:
    for tuning, options in ((Tuning(), "cache=True, max_registers=128"), (None, "cache=True")):
        b = na.CommandBatch(CPU, tuning=tuning)
        y = b.sum(b.upload(np.ones((600, 5), np.float32)), 0)
        assert f"@cuda.jit({options})" in b.plan().source()
        del y


def test_long_column_expressions_are_unrolled_while_short() -> None:
    forms = []
    for count in (1, 20, 40, 80):
        b = na.CommandBatch(CPU, tuning=Tuning())
        y = b.upload(np.ones((600, 5), np.float32))
        for _ in range(count):
            y = b.exp(y)
        total = b.sum(y, 0)
        source = b.plan().source()
        assert len(source.splitlines()) < 700
        forms.append(("if j7 < extent" in source, "v7 = " in source and "j7 = " in source))
        del total
    assert forms == [(True, True), (True, True), (False, True), (False, False)]


def test_columns_of_any_height_share_a_few_texts() -> None:
    found = set()
    for rows in (1, 2, 5, 7, 8, 31, 64, 100, 300, 1000, 3000, 50_000):
        b = na.CommandBatch(CPU)
        y = b.sum(b.upload(np.empty((rows, 6), np.float32)), 0)
        found |= {text.source for text in b.plan().prepared.texts}
        del y
    assert len(found) <= 5


def test_wholly_broadcast_values_are_computed_by_fewer_threads() -> None:
    b = na.CommandBatch(CPU, tuning=Tuning())
    y = b.upload(np.ones((64, 1), np.float32)) * b.upload(np.ones(64, np.float32))
    assert f"cuda.blockIdx.x * {256 * 8}\n" in b.plan().source()
    del y


@pytest.mark.parametrize(
    "extents",
    [{"threads": 100}, {"threads": 0}, {"threads": 2048}, {"elements": 0}, {"elements": 1.5},
     {"row_elements": 0}, {"row_most": 0}, {"kept_words": 0}, {"splits": 0}, {"at_once": 0},
     {"warp_most": -1}, {"shared_bytes": None}],
    ids=str,
)  # fmt: skip
def test_extents_that_no_kernel_can_have_are_refused(extents: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match=rf"Tuning: {next(iter(extents))}="):
        Tuning(**extents)


@pytest.mark.full
def test_a_row_beyond_shared_memory_is_recomputed() -> None:
    a = np.random.default_rng(1).normal(0, 1, (3, 700)).astype(np.float32)
    found = []
    for shared in (48 * 1024, 64):
        b = na.CommandBatch(CPU, tuning=Tuning(shared_bytes=shared, kept_words=1))
        e = b.exp(b.upload(a))
        y = e / b.sum(e, 1, keepdims=True)
        del e
        assert ("kept0" in b.plan().source()) == (shared > 64)
        b.execute_sync()
        assert b.kernels_launched == 1
        found.append(b.read_sync(y))
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0].sum(1), 1, rtol=1e-5)


def test_threads_that_ask_at_once_get_one_kernel() -> None:
    r = Recorder()
    x = r.source((77,), np.dtype(np.float32), None)
    y = r.elementwise("tanh", r.elementwise("square", x)) - 0.5
    fusion = fuse(r.nodes, [y.number])
    text = write(r.nodes, fusion.groups[0], fusion.written, Tuning(threads=96))
    found: list[object] = []
    start = threading.Barrier(6)

    def ask() -> None:
        start.wait()
        kernel_files.loading(text).run()
        found.append(kernel_files.find(text))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(map(id, found))) == 1 and found[0] is not None


PROGRAM = """
import numpy as np
import numbasync as na

with na.use_device(na.devices("cpu")[0]):
    b = na.CommandBatch()
    y = b.softmax(b.upload(np.arange(12, dtype=np.float32).reshape(3, 4)))
    b.execute_sync()
    assert abs(b.read_sync(y).sum() - 3) < 1e-6
    print(na.compile_count())
"""


SHORT = """
import numpy as np
import numbasync as na

with na.use_device(na.devices("cpu")[0]):
    b = na.CommandBatch()
    assert b.compute_sync(b.upload(np.ones(3)) + 1).tolist() == [2, 2, 2]
"""


def test_the_next_process_compiles_nothing(tmp_path: Path, python_env: dict[str, str]) -> None:
    env = {**python_env, cache_folder.SWITCH: str(tmp_path), "NUMBASYNC_DEVICE": "cpu"}
    counts = []
    for _ in range(2):
        result = sessions.run_program(sys.executable, ["-c", PROGRAM], env, seconds=600)
        assert result.returncode == 0, result.stderr
        counts.append(int(result.stdout))
    assert counts == [1, 0]
    assert len(list(tmp_path.glob("batch/*.py"))) == 1


def test_an_unwritable_folder_is_no_error(tmp_path: Path, python_env: dict[str, str]) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    env = {**python_env, cache_folder.SWITCH: str(blocked), "NUMBASYNC_DEVICE": "cpu"}
    result = sessions.run_program(sys.executable, ["-c", SHORT], env, seconds=600)
    assert (result.returncode, result.stderr) == (0, "")


def _planted_link(folder: Path) -> None:
    (folder / "batch_0.py").symlink_to("/etc/hostname")


def _planted_file(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "batch_0.nbi").write_bytes(b"")
    os.chown(folder / "__pycache__" / "batch_0.nbi", 12345, -1)


SHARED: dict[str, Callable[[Path], object]] = {
    "group": lambda folder: folder.chmod(0o770),
    "world": lambda folder: folder.chmod(0o703),
    "sticky itself": lambda folder: folder.chmod(0o1777),
    "parent": lambda folder: folder.parent.chmod(0o777),
    "link": _planted_link,
    "owner": lambda folder: os.chown(folder, 12345, -1),
    "owner of a parent": lambda folder: os.chown(folder.parent, 12345, -1),
    "owner of a file": _planted_file,
}


@pytest.mark.skipif(os.name == "nt", reason="folders of Windows have no such bits")
@pytest.mark.parametrize("how", SHARED)
def test_a_folder_writable_by_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Here `__wrapped__`: without what is remembered for the process."""
    if "owner" in how and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    monkeypatch.setenv(cache_folder.SWITCH, str(tmp_path / "cache"))
    before = os.umask(0o002)  # of systems on which each user has a group
    try:
        own = kernel_files.folder.__wrapped__()
    finally:
        os.umask(before)
    assert own == tmp_path / "cache" / "batch"
    assert own.stat().st_mode & 0o777 == own.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "cache").chmod(0o1777)
    assert kernel_files.folder.__wrapped__() == own  # nobody else can replace it there
    (tmp_path / "cache").chmod(0o700)
    SHARED[how](own)
    with pytest.warns(RuntimeWarning, match=f"not kept in {own}: .*NUMBASYNC_CACHE_DIR") as told:
        elsewhere = kernel_files.folder.__wrapped__()
    assert len(told) == 1
    assert elsewhere == kernel_files._private()
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def test_a_folder_cleared_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "batch"
    monkeypatch.setattr(kernel_files, "folder", lambda: where)
    for factor in (3, 5):
        monkeypatch.setattr(kernel_files, "_made", {})  # other tests have such kernels
        b = na.CommandBatch(CPU)
        x = b.upload(np.arange(factor * 10 + 1, dtype=np.int32))
        y = b.where(x > factor, x * x - factor, b.cast(x, np.int32) + x * factor)
        assert b.compute_sync(y).shape == x.shape
        assert len(list(where.glob("*.py"))) >= 1
        shutil.rmtree(where)


def test_kernels_that_nobody_uses_any_more_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = na.CommandBatch(CPU)
    x = b.upload(np.arange(7, dtype=np.int32))
    y = b.where(x > 3, x * x - 3, x + 4)
    (written,) = b.plan().prepared.texts

    def another_process() -> None:
        monkeypatch.setattr(kernel_files, "_made", {})
        kernel_files.loading(written).run()

    monkeypatch.setattr(kernel_files, "folder", lambda: tmp_path)
    another_process()
    assert b.compute_sync(y).shape == x.shape  # compiled, and kept
    mine = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert len(mine) > 3
    (text,) = tmp_path.glob("*.py")
    name = "batch_exp_0123456789abcdef0123"
    old = [tmp_path / f"{name}.py", tmp_path / f"__pycache__/{name}.f-9.nbi"]
    others = [tmp_path / "notes.py", tmp_path / f"__pycache__/notes.{name}.nbi"]
    for path in (*old, *others):
        path.write_text("")
    then = time.time() - cache_folder.RETENTION - 60
    for path in (*old, *others, text):
        os.utime(path, (then, then))
    used: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(cache_folder, "use", used.append)
        another_process()
    assert used == [text]
    os.utime(text, (then, then))  # file systems may have noted that it was read, or may not
    stamp = text.stat().st_mtime_ns
    cache_folder.use(text)
    assert text.stat().st_mtime_ns == stamp  # or what was compiled from it is found no more
    for looked in (time.time(), 0):
        os.utime(tmp_path / cache_folder.STAMP, (looked, looked))
        cache_folder.tidy(tmp_path, kernel_files._WRITTEN)
        assert [p.exists() for p in old] == [looked > 0] * 2  # once a day
    assert {*mine, *others} <= set(tmp_path.rglob("*"))


def test_operations_unknown_to_numpy_are_refused_with_types() -> None:
    b = na.CommandBatch(CPU)
    x = b.upload(np.zeros(3, bool))
    with pytest.raises(DTypeError, match="neg of bool"):
        abs(-x)
