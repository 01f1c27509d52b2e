"""The examples in the docstrings, all of them in one process, on the CPU device."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from tests.common import full, mostly_full
from tests.project import docstrings

# What examples import that may not be installed.
OPTIONAL = ("dask", "distributed", "hypothesis", "prometheus_client", "ray", "torch")
# Ready kernels, of which some take seconds to compile.
READY = [one.name for one in docstrings.written(docstrings.KERNELS)]
QUICK = [name for name in READY if name.endswith((
    "grey", "equalisation_table", "look_up", "weights", "histogram", "grid", "sobel", "gelu",
    "embedding", "unit_rows", "attention_tile",
))]  # fmt: skip
# Algorithms, of which each compiles kernels of its own; reductions have few.
ALGORITHMS = [
    one.name for one in docstrings.written()
    if re.match(r"numbasync\.algorithms\.(scans|sorts|selections|segments)\.", one.name)
]  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, Any]:
    """What the first page of the reference says that examples take for granted."""
    page = pytestconfig.rootpath / "docs/reference/index.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    program = tmp_path_factory.mktemp("reference") / "granted.py"
    program.write_text(block)
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[program.stem] = module
    spec.loader.exec_module(module)
    return {k: v for k, v in vars(module).items() if not k.startswith("__")}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    """A client of a Dask cluster in this process; None without Dask."""
    if find_spec("distributed") is None:
        yield None
        return
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, processes=False, dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0", local_directory=str(tmp_path),
            silence_logs=logging.CRITICAL, memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


@pytest.fixture(autouse=True)
def devices_are_left_as_they_were() -> Iterator[None]:
    """Examples set policies and pools, as a program would for good."""
    before = [(d, d.policy, d.pool) for d in na.devices("cpu")]
    yield
    for device, policy, pool in before:
        device.policy, device.pool = policy, pool


def needs(source: str) -> str | None:
    """The package that an example needs and that is not installed."""
    needed = re.findall(r"^ *>>> (?:import|from) (\w+)", source, re.M)
    if "client" in source:
        needed.append("distributed")
    return next((n for n in needed if n in OPTIONAL and find_spec(n) is None), None)


@pytest.mark.may_leave("some examples set pools and policies, and lose a device")
def test_the_examples_give_what_they_say(
    names: dict[str, Any], client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # which examples may write to
    granted = {**names, "client": client}
    tests = [
        one.test(granted) for one in docstrings.written()
        if not needs(one.text) and one.name not in ALGORITHMS
    ]  # fmt: skip
    assert len(tests) > 180
    with na.use_device("cpu"), asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("error")
        interpreter = docstrings.Interpreter(runner)
        different = "".join(map(interpreter.difference, tests))
    assert different == "", different


@pytest.mark.parametrize("name", [*mostly_full(READY, *QUICK), *map(full, ALGORITHMS)])
def test_a_kernels_example_gives_what_it_says(names: dict[str, Any], name: str) -> None:
    packages = (docstrings.KERNELS, docstrings.PACKAGE)
    (test,) = (w.test(names) for p in packages for w in docstrings.written(p) if w.name == name)
    with na.use_device("cpu"), asyncio.Runner() as runner, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert docstrings.Interpreter(runner).difference(test) == ""


@pytest.mark.parametrize("package", OPTIONAL)
def test_the_examples_of_other_packages(names: dict[str, Any], package: str) -> None:
    if find_spec(package) is not None:
        return  # they have run above
    left_out = [one.name for one in docstrings.written() if needs(one.text) == package]
    pytest.skip(f"{package} is not installed, so these were not run: {', '.join(left_out)}")


def test_an_example_that_is_wrong_is_found(names: dict[str, Any]) -> None:
    parser = docstrings.doctest.DocTestParser()
    with asyncio.Runner() as runner:
        interpreter = docstrings.Interpreter(runner)
        right = parser.get_doctest(">>> await na.value(3)\n3\n", dict(names), "right", None, 0)
        wrong = parser.get_doctest(">>> await na.value(3)\n4\n", dict(names), "wrong", None, 0)
        assert interpreter.difference(right) == ""
        assert "Expected:\n    4\nGot:\n    3" in interpreter.difference(wrong)
