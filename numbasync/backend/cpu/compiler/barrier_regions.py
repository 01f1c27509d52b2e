"""Barrier regions: the statements between two barriers, as a loop over the threads of a block.

Barriers are `syncthreads` and its kin, warp collectives such as `shfl_sync`, and `sync` of a grid.
A kernel is cut at each of them. Each region becomes a loop over the block's threads. A variable
that differs between threads and is used in several regions is privatised: an array of the block's
memory has one element of it per thread. Statements, and control flow, that are the same for all
threads run once. Where threads diverge before a barrier, a mask says which threads are present: a
warp collective leaves the others out, and a barrier of the block raises an error.

The operands of a collective that gives `x` are called `_wx_0`, `_wx_1`; masks `_a1`, `_a2`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numbasync.backend.cpu.compiler.control_flow import (
    assigned,
    blocks,
    expression,
    read_first,
    returns_early,
    test_of,
    threads,
)
from numbasync.backend.cpu.compiler.kept_types import KeptTypes
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.per_thread_variables import PerThreadVariables
from numbasync.backend.cpu.compiler.program import HIDDEN, Program, parsed
from numbasync.backend.cpu.compiler.uniformity import (
    WHOLE_BLOCK,
    Uniform,
    barrier_of,
    has_barrier,
    has_return,
    leaves,
    names,
)

_LINEAR = "_t = _tx + _wx * (_ty + _wy * _tz)"


@dataclass(frozen=True)
class Loop:
    """A loop that threads leave one by one.

    Attributes:
        remaining: the mask of the threads that are still in the loop.
        active: the mask of those that are still in this round of it.
    """

    remaining: str
    active: str


class BarrierRegions(PerThreadVariables):
    """Writes the statements of one block of threads.

    Args:
        kept: Numba's types of the variables.
    """

    def __init__(self, program: Program, uniform: Uniform, kept: KeptTypes) -> None:
        super().__init__(program, uniform, kept)
        self._returned: str | None = None
        self._privatised = self._find_privatised()
        for name, clash in kept.unsure.items():
            if name not in self._privatised:
                # Behind the loop over threads, or over blocks, it would meet its last value.
                clash.refuse(name, "and on some path has no value", kept.origins)
        self._returns = returns_early(program.body)

    # --- privatised variables ---

    def _find_privatised(self) -> set[str]:
        """Variables that differ between threads and are used in more than one piece."""
        uses: dict[str, set[int]] = {}
        counter = [0]

        def see(nodes: Iterable[ast.AST], region: int) -> None:
            used = names(nodes, ast.Load) | names(nodes, ast.Store)
            for name in used | self._needed_for(used):
                if name in self._uniform.varying and name not in HIDDEN:
                    uses.setdefault(name, set()).add(region)

        def again(region: list[ast.stmt], in_loop: bool) -> None:
            """What a region reads in one round of a loop it may have written in another."""
            if in_loop and region:
                for name in read_first(region)[0] & self._uniform.varying:
                    if name not in HIDDEN:
                        uses.setdefault(name, set()).add(-1)

        def block(statements: list[ast.stmt], in_loop: bool = False) -> None:
            region: list[ast.stmt] = []
            for statement in statements:
                if barrier_of(statement) is not None:
                    # Its arguments are read, and its result is written, by loops of their own.
                    see([statement], -1)
                    see([statement], -2)
                    counter[0] += 1
                elif has_barrier(statement) and isinstance(statement, ast.If | ast.While | ast.For):
                    counter[0] += 1
                    see([statement.iter if isinstance(statement, ast.For) else statement.test],
                        counter[0])  # fmt: skip
                    counter[0] += 1
                    block(statement.body, in_loop or isinstance(statement, ast.While | ast.For))
                    counter[0] += 1
                    block(statement.orelse, in_loop)
                    counter[0] += 1
                elif self._uniform.is_done_once(statement):
                    counter[0] += 1  # the statement may stand between two regions
                else:
                    see([statement], counter[0])
                    region.append(statement)
                    continue
                again(region, in_loop)
                region.clear()
            again(region, in_loop)

        block(self._program.body)
        return {name for name, regions in uses.items() if len(regions) > 1}

    def _returned_mask(self) -> str:
        if self._returned is None:
            self._returned = self._new_mask()
        return self._returned

    # --- writing ---

    def write(self) -> list[ast.stmt]:
        body = self._block(self._program.body, None)
        if self._returned is None:
            return body
        return [*self._threads([self._save(self._returned, "False")]), *body]

    def _block(
        self, statements: list[ast.stmt], mask: str | None, loop: Loop | None = None
    ) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        region: list[ast.stmt] = []

        def flush() -> None:
            if region:
                done.extend(self._loop(region, mask, loop))
                region.clear()

        for statement in statements:
            if barrier_of(statement) is not None:
                flush()
                done += self._barrier(statement, mask)  # type: ignore[arg-type]
            elif has_barrier(statement):
                flush()
                done += self._compound(statement, mask, loop)
            elif mask is None and self._uniform.is_done_once(statement):
                used = names(region, ast.Load) | names(region, ast.Store)
                if used & names(statement, ast.Store):
                    flush()
                done.append(copy.deepcopy(statement))
            elif mask is None and self._uniform.ends_for_all(statement):
                flush()
                done.append(copy.deepcopy(statement))
            else:
                region.append(statement)
                if isinstance(statement, ast.Break | ast.Continue | ast.Return):
                    break  # the statements after it are never reached
        flush()
        return done or [ast.Pass()]

    def _loop(
        self, region: list[ast.stmt], mask: str | None, loop: Loop | None = None
    ) -> list[ast.stmt]:
        """The loop over the threads that runs a region."""
        body = self._leaving([copy.deepcopy(s) for s in region], loop)
        written = names(body, ast.Store) & self._privatised
        first_read, unchanged = read_first(body)
        read = (first_read | unchanged) & self._privatised
        used = (names(body, ast.Load) | written) & self._privatised
        arrays = {n for n in used | read if self._is_local_array(n)}
        created_here = names(region, ast.Store)
        definitions = self._array_definitions((arrays - created_here) | (arrays & first_read))
        first = {n for s in definitions for n in names(s.value, ast.Load)} & self._privatised
        body = [
            *(
                self._load(n)
                for n in sorted((read | first) - arrays - self._arrays_of(definitions))
            ),
            *definitions,
            *body,
            *(self._save(n) for n in sorted(written - arrays)),
        ]
        conditions = [self._is_in(mask)] if mask else []
        if self._returned is not None or self._returns:
            conditions.append(f"not {self._is_in(self._returned_mask())}")
        if conditions:
            body = [ast.If(parsed(" and ".join(conditions)), body or [ast.Pass()], [])]
        return self._threads(body)

    def _threads(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        program = self._program
        return blocks(threads(list(body), program, program.prologue), program)

    def _leaving(self, region: list[ast.stmt], loop: Loop | None) -> list[ast.stmt]:
        """The region with `return`, and with `break` and `continue` of a loop around the region,
        as a `continue` of the loop over threads; inside a loop of the region, in two steps.
        """
        if not any(map(leaves, region)):
            return region
        # Variables that the region assigns are saved after its last statement, which is skipped.
        saves = names(region, ast.Store) & self._privatised

        def leave(statement: ast.stmt) -> list[ast.stmt]:
            if isinstance(statement, ast.Return):
                return [self._save(self._returned_mask(), "True")]
            if loop is None:
                raise UntranslatableError(
                    "break or continue of some threads, in a loop with a barrier", statement
                )
            saves_of_region = [self._save(n) for n in sorted(saves) if not self._is_local_array(n)]
            masks = (
                [loop.active]
                if isinstance(statement, ast.Continue)
                else [loop.active, loop.remaining]
            )
            return [*saves_of_region, *(self._save(m, "False") for m in masks)]

        def block(statements: list[ast.stmt], own_loop: bool) -> list[ast.stmt]:
            done: list[ast.stmt] = []
            for statement in statements:
                out = isinstance(statement, ast.Return) or (
                    isinstance(statement, ast.Break | ast.Continue) and not own_loop
                )
                if out:
                    done += [*leave(statement), assigned("_left", "True")]
                    return [*done, ast.Break() if own_loop else ast.Continue()]
                if isinstance(statement, ast.If):
                    statement.body = block(statement.body, own_loop)
                    statement.orelse = block(statement.orelse, own_loop) if statement.orelse else []
                    done.append(statement)
                elif isinstance(statement, ast.For | ast.While) and has_return(statement):
                    statement.body = block(statement.body, True)
                    done.append(statement)
                    next_: ast.stmt = ast.Break() if own_loop else ast.Continue()
                    done.append(ast.If(parsed("_left"), [next_], []))
                else:
                    done.append(statement)
            return done

        return [assigned("_left", "False"), *block(region, False)]

    # --- control flow with barriers in it ---

    def _compound(self, statement: ast.stmt, mask: str | None, loop: Loop | None) -> list[ast.stmt]:
        if isinstance(statement, ast.If):
            return self._if(statement, mask, loop)
        if isinstance(statement, ast.While):
            return self._while(statement, mask)
        if isinstance(statement, ast.For) and self._uniform(statement.iter):
            # All threads go through the same numbers, whichever are present.
            own = None
            inside = mask
            first: list[ast.stmt] = []
            if mask is not None or self._uniform.some_leave(statement.body):
                remaining, active = self._new_mask(), self._new_mask()
                own, inside = Loop(remaining, active), active
                every = "True" if mask is None else self._is_in(mask)
                first = self._threads([self._save(remaining, every)])
            rewritten = copy.copy(statement)
            rewritten.body = self._block(statement.body, inside, own)
            if names(statement.target, ast.Store) & self._privatised:
                # A thread that is not in the loop keeps its own number.
                number = f"_n{len(self._program.names)}_{self._masks}"
                take = ast.Assign([statement.target], ast.Name(number, ast.Load()))
                rewritten.target = ast.Name(number, ast.Store())
                rewritten.body = [*self._loop([take], inside), *rewritten.body]
            if own is not None:
                activate = self._threads([self._save(own.active, self._is_in(own.remaining))])
                rewritten.body = [*activate, *rewritten.body]
            return [*first, rewritten]
        raise UntranslatableError(f"a barrier in a {type(statement).__name__.lower()}", statement)

    def _if(self, statement: ast.If, mask: str | None, loop: Loop | None) -> list[ast.stmt]:
        if mask is None and self._uniform(statement.test):
            rewritten = copy.copy(statement)
            rewritten.body = self._block(statement.body, None, loop)
            rewritten.orelse = self._block(statement.orelse, None, loop) if statement.orelse else []
            return [rewritten]
        yes = self._new_mask()
        no = self._new_mask() if statement.orelse else None
        region: list[ast.stmt] = [test_of(statement.test), self._save(yes, "bool(_is)")]
        none = [self._save(yes, "False")]
        if no is not None:
            region.append(self._save(no, "not _is"))
            none.append(self._save(no, "False"))
        done = [] if mask is None and not self._returns else self._threads(none)
        done += self._loop(region, mask)
        done += self._block(statement.body, yes, loop)
        if no is not None:
            done += self._block(statement.orelse, no, loop)
        if loop is not None and mask is not None and mask != loop.active:
            # A thread that left the loop in here is not present after it, either.
            left = f"{self._is_in(mask)} and {self._is_in(loop.active)}"
            done += self._threads([self._save(mask, left)])
        return done

    def _while(self, statement: ast.While, mask: str | None) -> list[ast.stmt]:
        if (
            mask is None
            and self._uniform(statement.test)
            and not self._uniform.some_leave(statement.body)
        ):
            rewritten = copy.copy(statement)
            rewritten.body = self._block(statement.body, None)
            return [rewritten]
        remaining, active = self._new_mask(), self._new_mask()
        some = f"_y{self._masks}"
        begin = self._threads(
            [self._save(remaining, "True" if mask is None else self._is_in(mask))]
        )
        region = [
            test_of(statement.test),
            self._save(remaining, "bool(_is)"),
            self._save(active, "bool(_is)"),
            ast.If(parsed("_is"), [assigned(some, "True")], []),
        ]
        loop = [
            assigned(some, "False"),
            *self._threads([self._save(active, "False")]),
            *self._loop(region, remaining),
            ast.If(parsed(f"not {some}"), [ast.Break()], []),
            *self._block(statement.body, active, Loop(remaining, active)),
        ]
        return [*begin, ast.While(parsed("True"), loop, [])]

    # --- barriers ---

    def _barrier(self, statement: ast.Assign, mask: str | None) -> list[ast.stmt]:
        call = statement.value
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)  # by `barrier_of`
        operation, (site, *arguments) = call.func.id, call.args
        target = statement.targets[0]
        assert isinstance(target, ast.Name)  # by the translation
        result = target.id
        done: list[ast.stmt] = []
        present = mask
        if self._returns:
            present = self._new_mask()
            in_mask = "True" if mask is None else self._is_in(mask)
            has_returned = self._is_in(self._returned_mask())
            done += self._threads([self._save(present, f"{in_mask} and not {has_returned}")])
        whole = operation in WHOLE_BLOCK
        if whole and present is not None:
            done += self._require_all(operation, self._array(present), ast.unparse(site))
        if self._program.checked:
            # The regions before are complete. Operands of a collective are no memory of the kernel.
            done.append(expression(f"_met(_m, {whole})"))
        if operation in ("@barrier", "@warp", "@grid"):
            return done
        operands = [f"_w{result}_{i}" for i in range(len(arguments))]
        done += self._loop(
            [
                self._save(name, ast.unparse(value))
                for name, value in zip(operands, arguments, strict=True)
            ],
            mask,
        )
        arrays = [self._array(name) for name in operands]
        size = "_wx * _wy * _wz"
        if whole:
            program = self._program
            once = [assigned(result, f"_block{operation[1:]}({arrays[0]}, {size})")]
            if result in self._privatised:
                once += threads([self._save(result)], program, program.prologue)
            return done + blocks(once, program)
        inputs = ", ".join(
            [*arrays, "_t", size, "None" if present is None else self._array(present)]
        )
        return done + self._loop([assigned(result, f"_warp{operation[1:]}({inputs})")], mask)

    def _require_all(self, operation: str, present: str, site: str) -> list[ast.stmt]:
        """The check that stops a kernel of which only some threads reach a barrier, and names the
        first that does not.
        """
        inputs = f"{present}, _wx, _wy, _wz, _m, {site}, _bx, _by, _bz"
        program = self._program
        if operation != "@grid":
            return blocks([expression(f"_all_there({inputs})")], program)
        size = "_wx * _wy * _wz"
        arrivals = [assigned("_come", f"_come + _blockcount({present}, {size})")]
        some = parsed(f"_come != 0 and _come != {size} * _gx * _gy * _gz")
        return [
            assigned("_come", "0"),
            *blocks(arrivals, program),
            ast.If(some, blocks([expression(f"_everyone({inputs})")], program), []),
        ]
