"""Counting of floating-point operations in PTX, and the arithmetic of occupancy and peaks: from
texts and numbers, without a GPU.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numbasync.backend.cuda import resources
from numbasync.backend.cuda.ptx_flops import count_flops
from numbasync.backend.cuda.resources import block_limits, peaks_of
from numbasync.errors import MissingExtraError

# As NVVM writes them: a guard, statements over several lines, positions in the source.
HEAD = """
.version 9.0
.target sm_90a
.extern .func  (.param .b32 func_retval0) elsewhere
(
	.param .b64 elsewhere_param_0
)
;
.visible .entry _ZN4mainB2v1(
	.param .u64 _ZN4mainB2v1_param_0,
	.param .u64 _ZN4mainB2v1_param_1
)
.maxntid 256, 1, 1
{
	.reg .pred 	%p<2>;
	.loc	1 12 5
	setp.ge.s64 	%p1, %rd1, %rd3; // fma.rn.f32 in a comment
	@%p1 bra 	$L__BB0_9;
	mul.wide.s32 	%rd9, %r2, %r3;
	mad.lo.s32 	%r4, %r1, %r2, %r3;
"""
TAIL = """
$L__BB0_9:
	ret;

}
.func  (.param .b64 func_retval0) helper(
	.param .b64 helper_param_0
)
{
	mul.f64 	%fd1, %fd2, %fd3;
	st.param.f64 	[func_retval0+0], %fd1;
	ret;
}"""
CALL = """
	{ // callseq 0, 0
	.param .b64 param0;
	call.uni (retval0),
	NAME,
	(
	param0
	);
	} // callseq 0
"""
FMA, ADD = "\tfma.rn.f32 	%f4, %f2, %f1, %f3;\n", "\tadd.rn.ftz.f32 	%f4, %f2, %f1;\n"

TYPES = """
	div.rn.f64 	%fd1, %fd1, %fd2;
	{add.f16 %h1,%h2,%h3;
	}
	fma.rn.f16x2 	%r1, %r2, %r3, %r4;
	sqrt.approx.ftz.f32 	%f1, %f2;
	ex2.approx.ftz.f32 	%f1, %f2;
	neg.f32 	%f1, %f2;
	cvt.f64.f32 	%fd1, %f2;
	setp.lt.f32 	%p1, %f1, %f2;
	@%p1 mul.f64 	%fd1, %fd2, %fd3;
