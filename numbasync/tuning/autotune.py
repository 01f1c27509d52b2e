"""`autotune`: a kernel each of whose calls runs the fastest of several configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, overload

from numbasync.arguments import is_number, shown, with_type
from numbasync.device.device import Device, default_device
from numbasync.errors import LauncherError, LaunchError, OperationError
from numbasync.extending import note_site
from numbasync.launch.call import LaunchResult
from numbasync.launch.launcher import Launcher
from numbasync.ops.op import DeviceOp
from numbasync.public import Public
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor
from numbasync.tuning import settings
from numbasync.tuning.choices import Choices
from numbasync.tuning.configurations import Configuration, Configurations
from numbasync.tuning.keys import Key, check_key
from numbasync.tuning.measurements import TuningResult
from numbasync.tuning.operations import Tune, TunedLaunch
from numbasync.tuning.session import Rules

P = ParamSpec("P")

ROUNDS = 9


class Autotuned(Public, Generic[P]):
    """A kernel with several configurations. Made by `autotune`.

    A call returns an operation, as a call of the kernel does. It runs the configuration that was
    chosen for the call's key. If none has been, the operation tunes before it launches; but while a
    graph is recorded, in tests, and with `NUMBASYNC_AUTOTUNE=0`, it runs the first configuration,
    and only `tune` tunes. With `NUMBASYNC_AUTOTUNE=1` calls tune in tests, too.

    Attributes:
        name: of the kernel, or of the function that makes it.
        configs: the configurations, in the order in which they were written.

    Examples:
        >>> tuned = na.autotune(saxpy, [{"threads": 64}, {"threads": 128}])
        >>> tuned.name, tuned.configs
        ('saxpy', ({'threads': 64}, {'threads': 128}))
        >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
        >>> tuned.choice(z, 2.0, x) in (None, *tuned.configs)
        True
    """

    def __init__(self, choices: Choices) -> None:
        if not isinstance(choices, Choices):
            raise LauncherError(
                f"Autotuned is made of a kernel, not of {with_type(choices)}: write "
                "na.autotune(kernel, configs)."
            )
        self.name = choices.configurations.name
        self._choices = choices

    @property
    def configs(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._choices.configurations)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> DeviceOp[LaunchResult]:
        """The operation that launches the kernel in its chosen configuration."""
        choices = self._choices
        values = choices.prototype.arrange(args, kwargs)
        if not any(isinstance(value, DeviceOp) for value in values):
            index = choices.find(_device_of(values), values)
            if index is None and not settings.automatic:
                index = choices.configurations.default
            if index is not None:
                launch = choices.configurations.launch(index, values)
                note_site(launch)
                return launch
        return TunedLaunch(choices, values)

    def tune(self, /, *args: P.args, **kwargs: P.kwargs) -> DeviceOp[tuple[TuningResult, ...]]:
        """An operation that measures the configurations for the key of this call, and returns a
        record of each. Measurements of earlier calls and processes are not repeated.

        Arrays that the kernel may write are copied, and the copies are measured: the arguments stay
        as they are.

        Raises:
            LaunchError: no configuration can be used; when the operation runs.

        Examples:
            >>> tuned = na.autotune(saxpy, [{"threads": 64}, {"threads": 128}], rounds=2)
            >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
            >>> sum(result.chosen for result in await tuned.tune(z, 2.0, x))
            1
        """
        return Tune(self._choices, self._choices.prototype.arrange(args, kwargs))

    def choice(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any] | None:
        """The configuration that was chosen for such a call; None: none has been."""
        values = self._settled(args, kwargs)
        index = self._choices.find(_device_of(values), values)
        return None if index is None else self._choices.configurations[index]

    def results(self, /, *args: P.args, **kwargs: P.kwargs) -> tuple[TuningResult, ...]:
        """What has been measured for such a call: a record of each configuration.

        Examples:
            >>> tuned = na.autotune(saxpy, [{"threads": 96}, {"threads": 160}], rounds=2)
            >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
            >>> [result.config for result in tuned.results(z, 2.0, x)]  # measures nothing
            [{'threads': 96}, {'threads': 160}]
        """
        values = self._settled(args, kwargs)
        table = self._choices.measurements(_device_of(values), values)
        return table.results(self._choices.configurations)

    def forget(self) -> None:
        """Forget all measurements of this kernel and these configurations, on disk, too.

        Examples:
            >>> tuned = na.autotune(saxpy, [{"threads": 64}, {"threads": 128}], rounds=2)
            >>> tuned.forget()
            >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
            >>> [result.status for result in tuned.results(z, 2.0, x)]
            ['pending', 'pending']
        """
        self._choices.forget()

    def _settled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in signature order.

        Raises:
            OperationError: one of them is an operation, whose value is not known before it runs.
        """
        prototype = self._choices.prototype
        values = prototype.arrange(args, kwargs)
        for parameter, value in zip(prototype.parameters, values, strict=True):
            if isinstance(value, DeviceOp):
                value.suppress_warning()
                raise OperationError(
                    f"autotuned {self.name}: {parameter.name} is {value}, an operation; run it "
                    "first, and pass its value."
                )
        return values

    def __repr__(self) -> str:
        how = "" if settings.automatic else "tuned when asked, "
        return f"<autotuned {self.name}, {how}{self._choices!r}>"


