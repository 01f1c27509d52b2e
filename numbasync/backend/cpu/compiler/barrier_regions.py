"""The threads of a block that meet: the work between two meetings as a loop over the threads.

A kernel's statements are cut where threads meet. Each piece becomes a loop over the block's
threads; what a thread keeps from one piece to the next lives in an array with an element a
thread. What is the same for all threads (its control flow, too) is done once. Where threads
go different ways to a meeting, an array says who is there: for a meeting of a warp the others
are left out, for one of the whole block their absence is an error.

The array of a variable `x` is called `_vx`, what is handed over at a meeting `_w`, and who is
there `_a1`, `_a2`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numbasync.backend.cpu.compiler.control_flow import (
    assigned,
    blocks,
    expression,
    needed,
    returns_early,
    test_of,
    threads,
)
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.per_thread_variables import Memory
from numbasync.backend.cpu.compiler.program import HIDDEN, Program, parsed
from numbasync.backend.cpu.compiler.uniformity import (
    WHOLE_BLOCK,
    Uniform,
    has_meeting,
    has_return,
    leaves,
    meeting,
    names,
)

_LINEAR = "_t = _tx + _wx * (_ty + _wy * _tz)"


@dataclass(frozen=True)
class Loop:
    """A loop that threads leave one by one: who is still in it, and in this round."""

    here: str
    now: str


class Pieces(Memory):
    """Writes the statements of one block.

    Args:
        kinds: Numba's types of the variables.
    """

    def __init__(self, program: Program, uniform: Uniform, kinds: dict[str, Any]) -> None:
        super().__init__(program, uniform, kinds)
        self._dead: str | None = None
        self._kept = self._find_kept()
        self._returns = returns_early(program.body)

    # --- what is kept ---

    def _find_kept(self) -> set[str]:
        """Variables that differ between threads and are used in more than one piece."""
        uses: dict[str, set[int]] = {}
        counter = [0]

        def see(nodes: Iterable[ast.AST], piece: int) -> None:
            found = names(nodes, ast.Load) | names(nodes, ast.Store)
            for name in found | self._needed_for(found):
                if name in self._uniform.varying and name not in HIDDEN:
                    uses.setdefault(name, set()).add(piece)

        def block(statements: list[ast.stmt]) -> None:
            for statement in statements:
                if meeting(statement) is not None:
                    # Its arguments are read, and its result is written, by loops of their own.
                    see([statement], -1)
                    see([statement], -2)
                    counter[0] += 1
                elif has_meeting(statement) and isinstance(statement, ast.If | ast.While | ast.For):
                    counter[0] += 1
                    see([statement.iter if isinstance(statement, ast.For) else statement.test],
                        counter[0])  # fmt: skip
                    counter[0] += 1
                    block(statement.body)
                    counter[0] += 1
                    block(statement.orelse)
                    counter[0] += 1
                elif self._uniform.is_done_once(statement):
                    counter[0] += 1  # it may come between two pieces
                else:
                    see([statement], counter[0])

        block(self._program.body)
        kept = {name for name, pieces in uses.items() if len(pieces) > 1}
        # A parameter that a thread changes begins as what was passed.
        return kept | (set(self._program.parameters) & self._uniform.varying)

    def _dead_name(self) -> str:
        if self._dead is None:
            self._dead = self._new_mask()
        return self._dead

    # --- writing ---

    def write(self) -> list[ast.stmt]:
        body = self._block(self._program.body, None)
        first: list[ast.stmt] = [
            self._save(name) for name in self._program.parameters if name in self._kept
        ]
        if self._dead is not None:
            first.append(self._save(self._dead, "False"))
        return [*(self._threads(first) if first else []), *body]

    def _block(
        self, statements: list[ast.stmt], mask: str | None, loop: Loop | None = None
    ) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        piece: list[ast.stmt] = []

        def flush() -> None:
            if piece:
                done.extend(self._loop(piece, mask, loop))
                piece.clear()

        for statement in statements:
            if meeting(statement) is not None:
                flush()
                done += self._meeting(statement, mask)  # type: ignore[arg-type]
            elif has_meeting(statement):
                flush()
                done += self._compound(statement, mask, loop)
            elif mask is None and self._uniform.is_done_once(statement):
                used = names(piece, ast.Load) | names(piece, ast.Store)
                if used & names(statement, ast.Store):
                    flush()
                done.append(copy.deepcopy(statement))
            elif mask is None and self._uniform.ends_for_all(statement):
                flush()
                done.append(copy.deepcopy(statement))
            else:
                piece.append(statement)
                if isinstance(statement, ast.Break | ast.Continue | ast.Return):
                    break  # nothing comes behind it
        flush()
        return done or [ast.Pass()]

    def _loop(
        self, piece: list[ast.stmt], mask: str | None, loop: Loop | None = None
    ) -> list[ast.stmt]:
        """The threads, one after the other, doing a piece."""
        body = self._leaving([copy.deepcopy(s) for s in piece], loop)
        written = names(body, ast.Store) & self._kept
        read = needed(body) & self._kept
        used = (names(body, ast.Load) | written) & self._kept
        arrays = {n for n in used | read if self._is_local_array(n)}
        made_here = names(piece, ast.Store)
        again = self._made_again(arrays - made_here)
        first = {n for s in again for n in names(s.value, ast.Load)} & self._kept
        body = [
            *(self._load(n) for n in sorted((read | first) - arrays - self._arrays_of(again))),
            *again,
            *body,
            *(self._save(n) for n in sorted(written - arrays)),
        ]
        conditions = [self._is_in(mask)] if mask else []
        if self._dead is not None or self._returns:
            conditions.append(f"not {self._is_in(self._dead_name())}")
        if conditions:
            body = [ast.If(parsed(" and ".join(conditions)), body or [ast.Pass()], [])]
        return self._threads(body)

    def _threads(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        program = self._program
        return blocks(threads(list(body), program, program.prologue), program)

    def _leaving(self, piece: list[ast.stmt], loop: Loop | None) -> list[ast.stmt]:
        """A thread that returns, or leaves the loop in which the piece is, goes on with the next
        thread; out of a loop of its own, it comes in two steps.
        """
        if not any(map(leaves, piece)):
            return piece
        # Behind the last statement, what the piece has computed is saved.
        saves = names(piece, ast.Store) & self._kept

        def leave(statement: ast.stmt) -> list[ast.stmt]:
            if isinstance(statement, ast.Return):
                return [self._save(self._dead_name(), "True")]
            if loop is None:
                raise UntranslatableError(
                    "break or continue of some threads, in a loop in which they meet", statement
                )
            kept = [self._save(n) for n in sorted(saves) if not self._is_local_array(n)]
            masks = [loop.now] if isinstance(statement, ast.Continue) else [loop.now, loop.here]
            return [*kept, *(self._save(m, "False") for m in masks)]

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

        return [assigned("_left", "False"), *block(piece, False)]

    # --- control flow with meetings in it ---

    def _compound(self, statement: ast.stmt, mask: str | None, loop: Loop | None) -> list[ast.stmt]:
        if isinstance(statement, ast.If):
            return self._if(statement, mask, loop)
        if isinstance(statement, ast.While):
            return self._while(statement, mask)
        if isinstance(statement, ast.For) and self._uniform(statement.iter):
            # All of them go through the same numbers, whoever is there.
            own = None
            inside = mask
            first: list[ast.stmt] = []
            if mask is not None or self._uniform.some_leave(statement.body):
                here, now = self._new_mask(), self._new_mask()
                own, inside = Loop(here, now), now
                every = "True" if mask is None else self._is_in(mask)
                first = self._threads([self._save(here, every)])
            made = copy.copy(statement)
            made.body = self._block(statement.body, inside, own)
            if names(statement.target, ast.Store) & self._kept:
                # Who is not in it keeps its own number.
                number = f"_n{len(self._program.names)}_{self._masks}"
                take = ast.Assign([statement.target], ast.Name(number, ast.Load()))
                made.target = ast.Name(number, ast.Store())
                made.body = [*self._loop([take], inside), *made.body]
            if own is not None:
                made.body = [*self._threads([self._save(own.now, self._is_in(own.here))]),
                             *made.body]  # fmt: skip
            return [*first, made]
        raise UntranslatableError(f"a meeting in a {type(statement).__name__.lower()}", statement)

    def _if(self, statement: ast.If, mask: str | None, loop: Loop | None) -> list[ast.stmt]:
        if mask is None and self._uniform(statement.test):
            made = copy.copy(statement)
            made.body = self._block(statement.body, None, loop)
            made.orelse = self._block(statement.orelse, None, loop) if statement.orelse else []
            return [made]
        yes = self._new_mask()
        no = self._new_mask() if statement.orelse else None
        piece: list[ast.stmt] = [test_of(statement.test), self._save(yes, "bool(_is)")]
        none = [self._save(yes, "False")]
        if no is not None:
            piece.append(self._save(no, "not _is"))
            none.append(self._save(no, "False"))
        done = [] if mask is None and not self._returns else self._threads(none)
        done += self._loop(piece, mask)
        done += self._block(statement.body, yes, loop)
        if no is not None:
            done += self._block(statement.orelse, no, loop)
        if loop is not None and mask is not None and mask != loop.now:
            # Who left the loop inside of it is not there behind it, either.
            left = f"{self._is_in(mask)} and {self._is_in(loop.now)}"
            done += self._threads([self._save(mask, left)])
        return done

    def _while(self, statement: ast.While, mask: str | None) -> list[ast.stmt]:
        if (
            mask is None
            and self._uniform(statement.test)
            and not self._uniform.some_leave(statement.body)
        ):
            made = copy.copy(statement)
            made.body = self._block(statement.body, None)
            return [made]
        here, now = self._new_mask(), self._new_mask()
        some = f"_y{self._masks}"
        begin = self._threads([self._save(here, "True" if mask is None else self._is_in(mask))])
        piece = [
            test_of(statement.test),
            self._save(here, "bool(_is)"),
            self._save(now, "bool(_is)"),
            ast.If(parsed("_is"), [assigned(some, "True")], []),
        ]
        loop = [
            assigned(some, "False"),
            *self._threads([self._save(now, "False")]),
            *self._loop(piece, here),
            ast.If(parsed(f"not {some}"), [ast.Break()], []),
            *self._block(statement.body, now, Loop(here, now)),
        ]
        return [*begin, ast.While(parsed("True"), loop, [])]

    # --- meetings ---

    def _meeting(self, statement: ast.Assign, mask: str | None) -> list[ast.stmt]:
        call = statement.value
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)  # by `meeting`
        kind, (site, *arguments) = call.func.id, call.args
        target = statement.targets[0]
        assert isinstance(target, ast.Name)  # by the translation
        result = target.id
        done: list[ast.stmt] = []
        there = mask
        if self._returns:
            there = self._new_mask()
            here = "True" if mask is None else self._is_in(mask)
            dead = self._is_in(self._dead_name())
            done += self._threads([self._save(there, f"{here} and not {dead}")])
        whole = kind in WHOLE_BLOCK
        if whole and there is not None:
            done += self._all_come(kind, self._array(there), ast.unparse(site))
        if self._program.checked:
            # Behind the pieces before it; what threads hand over here is not memory.
            done.append(expression(f"_met(_m, {whole})"))
        if kind in ("@barrier", "@warp", "@grid"):
            return done
        handed = [f"_w{result}_{i}" for i in range(len(arguments))]
        done += self._loop(
            [
                self._save(name, ast.unparse(value))
                for name, value in zip(handed, arguments, strict=True)
            ],
            mask,
        )
        held = [self._array(name) for name in handed]
        size = "_wx * _wy * _wz"
        if whole:
            program = self._program
            once = [assigned(result, f"_block{kind[1:]}({held[0]}, {size})")]
            if result in self._kept:
                once += threads([self._save(result)], program, program.prologue)
            return done + blocks(once, program)
        inputs = ", ".join([*held, "_t", size, "None" if there is None else self._array(there)])
        return done + self._loop([assigned(result, f"_warp{kind[1:]}({inputs})")], mask)

    def _all_come(self, kind: str, there: str, site: str) -> list[ast.stmt]:
        """Stop the kernel, and name the first who is not there, if some are and some are not."""
        inputs = f"{there}, _wx, _wy, _wz, _m, {site}, _bx, _by, _bz"
        program = self._program
        if kind != "@grid":
            return blocks([expression(f"_all_there({inputs})")], program)
        size = "_wx * _wy * _wz"
        come = [assigned("_come", f"_come + _blockcount({there}, {size})")]
        some = parsed(f"_come != 0 and _come != {size} * _gx * _gy * _gz")
        return [
            assigned("_come", "0"),
            *blocks(come, program),
            ast.If(some, blocks([expression(f"_everyone({inputs})")], program), []),
        ]
