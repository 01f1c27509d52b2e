"""Shapes of statements: loops over threads, who may leave what, and loops that are rewritten."""

from __future__ import annotations

import ast
import copy
from typing import Any

from numbasync.backend.cpu.compiler import checked_elements
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.program import Program, parsed
from numbasync.backend.cpu.compiler.uniformity import (
    Uniform,
    has_meeting,
    has_return,
    meeting,
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
_m = _base + _b * _slab
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
    """What is done once a block, where blocks meet: the loop over them; elsewhere, as it is."""
    if not program.cooperative:
        return body
    turn = "_turn_of_block(_base, _k)" if program.checked else "_k"
    body = [*ast.parse(_EACH_BLOCK.format(turn=turn)).body, *body]
    return [ast.For(ast.Name("_k", ast.Store()), parsed("range(_gx * _gy * _gz)"), body, [])]


def alone(program: Program, statements: list[ast.stmt]) -> list[ast.stmt] | None:
    """The loop over the threads of a kernel in which they do not meet. None if a thread may return
    out of a loop of its own.
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
    return threads(_with_own_parameters(program, body), program, program.prologue)


def _with_own_parameters(program: Program, body: list[ast.stmt]) -> list[ast.stmt]:
    """A parameter that a thread changes begins, in each of them, as what was passed."""
    changed = names(body, ast.Store) & set(program.parameters)
    for node in (n for s in body for n in ast.walk(s)):
        if isinstance(node, ast.Name) and node.id in changed:
            node.id = f"_own_{node.id}"
    return [*(assigned(f"_own_{name}", name) for name in sorted(changed)), *body]


def returns_early(body: list[ast.stmt]) -> bool:
    """Whether a thread may return before a meeting."""
    seen = False
    for statement in body:
        if has_meeting(statement) and (seen or has_return(statement)):
            return True
        seen = seen or has_return(statement)
    return False


def single_exit(body: list[ast.stmt], left: str) -> list[ast.stmt]:
    """The statements of a function that is written out where it is called: a return leaves a loop
    that is run once. `left` is a variable that says so in loops of its own.
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
    """Variables that a piece reads before it surely writes them, or may leave as they were."""
    written = names(body, ast.Store)
    found: set[str] = set()

    def block(statements: list[ast.stmt], sure: set[str]) -> None:
        """Go on with those that are surely written, and add what the statements write."""
        for statement in statements:
            if isinstance(statement, ast.Assign):
                found.update(names(statement.value, ast.Load) - sure)
                found.update(names(statement.targets, ast.Load) - sure)
                sure |= names(statement.targets, ast.Store)
            elif isinstance(statement, ast.If):
                found.update(names(statement.test, ast.Load) - sure)
                both = set(sure), set(sure)
                block(statement.body, both[0])
                block(statement.orelse, both[1])
                sure |= both[0] & both[1]
            elif isinstance(statement, ast.Break | ast.Continue | ast.Return):
                found.update(written - sure)  # a thread that leaves keeps what it has
            else:
                found.update(names(statement, ast.Load) - sure)
                if isinstance(statement, ast.AugAssign):
                    found.update(names(statement.target, ast.Store) - sure)
                for each in ast.walk(statement):
                    if isinstance(each, ast.Break | ast.Continue | ast.Return):
                        found.update(written - sure)

    sure: set[str] = set()
    block(body, sure)
    return found | (written - sure)


def counted(program: Program, uniform: Uniform) -> bool:
    """Write loops over ranges that differ between threads, and in which these meet, as loops with
    a condition. Whether there were any.
    """
    found = [False]

    class Loops(ast.NodeTransformer):
        def visit_For(self, node: ast.For) -> Any:
            self.generic_visit(node)
            if not has_meeting(node) or uniform(node.iter) or node.orelse:
                return node
            call = node.iter
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                raise UntranslatableError("a loop of some threads in which they meet", node)
            if program.names.get(call.func.id) is not range or not isinstance(
                node.target, ast.Name
            ):
                raise UntranslatableError("a loop of some threads in which they meet", node)
            found[0] = True
            n = len(program.names)
            program.names[f"_loop_{n}"] = None
            at, end, step = f"_at_{n}", f"_end_{n}", f"_step_{n}"
            parts = [ast.unparse(a) for a in call.args]
            start, stop, by = (
                ("0", parts[0], "1") if len(parts) == 1 else (*parts, "1")[:3]
            )  # fmt: skip
            first = [assigned(at, start), assigned(end, stop), assigned(step, by)]
            inside = parsed(f"{at} < {end} if {step} > 0 else {at} > {end}")
            each = [assigned(node.target.id, at), assigned(at, f"{at} + {step}")]
            return [*first, ast.While(inside, [*each, *node.body], [])]

    tree = Loops().visit(ast.Module(program.body, []))
    program.body = tree.body
    return found[0]


def plain(program: Program) -> list[ast.stmt]:
    """The body with functions of the right types in place of meetings, to ask for its types."""

    class Meetings(ast.NodeTransformer):
        def visit_Raise(self, node: ast.Raise) -> Any:
            return ast.Pass()  # what is raised is looked up by a later stage of Numba

        def visit_Assign(self, node: ast.Assign) -> Any:
            call = meeting(node)
            if call is None:
                return node
            target = node.targets[0]
            assert isinstance(call.func, ast.Name) and isinstance(target, ast.Name)  # a meeting
            kind, arguments = call.func.id, call.args[1:]
            held = [f"_w{target.id}_{i}" for i in range(len(arguments))]
            made = [
                ast.Assign([ast.Name(h, ast.Store())], a)
                for h, a in zip(held, arguments, strict=True)
            ]
            stub = parsed(f"_type{kind[1:]}({', '.join(held)})")
            return [*made, ast.Assign([target], stub)]

    tree = ast.Module([Meetings().visit(copy.deepcopy(s)) for s in program.body], [])
    return [s for each in tree.body for s in (each if isinstance(each, list) else [each])]
