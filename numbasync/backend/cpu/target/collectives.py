"""Operations in which threads of a block or of a warp exchange values.

Each thread stores its value in its place in the block's memory, meets the others, reads theirs, and
meets them again. In `na.present` a thread that comes stores a number of the operation, another one
for a true predicate, and takes it back behind the second meeting: who has not come, or waits at
another operation, has another number there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils

from numbasync.backend.cpu.target.builder import ASSEMBLY, Builder, instead_of
from numbasync.backend.cpu.target.context import emits
from numbasync.backend.cpu.target.module import I1, I16, I32, I64, types
from numbasync.backend.cpu.target.positions import lane, threads

_MOST = 1024
_UP, _DOWN, _XOR = 1, 2, 3
_SHUFFLES = ("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync")
_VOTES = ("all_sync", "any_sync", "eq_sync", "ballot_sync")
_EVERYONE = I32(0xFFFFFFFF)


def memory_of_block(builder: Builder, name: str, of: Any, count: int = _MOST) -> Any:
    """Memory that the block has once; a place for each thread, if no `count` says otherwise."""
    module = builder.session.module
    memory: Any = module.globals.get(name)
    if memory is None:
        memory = ir.GlobalVariable(module, ir.ArrayType(of, count), name)
        memory.linkage, memory.align = "external", 32
    return memory


def _warp_of(builder: Builder, memory: Any, of: Any) -> Any:
    """The values of the threads of the warp, as a vector."""
    first = builder.and_(builder.thread(), I64(~31))
    place = builder.gep(memory, [I64(0), first], inbounds=True)
    vector = ir.VectorType(of, 32)
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=max(1, _size(of)))


def _size(of: Any) -> int:
    return (
        int(of.width if isinstance(of, ir.IntType) else 64 if isinstance(of, ir.DoubleType) else 32)
        // 8
    )


def _exchange(builder: Builder, value: Any) -> Any:
    """The memory in which the thread's value is now, beside the others'."""
    memory = memory_of_block(builder, f"na.exchange.{value.type}", value.type)
    builder.store(value, builder.gep(memory, [I64(0), builder.thread()], inbounds=True))
    return memory


class _Presence:
    """Who has come to an operation, and the predicate of each."""

    def __init__(self, builder: Builder, truth: Any = None) -> None:
        session = builder.session
        session.collectives += 1
        self._states = [I16(2 * session.collectives + k) for k in (False, True)]
        self._builder = builder
        self._memory = memory_of_block(builder, "na.present", I16)
        self._own = builder.gep(self._memory, [I64(0), builder.thread()], inbounds=True)
        false, true = self._states
        builder.store(false if truth is None else builder.select(truth, true, false), self._own)

    def of_warp(self, truth: bool) -> Any:
        """A bit for each lane of the warp that has come with this predicate."""
        return self._found(_warp_of(self._builder, self._memory, I16), truth)

    def from_thread(self, first: Any, truth: bool) -> Any:
        """The same for 32 threads from a multiple of 32 on."""
        place = self._builder.gep(self._memory, [I64(0), first], inbounds=True)
        vector = ir.VectorType(I16, 32).as_pointer()
        states = self._builder.load(self._builder.bitcast(place, vector), align=32)
        return self._found(states, truth)

    def _found(self, states: Any, truth: bool) -> Any:
        state = _splat(self._builder, self._states[truth])
        return _bits(self._builder, self._builder.icmp_unsigned("==", states, state))

    def leave(self) -> None:
        self._builder.store(I16(0), self._own)


def _bits(builder: Builder, lanes: Any) -> Any:
    return builder.bitcast(lanes, I32)


def _splat(builder: Builder, value: Any) -> Any:
    vector = ir.VectorType(value.type, 32)
    if isinstance(value, ir.Constant):
        return ir.Constant(vector, [value] * 32)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    order = ir.Constant(ir.VectorType(I32, 32), [I32(0)] * 32)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), order)


def _pair(builder: Builder, a: Any, b: Any) -> Any:
    return cgutils.pack_struct(builder, [a, b])


# --- a block ---


@instead_of("llvm.nvvm.barrier0")
def _syncthreads(builder: Builder, function: Any, args: list[Any]) -> Any:
    builder.meet("syncthreads")


@instead_of("llvm.nvvm.barrier0.popc", "llvm.nvvm.barrier0.and", "llvm.nvvm.barrier0.or")
def _count(builder: Builder, function: Any, args: list[Any]) -> Any:
    kind = function.name.rpartition(".")[2].replace("popc", "count")
    what = f"syncthreads_{kind}"
    presence = _Presence(builder, builder.icmp_signed("!=", args[0], I32(0)))
    builder.meet(what)
    total = cgutils.alloca_once_value(builder, I32(0))
    warps = builder.udiv(builder.add(threads(builder), I64(31)), I64(32))
    with cgutils.for_range(builder, warps) as loop:
        found = presence.from_thread(builder.mul(loop.index, I64(32)), kind != "and")
        builder.store(builder.add(builder.load(total), builder.ctpop(found)), total)
    count = builder.load(total)
    builder.meet(what)
    presence.leave()
    if kind == "count":
        return count
    sign = "==" if kind == "and" else "!="
    return builder.zext(builder.icmp_signed(sign, count, I32(0)), I32)


# --- a warp ---


@instead_of("llvm.nvvm.bar.warp.sync")
def _syncwarp(builder: Builder, function: Any, args: list[Any]) -> Any:
    builder.meet_warp("syncwarp", args[0])


def shuffled(builder: Builder, mode: int, mask: Any, value: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """The value of another lane, and whether there is such a lane; else the thread's own value.

    Args:
        mode, b, c: as PTX's `shfl.sync` has them.
    """
    what = _SHUFFLES[mode]
    own = lane(builder)
    segment = builder.and_(builder.lshr(c, I32(8)), I32(31))
    others = builder.xor(segment, I32(31))
    b, clamp = builder.and_(b, I32(31)), builder.and_(c, I32(31))
    last = builder.or_(builder.and_(own, segment), builder.and_(clamp, others))
    if mode == _UP:
        source = builder.sub(own, b)
        is_there = builder.icmp_signed(">=", source, last)
    else:
        if mode == _DOWN:
            source = builder.add(own, b)
        elif mode == _XOR:
            source = builder.xor(own, b)
        else:
            source = builder.or_(builder.and_(own, segment), builder.and_(b, others))
        is_there = builder.icmp_signed("<=", source, last)
    memory = _exchange(builder, value)
    builder.meet_warp(what, mask)
    thread = builder.thread()
    if mode in (_UP, _DOWN):
        # Neighbouring lanes read neighbouring places: not by an index that is chosen for each.
        away = builder.zext(b, I64)
        place = builder.sub(thread, away) if mode == _UP else builder.add(thread, away)
    else:
        place = builder.add(thread, builder.sext(builder.sub(source, own), I64))
    is_read = builder.and_(is_there, builder.icmp_signed("<", place, threads(builder)))
    before = builder.block
    with builder.if_then(is_read):
        found = builder.load(builder.gep(memory, [I64(0), place], inbounds=True))
        after = builder.block
    result = builder.phi(value.type)
    result.add_incoming(value, before)
    result.add_incoming(found, after)
    builder.meet_warp(what, mask)
    return result, is_there


@instead_of("llvm.nvvm.shfl.sync.i32")
def _shuffle(builder: Builder, function: Any, args: list[Any]) -> Any:
    mask, mode, value, b, c = args
    return _pair(builder, *shuffled(builder, int(mode.constant), mask, value, b, c))


def _word(builder: Builder, value: Any) -> Any:
    return builder.trunc(value, I32) if value.type.width > 32 else value


def _shuffle_of(mode: int, clamp: int) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: list[Any]) -> Any:
        mask, value, b = args
        return shuffled(builder, mode, _word(builder, mask), value, _word(builder, b), I32(clamp))[
            0
        ]

    return emit


for _mode, _name in enumerate(_SHUFFLES):
    # numba-cuda's own moves 64 bits in two halves.
    emits(getattr(cuda, _name), types.Any, types.Any, types.Any)(
        _shuffle_of(_mode, 0 if _mode == _UP else 31)
    )


@instead_of("llvm.nvvm.vote.sync")
def _vote(builder: Builder, function: Any, args: list[Any]) -> Any:
    mask, mode, predicate = args
    what = _VOTES[int(mode.constant)]
    presence = _Presence(builder, predicate)
    builder.meet_warp(what, mask)
    true = builder.and_(presence.of_warp(True), mask)
    false = builder.and_(presence.of_warp(False), mask)
    builder.meet_warp(what, mask)
    presence.leave()
    any_, all_ = builder.icmp_signed("!=", true, I32(0)), builder.icmp_signed("==", false, I32(0))
    none = builder.icmp_signed("==", true, I32(0))
    vote = {"all_sync": all_, "any_sync": any_, "eq_sync": builder.or_(all_, none)}.get(what)
    return _pair(builder, true, I1(0) if vote is None else vote)


def _matching(builder: Builder, what: str, mask: Any, value: Any) -> tuple[Any, Any]:
    """The lanes of the mask that have come, and those of them with the thread's value."""
    presence = _Presence(builder)
    values = _exchange(builder, value)
    builder.meet_warp(what, mask)
    came = builder.and_(presence.of_warp(False), mask)
    of_warp = _warp_of(builder, values, value.type)
    equal = _bits(builder, builder.icmp_unsigned("==", of_warp, _splat(builder, value)))
    builder.meet_warp(what, mask)
    presence.leave()
    return came, builder.and_(equal, came)


