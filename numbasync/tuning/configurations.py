"""The configurations of a kernel: checked, described, and applied to a call.

A configuration holds options of the launcher, the extents of a launch, and, where the kernel is
made by a function, the arguments of that function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Any

from numbasync.arguments import as_items
from numbasync.errors import LauncherError, LaunchError, NumbasyncError
from numbasync.extending import describe
from numbasync.facts.source import carry_source
from numbasync.launch.call import Launch
from numbasync.launch.launcher import Launcher
from numbasync.memo import Memo
from numbasync.tuning import digests
from numbasync.tuning.keys import as_arrays

OPTIONS = ("threads", "elements")  # of a launcher, by the names that `Launcher` gives them
EXTENTS = ("grid", "block", "shared_bytes")  # of one call
MOST_REBUILT = 256  # launchers with other options; the memo is cleared when it exceeds this

Builder = Callable[..., Launcher]
Configuration = Mapping[str, Any]


def with_options(launcher: Launcher, **options: Any) -> Launcher:
    """The same kernel with other options of `Launcher`. The two share what is compiled, and the
    type of their results, which are pickled as the kernel's own.
    """
    carry_source(launcher.py_func)  # the file may have been edited since the kernel was defined
    names = list(inspect.signature(Launcher.__init__).parameters)[1:]
    recipe = dict(zip(names, launcher.Result._made_of, strict=False))
    other = Launcher(**{**recipe, **options})
    other.planner.share(launcher.planner)
    other.Result, other.result = launcher.Result, launcher.result
    return other


class Configurations:
    """The configurations of one kernel, in the caller's order.

    Attributes:
        name: of the kernel, or of the function that makes it.
        texts: a description of each configuration; no two are equal.
        digest: of the kernel's code.
    """

    def __init__(self, kernel: Launcher | Builder, configurations: Iterable[Configuration]) -> None:
        """
        Raises:
            LauncherError: `kernel` is neither a launcher nor a function; a configuration is no
                dictionary, or has a name that the kernel does not know.
            LaunchError: there is no configuration, or two are equal.
        """
        if not isinstance(kernel, Launcher | FunctionType):
            raise LauncherError(
                f"autotune takes a kernel with @na.launcher, or a function that makes one from "
                f"keyword arguments; not {describe(kernel)}."
            )
        self._kernel = kernel
        self.name: str = kernel.__name__
        given = as_items(configurations)
        if given is None:
            raise LauncherError(
                f"autotune of {self.name}: configs is a list of dictionaries, such as "
                f"[{{'threads': 128}}, {{'threads': 256}}]; not {describe(configurations)}."
            )
        self._all = given
        self._split = [self._checked(configuration) for configuration in self._all]
        self.texts = tuple(map(_text, self._all))
        if not self.texts:
            raise LaunchError(f"autotune of {self.name}: configs is empty; write at least one.")
        sorted_texts = [_text(dict(sorted(configuration.items()))) for configuration in self._all]
        twice = sorted({text for text in sorted_texts if sorted_texts.count(text) > 1})
        if twice:
            raise LaunchError(f"autotune of {self.name}: {'; '.join(twice)} came twice in configs.")
        function = kernel.py_func if isinstance(kernel, Launcher) else kernel
        self.digest = digests.of_function(function)
        self._built: dict[int, Launcher] = {}
        self._rebuilt = Memo[tuple[Launcher, str], Launcher](MOST_REBUILT)
        self._calls: dict[int, Callable[..., Launch]] = {}  # of configurations without functions

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(dict, self._all)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(self._all[index])

    def _checked(self, configuration: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of the kernel's builder, and the rest."""
        names = isinstance(configuration, Mapping) and all(
            isinstance(k, str) for k in configuration
        )
        if not names:
            raise LauncherError(
                f"autotune of {self.name}: a configuration is a dictionary with names as keys, "
                f"such as {{'threads': 128}}; not {describe(configuration)}."
            )
        arguments: dict[str, Any] = {}
        known = [*OPTIONS, *EXTENTS]
        if not isinstance(self._kernel, Launcher):
            signature = inspect.signature(self._kernel)
            takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
            known = [*signature.parameters, *(name for name in known if not takes_any)]
            arguments = {
                k: v for k, v in configuration.items() if takes_any or k in signature.parameters
            }
            try:
                signature.bind(**arguments)
            except TypeError as error:
                raise LauncherError(
                    f"autotune of {self.name}: {_text(configuration)}: {error}, for "
                    f"{self.name}{signature}."
                ) from None
        rest = {k: v for k, v in configuration.items() if k not in arguments}
        if unknown := sorted(rest.keys() - set(known)):
            raise LauncherError(
                f"autotune of {self.name}: {_text(configuration)}: {', '.join(unknown)} is "
                f"unknown; write {', '.join(known)}."
            )
        has_block = "block" in rest
        if has_block != ("grid" in rest) or (has_block and "threads" in rest):
            raise LauncherError(
                f"autotune of {self.name}: {_text(configuration)}: write threads, or grid and "
                "block together."
            )
        if "shared_bytes" in rest and not has_block:
            raise LauncherError(
                f"autotune of {self.name}: {_text(configuration)}: shared_bytes goes with grid and "
                "block."
            )
        return arguments, rest

    def launcher(self, index: int) -> Launcher:
        """The kernel of a configuration, without the configuration's options and extents.

        Raises:
            LauncherError: the function that makes the kernel gives something else.
            What that function raises.
        """
        if isinstance(self._kernel, Launcher):
            return self._kernel
        launcher = self._built.get(index)
        if launcher is None:
            launcher = self._kernel(**self._split[index][0])
            if not isinstance(launcher, Launcher):
                raise LauncherError(
                    f"autotune: {self.name}({self.texts[index]}) gives {describe(launcher)}, not a "
                    "kernel with @na.launcher."
                )
            launcher = self._built.setdefault(index, launcher)
        return launcher

    @cached_property
    def default(self) -> int:
        """The first configuration of which there is a kernel.

        Raises:
            LaunchError: there is none.
        """
        reasons = []
        for index, text in enumerate(self.texts):
            try:
                self.launcher(index)
            except NumbasyncError as error:
                reasons.append(f"{text}: {error}")
            else:
                return index
        raise LaunchError(
            f"autotune of {self.name}: no configuration gives a kernel.\n" + "\n".join(reasons)
        )

    def launch(self, index: int, values: tuple[Any, ...]) -> Launch:
        """The launch of a configuration's kernel.

        Args:
            values: the kernel's arguments in signature order, none of them an operation if a value
                of the configuration is a function of them.
        """
        call = self._calls.get(index)
        if call is None:
            launcher, rest = self.launcher(index), self._split[index][1]
            if any(map(callable, rest.values())):
                arrays = as_arrays(values)
                rest = {k: v(*arrays) if callable(v) else v for k, v in rest.items()}
                call = self._configured(launcher, rest)
            else:
                call = self._calls[index] = self._configured(launcher, rest)
        if self._has_keywords:
            names = (p.name for p in self.launcher(index).parameters)
            return call(**dict(zip(names, values, strict=True)))
        return call(*values)

    def _configured(self, launcher: Launcher, rest: Mapping[str, Any]) -> Callable[..., Launch]:
        """The kernel with options and extents, to be called with its arguments."""
        options = {k: v for k, v in rest.items() if k in OPTIONS}
        if options:
            key = launcher, repr(options)
            rebuilt = self._rebuilt.get(key)
            if rebuilt is None:
                rebuilt = self._rebuilt.setdefault(key, with_options(launcher, **options))
            launcher = rebuilt
        if "grid" not in rest:
            return launcher
        return launcher[rest["grid"], rest["block"], 0, rest.get("shared_bytes", 0)]

    @cached_property
    def _has_keywords(self) -> bool:
        """Whether the kernel has parameters that are passed by name only."""
        return self.launcher(self.default).py_func.__code__.co_kwonlyargcount > 0


def _text(configuration: Configuration) -> str:
    return ", ".join(f"{k}={digests.described(v)}" for k, v in configuration.items())
