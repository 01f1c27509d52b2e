"""Kernels with the launch extents of a call: `kernel[grid, block]`, `kernel.forall(n)`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from numbasync.launch.call import Launch
from numbasync.launch.explain import Explanation, explain
from numbasync.launch.kernel import KernelSpec
from numbasync.launch.plan import Config
from numbasync.launch.prepared import PreparedLaunch
from numbasync.native import compiled

# `na.Launcher` without arguments means any kernel; only newer Pythons can express that
if TYPE_CHECKING:
    from typing_extensions import ParamSpec as ParamSpecWithDefault

    P = ParamSpecWithDefault("P", default=...)
else:
    P = ParamSpec("P")  # the parameters of a kernel's call

__all__ = ["Configured"]


def is_plain(config: Any) -> bool:
    """Whether a configuration is a key of plain ints: 1.0 and True equal 1 but may be refused, and
    a stream must not be kept alive.
    """
    if type(config) is not tuple:
        return False
    for part in config:
        if type(part) is tuple:
            for n in part:
                if type(n) is not int:
                    return False
        elif type(part) is not int:
            return False
    return True


class CallSignature:
    """`__signature__` of an object that is called with a kernel's arguments, for `help` and
    editors.
    """

    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return None  # the class itself is called with other arguments
        launcher: Any = getattr(owner, "_launcher", owner)
        return inspect.signature(launcher.py_func).replace(return_annotation=Launch)


class Configured(Generic[P]):
    """A kernel with its launch extents: `kernel[grid, block]`, `kernel.forall(n)`."""

    __signature__ = CallSignature()

    def __init__(self, launcher: KernelSpec, config: Config) -> None:
        self._launcher = launcher
        self._config = config

    @compiled
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Launch:
        launch_class = Launch if self._config.stream is not None else self._launcher.launch_class
        launch: Launch = launch_class(
            self._launcher, self._launcher.arrange(args, kwargs), self._config
        )
        return launch

    def prepare(self, /, *args: P.args, **kwargs: P.kwargs) -> PreparedLaunch:
        """The call, checked and looked up once; see `Launcher.prepare`."""
        return PreparedLaunch(self._launcher, self._launcher.arrange(args, kwargs), self._config)

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """The launch that this call would be; see `Launcher.explain`."""
        return explain(self._launcher, self._launcher.arrange(args, kwargs), self._config)

    def __repr__(self) -> str:
        c = self._config
        extents = f"{c.elements} threads" if c.elements is not None else f"{c.grid}, {c.block}"
        return f"<{self._launcher.name}[{extents}]>"
