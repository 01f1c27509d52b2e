"""The metrics of a service, and the text in which Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias

from numbasync.backend.protocols import counters
from numbasync.device.device import Device
from numbasync.serve.batcher import MicroBatcher
from numbasync.serve.statistics import Histogram

CONTENT_TYPE: str = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of what `Monitor.text` gives: version 0.0.4 of Prometheus's text format.

Source: https://prometheus.io/docs/instrumenting/exposition_formats

Examples:
    >>> na.serve.CONTENT_TYPE
    'text/plain; version=0.0.4; charset=utf-8'
"""
ENDS = ("answered", "failed", "expired", "cancelled", "overloaded", "closed")


Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]


class Family(NamedTuple):
    """One metric: `samples` are its values by the values of its labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    samples: list[Sample]


def of_batchers(batchers: Mapping[str, MicroBatcher[Any, Any]]) -> Iterator[Family]:
    """Requests, batches and their times."""
    seen = [(name, batcher.statistics()) for name, batcher in batchers.items()]
    ends: list[Sample] = [((name, end), getattr(one, end)) for name, one in seen for end in ENDS]
    yield Family(
        "numbasync_requests_total", "counter", "Requests by how they ended.",
        ("batcher", "end"), ends,
    )  # fmt: skip
    for attribute, name, kind, text in (
        ("waiting", "requests_waiting", "gauge", "Requests that wait for a batch."),
        ("running", "requests_running", "gauge", "Requests in batches at work."),
        ("batch_sizes", "batch_size", "histogram", "Requests a batch."),
        ("wait_seconds", "wait_seconds", "histogram", "From the call to the start of the batch."),
        ("answer_seconds", "answer_seconds", "histogram", "From the call to the answer."),
        ("batch_seconds", "batch_seconds", "histogram", "Work on one batch."),
    ):
        samples: list[Sample] = [((batcher,), getattr(one, attribute)) for batcher, one in seen]
        yield Family(f"numbasync_{name}", kind, text, ("batcher",), samples)


def of_devices(devices: Iterable[Device]) -> Iterator[Family]:
    """Work and memory."""
    flights = [(d.label, d.in_flight) for d in devices]
    memory = [(d.label, d.memory_stats()) for d in devices]
    for name, text, values in (
        ("operations_in_flight", "Operations that are enqueued and not done.",
         [(label, one.ops) for label, one in flights]),
        ("in_flight_bytes", "Memory that operations in flight hold.",
         [(label, one.bytes) for label, one in flights]),
        ("pool_used_bytes", "Memory of the pool that is in use.",
         [(label, one.used_current) for label, one in memory]),
        ("pool_used_high_bytes", "The most memory of the pool that was in use at once.",
         [(label, one.used_high) for label, one in memory]),
        ("pool_reserved_bytes", "Memory that the pool has of the device.",
         [(label, one.reserved_current) for label, one in memory]),
    ):  # fmt: skip
        samples: list[Sample] = [((label,), value) for label, value in values]
        yield Family(f"numbasync_{name}", "gauge", text, ("device",), samples)


def of_process() -> Iterator[Family]:
    """What all devices have done since the process began."""
    for field in fields(counters):
        if field.name != "callbacks":
            text = f"{field.name.capitalize()} since the process began, on all devices."
            value = getattr(counters, field.name)
            yield Family(f"numbasync_{field.name}_total", "counter", text, (), [((), value)])


def text_of(families: Iterable[Family]) -> str:
    """Prometheus's text format."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for values, sample in family.samples:
            labels = dict(zip(family.labels, values, strict=True))
            if not isinstance(sample, Histogram):
                lines.append(f"{family.name}{_braced(labels)} {_number(sample)}")
                continue
            for bound, count in cumulative(sample):
                lines.append(f"{family.name}_bucket{_braced({**labels, 'le': bound})} {count}")
            lines.append(f"{family.name}_sum{_braced(labels)} {_number(sample.total)}")
            lines.append(f"{family.name}_count{_braced(labels)} {sample.count}")
    return "\n".join(lines) + "\n"


def cumulative(histogram: Histogram) -> list[tuple[str, int]]:
    """For each bound how many numbers do not exceed it."""
    bounds = [*map(_number, histogram.bounds), "+Inf"]
    sums = [sum(histogram.counts[: i + 1]) for i in range(len(bounds))]
    return list(zip(bounds, sums, strict=True))


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


def _braced(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
