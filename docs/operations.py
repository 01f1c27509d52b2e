"""For the reference: operations of `numbasync.tensor_cores` are shown as kernels call them.

They are declared with `typing`, Numba's context, as the first parameter.
"""

from typing import Any

import griffe


class Operations(griffe.Extension):
    """Leaves the first parameter of functions out that are decorated with `operation`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(d.value) == "operation" for d in func.decorators):
            del func.parameters["typing"]
