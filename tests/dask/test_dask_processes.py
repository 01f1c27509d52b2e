"""Another process: it receives tensors unprepared, and has the same names for equal tasks."""

from __future__ import annotations

import ast
import importlib
import pickle
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import numbasync as na
from numbasync.errors import MissingExtraError
from tests import sessions
from tests.common import put, saxpy
from tests.dask.test_dask_tokens import shifted, uses_others

distributed = pytest.importorskip("distributed", reason="needs the extra dask")
PROGRAM = """
import pathlib, pickle, sys
import numbasync
from dask.tokenize import tokenize
from distributed.protocol import deserialize
things, header, frames = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
assert "numbasync.dask" not in sys.modules
elements = deserialize(header, frames).to_host().sync().tolist()
print([elements, *(tokenize(t) for t in pickle.loads(things))])
"""


def test_a_missing_dask_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if f"{m}.".startswith("numbasync.dask.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'numbasync\[dask\]'"):
        importlib.import_module("numbasync.dask")


def test_another_process(python: str, python_env: dict[str, str], tmp_path: Path) -> None:
    from dask.tokenize import tokenize

    things = [saxpy, shifted(1.5, threads=32), uses_others, saxpy[2, 4]]
    with na.use_device("cpu"):
        things.append(put(np.arange(6.0).reshape(2, 3).T))
        header, frames = distributed.protocol.serialize(na.arange(4).sync())
        expected = [[0.0, 1.0, 2.0, 3.0], *(tokenize(t) for t in things)]
    path = tmp_path / "sent"
    path.write_bytes(pickle.dumps((cloudpickle.dumps(things), header, [bytes(f) for f in frames])))
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu", "PYTHONWARNINGS": "default"}
    found = sessions.run_program(python, ["-c", PROGRAM, str(path)], env, seconds=600)
    assert found.returncode == 0, found.stderr
    assert ast.literal_eval(found.stdout) == expected
