"""A model of how work on many GPUs scales, from measured costs, and a simulation that checks it.

    python -m benchmarks.scaling_model

The model has closed forms; the simulation follows each event, and needs none of their assumptions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

COUNTS = (1, 2, 16, 256, 4096)


@dataclass(frozen=True)
class Costs:
    """Measured costs, in seconds; docs/scaling.md says how each was measured.

    Attributes:
        submit: of the host, to submit one launch.
        collective: of the host, to start a collective, for each of the process's devices.
        hop: of one step of a ring, from one GPU to the next.
        bytes_per_second: from one GPU to the next, in a ring.
        task: of Dask's scheduler, for one task; one process serves all workers.
        round_trip: from a worker to the scheduler and back.
    """

    submit: float = 4.7e-6
    collective: float = 36.0e-6
    hop: float = 9.38e-6
    bytes_per_second: float = 300e9
    task: float = 1.33e-3
    round_trip: float = 5.4e-3


def ring(costs: Costs, count: int, nbytes: int) -> float:
    """The seconds of an all_reduce of `nbytes` by a ring of `count` GPUs: each part of the bytes
    goes around twice, once reduced and once copied.
    """
    steps = 2 * (count - 1)
    return steps * (costs.hop + nbytes / count / costs.bytes_per_second)


def training_step(
    costs: Costs, count: int, work: float, launches: int, nbytes: int, one_process: bool
) -> float:
    """The seconds of a data-parallel step: `work` seconds of one GPU, cut into `count` parts of
    `launches` launches each, and an all_reduce of the gradients.
    """
    served = count if one_process else 1  # GPUs that one Python thread submits to
    host = served * (launches * costs.submit + costs.collective * (count > 1))
    return max(work / count, host) + ring(costs, count, nbytes)


def tasks_per_second(costs: Costs, count: int, work: float) -> float:
    """The tasks that `count` workers of Dask complete a second, each of `work` seconds: as many as
    the workers can, or the scheduler.
    """
    return min(count / work, 1 / costs.task)


def shared_work(one: float, two: float, count: int) -> float:
    """The seconds of work that `count` GPUs share, of what one and two of them took: a part is
    divided, the other, which is the host's, is not (Amdahl's law).
    """
    alone = min(max(2 * two - one, 0.0), one)
    return alone + (one - alone) / count


# --- the simulation ---


def simulated_ring(
    costs: Costs, count: int, nbytes: int, late: Sequence[float] | None = None
) -> float:
    """`ring`, step by step: a GPU sends when its last step is done and the part has come.

    Args:
        late: the seconds after which each GPU begins.
    """
    sending = costs.hop + nbytes / count / costs.bytes_per_second
    times = list(late or [0.0] * count)
    for _ in range(2 * (count - 1)):
        times = [max(times[i], times[i - 1]) + sending for i in range(count)]
    return max(times)


def simulated_tasks(costs: Costs, count: int, work: float, tasks: int, seed: int = 0) -> float:
    """The tasks a second of `tasks` tasks: one scheduler that answers one worker after the other,
    and workers that have two tasks, to work at one while they are told of the next. A task takes
    between half and one and a half times `work`.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret depends on it
    waiting = tasks
    free_at = 0.0  # the scheduler
    ready = [0.0] * count  # when each worker has completed what it has been told of
    asking = [(0.0, worker) for worker in range(count) for _ in range(2)]
    heapq.heapify(asking)
    done = 0.0
    while waiting:
        asked, worker = heapq.heappop(asking)
        free_at = max(free_at, asked) + costs.task
        begun = max(ready[worker], free_at + costs.round_trip / 2)
        ready[worker] = begun + work * rng.uniform(0.5, 1.5)
        heapq.heappush(asking, (ready[worker] + costs.round_trip / 2, worker))
        waiting -= 1
        done = max(done, ready[worker])
    return tasks / done


def efficiency(one: float, many: float, count: int) -> float:
    """The part of a `count` times quicker run that is reached."""
    return one / (count * many)


def tables(costs: Costs | None = None) -> str:
    """The tables of docs/scaling.md, in Markdown."""
    costs = costs or Costs()
    work, launches, nbytes = 0.1, 300, 100 << 20
    titles = (
        "GPUs", "strong, a process each", "strong, one process", "weak, a process each",
        "Dask, tasks of 100 ms", "of 10 ms",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|---:" * len(titles) + "|"]
    for count in COUNTS:
        cells = [f"{count:,}"]
        one = training_step(costs, 1, work, launches, nbytes, one_process=False)
        for one_process in (False, True):
            many = training_step(costs, count, work, launches, nbytes, one_process)
            cells.append(f"{efficiency(one, many, count):.2f}")
        weak = training_step(costs, count, work * count, launches, nbytes, one_process=False)
        cells.append(f"{one / weak:.2f}")
        for task in (0.1, 0.01):
            reached = tasks_per_second(costs, count, task) * task / count
            cells.append(f"{reached:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())  # noqa: T201
