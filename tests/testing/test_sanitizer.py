"""What `compute-sanitizer` prints, read: its four tools, old and new text."""

from __future__ import annotations

from pathlib import Path

from numbasync.testing.plugin.sanitizer import Finding, parse, report

KERNEL = """\
import numbasync as na


def shift(z, x):
    i = cuda.grid(1)
    z[i] = x[i + 1]
"""

# Two threads, one finding; and a call of the driver that failed because of it.
MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at shift(Array<float, 1, C, mutable, aligned>, float)+0x1a0 in kernels.py:6
=========     by thread (31,0,0) in block (7,0,0)
=========     Access at 0x7f2a6be00400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a6be00000 of size 1024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2ed5a5] in libcuda.so.1
=========         Host Frame: main in main.py:99 [0x1d8c3]
=========
========= Invalid __global__ read of size 4 bytes
=========     at shift(Array<float, 1, C, mutable, aligned>, float)+0x1a0 in kernels.py:6
=========     by thread (30,0,0) in block (7,0,0)
=========     Access at 0x7f2a6be003fc is out of bounds
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) on CUDA API call to cuMemcpyDtoH_v2.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: cuMemcpyDtoH_v2 [0x2ed5a5] in libcuda.so.1
=========
========= ERROR SUMMARY: 3 errors
"""

OLD_MEMCHECK = """\
========= Invalid __global__ write of size 4 bytes
=========     at 0x60 in /src/demo.py:6:shift(int*)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x400100001 is misaligned
=========
"""

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at total(int *, int *)+0xd0 in kernels.py:8
=========     and Read access at total(int *, int *)+0x100 in kernels.py:11 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""

INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at add(float*, float*)+0x70 in kernels.py:9
=========     by thread (65,0,0) in block (1,0,0)
=========     Access to 0x7f6510c00104 inside memory allocation of size 512 bytes
=========
========= ERROR SUMMARY: 1 error
"""

SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at halves(int *)+0xf0
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""

NOTHING = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_memcheck() -> None:
    assert parse(MEMCHECK) == [
        Finding(
            "Invalid __global__ read of size 4 bytes", "shift", (("kernels.py", 6),),
            "(31,0,0)", "(7,0,0)", 2,
        )
    ]  # fmt: skip
    (old,) = parse(OLD_MEMCHECK)
    assert (old.kernel, old.places, old.count) == ("shift", (("/src/demo.py", 6),), 1)


def test_racecheck_names_both_accesses() -> None:
    (found,) = parse(RACECHECK)
    assert found.what == "Race reported"
    assert found.kernel == "total"
    assert found.places == (("kernels.py", 8), ("kernels.py", 11))


def test_initcheck_and_synccheck() -> None:
    (found,) = parse(INITCHECK)
    assert found.what == "Uninitialized __global__ memory read of size 4 bytes"
    assert (found.kernel, found.places, found.block) == ("add", (("kernels.py", 9),), "(1,0,0)")
    (found,) = parse(SYNCCHECK)
    assert found.what == "Barrier error detected. Divergent thread(s) in block"
    assert (found.kernel, found.places) == ("halves", ())


def test_nothing_found() -> None:
    assert parse(NOTHING) == []
    assert parse("") == []


def test_mangled_names() -> None:
    name = "_ZN6cudapy8__main__5shiftB2v1B94cw51cXTLSUwv1sDUaKthqxrsWBBNUvDE5ArrayIfLi1E1C7mutableE"
    (found,) = parse(
        f"========= Invalid __global__ write of size 4 bytes\n=========     at {name}+0x90\n"
    )
    assert found.kernel == "shift"


def test_names_as_numba_has_them() -> None:
    """Their parameters' types have parentheses of their own."""
    name = "cudapy::test_kernels::too_far[abi:v1][abi:cw51cXTL]"
    types = "Array<float, (int)1, C, mutable, aligned>, Array<float, (int)1, C, readonly>"
    (found,) = parse(
        "========= Invalid __global__ read of size 4 bytes\n"
        f"=========     at {name}({types})+0x1b0 in test_kernels.py:10\n"
        "=========     by thread (3,0,0) in block (1,0,0)\n"
    )
    assert (found.kernel, found.places) == ("too_far", (("test_kernels.py", 10),))
    assert (found.thread, found.block) == ("(3,0,0)", "(1,0,0)")


def test_findings_are_told_with_lines_of_source(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "kernels.py").write_text(KERNEL)
    said = report("memcheck", parse(MEMCHECK), tmp_path)
    who = "block (7,0,0), thread (31,0,0) (and 1 more like it)"
    assert said.splitlines() == [
        "compute-sanitizer memcheck has found:",
        f"Invalid __global__ read of size 4 bytes, kernel shift, {who}",
        f"  {tmp_path}/deep/kernels.py:6    z[i] = x[i + 1]",
    ]
    many = [Finding(f"{n}", "k", ()) for n in range(8)]
    assert report("memcheck", many, tmp_path).endswith("... and 3 other findings")
