"""What the regions decide: what is uniform, how it is kept, which loops are turned."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from numbasync.backend.cpu.regions import Settings, build
from numbasync.backend.cpu.regions.build import write_module
from numbasync.backend.cpu.regions.cut import CutKernel, Level, cut
from numbasync.backend.cpu.regions.divergence import divergent_values
from numbasync.backend.cpu.regions.flow import END, dominators, natural_loops, post_dominators
from numbasync.backend.cpu.regions.function_text import parse_module
from numbasync.backend.cpu.regions.keep import plan_kept
from numbasync.backend.cpu.regions.llvm_types import UnknownFormError
from numbasync.backend.cpu.regions.machine_code import run_passes
from tests.backend_cpu.run_regions import RecordError
from tests.backend_cpu.test_regions_barriers import kernel as kernel_text
from tests.backend_cpu.test_regions_barriers import run

prepare: Any = importlib.import_module("numbasync.backend.cpu.regions.prepare")


def cut_text(body: str) -> CutKernel:
    """A kernel of `x`, `n`, with `t` for the thread, cut as it is written."""
    head = "define i32 @kernel(ptr %x, i64 %n) {\ntop:\n"
    text = head + "  %t = call i64 @na.tid()\n" + body + "\n}\n"
    return cut(parse_module(text, "kernel").function)


def divergent(body: str) -> set[str]:
    return {v for v in divergent_values(cut_text(body)) if not v.startswith("%na.")}


MEET = "call void @na.barrier(i32 0)"


def test_data_diverges_by_threads_memory_and_unknown_calls() -> None:
    assert divergent(f"""
  %a = add i64 %t, 1
  %b = add i64 %n, 1
  %c = load i64, ptr %x
  %d = call i64 @strange(i64 %n)
  %e = call i64 @llvm.smax.i64(i64 %n, i64 %b)
  %f = atomicrmw add ptr %x, i64 1 monotonic, align 8
  {MEET}
  %g = xor i64 %e, %b
  ret i32 0""") == {"%v.a", "%v.c", "%v.d", "%v.f"}


@pytest.mark.parametrize(("test", "found"), [("%t", {"%v.c", "%v.p"}), ("%n", set())])
def test_a_phi_behind_a_branch(test: str, found: set[str]) -> None:
    assert (
        divergent(f"""
  %c = icmp eq i64 {test}, 3
  br i1 %c, label %a, label %b
a:
  br label %b
b:
  %p = phi i64 [ 1, %a ], [ 2, %top ]
  %same = phi i64 [ 5, %a ], [ 5, %top ]
  {MEET}
  store i64 %p, ptr %x
  ret i32 0""")
        == found
    )


def test_a_counter_of_leaving_threads_is_used_later() -> None:
    """`i` is the same in all threads of a round; behind the loop it is not."""
    found = divergent(f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %top ], [ %i1, %body ]
  %c = icmp slt i64 %i, %t
  br i1 %c, label %body, label %behind
body:
  %i1 = add i64 %i, 1
  br label %loop
behind:
  {MEET}
  store i64 %i, ptr %x
  ret i32 0""")
    assert "%v.i" in found


def test_a_counter_of_rounds_with_a_barrier() -> None:
    found = divergent(f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %top ], [ %i1, %body ]
  %c = icmp slt i64 %i, %t
  br i1 %c, label %body, label %behind
body:
  %i1 = add i64 %i, 1
  {MEET}
  br label %loop
behind:
  ret i32 0""")
    assert found == {"%v.c"}  # who leaves meets nobody any more


def test_a_round_some_threads_go_without_the_barrier() -> None:
    """Threads of different rounds meet: their counters differ."""
    found = divergent(f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %top ], [ %i1, %latch ]
  %o = and i64 %t, %i
  %c = icmp eq i64 %o, 1
  br i1 %c, label %latch, label %meet
meet:
  {MEET}
  store i64 %i, ptr %x
  br label %latch
latch:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %behind
behind:
  ret i32 0""")
    assert "%v.i" in found


def test_warps_reach_a_block_barrier_by_different_ways() -> None:
    found = divergent("""
  %w = lshr i64 %t, 5
  %c = icmp eq i64 %w, 0
  br i1 %c, label %one, label %all
one:
  call void @na.warp_barrier(i32 1, i32 -1)
  br label %all
all:
  %p = phi i64 [ 1, %one ], [ 2, %top ]
  call void @na.barrier(i32 2)
  store i64 %p, ptr %x
  ret i32 0""")
    assert "%v.p" in found


SOME_MEET = "call void @na.warp_barrier(i32 2, i32 -1)"


@pytest.mark.parametrize(("of_some", "is_divergent"), [(SOME_MEET, True), ("", False)])
def test_a_counter_of_lanes_while_others_wait(of_some: str, is_divergent: bool) -> None:
    found = divergent(f"""
  br label %loop
loop:
  %i = phi i64 [ 0, %top ], [ %i1, %latch ]
  call void @na.warp_barrier(i32 1, i32 -1)
  %o = and i64 %t, 1
  %c = icmp eq i64 %o, 1
  br i1 %c, label %some, label %latch
some:
  {of_some}
  br label %latch
latch:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %behind
behind:
  ret i32 0""")
    assert ("%v.i" in found) == is_divergent


