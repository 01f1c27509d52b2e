"""Compiles random kernels for the processor and compares them with what their Python does:

    python -m tests.stress.many_kernels 1000 500   # the kernels 1000 to 1499

LLVM optimises little, so that a processor does two to three a second; one of twelve is also
compiled as usual, one with everything kept once a thread. A kernel that takes more than five
minutes ends the process, which says where it is.
"""

from __future__ import annotations

import faulthandler
import importlib
import sys
import time
from collections import Counter
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError

from numbasync.backend.cpu.regions import Code, Settings
from numbasync.backend.cpu.regions.machine_code import run_passes
from numbasync.backend.cpu.target import Module, lower
from numbasync.backend.declared_signatures import type_of
from tests.backend_cpu.random_kernels import GRID, RandomKernel
from tests.backend_cpu.run_regions import entry_of, launch_code, words_of

_errors: Any = importlib.import_module("numba.cuda.core.errors")
_building: Any = importlib.import_module("numbasync.backend.cpu.regions.build")
MOST_SECONDS = 300


def lowered(random: RandomKernel) -> Module:
    from numba.cuda.typing.typeof import typeof

    args = random.arguments()
    return lower(random.compiled(), [type_of(types.none if a is None else typeof(a)) for a in args])


def outcome(
    random: RandomKernel, options: dict[str, Any], module: Module | None = None, fast: bool = False
) -> np.ndarray:
    """What it writes if it is compiled with these options of `regions.build`."""
    module = module or lowered(random)
    build = _build_fast if fast else _building.build
    code = build(module.text, module.name, Settings(**options))
    args, keep = random.arguments(), list[Any]()
    words = [
        w for a, t in zip(args, module.argument_types, strict=True) for w in words_of(a, t, keep)
    ]
    launch_code(code, entry_of(code), GRID, random.block, words, random.dynamic_bytes)
    return np.asarray(args[0])


def _build_fast(text: str, name: str, settings: Settings) -> Code:
    assembly, code = _building.write_module(text, name, settings)
    module = llvm.parse_assembly(assembly)
    module.verify()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(opt=0, reloc="static", codemodel="large")
    run_passes(module, ("sroa", "simplify_cfg"), machine=machine)
    code.object_code = machine.emit_object(module)
    result: Code = code
    return result


def _try(seed: int, found: Counter[str]) -> None:
    random = RandomKernel(seed)
    expected = random.expected()
    try:
        module = lowered(random)
    except (_errors.NumbaError, NumbaError) as error:
        found["refused by Numba"] += 1
        print(f"kernel {seed} is refused: {error}", flush=True)
        return
    row = {"row": len(random.block) == 1}
    ways: list[tuple[dict[str, Any], bool]] = [(row, True)]
    ways += {0: [({"apart": True}, True)], 1: [(row, False)]}.get(seed % 12, [])
    for options, fast in ways:
        if not np.array_equal(outcome(random, options, module, fast), expected):
            found["wrong"] += 1
            print(f"kernel {seed} is wrong with {options}:\n{random.source}", flush=True)
    found["kernels"] += 1


def main(first: int, count: int) -> int:
    found: Counter[str] = Counter()
    began = time.process_time()
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        _try(seed, found)
        if (seed - first) % 100 == 99:
            print(f"up to {seed}: {dict(found)}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    spent = time.process_time() - began
    print(f"{dict(found)}, {count / spent:.1f} kernels a second of a processor")
    return int(found["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
