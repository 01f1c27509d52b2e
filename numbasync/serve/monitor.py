"""What a service says of itself to those who run it: metrics and health."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Self

from numbasync.arguments import as_items, with_type
from numbasync.device.device import Device, default_device, use_device
from numbasync.errors import CallerError, MissingExtraError, StateError
from numbasync.serve import metrics
from numbasync.serve.batcher import MicroBatcher
from numbasync.serve.refusals import seconds_of
from numbasync.serve.statistics import TIMES, Histogram, Spread
from numbasync.tensors.create import ones

LAST = 5  # so many ticks of the loop say how late it is now


@dataclass(frozen=True, slots=True)
class Health:
    """How a service is.

    Attributes:
        is_alive: the devices work, and the loop is not held up. If not, start the process anew.
        is_ready: it is alive, and its batchers take requests. If not, send requests elsewhere.
        problems: what is wrong, in words.

    Examples:
        >>> na.serve.Health(False, False, ("cpu:0 is lost",)).problems
        ('cpu:0 is lost',)
    """

    is_alive: bool
    is_ready: bool
    problems: tuple[str, ...]


class Monitor:
    """Measure how late an event loop is, and tell metrics and health of a service.

    Use it as a context manager on the service's loop. `text` is what a page `/metrics` shows, and
    needs no package. With the package `prometheus-client`, a monitor is a collector of it:
    `prometheus_client.REGISTRY.register(monitor)`.

    Args:
        batchers: the batchers of the service, by the names that metrics show.
        devices: whose work and memory is shown, and which `check` tries. Default: the default
            device of the block.
        interval: seconds between two measurements of the loop.
        max_lag: seconds that the loop may be late. If it was later in each of the last
            measurements, the service is not well.

    Raises:
        CallerError: an argument is of another kind, or out of its range.

    Examples:
        >>> batcher = na.serve.MicroBatcher(lambda items: items)
        >>> async with batcher, na.serve.Monitor({"echo": batcher}) as monitor:
        ...     _ = await batcher(1)
        ...     (await monitor.check()).is_ready
        ...     lines = monitor.text().splitlines()
        True
        >>> print(*(line for line in lines if "answered" in line))
        numbasync_requests_total{batcher="echo",end="answered"} 1
    """

    def __init__(
        self,
        batchers: Mapping[str, MicroBatcher[Any, Any]] | None = None,
        *,
        devices: Iterable[Device] | None = None,
        interval: float = 0.1,
        max_lag: float = 1.0,
    ) -> None:
        named = {} if batchers is None else batchers
        if not isinstance(named, Mapping) or not all(
            isinstance(n, str) and isinstance(b, MicroBatcher) for n, b in named.items()
        ):
            raise CallerError(
                f"batchers of Monitor is {with_type(batchers)}: write names and batchers, as in "
                '{"pictures": batcher}.'
            )
        given = None if devices is None else as_items(devices)
        if devices is not None and not (given and all(isinstance(d, Device) for d in given)):
            raise CallerError(f"devices of Monitor is {with_type(devices)}: write a list of them.")
        self._batchers = dict(named)
        self._devices: tuple[Device, ...] | None = given
        self._interval = seconds_of(interval, "interval of Monitor")
        if not self._interval:
            raise CallerError(f"interval of Monitor is {interval}: write more than 0 seconds.")
        self._max_lag = seconds_of(max_lag, "max_lag of Monitor")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lag = Spread(TIMES)
        self._last = deque[float](maxlen=LAST)

    # --- how late the loop is ---

    async def __aenter__(self) -> Self:
        if self._timer is not None:
            raise StateError(f"{self!r} has been opened, and is not closed yet.")
        if self._devices is None:
            self._devices = (default_device(),)
        self._loop = asyncio.get_running_loop()
        self._set_timer()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        assert self._loop is not None  # it has been opened
        due = monotonic() + self._interval
        self._timer = self._loop.call_later(self._interval, self._measure, due)

    def _measure(self, due: float) -> None:
        late = max(monotonic() - due, 0.0)
        self._lag.add(late)
        self._last.append(late)
        self._set_timer()

    # --- what it tells ---

    def _families(self) -> Iterator[metrics.Family]:
        yield from metrics.of_batchers(self._batchers)
        yield from metrics.of_devices(self._devices or ())
        yield from metrics.of_process()
        yield metrics.Family(
            "numbasync_loop_lag_seconds", "histogram", "How late timers of the event loop come.",
            (), [((), self._lag.histogram())],
        )  # fmt: skip

    def text(self) -> str:
        """The metrics, as Prometheus reads them; send them as `na.serve.CONTENT_TYPE`.

        Examples:
            >>> async with na.serve.Monitor() as monitor:
            ...     print(monitor.text().splitlines()[-1])
            numbasync_loop_lag_seconds_count 0
        """
        return metrics.text_of(self._families())

    def collect(self) -> Iterator[Any]:
        """The metrics as objects of the package `prometheus-client`, which calls this.

        Raises:
            MissingExtraError: the package is not installed.

        Examples:
            >>> import prometheus_client
            >>> registry = prometheus_client.CollectorRegistry()
            >>> async with na.serve.Monitor() as monitor:
            ...     registry.register(monitor)
            ...     registry.get_sample_value("numbasync_launches_total") >= 0
            True
        """
        try:
            from prometheus_client import core
        except ImportError as error:
            raise MissingExtraError(
                f"Monitor.collect needs prometheus-client, which cannot be imported ({error}): "
                "pip install 'numbasync[serve]'; Monitor.text() needs nothing."
            ) from error
        kinds: dict[str, Any] = {
            "counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }  # fmt: skip
        for name, kind, text, labels, samples in self._families():
            made = kinds[kind](name, text, labels=labels)
            for values, sample in samples:
                if isinstance(sample, Histogram):
                    made.add_metric(values, metrics.cumulative(sample), sum_value=sample.total)
                else:
                    made.add_metric(values, sample)
            yield made

    async def check(self, timeout: float = 1.0) -> Health:
        """How the service is: a small operation runs on each device, and batchers and the loop are
        looked at.

        Args:
            timeout: seconds that a device has for the operation.

        Raises:
            CallerError: `timeout` is no number of seconds.

        Examples:
            >>> async with na.serve.Monitor() as monitor:
            ...     await monitor.check()
            Health(is_alive=True, is_ready=True, problems=())
        """
        seconds = seconds_of(timeout, "timeout of check")
        lag = min(self._last) if len(self._last) == LAST else 0.0
        found = await asyncio.gather(*(_try(d, seconds) for d in self._devices or ()))
        dead = [problem for problem in found if problem]
        if lag > self._max_lag:
            dead.append(f"the event loop is late by {lag:.3g} s: something holds it up")
        busy = []
        for name, batcher in self._batchers.items():
            if not batcher.is_open:
                busy.append(f"{name} takes no requests: {batcher!r}")
            elif batcher.is_full:
                busy.append(f"{name} is full: {batcher!r}")
        return Health(not dead, not dead and not busy, (*dead, *busy))

    def __repr__(self) -> str:
        state = "closed" if self._timer is None else "open"
        return f"<Monitor of {', '.join(self._batchers) or 'no batchers'}, {state}>"


async def _try(device: Device, seconds: float) -> str:
    """What is wrong with a device; nothing if an operation ends in time."""
    try:
        with use_device(device):
            async with asyncio.timeout(seconds):
                await ones(1).to_host()
    except TimeoutError:
        return f"{device.label} has not done a small operation within {seconds:g} s"
    except Exception as error:
        return f"{device.label} does not work: {str(error).partition(chr(10))[0]}"
    return ""