def _device_of(values: tuple[Any, ...]) -> Device:
    """The device that a call with these arguments goes to."""
    for value in values:
        tensor = value.tensor if isinstance(value, Partition | SharedTensor) else value
        if isinstance(tensor, Tensor) and tensor.device is not None:
            return tensor.device
    return default_device()


@overload
def autotune(
    kernel: Launcher[P],
    configs: Iterable[Configuration],
    key: Key = None,
    *,
    reference: Callable[..., Any] | None = None,
    tolerance: float | None = None,
    rounds: int = ROUNDS,
) -> Autotuned[P]: ...
@overload
def autotune(
    kernel: Callable[..., Launcher[P]],
    configs: Iterable[Configuration],
    key: Key = None,
    *,
    reference: Callable[..., Any] | None = None,
    tolerance: float | None = None,
    rounds: int = ROUNDS,
) -> Autotuned[P]: ...
def autotune(
    kernel: Any,
    configs: Iterable[Configuration],
    key: Key = None,
    *,
    reference: Callable[..., Any] | None = None,
    tolerance: float | None = None,
    rounds: int = ROUNDS,
) -> Any:
    """A kernel that runs in the fastest of several configurations, found by measuring them.

    The configurations run in turn, on the device; events on a stream take the times, after a first
    launch that compiles and whose answer is compared. A configuration that the device refuses, or
    whose answer differs, is never chosen. Each measurement is kept on disk at once, in
    `NUMBASYNC_CACHE_DIR` or the user's cache folder, for the device, the versions of driver, Numba
    and numbasync, the kernel's code and the call's key: tuning that was interrupted continues.

    Args:
        kernel: a kernel with `@na.launcher`, or a function that makes one from keyword arguments.
        configs: dictionaries. `threads` and `elements` as in `na.launcher`, or `grid` and `block`,
            also with `shared_bytes`: values, or functions of the call's arguments. For a function
            that makes kernels, also that function's arguments. The first one runs where no choice
            is known and nothing is tuned.
        key: which calls share a choice. None: those with arrays of equal dtypes and of equal
            shapes, each extent rounded up to a power of two. Names of parameters: only those count,
            and of numbers the value. A function of the arguments: its value, made of numbers, texts
            and tuples.
        reference: a function of the arguments as NumPy arrays that returns the expected output, or
            the tuple of all; None: the first legal configuration's answer is expected.
        tolerance: the allowed difference of an element, relative to the largest expected value of
            its array; None: the square root of the type's precision. Integers are compared exactly.
        rounds: samples of each configuration, at least 2; the least median is chosen.

    Raises:
        LauncherError: `kernel`, `key` or a configuration is of another kind, or has unknown names.
        LaunchError: there is no configuration, two are equal, or a number is out of range.

    Examples:
        >>> tuned = na.autotune(saxpy, [{"threads": 64}, {"threads": 128}], rounds=2)
        >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
        >>> results = await tuned.tune(z, 2.0, x)  # measures; z stays as it is
        >>> [result.config for result in results]
        [{'threads': 64}, {'threads': 128}]
        >>> tuned.choice(z, 2.0, x) in tuned.configs
        True
        >>> _ = await tuned(z, 2.0, x)  # in the configuration that was fastest
    """
    configurations = Configurations(kernel, configs)
    name = configurations.name
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 2:
        raise LaunchError(f"autotune of {name}: rounds={shown(rounds)}; write 2 or more.")
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance < math.inf):
        raise LaunchError(f"autotune of {name}: tolerance={shown(tolerance)}; write 0 or more.")
    if reference is not None and not callable(reference):
        raise LauncherError(f"autotune of {name}: reference={shown(reference)} is no function.")
    rules = Rules(reference, tolerance)
    return Autotuned(Choices(configurations, check_key(key, name), rules, rounds))
