"""Plans for people: the kernels and the reasons why there are not fewer, as a table and as a
picture.
"""

from __future__ import annotations

from numbasync import notebook
from numbasync.arguments import as_whole, shown, with_type
from numbasync.batch.codegen.choose import form
from numbasync.batch.record.nodes import CONSTANT, INPUT
from numbasync.batch.run.plan import Prepared
from numbasync.errors import CallerError
from numbasync.public import Public

COLUMNS = ("kernel", "form", "operations", "reads", "writes")


class BatchPlan(Public):
    """The plan of a batch's run. `print(b.plan())` shows the table.

    Attributes:
        prepared: the plan that is described.

    Examples:
        >>> b = na.CommandBatch()
        >>> x = b.upload(np.ones((64, 1000), np.float32))
        >>> y = b.softmax(x * 2)
        >>> print(b.plan())
        | kernel | form | operations | reads | writes |
        |---|---|---|---|---|
        | 0 | row | mul max[1] sub exp sum[1] div | #0 float32 64x1000 | #7 float32 64x1000 |
        <BLANKLINE>
        - 512,000 bytes of device memory instead of 1,280,512.
    """

    def __init__(self, prepared: Prepared) -> None:
        if not isinstance(prepared, Prepared):
            raise CallerError(
                f"a BatchPlan is of a batch, not of {with_type(prepared)}: write b.plan()."
            )
        self.prepared = prepared

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the batch's kernels, in the order in which they run."""
        return tuple(text.name for text in self.prepared.texts)

    @property
    def peak_bytes(self) -> int:
        """Device memory that the batch takes: inputs, results, and the buffers between kernels."""
        return self.prepared.peak_bytes

    @property
    def naive_bytes(self) -> int:
        """Device memory that the batch would take with a buffer for every operation."""
        return self.prepared.naive_bytes

    def source(self, kernel: int | None = None) -> str:
        """The source of one kernel's module, or of all.

        Examples:
            >>> b = na.CommandBatch()
            >>> y = b.upload(np.ones(3, np.float32)) * 2
            >>> "cuda.jit" in b.plan().source(0)
            True
        """
        texts = self.prepared.texts
        if kernel is not None:
            if as_whole(kernel) not in range(len(texts)):
                raise CallerError(
                    f"source({shown(kernel)}): the plan has {len(texts)} kernels, from 0."
                )
            return texts[kernel].source
        return "\n\n".join(text.source for text in texts)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """For each kernel: its number, form, operations, the values that it reads and those that it
        writes.

        Examples:
            >>> b = na.CommandBatch()
            >>> y = b.upload(np.ones(3, np.float32)) * 2
            >>> b.plan().rows()
            [('0', 'elementwise', 'mul', '#0 float32 3', '#2 float32 3')]
        """
        p = self.prepared
        rows = []
        for index, group in enumerate(p.fusion.groups):
            writes = [n for n in group.roots if n in p.fusion.written]
            rows.append((
                str(index), form(group), " ".join(self._op(n) for n in sorted(group.inside)),
                self._list(group.reads), self._list(writes),
            ))  # fmt: skip
        return rows

    def reasons(self) -> list[str]:
        """The reasons why there are not fewer kernels, one sentence each.

        Examples:
            >>> b = na.CommandBatch()
            >>> y = b.sum(b.softmax(b.upload(np.ones((4, 8), np.float32))), axis=0)
            >>> b.plan().reasons()
            ['#6 (sum[0], kernel 1) is not computed in kernel 0: it is reduced along another axis.']
        """
        p = self.prepared
        home = {n: index for index, g in enumerate(p.fusion.groups) for n in g.roots}
        return [
            f"{self._name(a.root)} ({self._op(a.root)}, kernel {home[a.root]}) is not computed in "
            f"kernel {a.group}: {a.why}."
            for a in p.fusion.apart
        ]

    def table(self) -> str:
        """The kernels and the reasons, as Markdown.

        Examples:
            >>> b = na.CommandBatch()
            >>> y = b.upload(np.ones(3, np.float32)) * 2
            >>> print(b.plan().table())
            | kernel | form | operations | reads | writes |
            |---|---|---|---|---|
            | 0 | elementwise | mul | #0 float32 3 | #2 float32 3 |
            <BLANKLINE>
            - 512 bytes of device memory.
        """
        lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        lines += ["", *(f"- {why}" for why in self.reasons())]
        memory = f"{self.peak_bytes:,} bytes of device memory"
        if self.naive_bytes > self.peak_bytes:
            memory += f" instead of {self.naive_bytes:,}"
        return "\n".join([*lines, f"- {memory}."])

    def to_dot(self) -> str:
        """The picture in Graphviz' language: a box around the values of each kernel.

        Examples:
            >>> b = na.CommandBatch()
            >>> y = b.upload(np.ones(3, np.float32)) * 2
            >>> b.plan().to_dot().splitlines()[0]
            'digraph batch {'
        """
        p = self.prepared
        lines = ["digraph batch {", "  rankdir=TB;", "  node [shape=box, fontname=monospace];"]
        lines += [
            f'  n{n} [label="{self._name(n)}\\n{self._kind(n)}", shape=ellipse];' for n in p.inputs
        ]
        drawn: set[tuple[str, str]] = set()
        for index, group in enumerate(p.fusion.groups):
            lines.append(f"  subgraph cluster_{index} {{")
            lines.append(f'    label="kernel {index}: {form(group)}"; style=rounded;')
            for n in sorted(group.inside):
                wanted = ", peripheries=2" if n in p.wanted else ""
                label = f"{self._op(n)}\\n{self._kind(n)}"
                lines.append(f'    {self._box(n, index)} [label="{label}"{wanted}];')
            lines.append("  }")
            for n in sorted(group.inside):
                for i in p.nodes[n].inputs:
                    if p.nodes[i].op != CONSTANT:
                        drawn.add((self._from(i, index), self._box(n, index)))
        lines += [f"  {a} -> {b};" for a, b in sorted(drawn)]
        return "\n".join([*lines, "}"])

    # --- how ---

    def _box(self, n: int, at: int) -> str:
        """The box of a value in a kernel; a value computed by several kernels has a box in each."""
        return f"n{n}_{at}"

    def _from(self, n: int, at: int) -> str:
        p = self.prepared
        if p.nodes[n].op == INPUT:
            return f"n{n}"
        if n in p.fusion.groups[at].inside:
            return self._box(n, at)
        return self._box(n, next(k for k, g in enumerate(p.fusion.groups) if n in g.roots))

    def _op(self, n: int) -> str:
        node = self.prepared.nodes[n]
        if node.is_reduction:
            return node.op if node.axis is None else f"{node.op}[{node.axis}]"
        return node.op.removeprefix("call ") if node.op != "cast" else f"cast({node.dtype})"

    def _kind(self, n: int) -> str:
        node = self.prepared.nodes[n]
        return f"{node.dtype} {'x'.join(map(str, node.shape)) or '1'}"

    def _name(self, n: int) -> str:
        return f"#{n}"

    def _list(self, numbers: list[int]) -> str:
        return ", ".join(f"{self._name(n)} {self._kind(n)}" for n in numbers) or "-"

    def _repr_html_(self) -> str:
        memory = f"{self.peak_bytes:,} bytes of device memory"
        plan = notebook.table(f"BatchPlan: {memory}", self.rows(), COLUMNS)
        return plan + notebook.tree("", [(why, []) for why in self.reasons()])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        count = len(self.prepared.texts)
        return f"<BatchPlan of {count} kernel{'s' * (count != 1)}>"
