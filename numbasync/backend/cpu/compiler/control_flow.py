"""Control flow in generated code: loops over threads and blocks, early exits, rewritten loops."""

from __future__ import annotations

import ast
import copy
from typing import Any

from numbasync.backend.cpu.compiler import checked_elements
from numbasync.backend.cpu.compiler.kept_types import SEAM
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.program import Program, parsed
from numbasync.backend.cpu.compiler.uniformity import (
    Uniform,
    barrier_of,
    has_barrier,
    has_return,
    names,
)

_LINEAR = "_t = _tx + _wx * (_ty + _wy * _tz)"


def test_of(condition: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name("_is", ast.Store())], copy.deepcopy(condition))


def assigned(name: str, source: str) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], parsed(source))


def expression(source: str) -> ast.stmt:
    return ast.Expr(parsed(source))


_IN_TURN = """
_t = _turn(_m, _k)
_tx = _t % _wx
_ty = _t // _wx % _wy
_tz = _t // _wx // _wy
"""
_EACH_BLOCK = """
_b = {turn}
_m = _base + _b * _block_bytes
_bx = _b % _gx
_by = _b // _gx % _gy
_bz = _b // _gx // _gy
"""


def threads(body: list[ast.stmt], program: Program, prologue: str = "pass") -> list[ast.stmt]:
    """The loop over the threads of a block."""
    if program.checked:
        body = [*ast.parse(f"{_IN_TURN}{prologue}").body, *body]
        return [ast.For(ast.Name("_k", ast.Store()), parsed("range(_wx * _wy * _wz)"), body, [])]
    linear = ("_t = _tx" if program.row else _LINEAR) if "_t" in names(body, ast.Load) else "pass"
    body = checked_elements.shortened(body)
    body = [*ast.parse(f"{linear}\n{prologue}").body, *checked_elements.where(body), *body]
    for axis in "x" if program.row else "xyz":
        # Numba makes a tenth of the code of a `while` that it makes of a range.
        step = assigned(f"_t{axis}", f"_t{axis} + 1")
        loop = ast.While(parsed(f"_t{axis} < _last_{axis}"), [step, *body], [])
        body = [assigned(f"_t{axis}", "-1"), loop]
    return body


def blocks(body: list[ast.stmt], program: Program) -> list[ast.stmt]:
    """Statements that run once per block: in a cooperative launch, the loop over the blocks."""
    if not program.cooperative:
        return body
    turn = "_turn_of_block(_base, _k)" if program.checked else "_k"
    body = [*ast.parse(_EACH_BLOCK.format(turn=turn)).body, *body]
    return [ast.For(ast.Name("_k", ast.Store()), parsed("range(_gx * _gy * _gz)"), body, [])]


def alone(program: Program, statements: list[ast.stmt]) -> list[ast.stmt] | None:
    """The loop over the threads of a kernel without barriers. None if a thread may return out of a
    loop of its own.
    """

    def block(statements: list[ast.stmt]) -> None:
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.Return):
                statements[i] = ast.Continue()
            elif isinstance(statement, ast.If):
                block(statement.body)
                block(statement.orelse)

    for statement in statements:
        for each in ast.walk(statement):
            if isinstance(each, ast.For | ast.While) and has_return(each):
                return None
    body = copy.deepcopy(statements)
    block(body)
    return threads(with_own_parameters(program, body), program, program.prologue)


def with_own_parameters(program: Program, body: list[ast.stmt]) -> list[ast.stmt]:
    """The body, with a copy of its own for each thread of a parameter that the threads change."""
    changed = names(body, ast.Store) & set(program.parameters)
    for node in (n for s in body for n in ast.walk(s)):
        if isinstance(node, ast.Name) and node.id in changed:
            node.id = f"_own_{node.id}"
    return [*(assigned(f"_own_{name}", name) for name in sorted(changed)), *body]


def returns_early(body: list[ast.stmt]) -> bool:
    """Whether a thread may return before a barrier."""
    seen = False
    for statement in body:
        if has_barrier(statement) and (seen or has_return(statement)):
            return True
        seen = seen or has_return(statement)
    return False


def single_exit(body: list[ast.stmt], left: str) -> list[ast.stmt]:
    """The statements of an inlined function: a return leaves a loop that runs once. In loops of
    the function, the variable `left` says that it has returned.
    """
    if not any(map(has_return, body[:-1])) and isinstance(body[-1], ast.Return):
        return body[:-1]
    if not any(map(has_return, body)):
        return body

    def block(statements: list[ast.stmt], own_loop: bool) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, ast.Return):
                return [*done, *([assigned(left, "True")] if own_loop else []), ast.Break()]
            done.append(statement)
            if isinstance(statement, ast.If):
                statement.body = block(statement.body, own_loop)
                statement.orelse = block(statement.orelse, own_loop) if statement.orelse else []
            elif isinstance(statement, ast.For | ast.While) and has_return(statement):
                statement.body = block(statement.body, True)
                done.append(ast.If(parsed(left), [ast.Break()], []))
        return done

    once = [*block(body, False)]
    if not isinstance(once[-1], ast.Break):
        once.append(ast.Break())
    return [assigned(left, "False"), ast.While(parsed("True"), once, [])]


def before_breaks(body: list[ast.stmt], statement: ast.stmt) -> list[ast.stmt]:
    """The statements of a loop, with `statement` before each `break` that leaves the loop."""
    done: list[ast.stmt] = []
    for each in body:
        if isinstance(each, ast.If):
            each.body = before_breaks(each.body, statement)
            each.orelse = before_breaks(each.orelse, statement)
        done += [statement, each] if isinstance(each, ast.Break) else [each]
    return done


