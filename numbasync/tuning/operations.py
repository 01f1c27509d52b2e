"""Operations of autotuned kernels: a launch that may tune first, and tuning alone."""

from __future__ import annotations

from typing import Any, TypeVar

from numbasync.errors import NotAGraphNodeError
from numbasync.extending import Home, note_site
from numbasync.launch.call import Launch, LaunchResult
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tuning import settings
from numbasync.tuning.choices import Choices
from numbasync.tuning.measurements import TuningResult

T = TypeVar("T")


class TunedCall(DeviceOp[T]):
    """A call of a kernel whose configuration is not known before the operation runs.

    A launch without a configuration checks the arguments and claims the lazy ones; it is never run.
    """

    def __init__(self, choices: Choices, values: tuple[Any, ...]) -> None:
        self._unused = False  # a refused call needs no warning
        note_site(self, 2)
        self._choices = choices
        self._launch = Launch(choices.prototype, values)
        self._launch.consume()
        if self._launch.stream is not None:
            self.stream = self._launch.stream
        self._unused = True

    def _values(self, ctx: Context) -> Steps[tuple[Any, ...]]:
        """The arguments, once the lazy ones have run."""
        values = list(self._launch._values)
        for i in self._launch._lazy:
            values[i] = yield from values[i].steps(ctx)
        return tuple(values)

    @property
    def home(self) -> Home:
        return self._launch.home

    def operands(self) -> frozenset[int] | None:
        return self._launch.operands()


class TunedLaunch(TunedCall[LaunchResult]):
    """A launch in the configuration that is chosen when it runs. Tunes first if none is, and calls
    tune by themselves.
    """

    def steps(self, ctx: Context) -> Steps[LaunchResult]:
        choices = self._choices
        values = yield from self._values(ctx)
        index = choices.find(ctx.device, values)
        if index is None and settings.automatic and not ctx.records:
            index = (yield from choices.tune(ctx.device, values)).best()
        if index is None:
            index = choices.configurations.default
        launch = choices.configurations.launch(index, values)
        launch._site = self._site
        launch.consume()
        if launch.has_fast_path and ctx.try_enqueue(launch):
            return launch.result()
        return (yield from launch.steps(ctx))

    def foreseen(self) -> Any:
        """The expected result; see `foreseen` of expected results."""
        return self._launch.foreseen()

    def _width(self) -> int | None:
        return self._launch._width()

    def _describe(self) -> str:
        return f"autotuned {self._launch.label}"


class Tune(TunedCall[tuple[TuningResult, ...]]):
    """Measures the configurations of a kernel for one call."""

    def steps(self, ctx: Context) -> Steps[tuple[TuningResult, ...]]:
        if ctx.records:
            raise NotAGraphNodeError(
                f"{self} cannot be recorded: it measures now, before the graph has run.\n"
                f"Tune before the capture: {self}.sync()"
            )
        values = yield from self._values(ctx)
        table = yield from self._choices.tune(ctx.device, values)
        return table.results(self._choices.configurations)

    def _width(self) -> int | None:
        return len(self._choices.configurations)

    def _describe(self) -> str:
        return f"tuning of {self._launch.label}"
