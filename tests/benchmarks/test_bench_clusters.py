"""`numbasync bench dask`, with few and short tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import numbasync as na
from benchmarks import suites
from benchmarks.__main__ import main

pytest.importorskip("distributed", reason="needs the extra dask")


@pytest.mark.full
def test_the_tables(device: na.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import clusters

    monkeypatch.setattr(clusters, "TASKS", 4)
    monkeypatch.setattr(clusters, "LONG_TASKS", 2)
    path = tmp_path / "dask.json"
    args = ["dask", "--repeats", "3", "--json", str(path), "--device", device.kind]
    assert main(args) == 0
    overhead, processors, scaling = json.loads(path.read_text())["tables"]
    names = {figure["name"] for figure in overhead["timings"]}
    assert names | {clusters.SCHEDULER} == {figure["name"] for figure in processors["timings"]}
    assert {clusters.OPS, clusters.MORE_OPS, clusters.MORE_OP, clusters.ALONE} <= names
    assert len(processors["targets"]) == 2
    assert [figure["unit"] for figure in scaling["timings"]] == ["us"] * 4 + ["times"] * 2


def test_it_is_no_part_of_all() -> None:
    assert suites.SUITES.keys() >= suites.OUTSIDE