KEPT = f"""
  %a = shl i64 %t, 2
  %b = add i64 %a, %n
  %v = load i64, ptr %x
  br label %loop
loop:
  %i = phi i64 [ 0, %top ], [ %i1, %loop2 ]
  %j = add i64 %i, %b
  {MEET}
  br label %loop2
loop2:
  %q = getelementptr i64, ptr %x, i64 %j
  store i64 %v, ptr %q
  %i1 = add i64 %i, 1
  %c = icmp slt i64 %i1, %n
  br i1 %c, label %loop, label %end
end:
  ret i32 0"""


def test_values_of_coordinates_and_uniforms_are_recomputed() -> None:
    kept = plan_kept(cut_text(KEPT), apart=False)
    assert set(kept.uniform) == {"%v.i"} and set(kept.per_thread) == {"%v.v"}
    assert [i.result for i in kept.remade[1]] == ["%v.a", "%v.b", "%v.j"]
    assert kept.live[1] == {"%v.i", "%v.v"}


def test_apart_nothing_is_kept_once() -> None:
    kept = plan_kept(cut_text(KEPT), apart=True)
    assert not kept.uniform and {"%v.i", "%v.v", "%v.j"} <= set(kept.per_thread)


def test_barriers_of_warps_have_the_first_numbers() -> None:
    kernel = cut_text("""
  call void @na.barrier(i32 7)
  call void @na.warp_barrier(i32 8, i32 -1)
  call void @na.grid_barrier(i32 9)
  ret i32 0""")
    assert [(b.number, b.level, b.site) for b in kernel.barriers] == [
        (1, Level.WARP, 8), (2, Level.BLOCK, 7), (3, Level.GRID, 9),
    ]  # fmt: skip


def test_ways() -> None:
    graph = {"a": ["b", "c"], "b": ["d"], "c": ["d", "e"], "d": ["b", "f"], "e": [], "f": []}
    assert dominators(graph, "a") == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "c", "f": "d"}
    found = post_dominators(graph)
    del found[END]
    assert found == {"a": END, "b": "d", "c": END, "d": "f", "e": END, "f": END}
    assert [(loop.header, loop.blocks) for loop in natural_loops({**graph, "a": ["b"]}, "a")] == [
        ("b", {"b", "d"})
    ]


# A sum over the columns of x[n, w], of each thread its own: neighbours are side by side.
COLUMNS = kernel_text("""
  br label %loop
loop:
  %k = phi i64 [ 0, %top ], [ %k1, %body ]
  %acc = phi i64 [ 0, %top ], [ %sum, %body ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %end
body:
  %row = mul i64 %k, {stride}
  %at = add i64 %row, {column}
  %q = getelementptr i64, ptr %x, i64 %at
  %v = load i64, ptr %q
  %sum = add i64 %acc, %v
  %k1 = add i64 %k, 1
  br label %loop
end:
  store i64 %acc, ptr %p
  ret i32 0
""")


@pytest.mark.parametrize(
    ("stride", "column", "turned"), [("%w", "%t", 1), ("1", "0", 1), ("1", "%mine", 0)]
)
def test_a_loop_is_turned_for_neighbouring_threads(stride: str, column: str, turned: int) -> None:
    text = COLUMNS.replace("{stride}", stride).replace("{column}", column)
    text = text.replace(
        "  br label %loop\nloop:", "  %mine = mul i64 %t, %n\n  br label %loop\nloop:"
    )
    code = build(text, "kernel", Settings())
    assert code.notes["turned"] == turned
    assert not build(text, "kernel", Settings(turn_loops=False)).notes["turned"]
    x = np.arange(20 * 16)
    run(code, 1, 16, x, 20)
    before = np.arange(20 * 16)
    if turned and stride == "%w":
        np.testing.assert_array_equal(x[:16], before.reshape(20, 16).sum(0))


# x[t + n] = t, with a check.
CHECKED = kernel_text("""
  %at = add i64 %t, %n
  %good = icmp ult i64 %at, 100
  br i1 %good, label %store, label %bad
bad:
  call void @na.note(i32 1, i32 2, i64 0, i64 %at, i64 100)
  ret i32 3
store:
  %q = getelementptr i64, ptr %x, i64 %at
  store i64 %t, ptr %q
  ret i32 0
""")


def test_a_check_before_the_loop_finds_its_mistakes() -> None:
    code = build(CHECKED, "kernel", Settings(row=True))
    assert code.notes["hoisted"] == code.notes["checked"] == 1
    x = np.full(100, -1)
    run(code, 1, 32, x, 68)
    np.testing.assert_array_equal(x[68:], np.arange(32))
    for n, first in ((69, 31), (-5, 0), (2**62, 0), (-(2**63), 0)):
        with pytest.raises(RecordError) as caught:
            run(code, 1, 32, x, n)
        assert caught.value.thread == (first, 0, 0)
        assert caught.value.numbers[1] == n + first


