"""Regions of kernels that are written in LLVM's language: barriers, errors, memory, orders."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from numbasync.backend.cpu.regions import Code, Settings, build
from numbasync.backend.cpu.regions.build import write_module
from numbasync.backend.cpu.regions.machine_code import run_passes, target_machine
from tests.backend_cpu.run_regions import ApartError, RecordError, entry_of, launch_code
from tests.common import full

_DECLARED = """
declare i32 @na.tx()
declare i32 @na.bx()
declare i32 @na.wx()
declare i64 @na.tid()
declare i64 @na.dynamic_bytes()
declare void @na.barrier(i32)
declare void @na.warp_barrier(i32, i32)
declare void @na.grid_barrier(i32)
declare void @na.note(i32, i32, i64, i64, i64)
@na.shared.0 = external global [64 x i64], align 16
@na.exchange.0 = external global [1024 x i64]
@na.dynamic = external global [0 x i8]
"""
_BEGIN = """
define i32 @kernel(ptr %x, i64 %n) {
top:
  %t = call i64 @na.tid()
  %b32 = call i32 @na.bx()
  %w32 = call i32 @na.wx()
  %b = sext i32 %b32 to i64
  %w = sext i32 %w32 to i64
  %before = mul i64 %b, %w
  %i = add i64 %before, %t
  %p = getelementptr i64, ptr %x, i64 %i
"""


def kernel(body: str) -> str:
    """A kernel `(x, n)`: `t` is the thread, of `w`; `p` is the thread's element of x."""
    return _DECLARED + _BEGIN + body + "\n}\n"


def run(code: Code, grid: Any, block: Any, x: np.ndarray, n: int, **more: Any) -> None:
    launch_code(code, entry_of(code), grid, block, [x.ctypes.data, n], **more)


# The neighbour's element, through shared memory.
ROTATE = kernel("""
  %v = load i64, ptr %p
  %s = getelementptr [64 x i64], ptr @na.shared.0, i64 0, i64 %t
  store i64 %v, ptr %s
  call void @na.barrier(i32 0)
  %t1 = add i64 %t, 1
  %next = urem i64 %t1, %w
  %q = getelementptr [64 x i64], ptr @na.shared.0, i64 0, i64 %next
  %r = load i64, ptr %q
  %sum = add i64 %r, %v
  store i64 %sum, ptr %p
  ret i32 0
""")


@pytest.mark.parametrize("options", [{}, full({"apart": True}), full({"row": True})], ids=str)
def test_a_value_is_kept_over_a_barrier(options: dict[str, Any]) -> None:
    code = build(ROTATE, "kernel", Settings(**options))
    for threads in (1, 7, 64):
        x = np.arange(3 * threads)
        run(code, 3, threads, x, 0)
        start = np.arange(3 * threads).reshape(3, threads)
        np.testing.assert_array_equal(x.reshape(3, threads), start + np.roll(start, -1, axis=1))


# Rounds with a barrier in which the thread of the round's number leaves.
LEAVING = kernel("""
  br label %loop
loop:
  %k = phi i64 [ 0, %top ], [ %k1, %met ]
  %c = phi i64 [ 0, %top ], [ %c1, %met ]
  %leaves = icmp eq i64 %k, %t
  br i1 %leaves, label %out, label %stay
stay:
  call void @na.barrier(i32 5)
  br label %met
met:
  %k1 = add i64 %k, 1
  %c1 = add i64 %c, %n
  br label %loop
out:
  store i64 %c, ptr %p
  ret i32 0
""")


def test_threads_return_one_after_the_other() -> None:
    code = build(LEAVING, "kernel", Settings())
    x = np.full(80, -1)
    run(code, 2, 40, x, 3)
    np.testing.assert_array_equal(x, np.tile(3 * np.arange(40), 2))


GONE_BEFORE_WARPS_MEET = kernel("""
  %gone = icmp slt i64 %t, %n
  br i1 %gone, label %end, label %stay
stay:
  call void @na.barrier(i32 0)
  call void @na.warp_barrier(i32 1, i32 -1)
  call void @na.barrier(i32 2)
  store i64 1, ptr %p
  br label %end
end:
  ret i32 0
""")


def test_returned_threads_stay_away_from_warp_barriers() -> None:
    code = build(GONE_BEFORE_WARPS_MEET, "kernel", Settings())
    for gone in (0, 5, 33):
        x = np.zeros(70, np.int64)
        run(code, 1, 70, x, gone)
        np.testing.assert_array_equal(x, np.arange(70) >= gone)


def test_returned_threads_count_as_missing_if_told() -> None:
    code = build(LEAVING, "kernel", Settings(returned_are_missing=True))
    with pytest.raises(RecordError) as caught:
        run(code, 2, 40, np.zeros(80, np.int64), 3)
    assert (caught.value.kind, caught.value.site, caught.value.numbers) == (3, 5, (0, 39, 40))
    assert (caught.value.block, caught.value.thread) == ((0, 0, 0), (0, 0, 0))


APART = kernel("""
  %far = icmp sge i64 %t, %n
  br i1 %far, label %one, label %two
one:
  call void @na.barrier(i32 1)
  br label %end
two:
  call void @na.barrier(i32 2)
  br label %end
end:
  store i64 1, ptr %p
  ret i32 0
""")


def test_threads_at_two_barriers_are_told_by_site() -> None:
    code = build(APART, "kernel", Settings())
    x = np.zeros(64, np.int64)
    run(code, 2, 32, x, 32)  # all at the second
    run(code, 2, 32, x, 0)  # all at the first
    assert x.all()
    with pytest.raises(RecordError) as caught:
        run(code, 2, (8, 4), x, 11)
    assert (caught.value.kind, caught.value.site, caught.value.numbers) == (3, 2, (0, 11, 32))
    assert caught.value.thread == (3, 1, 0)


# Threads whose element is negative note it, in the second region.
NOTING = kernel("""
  call void @na.barrier(i32 0)
  %v = load i64, ptr %p
  %bad = icmp slt i64 %v, 0
  br i1 %bad, label %note, label %good
note:
  call void @na.note(i32 1, i32 9, i64 2, i64 %v, i64 %n)
  ret i32 3
good:
  store i64 7, ptr %p
  ret i32 0
""")


@pytest.mark.parametrize("options", [{}, {"apart": True}], ids=str)
def test_the_first_thread_that_fails_is_told(options: dict[str, Any]) -> None:
    code = build(NOTING, "kernel", Settings(**options))
    x = np.arange(96)
    x[[40, 45, 70]] = -5, -6, -7
    with pytest.raises(RecordError) as caught:
        run(code, 3, 32, x, 11)
    error = caught.value
    assert (error.kind, error.site, error.numbers) == (1, 9, (2, -5, 11))
    assert (error.block, error.thread) == ((1, 0, 0), (8, 0, 0))
    assert (x[:32] == 7).all() and x[70] == -7  # the block behind it has not begun


# A sum within a warp, in rounds, over the exchange's places; the last warp is no full one.
WARPS = kernel("""
  %v = load i64, ptr %p
  br label %loop
loop:
  %off = phi i64 [ 16, %top ], [ %half, %read ]
  %acc = phi i64 [ %v, %top ], [ %sum, %read ]
  %e = getelementptr [1024 x i64], ptr @na.exchange.0, i64 0, i64 %t
  store i64 %acc, ptr %e
  call void @na.warp_barrier(i32 1, i32 -1)
  %other = xor i64 %t, %off
  %there = icmp ult i64 %other, %w
  %from = select i1 %there, i64 %other, i64 %t
  %o = getelementptr [1024 x i64], ptr @na.exchange.0, i64 0, i64 %from
  %got = load i64, ptr %o
  call void @na.warp_barrier(i32 2, i32 -1)
  br label %read
read:
  %sum = add i64 %acc, %got
  %half = lshr i64 %off, 1
  %more = icmp ne i64 %half, 0
  br i1 %more, label %loop, label %end
end:
  call void @na.barrier(i32 3)
  store i64 %sum, ptr %p
  ret i32 0
""")


@pytest.mark.parametrize("options", [{}, full({"row": True}), full({"apart": True})], ids=str)
def test_a_sum_of_a_warp(options: dict[str, Any]) -> None:
    code = build(WARPS, "kernel", Settings(**options))
    x = np.arange(128)
    run(code, 2, 64, x, 0)
    np.testing.assert_array_equal(x, np.repeat(np.arange(128).reshape(4, 32).sum(1), 32))


# Half of each warp goes through a barrier of its own mask, the other through none; then all meet.
MASKS = kernel("""
  %lane = and i64 %t, 31
  %low = icmp ult i64 %lane, 16
  %e = getelementptr [1024 x i64], ptr @na.exchange.0, i64 0, i64 %t
  store i64 %t, ptr %e
  br i1 %low, label %half, label %all
half:
  call void @na.warp_barrier(i32 1, i32 65535)
  %other = xor i64 %t, 1
  %o = getelementptr [1024 x i64], ptr @na.exchange.0, i64 0, i64 %other
  %got = load i64, ptr %o
  br label %all
all:
  %r = phi i64 [ %got, %half ], [ -1, %top ]
  call void @na.warp_barrier(i32 2, i32 -1)
  store i64 %r, ptr %p
  ret i32 0
""")


def test_lanes_of_a_mask_meet_while_others_wait() -> None:
    code = build(MASKS, "kernel", Settings())
    x = np.zeros(64, np.int64)
    run(code, 1, 64, x, 0)
    t = np.arange(64)
    np.testing.assert_array_equal(x, np.where(t % 32 < 16, t ^ 1, -1))


# Each block writes, all meet, each reads its neighbour's.
GRID = kernel("""
  %v = load i64, ptr %p
  %v2 = mul i64 %v, 2
  store i64 %v2, ptr %p
  call void @na.grid_barrier(i32 4)
  %i1 = add i64 %i, 33
  %next = urem i64 %i1, %n
  %q = getelementptr i64, ptr %x, i64 %next
  %r = load i64, ptr %q
  call void @na.grid_barrier(i32 5)
  %sum = add i64 %r, %v
  store i64 %sum, ptr %p
  ret i32 0
""")


def test_blocks_meet() -> None:
    code = build(GRID, "kernel", Settings())
    assert code.cooperative
    x = np.arange(96)
    run(code, 3, 32, x, 96)
    np.testing.assert_array_equal(x, 2 * np.roll(np.arange(96), -33) + np.arange(96))


def test_a_block_that_does_not_come_is_told() -> None:
    text = kernel("""
  %first = icmp eq i64 %b, 0
  br i1 %first, label %end, label %wait
wait:
  call void @na.grid_barrier(i32 4)
  br label %end
end:
  ret i32 0
""")
    with pytest.raises(ApartError) as caught:
        run(build(text, "kernel", Settings()), 3, 32, np.zeros(96, np.int64), 0)
    assert caught.value.args == (4, [0, 1, 1])


DYNAMIC = kernel("""
  %d = getelementptr i64, ptr @na.dynamic, i64 %t
  store i64 %i, ptr %d
  call void @na.barrier(i32 0)
  %bytes = call i64 @na.dynamic_bytes()
  %count = udiv i64 %bytes, 8
  %last0 = sub i64 %count, 1
  %last = sub i64 %last0, %t
  %q = getelementptr i64, ptr @na.dynamic, i64 %last
  %r = load i64, ptr %q
  store i64 %r, ptr %p
  ret i32 0
""")


def test_dynamic_shared_memory_lies_behind_the_static() -> None:
    code = build(DYNAMIC, "kernel", Settings())
    assert code.dynamic_offset % 64 == 0
    x = np.zeros(48, np.int64)
    run(code, 2, 24, x, 0, dynamic_bytes=24 * 8)
    np.testing.assert_array_equal(x.reshape(2, 24), np.arange(48).reshape(2, 24)[:, ::-1])


def test_memory_grows_with_blocks_at_the_stated_places() -> None:
    code = build(ROTATE, "kernel", Settings())
    assert [size for _, size in code.shared] == [64 * 8]
    assert code.shared[0][0] >= 128 and code.shared[0][0] % 16 == 0
    assert code.memory_bytes(64) < code.memory_bytes(65) == code.memory_bytes(128)
    assert code.memory_bytes(64, 100) == code.memory_bytes(64) + 128


def test_code_is_pickled_and_loaded_again() -> None:
    code = pickle.loads(pickle.dumps(build(ROTATE, "kernel", Settings())))
    x = np.arange(8)
    run(code, 1, 8, x, 0)
    np.testing.assert_array_equal(x, np.arange(8) + np.roll(np.arange(8), -1))


ORDERED = kernel("""
  %c = load i64, ptr %x
  %c1 = add i64 %c, 1
  store i64 %c1, ptr %x
  %q = getelementptr i64, ptr %p, i64 1
  store i64 %c, ptr %q
  ret i32 0
""")


def test_checked_code_runs_in_the_given_order() -> None:
    seen: list[tuple[int, ...]] = []
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 8)
    callback = prototype(lambda *call: seen.append(call) or 0)
    real = llvm.address_of_symbol("numbasync_access")
    llvm.add_symbol("numbasync_access", ctypes.cast(callback, ctypes.c_void_p).value or 0)
    code = build(ORDERED, "kernel", Settings(ordered=True))
    entry = entry_of(code)
    if real:  # for kernels that are loaded after this test
        llvm.add_symbol("numbasync_access", real)
    threads, blocks = np.array([2, 0, 3, 1]), np.array([1, 0])
    order = np.array([threads.ctypes.data, blocks.ctypes.data])
    x = np.zeros(9, np.int64)
    words = np.array([x.ctypes.data, 0])
    memory = np.zeros(code.memory_bytes(4) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    status = entry(
        words.ctypes.data, memory[start:].ctypes.data, 0, 2, 4, 1, 1, 2, 1, 1, 0,
        order.ctypes.data,
    )  # fmt: skip
    assert status == 0
    np.testing.assert_array_equal(x, [8, 5, 7, 4, 6, 1, 3, 0, 2])
    assert [call[1] for call in seen] == [1, 0] and {call[3] for call in seen} == {9}


@pytest.mark.parametrize(
    "text",
    [full(ROTATE), WARPS, full(NOTING), full(GRID)],
    ids=["block", "warp", "note", "grid"],
)
def test_code_for_aarch64_is_assembled(text: str) -> None:
    machine = target_machine("aarch64-unknown-linux-gnu", "neoverse-n1", "")
    module = llvm.parse_assembly(
        write_module(text, "kernel", Settings())[0].replace("x86_64", "aarch64")
    )
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    run_passes(module, machine=machine)
    elf = machine.emit_object(module)
    assert elf[:4] == b"\x7fELF" and int.from_bytes(elf[18:20], "little") == 183  # EM_AARCH64
