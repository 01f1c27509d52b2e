"""What has been measured of each configuration, for one device and one key; kept in a file.

The file is replaced as a whole after each measurement, so that an interrupted tuning continues
where it stopped. Several processes may write it: each version is one process's own, and valid.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from numbasync import cache_folder, notebook

Status: TypeAlias = Literal["pending", "measured", "slow", "wrong", "illegal"]

# A configuration whose better sample of two is so many times the best one is not measured again.
SLOW = 3.0
TRIAL = 2  # samples; the first one of all may have been held up
FORMAT = 1
KEPT = "What tuning measures is"
_FILE = re.compile(r"\w+-[0-9a-f]{20}-[0-9a-f]{20}\.json")


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What tuning knows of one configuration, for one device and one key.

    Attributes:
        config: the configuration, as it was written.
        status: `"measured"`; `"slow"`, more than 3 times as slow as the fastest after two rounds;
            `"wrong"`, its answer is not the expected one; `"illegal"`, it cannot be
            compiled or launched, or raises an error;
            `"pending"`, not or not often enough measured yet.
        ms: the median of the measured device milliseconds, or None.
        low, high: their quartiles, or None.
        reason: why the configuration is wrong or illegal; else empty.
        chosen: calls with this key use the configuration.

    Examples:
        >>> tuned = na.autotune(saxpy, [{"threads": 32}, {"threads": 2048}], rounds=2)
        >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
        >>> results = await tuned.tune(z, 2.0, x)
        >>> [(r.status, r.chosen) for r in results]
        [('measured', True), ('illegal', False)]
    """

    config: dict[str, Any]
    status: Status
    ms: float | None
    low: float | None
    high: float | None
    reason: str
    chosen: bool

    def _repr_html_(self) -> str:
        return TuningResults((self,))._repr_html_()


class TuningResults(tuple[TuningResult, ...]):
    """The records of all configurations: a tuple, which notebooks show as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        columns = ("configuration", "status", "ms", "quartiles", "chosen", "reason")
        return notebook.table("Tuning", map(_row, self), columns)


def _row(r: TuningResult) -> tuple[object, ...]:
    config = ", ".join(f"{k}={v}" for k, v in r.config.items())
    ms = "" if r.ms is None else f"{r.ms:.4g}"
    quartiles = "" if r.low is None else f"{r.low:.4g} to {r.high:.4g}"
    return config, r.status, ms, quartiles, "yes" if r.chosen else "", r.reason


@dataclass(slots=True)
class Entry:
    """What is known of one configuration.

    Attributes:
        checked: its answer was compared.
        samples: device milliseconds, one for each round.
    """

    status: Status = "pending"
    checked: bool = False
    samples: list[float] = field(default_factory=list)
    reason: str = ""

    @classmethod
    def of(cls, stored: Any) -> Entry:
        """An entry of a file.

        Raises:
            ValueError, TypeError: the file holds something else.
        """
        entry = cls(**stored)
        fits = (
            type(entry.status) is str
            and entry.status in get_args(Status)
            and type(entry.checked) is bool
            and type(entry.reason) is str
            and type(entry.samples) is list
            and all(type(ms) is float and 0 <= ms < math.inf for ms in entry.samples)
        )
        # Only what was checked has been measured, and only that may be chosen.
        needs_samples = fits and entry.status in ("measured", "slow")
        if not fits or (needs_samples and not (entry.samples and entry.checked)):
            raise ValueError("not an entry")
        return entry


class Measurements:
    """What is known of the configurations of one kernel, for one device and one key.

    Attributes:
        key: the key, as text.
        entries: one for each configuration, in their order.
    """

    def __init__(self, path: Path | None, identity: dict[str, Any], key: str, rounds: int) -> None:
        """
        Args:
            path: of the file; None: nothing is kept.
            identity: what the measurements hold for; a file of another identity is not used.
            rounds: the number of samples after which a configuration is measured.
        """
        self._path = path
        self._identity = {**identity, "key": key, "format": FORMAT}
        self._rounds = rounds
        self.key = key
        self.entries = self._load() or [Entry() for _ in identity["configurations"]]

    def _load(self) -> list[Entry] | None:
        # Whatever cannot be read or is not as expected is measured anew, and replaced.
        if self._path is None:
            return None
        try:
            with cache_folder.opened(self._path.parent) as folder:
                stored = json.loads(folder.read(self._path.name).decode())
            if stored["identity"] == self._identity:
                entries = [Entry.of(entry) for entry in stored["entries"]]
                if len(entries) == len(self._identity["configurations"]):
                    cache_folder.use(self._path)
                    return entries
        except cache_folder.UntrustedError as error:
            cache_folder.tell(KEPT, self._path.parent, error)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass
        return None

    def save(self) -> None:
        """Replace the file. Gives a RuntimeWarning if that is not possible."""
        if self._path is None:
            return
        text = json.dumps(
            {"identity": self._identity, "entries": [asdict(entry) for entry in self.entries]},
            indent=1,
        )
        try:
            with cache_folder.opened(self._path.parent, make=True) as folder:
                folder.write(self._path.name, text.encode())  # atomic for other processes
            cache_folder.tidy(self._path.parent, _FILE)
        except cache_folder.UntrustedError as error:
            cache_folder.tell(KEPT, self._path.parent, error)
        except OSError as error:
            warnings.warn(
                f"{KEPT} not kept in {self._path.parent}: {error}. Make the "
                f"folder writable, or name another one: {cache_folder.SWITCH}.",
                RuntimeWarning,
                stacklevel=2,
            )

    # --- what comes next ---

    def unchecked(self) -> int | None:
        """The first configuration whose answer has not been compared; None: there is none."""
        return next((i for i, e in enumerate(self.entries) if not e.checked), None)

    def next(self) -> int | None:
        """The configuration to measure next, in turns; None: all are measured."""
        open_ones = [i for i, e in enumerate(self.entries) if e.status == "pending" and e.checked]
        return min(open_ones, key=lambda i: len(self.entries[i].samples), default=None)

    def add(self, index: int, ms: float) -> None:
        """Add a sample; after it, set the status of each configuration that needs no more."""
        self.entries[index].samples.append(ms)
        legal = [e for e in self.entries if e.checked and e.status in ("pending", "measured")]
        if all(len(entry.samples) == TRIAL for entry in legal):
            fastest = min(min(entry.samples) for entry in legal)
            for entry in legal:
                if min(entry.samples) > SLOW * fastest:
                    entry.status = "slow"
        for entry in legal:
            if len(entry.samples) >= self._rounds and entry.status == "pending":
                entry.status = "measured"

    @property
    def done(self) -> bool:
        return all(entry.status != "pending" for entry in self.entries)

    def best(self) -> int | None:
        """The measured configuration of the least median; None: not known yet, or none is legal."""
        measured = [i for i, entry in enumerate(self.entries) if entry.status == "measured"]
        if not self.done or not measured:
            return None
        return min(measured, key=lambda i: statistics.median(self.entries[i].samples))

    def results(self, configurations: Iterable[dict[str, Any]]) -> tuple[TuningResult, ...]:
        """A record for each configuration."""
        best = self.best()
        return TuningResults(
            TuningResult(config, e.status, *_spread(e.samples), e.reason, i == best)
            for i, (config, e) in enumerate(zip(configurations, self.entries, strict=True))
        )


def _spread(samples: list[float]) -> tuple[float | None, float | None, float | None]:
    """The median and the quartiles."""
    if not samples:
        return None, None, None
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return median, low, high