def test_apart_and_ordered_code_checks_each_access() -> None:
    for options in ({"apart": True}, {"ordered": True}):
        assert not write_module(CHECKED, "kernel", Settings(**options))[1].notes["hoisted"]


def test_a_barrier_outside_inlined_code_is_not_kernels() -> None:
    text = kernel_text("  call void %x(i32 1)\n  ret i32 0").replace(
        "call void %x", "invoke void %x"
    )
    with pytest.raises((UnknownFormError, RuntimeError)):
        build(text, "kernel", Settings())


def test_atomics_on_block_memory_need_no_lock() -> None:
    text = kernel_text("""
  %s = getelementptr i64, ptr @na.dynamic, i64 0
  %old = atomicrmw add ptr %s, i64 2 monotonic, align 8
  call void @na.barrier(i32 0)
  %all = load i64, ptr %s
  %g = atomicrmw add ptr %x, i64 1 monotonic, align 8
  %q = getelementptr i64, ptr %p, i64 1
  store i64 %all, ptr %q
  ret i32 0
""")
    assembly = write_module(text, "kernel", Settings())[0]
    assert assembly.count("= atomicrmw") == 1  # of x, which other blocks may have
    x = np.zeros(33, np.int64)
    code = build(text, "kernel", Settings())
    run(code, 1, 32, x, 0, dynamic_bytes=8)
    assert x[0] == 32 and (x[1:] == x[1]).all()


# x[t + n] = t, with a check, where t + n < 90.
CONDITIONAL = CHECKED.replace(
    "  %good = ", "  %in = icmp slt i64 %at, 90\n  br i1 %in, label %check, label %out\n"
    "out:\n  ret i32 0\ncheck:\n  %good = "
)  # fmt: skip


def test_blocks_passing_all_conditions_have_own_code() -> None:
    assert "r0e.start:" in write_module(CONDITIONAL, "kernel", Settings(row=True))[0]
    code = build(CONDITIONAL, "kernel", Settings(row=True))
    for n in (0, 58, 59, 80, 90, 2**62):
        x = np.full(100, -1)
        run(code, 1, 32, x, n)
        expected = np.full(100, -1)
        stored = max(0, min(32, 90 - n))
        expected[n : n + stored] = np.arange(stored)
        np.testing.assert_array_equal(x, expected)
    with pytest.raises(RecordError) as caught:
        run(code, 1, 32, np.zeros(100, np.int64), -5)
    assert caught.value.thread == (0, 0, 0) and caught.value.numbers[1] == -5


# Lanes give their number to the next one, twice, each time with a barrier of the block behind.
TWO_PHASES = kernel_text("".join(
    f"""
  %own{k} = getelementptr [1024 x i64], ptr @na.exchange.0, i64 0, i64 %t
  store i64 {value}, ptr %own{k}
  call void @na.warp_barrier(i32 1, i32 -1)
  %next{k} = xor i64 %t, 1
  %other{k} = getelementptr [1024 x i64], ptr @na.exchange.0, i64 0, i64 %next{k}
  %v{k} = load i64, ptr %other{k}
  call void @na.warp_barrier(i32 1, i32 -1)
  {MEET}"""
    for k, value in enumerate(("%t", "%v0"))
) + "\n  %sum = add i64 %v0, %v1\n  store i64 %sum, ptr %p\n  ret i32 0")  # fmt: skip


def test_warps_staying_together_need_no_code_for_others() -> None:
    text = write_module(TWO_PHASES, "kernel", Settings(row=True))[0]
    assert "m.start:" not in text
    x = np.zeros(70, np.int64)
    run(build(TWO_PHASES, "kernel", Settings(row=True)), 1, 70, x, 0)
    t = np.arange(70)
    np.testing.assert_array_equal(x, (t ^ 1) + t)
    parted = TWO_PHASES.replace("  %own1", "  %c = icmp slt i64 %t, 40\n"
        "  br i1 %c, label %more, label %gone\ngone:\n  ret i32 0\nmore:\n  %own1", 1)  # fmt: skip
    assert "m.start:" in write_module(parted, "kernel", Settings(row=True))[0]


def test_the_places_of_blocks_are_counted() -> None:
    """LLVM moves a division to where its result is used, into the loop over threads."""
    text = write_module(CHECKED, "kernel", Settings())[0]
    assert text.index(" udiv i64 %na.first_block") < text.index("\nblocks:\n")
    assert "udiv" not in text[text.index("\nblocks:\n") : text.index("\nfailed:")]


def test_values_of_large_kernels_are_not_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM gives up numbering the values of some, and ends the process."""
    passes: list[str] = []

    def noted(module: Any, names: Iterable[str]) -> None:
        names = list(names)
        passes.extend(names)
        run_passes(module, names)

    monkeypatch.setattr(prepare, "run_passes", noted)
    module = kernel_text("%same = add i64 %n, 1\n  ret i32 0")
    prepare.prepare(module, "kernel", turn_loops=True)
    assert "new_gvn" in passes

    passes.clear()
    monkeypatch.setattr(prepare, "LARGE", 0)
    prepare.prepare(module, "kernel", turn_loops=True)
    assert passes and "new_gvn" not in passes
