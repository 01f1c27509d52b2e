"""Spans of OpenTelemetry, where its package is installed: what a request's time was spent on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

try:
    from opentelemetry import propagate, trace
except ImportError:

    def span(name: str, headers: Mapping[str, str] | None = None) -> AbstractContextManager[Any]:
        """Nothing: `pip install opentelemetry-sdk` for spans."""
        return nullcontext()
else:
    _tracer = trace.get_tracer("numbasync.examples.service")

    def span(name: str, headers: Mapping[str, str] | None = None) -> AbstractContextManager[Any]:
        """A span, inside of the one that is open.

        Args:
            headers: of a request, which say what the client's span is.
        """
        if headers is None:
            return _tracer.start_as_current_span(name)
        kind = trace.SpanKind.SERVER
        return _tracer.start_as_current_span(name, propagate.extract(headers), kind=kind)