@instead_of("llvm.nvvm.match.any.sync.i32", "llvm.nvvm.match.any.sync.i64")
def _match_any(builder: Builder, function: Any, args: list[Any]) -> Any:
    return _matching(builder, "match_any_sync", *args)[1]


@instead_of("// lanes with this digit", table=ASSEMBLY)
def _lanes_with(builder: Builder, function: Any, args: list[Any]) -> Any:
    """Votes on each bit of a number, which find the same."""
    return _matching(builder, "match_any_sync", _EVERYONE, *args)[1]


@instead_of("llvm.nvvm.match.all.sync.i32", "llvm.nvvm.match.all.sync.i64")
def _match_all(builder: Builder, function: Any, args: list[Any]) -> Any:
    came, same = _matching(builder, "match_all_sync", *args)
    is_all = builder.icmp_signed("==", came, same)
    return _pair(builder, builder.select(is_all, came, I32(0)), is_all)


def lanes_that_come(builder: Builder, what: str, package: str) -> tuple[Any, Any]:
    """How many lanes of the warp have come, and how many threads it has."""
    presence = _Presence(builder)
    builder.meet_warp(what, _EVERYONE, package)
    came = builder.ctpop(presence.of_warp(False))
    builder.meet_warp(what, _EVERYONE, package)
    presence.leave()
    left = builder.trunc(
        builder.sub(threads(builder), builder.and_(builder.thread(), I64(~31))), I32
    )
    count = builder.select(builder.icmp_unsigned("<", left, I32(32)), left, I32(32))
    return came, count


@instead_of("activemask", table=ASSEMBLY)
def _activemask(builder: Builder, function: Any, args: list[Any]) -> Any:
    presence = _Presence(builder)
    builder.meet_warp("activemask", _EVERYONE)
    came = presence.of_warp(False)
    builder.meet_warp("activemask", _EVERYONE)
    presence.leave()
    return came
