"""Machine code in memory: an object file, loaded."""

from __future__ import annotations

from typing import Any

from llvmlite import binding


class MachineCode:
    """A loaded object file, whose memory ends with this object.

    Attributes:
        address: of the function of the given name.
    """

    def __init__(self, object_file: bytes, symbol: str) -> None:
        target: Any = binding.Target.from_default_triple()
        # The engine owns the machine and the module, of which it needs one.
        machine = target.create_target_machine(jit=True)
        self._engine: Any = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        self._engine.add_object_file(binding.object_file.ObjectFileRef.from_data(object_file))
        self._engine.finalize_object()
        self.address = int(self._engine.get_function_address(symbol))
