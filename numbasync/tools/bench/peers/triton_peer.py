"""The same by Triton, on PyTorch's current stream.

Its compiler reads the kernel's source and its global names, so Triton is imported with this
module, which is imported when it is asked for.
"""

import importlib

from numbasync.tools.bench.measure import Case, timed
from numbasync.tools.bench.peers import torch_peer
from numbasync.tools.bench.work import BLOCKS, N, check

triton = importlib.import_module("triton")
tl = importlib.import_module("triton.language")


@triton.jit
def saxpy(z, a, x, n):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    inside = i < n
    tl.store(z + i, a * tl.load(x + i, mask=inside) + tl.load(z + i, mask=inside), mask=inside)


def of_launch(ordinal: int) -> list[Case]:
    """Four warps of 32 threads are the 128 of the others."""
    torch, stream, current = torch_peer.on(ordinal)
    with current:
        z, x = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    stream.synchronize()

    def launch() -> None:
        saxpy[(BLOCKS,)](z, 2.0, x, N, num_warps=4)

    async def right() -> None:
        with current:
            z.zero_()
            launch()
            stream.synchronize()
        check(z.cpu().numpy())

    return [Case("Triton: launch", timed(launch, stream.synchronize, current), right)]
