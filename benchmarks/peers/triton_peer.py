"""The launch by Triton, on PyTorch's current stream.

Triton's compiler reads the kernel's source and its global names, so Triton is imported with this
module.
"""

import importlib

from benchmarks.measure import Case, timed
from benchmarks.peers import torch_peer
from benchmarks.work import BLOCKS, N, check

triton = importlib.import_module("triton")
tl = importlib.import_module("triton.language")


@triton.jit
def saxpy(z, a, x, n):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    inside = i < n
    tl.store(z + i, a * tl.load(x + i, mask=inside) + tl.load(z + i, mask=inside), mask=inside)


def of_launch(ordinal: int) -> list[Case]:
    """The launch, with four warps: the 128 threads of the other libraries."""
    torch, stream, current = torch_peer.on(ordinal)
    with current:
        z, x = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    stream.synchronize()

    def launch() -> None:
        saxpy[(BLOCKS,)](z, 2.0, x, N, num_warps=4)

    async def check_row() -> None:
        with current:
            z.zero_()
            launch()
            stream.synchronize()
        check(z.cpu().numpy())

    return [Case("Triton: launch", timed(launch, stream.synchronize, current), check_row)]
