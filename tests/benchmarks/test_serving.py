"""The load test of the service: what it counts as sound, and a short run of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving


def result(**changed: Any) -> dict[str, Any]:
    load = {"statuses": {"200": 9, "503": 1}, "wrong": 0}
    end = {"before": {"200": 3}, "later": {"connection closed": 2}, "wrong": 0, "seconds": 1.0}
    left = {"clients": 200, "requests left": 0, "pool bytes more": 0}
    fault = {"statuses": {"200": 9, "503": 2, "connection closed": 1}, "wrong": 0, "health": 200}
    return {"loads": [load], "sigterm": end, "hang_ups": left, "fault": fault, **changed}


def test_lost_wrong_or_left_requests_are_not_sound() -> None:
    assert serving.is_sound(result())
    sound = result()
    for loads in ({"statuses": {"200": 9}, "wrong": 1}, {"statuses": {"hangs": 1}, "wrong": 0},
                  {"statuses": {"500": 1}, "wrong": 0}):  # fmt: skip
        assert not serving.is_sound(result(loads=[loads]))
    for changed in ({"before": {"connection closed": 1}}, {"later": {"hangs": 1}}, {"wrong": 1}):
        assert not serving.is_sound(result(sigterm={**sound["sigterm"], **changed}))
    for changed in ({"requests left": 1}, {"pool bytes more": 8}):
        assert not serving.is_sound(result(hang_ups={**sound["hang_ups"], **changed}))
    for changed in ({"statuses": {"lost": 1}}, {"wrong": 1}, {"health": 503}):
        assert not serving.is_sound(result(fault={**sound["fault"], **changed}))


def test_quantiles_are_of_the_sorted_latencies() -> None:
    latencies = [0.003, 0.001, 0.002, 0.004]
    assert [serving.quantile(latencies, q) for q in (0, 0.5, 0.99)] == [1, 3, 4]
    assert math.isnan(serving.quantile([], 0.5))


def test_a_wrong_picture_is_found() -> None:
    pictures = serving.Pictures(2)
    assert not pictures.is_right(0, pictures.bodies[0])


@pytest.mark.full
def test_a_short_run_is_sound(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    file = tmp_path / "serving.json"
    # Nothing is too late, however busy the machine is.
    options = ["--requests", "70", "--deadline", "3600", "--ways", "batches", "--device", "cpu"]
    assert serving.main([*options, "--json", str(file)]) == 0
    seen = json.loads(file.read_text())["serving"]
    assert [load["load"] for load in seen["loads"]] == [0.5, 0.9, 1.5]
    assert all(sum(load["statuses"].values()) == 70 for load in seen["loads"])
    assert {*seen["sigterm"]["before"]} <= {"200", "503"}
    assert sum(seen["fault"]["statuses"].values()) == 70
    assert seen["fault"]["ends of the process"] > 0