def needed(body: list[ast.stmt]) -> set[str]:
    """The variables that a region reads before it surely writes them, or may leave unchanged."""
    read, unchanged = read_first(body)
    return read | unchanged


def read_first(body: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """The variables that a region reads before it surely writes them, and those that it writes and
    may leave unchanged.
    """
    written = names(body, ast.Store)
    read: set[str] = set()
    kept: set[str] = set()

    def block(statements: list[ast.stmt], sure: set[str]) -> None:
        """Read `statements`, of which `sure` are surely written before, and add to `sure`."""
        for statement in statements:
            if isinstance(statement, ast.Assign):
                read.update(names(statement.value, ast.Load) - sure)
                read.update(names(statement.targets, ast.Load) - sure)
                sure |= names(statement.targets, ast.Store)
            elif isinstance(statement, ast.If):
                read.update(names(statement.test, ast.Load) - sure)
                both = set(sure), set(sure)
                block(statement.body, both[0])
                block(statement.orelse, both[1])
                sure |= both[0] & both[1]
            elif isinstance(statement, ast.Break | ast.Continue | ast.Return):
                kept.update(written - sure)  # a thread that leaves keeps its values
            elif isinstance(statement, ast.For):
                read.update(names(statement.iter, ast.Load) - sure)
                block(statement.body, sure | names(statement.target, ast.Store))
            elif isinstance(statement, ast.While):
                read.update(names(statement.test, ast.Load) - sure)
                block(statement.body, set(sure))
            else:
                read.update(names(statement, ast.Load) - sure)
                if isinstance(statement, ast.AugAssign):
                    read.update(names(statement.target, ast.Store) - sure)

    sure: set[str] = set()
    block(body, sure)
    return read, kept | (written - sure)


def counted(program: Program, uniform: Uniform) -> bool:
    """Rewrite loops with barriers over ranges that differ between threads as loops with a
    condition. Returns whether there were any.
    """
    has_rewritten = [False]

    class Loops(ast.NodeTransformer):
        def visit_For(self, node: ast.For) -> Any:
            self.generic_visit(node)
            if not has_barrier(node) or uniform(node.iter) or node.orelse:
                return node
            call = node.iter
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                raise UntranslatableError(
                    "a loop of some threads with a barrier in it (write `for i in range(n)`)",
                    node,
                )
            if program.names.get(call.func.id) is not range or not isinstance(
                node.target, ast.Name
            ):
                raise UntranslatableError(
                    "a loop of some threads with a barrier in it (write `for i in range(n)`)",
                    node,
                )
            has_rewritten[0] = True
            n = len(program.names)
            program.names[f"_loop_{n}"] = None
            numbers = f"_range_{n}"
            current, end, step = f"_at_{n}", f"_end_{n}", f"_step_{n}"
            # A range knows the type of its numbers; the sum of two has another one.
            first = [assigned(numbers, ast.unparse(call))]
            first += [
                assigned(name, f"{numbers}.{part}")
                for name, part in ((current, "start"), (end, "stop"), (step, "step"))
            ]
            inside = parsed(f"{current} < {end} if {step} > 0 else {current} > {end}")
            each = [assigned(node.target.id, current), assigned(current, f"{current} + {step}")]
            return [*first, ast.While(inside, [*each, *node.body], [])]

    tree = Loops().visit(ast.Module(program.body, []))
    program.body = tree.body
    return has_rewritten[0]


def with_seams(statements: list[ast.stmt], uniform: Uniform) -> list[ast.stmt]:
    """The statements, with an assignment to `SEAM` wherever one region ends and another begins."""
    done: list[ast.stmt] = [assigned(SEAM, "0")]
    region: list[ast.stmt] = []

    def end() -> None:
        if region:
            done.append(assigned(SEAM, "0"))
            region.clear()

    for statement in statements:
        if has_barrier(statement) and isinstance(statement, ast.If | ast.While | ast.For):
            end()
            inside = copy.copy(statement)
            inside.body = with_seams(statement.body, uniform)
            inside.orelse = with_seams(statement.orelse, uniform) if statement.orelse else []
            done += [inside, assigned(SEAM, "0")]
        elif has_barrier(statement) or uniform.ends_for_all(statement):
            end()
            done += [statement, assigned(SEAM, "0")]
        elif uniform.is_done_once(statement):
            used = names(region, ast.Load) | names(region, ast.Store)
            if used & names(statement, ast.Store):
                end()
            done.append(statement)
        else:
            region.append(statement)
            done.append(statement)
    end()
    return done


def plain(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements with functions of the right types in place of barriers, for type inference."""

    class Barriers(ast.NodeTransformer):
        def visit_Raise(self, node: ast.Raise) -> Any:
            return ast.Pass()  # a later stage of Numba looks up the exception

        def visit_Assign(self, node: ast.Assign) -> Any:
            call = barrier_of(node)
            if call is None:
                return node
            target = node.targets[0]
            assert isinstance(call.func, ast.Name) and isinstance(target, ast.Name)  # a barrier
            name, arguments = call.func.id, call.args[1:]
            variables = [f"_w{target.id}_{i}" for i in range(len(arguments))]
            assignments = [
                ast.Assign([ast.Name(h, ast.Store())], a)
                for h, a in zip(variables, arguments, strict=True)
            ]
            stub = parsed(f"_type{name[1:]}({', '.join(variables)})")
            return [*assignments, ast.Assign([target], stub)]

    tree = ast.Module([Barriers().visit(copy.deepcopy(s)) for s in body], [])
    return [s for each in tree.body for s in (each if isinstance(each, list) else [each])]