"""

BODIES: dict[str, tuple[str, dict[str, int], bool]] = {
    "nothing": ("", {}, False),
    "fma": ("\t.loc	1 17 5, function_name $L__info0, inlined_at 1 3 5\n" + FMA,
            {"float32": 2}, False),
    "types": (TYPES, {"float64": 2, "float16": 5, "float32": 2}, False),
    "the branch with more": (
        "\t@%p1 bra $L__BB0_2;\n" + 3 * FMA + "\tbra.uni $L__BB0_3;\n$L__BB0_2:\n" + FMA
        + "$L__BB0_3:\n" + ADD, {"float32": 7}, False),
    "what lies behind a branch": ("\t@%p1 bra $L__BB0_9;\n" + FMA, {"float32": 2}, False),
    "a quick path or a careful one": (
        "\t@%p2 bra $L__BB0_3;\n" + 4 * FMA + "\tbra.uni $L__BB0_9;\n$L__BB0_3:\n"
        + "".join(f"\t@%p1 bra $L__BB0_{n};\n{FMA}$L__BB0_{n}:\n" for n in range(4, 8)),
        {"float32": 8}, False),
    "code moved to the end is no loop": (
        "\t@%p1 bra $L__BB0_5;\n$L__BB0_2:\n" + FMA + "\tbra.uni $L__BB0_9;\n$L__BB0_5:\n" + ADD
        + "\tbra.uni $L__BB0_2;\n", {"float32": 3}, False),
    "a loop once": (
        "$L__BB0_2:\n" + FMA + "\t@%p1 bra $L__BB0_2;\n" + ADD, {"float32": 3}, True),
    "a loop tested at its head": (
        "$L__BB0_2:\n\t@%p1 bra $L__BB0_4;\n" + FMA + "\tbra.uni $L__BB0_2;\n$L__BB0_4:\n" + ADD,
        {"float32": 3}, True),
    "a table of branches": (
        "$L_brx_0: .branchtargets\n\t$L__BB0_2,\n\t$L__BB0_3;\n\tbrx.idx %r1, $L_brx_0;\n"
        "$L__BB0_2:\n" + FMA + "\tbra.uni $L__BB0_9;\n$L__BB0_3:\n" + 2 * FMA,
        {"float32": 4}, False),
    "a function, at each call": (2 * CALL.replace("NAME", "helper"), {"float64": 2}, False),
    "a function of another text": (FMA + CALL.replace("NAME", "elsewhere"), {"float32": 2}, True),
    "code that nothing leads to": ("\tbra.uni $L__BB0_9;\n$L__BB0_2:\n" + FMA, {}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BODIES))
def test_operations_are_counted_on_the_longest_path(name: str) -> None:
    body, flops, least = BODIES[name]
    assert count_flops(HEAD + body + TAIL) == (flops, least)


def test_a_text_without_a_kernel_has_no_figure() -> None:
    assert count_flops(".version 9.0\n") == ({}, True)


HOPPER = SimpleNamespace(
    warp_size=32, max_threads_per_multiprocessor=2048, max_registers_per_multiprocessor=65536,
    max_shared_memory_per_multiprocessor=233472, reserved_shared_memory_per_block=1024,
    max_blocks_per_multiprocessor=32, multiprocessor_count=132, clock_rate=1_980_000,
    memory_clock_rate=2_619_000, global_memory_bus_width=5120,
    single_to_double_precision_perf_ratio=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "bound"),
    [
        (256, 32, 0, 8, "threads"),
        (256, 33, 0, 6, "registers"),  # registers are given in eights: 40
        (256, 128, 0, 2, "registers"),
        (128, 32, 46_592, 4, "shared memory"),  # five without the driver's own
        (32, 16, 0, 32, "blocks"),
        (100, 16, 0, 16, "threads"),  # four warps
    ],
)
def test_the_scarcest_resource_bounds_the_blocks(
    threads: int, registers: int, shared: int, blocks: int, bound: str
) -> None:
    limits = block_limits(HOPPER, threads, registers, shared)
    assert min(limits.items(), key=lambda item: item[1]) == (bound, blocks)


def test_peaks_follow_from_the_clocks() -> None:
    peaks = peaks_of(HOPPER, (9, 0))  # an H100: 3.35 TB/s, 67 and 34 TFLOP/s
    assert peaks.bytes_per_second == 2 * 2.619e9 * 640
    assert peaks.flops_per_second == {
        "float32": 2 * 1.98e9 * 128 * 132,
        "float64": 1.98e9 * 128 * 132,
    }
    assert "2 x 2,619 MHz x 5120 bits" in peaks.source and "128 cores x 132" in peaks.source


def test_what_the_driver_does_not_report_is_unknown() -> None:
    silent = SimpleNamespace(**{**vars(HOPPER), "memory_clock_rate": 0, "clock_rate": 0})
    peaks = peaks_of(silent, (9, 0))
    assert (peaks.bytes_per_second, peaks.flops_per_second) == (None, {})
    assert peaks.source.count("unknown") == 2
    del silent.clock_rate  # which cuda.core may refuse to read
    assert peaks_of(silent, (9, 0)) == peaks
    future = peaks_of(HOPPER, (99, 0))
    assert future.flops_per_second == {} and "cores are not known" in future.source


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        (None, "neither nvdisasm nor cuobjdump is installed"),
        ("#!/bin/sh\necho 'too new' >&2; exit 1\n", "nvdisasm cannot read the code: too new"),
    ],
)
def test_a_missing_disassembler_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str | None, text: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(resources.pathfinder, "find_nvidia_binary_utility", lambda name: None)
    if tool is not None:
        (tmp_path / "nvdisasm").write_text(tool)
        (tmp_path / "nvdisasm").chmod(0o700)
    compiled: Any = SimpleNamespace(cubin=lambda: b"cubin")
    monkeypatch.setattr(resources, "enter", lambda device: None)
    with pytest.raises(MissingExtraError, match=rf"{text}.*\nWrite: pip install .*nvdisasm"):
        resources.assembly_of(SimpleNamespace(), compiled, "sass")  # type: ignore[arg-type]
