"""`na.suggest_threads`: how many threads a block suit a kernel, for programs that ask.

The number itself is the `suggested_threads` of the compiled kernel, which each backend decides:
`backend/cuda/kernels.py` by occupancy, `backend/cpu/kernel/compiled.py` by a constant.
"""

from __future__ import annotations

from typing import Any

from numbasync.arguments import with_type
from numbasync.errors import LauncherError
from numbasync.launch.explain import explain
from numbasync.launch.launcher import Launcher
from numbasync.launch.plan import DEFAULT


def suggest_threads(kernel: Launcher[Any], /, *args: Any, **kwargs: Any) -> int:
    """Threads a block that keep the device busy with this kernel, for `threads=` of `@na.launcher`
    or `kernel[grid, block]`: what a call without either has. On a GPU it follows from the registers
    and the shared memory of the compiled code. It is at most 256: where memory is the bound, more
    have not been faster.

    Launches nothing, and blocks while a new variant is compiled. Tensors of `na.meta` suffice.

    Args:
        kernel: a launcher.
        args, kwargs: of a call. They decide the device and the variant.

    Raises:
        LauncherError: `kernel` is no launcher, or the arguments do not fit.

    Examples:
        >>> threads = na.suggest_threads(saxpy, na.meta(1000), 2.0, na.meta(1000))
        >>> threads
        256
        >>> z = await na.zeros(1000)
        >>> _ = await saxpy[-(-1000 // threads), threads](z, 2.0, na.ones(1000))
    """
    if not isinstance(kernel, Launcher):
        raise LauncherError(
            f"suggest_threads of {with_type(kernel)}: pass a kernel with @na.launcher, then the "
            "arguments of a call."
        )
    return explain(kernel, kernel.arrange(args, kwargs), DEFAULT).suggested_threads
