"""Operations on Ray's actors, each with a device of its own, and tensors from one to another.

Ray needs nothing from numbasync but that launchers, operations and tensors are pickled. By the
tensor transport results stay on an actor's device, and go to other actors past the object store.
Needs `pip install ray`; without it this program says so.

    python examples/14_ray.py
"""

import logging
import os

import numpy as np
from numba import cuda

import numbasync as na

try:
    import ray  # pyright: ignore[reportMissingImports]
except ImportError:
    ray = None


@na.launcher
def saxpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


class Worker:
    """An actor. A coroutine of it runs on its event loop, where operations are awaited."""

    async def run(self, op: na.DeviceOp):
        return await op

    async def many(self, ops: list[na.DeviceOp]):
        return await na.gather(*ops)


class Solver:
    """An actor whose results stay on its device."""

    def ramp(self, n: int):
        return saxpy(na.zeros(n), 1.0, np.arange(n, dtype=np.float32)).output().sync()

    def total(self, x: na.Tensor):
        return float(x.to_host().sync().sum())


def main() -> None:
    if ray is None:
        print("Ray is not installed: pip install ray")
        return
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # what its next release does
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        actor = ray.remote(Worker)
        workers = [actor.remote() for _ in range(2)]
        x = np.arange(4, dtype=np.float32)
        ops = [saxpy(na.ones(4), float(n), x).output().to_host() for n in range(4)]
        calls = [workers[n % 2].run.remote(op) for n, op in enumerate(ops)]
        print(*ray.get(calls), sep="\n")
        tensor = ray.get(workers[0].run.remote(saxpy(na.ones(4), 2.0, x).output()))
        print(tensor, "came back to this process's device")
        print(*ray.get(workers[1].many.remote([na.full(2, n).to_host() for n in range(3)])))

        na.ray.register_transport()
        actor = ray.remote(enable_tensor_transport=True)(Solver)
        one, other = actor.remote(), actor.remote()
        ramp = one.ramp.options(tensor_transport="numbasync").remote(1000)
        print("the other actor's total:", ray.get(other.total.remote(ramp)))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
