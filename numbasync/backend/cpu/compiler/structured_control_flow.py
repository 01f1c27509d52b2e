"""Blocks that jump to each other, as conditions and loops."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from numba.core.controlflow import CFGraph

from numbasync.backend.cpu.compiler.names import UntranslatableError


@dataclass
class Block:
    """Statements that are done one after the other, and what comes then.

    Attributes:
        targets: the block that follows; two: if `test` is true, and if not.
        loop: of a block that takes the next value of a loop: over what, and into what. Its
            targets are the body and what follows the loop.
    """

    statements: list[ast.stmt]
    targets: tuple[int, ...] = ()
    test: ast.expr | None = None
    loop: tuple[ast.expr, ast.expr] | None = None


@dataclass
class _Around:
    """Where a statement is: what follows if nothing is said, and the loop around it."""

    after: int | None = None
    again: int | None = None
    end: int | None = None


def structured(blocks: dict[int, Block], entry: int) -> list[ast.stmt]:
    """The statements of a function.

    Raises:
        UntranslatableError: a block would have to be written twice.
    """
    blocks = _tested_once(_joined(_direct(blocks), entry))
    return _Writer(blocks, entry).region(entry, _Around()) or [ast.Pass()]


def _direct(blocks: dict[int, Block]) -> dict[int, Block]:
    """Without blocks that only jump on."""

    def end(label: int) -> int:
        seen = set()
        while label not in seen:
            seen.add(label)
            block = blocks[label]
            if block.statements or block.loop is not None or len(block.targets) != 1:
                break
            label = block.targets[0]
        return label

    for block in blocks.values():
        block.targets = tuple(end(t) for t in block.targets)
    return blocks


def _joined(blocks: dict[int, Block], entry: int) -> dict[int, Block]:
    """With `and` and `or` in one condition."""
    changed = True
    while changed:
        changed = False
        reached = _reached(blocks, entry)
        blocks = {label: b for label, b in blocks.items() if label in reached}
        before = Counter(t for b in blocks.values() for t in b.targets)
        for block in blocks.values():
            if block.test is not None and len(block.targets) == 2:
                changed = changed or _join(block, blocks, before)
                if changed:
                    break
    return blocks


def _join(block: Block, blocks: dict[int, Block], before: Counter[int]) -> bool:
    yes, no = block.targets
    for way, other, is_and in ((yes, no, True), (no, yes, False)):
        second = blocks[way]
        if second.statements or second.test is None or before[way] != 1 or second is block:
            continue
        if other not in second.targets:
            continue
        a, b = second.targets
        test = second.test
        # `and` goes on if the second is true, `or` if it is false.
        if (b if is_and else a) != other:
            test, a, b = ast.UnaryOp(ast.Not(), test), b, a
        assert block.test is not None  # only such blocks are joined
        block.test = ast.BoolOp(ast.And() if is_and else ast.Or(), [block.test, test])
        block.targets = (a, b)
        return True
    return False


def _tested_once(blocks: dict[int, Block]) -> dict[int, Block]:
    """With one test of a loop, which Python writes in front of it and at its end."""
    alike: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks.values():
        if block.test is not None:
            alike.setdefault((ast.dump(block.test), block.targets), []).append(block)
    for same in alike.values():
        if len(same) > 1:
            label = max(blocks) + 1
            blocks[label] = Block([], same[0].targets, same[0].test)
            for block in same:
                block.targets, block.test = (label,), None
    return _direct(blocks)


def _reached(blocks: dict[int, Block], entry: int) -> set[int]:
    found, todo = set(), [entry]
    while todo:
        label = todo.pop()
        if label not in found:
            found.add(label)
            todo += blocks[label].targets
    return found


@dataclass
class _Writer:
    blocks: dict[int, Block]
    entry: int
    written: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = CFGraph()
        for label in self.blocks:
            graph.add_node(label)
        for label, block in self.blocks.items():
            for target in block.targets:
                graph.add_edge(label, target)
        graph.set_entry_point(self.entry)
        graph.process()
        self._loops = {loop.header: loop for loop in graph.loops().values()}
        above: Any = graph.immediate_dominators()
        self._above: dict[int, int] = above
        back = {(label, t) for t, loop in self._loops.items() for label in loop.body}
        self._before = Counter(
            t for label, b in self.blocks.items() for t in set(b.targets) if (label, t) not in back
        )

    def region(self, label: int | None, around: _Around) -> list[ast.stmt]:
        """From a block on, until what follows or the end."""
        done: list[ast.stmt] = []
        first = True
        while label is not None and label != around.after:
            if label == around.end:
                return [*done, ast.Break()]
            if label == around.again and not (first and label not in self.written):
                return [*done, ast.Continue()]
            first = False
            block = self.blocks[label]
            if label in self._loops and label != around.again:
                statements, end = self._loop(label)
                done += statements
                label = end
                continue
            self._once(label, block)
            done += block.statements
            if block.test is None:
                label = block.targets[0] if block.targets else None
            else:
                merge = self._merge(label)
                inner = _Around(around.after if merge is None else merge, around.again, around.end)
                done += self._condition(block, inner)
                label = around.after if merge is None else merge
        return done

    def _condition(self, block: Block, around: _Around) -> list[ast.stmt]:
        yes, no = (self.region(t, around) for t in block.targets)
        assert block.test is not None  # as of every block with two targets
        if yes:
            made = ast.If(block.test, yes, no)
        elif no:
            made = ast.If(ast.UnaryOp(ast.Not(), block.test), no, [])
        else:
            return [ast.Expr(block.test)]
        return [made]

    def _loop(self, header: int) -> tuple[list[ast.stmt], int | None]:
        """A loop, and the block after it."""
        body = self._loops[header].body
        block = self.blocks[header]
        if block.loop is not None:
            self._once(header, block)
            over, target = block.loop
            first, last = block.targets
            # The end of the body is the next turn.
            inside = self.region(first, _Around(header, header, last)) or [ast.Pass()]
            target, inside = _named(target, inside)
            return [ast.For(target, over, inside, [])], last
        leaves = {t for label in body for t in self.blocks[label].targets} - set(body)
        # Of several, those that come to an end by themselves are written where they are.
        on = [t for t in leaves if self.blocks[t].targets] or sorted(leaves)
        end: int | None = min(on) if on else None
        if block.test is not None and not block.statements and end in block.targets:
            self._once(header, block)
            yes, no = block.targets
            test = block.test if no == end else ast.UnaryOp(ast.Not(), block.test)
            inside = self.region(yes if no == end else no, _Around(header, header, end))
            return [ast.While(test, inside or [ast.Pass()], [])], end
        inside = self.region(header, _Around(None, header, end))
        return [ast.While(ast.Constant(True), _without_last(inside), [])], end

    def _merge(self, label: int) -> int | None:
        """Where the ways meet again that part behind a block."""
        found = [m for m, above in self._above.items() if above == label and self._before[m] > 1]
        if len(found) > 1:
            found = [m for m in found if not _ends(self.blocks[m])] or found
        return found[0] if len(found) == 1 else None

    def _once(self, label: int, block: Block) -> None:
        """A block is written once: threads that meet in it do so in one place."""
        if label in self.written and not _ends(block):
            raise UntranslatableError(
                "statements that cannot be told from the bytecode, such as a break past an else "
                "(write the function in a file, so that its source is at hand)"
            )
        self.written.add(label)


def _ends(block: Block) -> bool:
    """Whether it only returns, so that it may be written as often as it is needed."""
    return not block.targets and all(
        isinstance(s, ast.Return) and s.value is None for s in block.statements
    )


def _named(target: ast.expr, inside: list[ast.stmt]) -> tuple[ast.expr, list[ast.stmt]]:
    """With the variable that the value is put into first."""
    match inside[0]:
        case ast.Assign([ast.Name() as name], ast.Name(id=value)) if (
            isinstance(target, ast.Name) and value == target.id
        ):
            if not any(
                isinstance(n, ast.Name) and n.id == value for s in inside[1:] for n in ast.walk(s)
            ):
                return name, inside[1:] or [ast.Pass()]
    return target, inside


def _without_last(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Without a `continue` at the end."""
    match statements[-1]:
        case ast.Continue():
            return statements[:-1] or [ast.Pass()]
        case ast.If(test, [ast.Continue()], [ast.Break()]):
            return [*statements[:-1], ast.If(ast.UnaryOp(ast.Not(), test), [ast.Break()], [])]
    return statements
