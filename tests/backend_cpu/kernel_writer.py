"""Writes the source of random kernels.

Names by who has them the same: `u`, `v` (ints) and `f`, `g` (of any types) all threads of a block;
`w` those of a warp; all others may differ. Only these decide about ways with barriers.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

from tests.backend_cpu import kernel_forms

KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u4", "u8", "f4", "f8"]
BLOCKS: list[tuple[int, ...]] = [(64,), (40,), (20,), (16, 4), (32,), (12, 2), (8,)]
COLUMNS = 28
_ENDS = 18  # the first column of what `kernel_forms` has
_INTS, _NUMBERS, _ROWS = ["a", "b", "c"], ["p", "q", "r"], ["row", "other"]


class Writer:
    """Writes one kernel.

    Args:
        seed: of everything; kernels with threads that return early, with warps and with barriers of
            the whole grid are some of them.
        may_return: some kernels have threads that return before others meet.

    Attributes:
        kinds: dtypes of `xa`, `xb`, `xc`, `rows` and `xz`.
        block: threads along each axis; no lane is asked that is not there.
    """

    def __init__(self, seed: int, may_return: bool) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._depth = 1
        self.block = self._random.choice(BLOCKS)
        self._loops: list[bool] = []  # whether the threads of the block run each together
        self._stores = self._fresh = 0
        self._has_returned = False
        self._has_warps = self._is(0.4)
        self._has_returns, self._has_grid = self._is(0.3) and may_return, self._is(0.1)
        self.kinds = [*(self._one(KINDS) for _ in range(4)), self._one(["c8", "c16"])]
        self._forms = [kind for kind in kernel_forms.KINDS if self._is(0.25)]

    def source(self) -> str:
        for name in _NUMBERS:
            self._line(f"{name} = {self._one(['xa[i]', 'xb[t]', 'xc[i]', 't', 'True', '0.5'])}")
        for name in "fg":
            self._line(f"{name} = {self._one(['xa[1]', 'xb[2]', 'm', '2', '0.5', 'xc[3] > 9'])}")
        self._block("block", self._random.randrange(3, 10))
        for column, name in enumerate([*_INTS, *_NUMBERS, *"uvfgw"]):
            if self._is(0.7):
                self._line(f"z[i, {column}] = {name}")
        ends = [end for kind in self._forms for end in kind.ends]
        for column, (name, text) in enumerate(ends, _ENDS):
            if re.search(rf"\b({name})\b", "\n".join(self._lines)):
                self._line(f"z[i, {column}] = {text}")
        body = "\n".join(self._lines)
        lines = [*_HEAD, *(line for kind in self._forms for line in kind.head)]
        head = [text for name, text in lines if re.search(rf"\b({name})\b", body)]
        return "\n".join([_FIRST, *("    " + text for text in head), body, ""])

    def _is(self, share: float) -> bool:
        return self._random.random() < share

    def _one(self, choices: Any) -> str:
        return str(self._random.choice(choices))

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    # --- values ---

    def _leaf(self, same: bool = False) -> str:
        x, k = self._one(["xa", "xb", "xc"]), self._random.randrange(1, 9)
        names = ["u", "v", "m", "2", "0.5", "True", "uint8(200)", "point.k", f"{x}[{k}]",
                 "rows[1, 2]", "records[1].b", "f", "g", "f", "g", "int8(-3)"]  # fmt: skip
        names += [f"k{n}" for n, of_all in enumerate(self._loops) if of_all]
        if not same:
            row = f"{self._one(_ROWS)}[{self._one(['0', '1', '-1', 't % 2'])}]"
            names += ["t", "i", "w", f"{x}[i]", f"{x}[i]", f"{x}[t + {k}]", f"{x}[a % 64]",
                      "l[b % 4]", row, row, "int32(t)", f"point.x[{self._one('tiw')} % 8]",
                      f"float32(int64({self._one(_NUMBERS)}) % 999)"]  # fmt: skip
            names += [*_NUMBERS, *_NUMBERS, *_INTS, *(f"k{n}" for n in range(len(self._loops)))]
        return self._one(names)

    def _value(self, same: bool = False) -> str:
        """Of any type; bounded, in loops too."""
        a, b, one = self._leaf(same), self._leaf(same), "m + 1" if same else "t + 1"
        exact = f"{a} / 4" if not self._loops else f"{a} / 2"
        return self._one([
            a, a, f"({a} + {b}) % 1021", f"({a} * 2) % 511", f"{a} % 300 - ({one})", f"{a} < {b}",
            f"{exact} % 128", f"{a} // 3", f"max({a} * 2, {b} * 2) % 777", f"min({a} * 2, 2.5)",
            f"abs({a} % 100 - ({one}))", f"({a} if {self._condition(same)} else {b})",
            f"(int64({a}) ^ {one}) % 1021", f"float64({a})", f"int64({a}) % 1021", f"0 - {a} % 99",
        ])  # fmt: skip

    def _int(self, same: bool = False) -> str:
        names = ["u", "v", "m", "1", "3", "cuda.blockIdx.x"]
        names += [f"k{n}" for n, of_all in enumerate(self._loops) if of_all or not same]
        if not same:
            names += [*_INTS, *_INTS, "t", "w", "l[a % 4]", "l[u % 4]", "e[c % 3]"]
        a, b, c = (self._one(names) for _ in range(3))
        return self._one([
            f"({a} {self._one('+*^-|')} {b}) % 1021", f"({a} {self._one('+^-')} {b} + {c}) % 1021",
            f"int64({a} if {self._condition(same)} else {b})", f"int64({a})",
        ])  # fmt: skip

    def _condition(self, same: bool = False) -> str:
        tests = ["u % 2 == 0", "m > 2", "v > u", "cuda.blockIdx.x == 1", "f > 3", "f > g", "f",
                 "u > 300", "g % 2 > 1", "colour == Colour.RED", "shade == Shade.LIGHT",
                 "xa[1] > xb[2]", "nothing is None and m == 3"]  # fmt: skip
        tests += [f"k{n} == 1" for n, of_all in enumerate(self._loops) if of_all]
        if same:
            return self._one(tests)
        own = ["t % 3 == 1", "t < 9", "a > b", "b % 2 == 0", "c > 500", "i % 5 < 2", "not p",
               "xa[i] > 40", "t == 5", "p > q", "r < 3", "t % 2 == 0 and q > 1",
               "a == b or t > 7"]  # fmt: skip
        return self._one([*own, *own, self._one(tests)])

    # --- statements ---

    def _block(self, scope: str, count: int) -> None:
        for _ in range(count):
            self._statement(scope)

    def _statement(self, scope: str) -> None:
        same = scope == "block"
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._assign, 10), (self._augment, 3), (self._bind, 4), (self._tuple, 4),
            (self._store, 3), (self._own_memory, 3), (self._call, 2), (self._sum, 2),
        ]  # fmt: skip
        if same:
            kinds += [(self._assign_same, 7), (self._exchange, 8), (self._vote, 3), (self._meet, 5)]
        if scope in ("block", "warp") and self._has_warps:
            kinds.append((self._warp, 8 if scope == "warp" else 4))
        if self._forms:
            kinds.append((lambda: self._form(same and not self._has_returned), 12))
        if self._depth < 4 and len(self._lines) < 70:
            kinds += [(lambda: self._branch(scope), 6), (lambda: self._loop(scope), 6)]
        if self._depth == 1:
            if self._has_returns:
                kinds.append((self._return, 2))
            if self._has_grid and not self._has_returned:
                kinds.append((self._grid, 6))
        actions, weights = zip(*kinds, strict=True)
        self._random.choices(actions, weights)[0]()

    def _assign(self) -> None:
        if self._is(0.3):
            self._line(f"{self._one(_INTS)} = {self._int()}")
        else:
            self._line(f"{self._one(_NUMBERS)} = {self._value()}")

    def _assign_same(self) -> None:
        if self._is(0.5):
            self._line(f"{self._one('uv')} = {self._int(same=True)}")
        else:
            self._line(f"{self._one('fg')} = {self._value(same=True)}")

    def _augment(self) -> None:
        self._line(f"{self._one(_NUMBERS)} += {self._leaf()}")

    def _store(self) -> None:
        column = 11 + self._stores % (_ENDS - 11)
        self._line(f"z[i, {column}] += {self._one([*_NUMBERS, *_INTS, *'uvwfg'])}")
        self._stores += 1

    def _bind(self) -> None:
        """Rows of arrays, of what a thread has for itself, and those arrays, bound again."""
        name, k = self._one(_ROWS), self._one(["(i + 1)", "a", "u", "(t * 3)"])
        self._line(self._one([
            f"{name} = rows[{k} % 8]", f"{name} = rows[{k} % 8, 1:4]", "row, other = other, row",
            "l, e = e, l", f"{name} = {name} if {self._condition()} else rows[t % 8]",
            f"{name} = {name}[1:] if {name}.shape[0] > 3 else rows[t % 8]", "e = l", "l = d[t % 2]",
            "p = p + l.shape[0]", f"q, p = p, {name}[1]",
        ]))  # fmt: skip

    def _tuple(self) -> None:
        """A tuple, a named one or a record, that may be kept over a barrier."""
        self._fresh += 1
        fresh, a, b = f"v{self._fresh}", self._leaf(), self._leaf()
        # Numba does not unify named tuples whose members differ in type, as it does plain ones.
        made, taken = self._random.choice([
            (f"({a}, ({b}, t))", "{}[1][0]"), (f"({a}, {b}, row)", "{0}[2][1] + {0}[0]"),
            (f"pair_of({a}, {b})", "{}[0] % 1021"), (f"pair_of({a}, b={b})", "{}[1]"),
            (f"pair_of({a})", "{}[0] % 1021"),
            (f"Point(int64({a}), int64({b}))", "{0}.k + {0}.x % 512"),
            ("records[i % 3]", "{0}.a + {0}.b - {0}['c']"), ("nothing", "t if {} is None else 7"),
            ("shade", "1 if {} == Shade.LIGHT else t"),
            (f"Point(row, int64({a}))", "{0}.x[0] + {0}.k"),
        ])  # fmt: skip
        self._line(f"{fresh} = {made}")
        if self._depth == 1 and self._is(0.6):
            self._meet()
        name = self._one(_NUMBERS)
        self._line(f"{name} = ({taken.format(fresh)}) % 1021")

    def _own_memory(self) -> None:
        a, b = self._one(_INTS), self._one([*_INTS, "t", "u"])
        self._line(self._one([
            f"l[{b} % 4] = {a}", f"e[{b} % 4] += 1", f"d[{a} % 2, {b} % 4] = t", f"l[1] = {a}",
            f"for x in {self._one('le')}:\n{'    ' * self._depth}    c = (c + x) % 1021",
        ]))  # fmt: skip

    def _call(self) -> None:
        limit = self._one(["3", "t % 5", "m"])
        self._line(f"{self._one(_NUMBERS)} = until({self._leaf()}, {limit})")

    def _sum(self) -> None:
        """Loops that can be turned inside out, and grid-stride loops."""
        name, x = self._one([*_NUMBERS, *_INTS]), self._one(["xa", "xb", "xc"])
        if name in _INTS:
            x = "int64(" + x
        over, index = self._random.choice([
            ("20", "j"), ("m * 9", "t + j"), ("n", "j"), ("i, 128, cuda.gridsize(1)", "j"),
            ("t, 64, n", "j"), ("u % 30", "i"), ("17", "(t * 3 + j) % 128"),
        ])  # fmt: skip
        self._line(f"for j in range({over}):")
        self._line(f"    {name} += {x}[{index}]{')' if '(' in x else ''}")

    def _meet(self) -> None:
        self._line("cuda.syncthreads()")

    def _vote(self) -> None:
        kind = self._one(["count", "and", "or"])
        self._line(f"{self._one('uv')} = cuda.syncthreads_{kind}(int32(bool({self._condition()})))")

    def _exchange(self) -> None:
        a, b, n = self._one(_INTS), self._one(_INTS), self._one(_NUMBERS)
        match self._random.randrange(4 if self._has_returned else 7):
            case 0 | 1:
                self._line(f"s[t] = {a}")
                self._meet()
                step = self._one(["1", "abs(u)", "abs(v)"])
                self._line(f"{b} = s[(t * {self._one('135')} + {step}) % n]")
                self._meet()
            case 2:
                self._line(f"s[t] = {a}")
                self._meet()
                self._line(f"for j in range({self._one(['t, n, 7', 'n', 't % 5', 'm * 7'])}):")
                self._line(f"    {b} = ({b} + s[j % n]) % 1021")
                self._meet()
            case 3:
                self._meet()
                self._line(f"cuda.atomic.{self._one(['add', 'max'])}(counts, {a} % 4, t)")
                self._meet()
                self._line(f"{b} = counts[t % 4]")
                self._line(f"{self._one('uv')} = counts[1] % 1021")
                self._meet()
            case 4:
                self._line(f"{self._one(_NUMBERS)} = exchanged({n} % 1021, t, n)")
            case 5:
                self._line(f"{self._one(_NUMBERS)} = kept(float64({n}), t, m)")
                self._line(f"{self._one(_NUMBERS)} = kept(0.0, t, m - m)")
            case _:
                self._line(f"{self._one(_NUMBERS)} = rounds({a} % 100, t, n, {self._one('1234m')})")

    def _form(self, is_met: bool) -> None:
        """What `kernel_forms` has of the kinds that this kernel is about."""
        kind = self._random.choice(self._forms)
        form = self._one(kind.block if is_met and self._is(0.4) else kind.own)
        text = form.format(
            a=self._one(_INTS), b=self._one(_INTS), p=self._one(_NUMBERS), q=self._one(_NUMBERS),
            c=self._condition(), k=self._one("135"), u=self._one("uvm"), f=self._one("fg"),
        )  # fmt: skip
        for line in text.split("\n"):
            self._line("cuda.syncthreads()" if line == "sync" else line)

    def _warp(self) -> None:
        a, b, n = self._one(_INTS), self._one(_INTS), self._one(_NUMBERS)
        ways = ["sync", "own", "vote"]
        if not self._has_returned:
            ways += ["shuffle", "shuffle", "part", "halves"]
        match self._one(ways):
            case "sync":
                self._line(f"s[t] = {a}\n{'    ' * self._depth}cuda.syncwarp()")
                self._line(f"{b} = s[t ^ 1] if (t ^ 1) < n else 7")
                self._line("cuda.syncwarp()")
            case "own":
                count = f"cuda.popc(cuda.ballot_sync(-1, bool({self._condition()})))"
                self._line(f"w = (w + {count}) % 1021")
            case "vote":
                vote = self._one(["any", "all"])
                self._line(f"{n} = cuda.{vote}_sync(-1, bool({self._condition()}))")
            case "shuffle":
                kinds = [("xor_", "1"), ("xor_", "3"), ("up_", "1"), ("", "2")]
                kinds += [("down_", "2")] * (math.prod(self.block) % 32 == 0)
                kind, step = self._random.choice(kinds)
                value = self._one([f"{a}", f"float64({n})", f"float32(int64({n}) % 99)"])
                self._line(f"{self._one(_NUMBERS)} = cuda.shfl_{kind}sync(-1, {value}, {step})")
            case "halves":
                for head, mask, lane in (("if t % 2", 0xAAAAAAAA, 3), ("else", 0x55555555, 2)):
                    self._line(f"{head}:")
                    self._line(f"    for j in range({self._one(['2', 'm', 'w % 3', '1'])}):")
                    self._line(f"        {a} = ({b} + cuda.shfl_sync({mask}, {a}, {lane})) % 1021")
            case _:
                self._fresh += 1
                self._line(f"mask{self._fresh} = cuda.ballot_sync(-1, {a} > {b})")
                self._line(f"if {a} > {b}:")
                lane = f"cuda.ffs(mask{self._fresh}) - 1"
                self._line(f"    {a} = cuda.shfl_sync(mask{self._fresh}, {b}, {lane})")

    def _grid(self) -> None:
        self._line(f"far[i] = {self._one(_INTS)}")
        self._line("cuda.cg.this_grid().sync()")
        self._line(f"{self._one(_INTS)} = far[(i + n) % (2 * n)]")
        self._line("cuda.cg.this_grid().sync()")

    def _return(self) -> None:
        self._line(f"if {self._condition()}:\n{'    ' * self._depth}    return")
        self._has_returned = True

    # --- ways ---

    def _branch(self, scope: str) -> None:
        inner = self._inner(scope)
        self._line(f"if {self._test(inner)}:")
        self._indented(inner)
        if self._is(0.5):
            self._line("else:")
            self._indented(inner)

    def _loop(self, scope: str) -> None:
        inner = self._inner(scope)
        counter = f"k{len(self._loops)}"
        over = {
            "block": ["2", "m", "u % 4", "3", "v % 3, 4", "20"],
            "warp": ["2", "w % 3", "t // 32 + 1", "u % 3"],
        }.get(inner, ["t % 4", "a % 3", "2", "b % 5", "i, 2 * n, 11", "t, n, n", "m"])
        self._line(f"for {counter} in range({self._one(over)}):")
        self._loops.append(inner == "block")
        self._indented(inner)
        if self._is(0.3):
            self._line(f"    if {self._test(inner)}:")
            self._line(f"        {self._one(['break', 'continue'])}")
            self._depth += 1
            self._statement(inner)
            self._depth -= 1
        self._loops.pop()

    def _inner(self, scope: str) -> str:
        """Who runs together inside of a branch or loop."""
        scopes = ["own"]
        if scope == "block":
            scopes += ["block", "block"]
        if scope != "own" and self._has_warps:
            scopes += ["warp", "warp"]
        return self._one(scopes)

    def _test(self, scope: str) -> str:
        if scope == "warp":
            return self._one(["t < 32", "t // 32 == 1", "w % 2 == 0", "w > 1", "u % 2 == 0"])
        return self._condition(same=scope == "block")

    def _indented(self, scope: str) -> None:
        self._depth += 1
        self._block(scope, self._random.randrange(1, 3))
        self._depth -= 1


_FIRST = "def kernel(z, far, made, xa, xb, xc, xz, xh, rows, records, eight, m, nothing=None):"
_HEAD = [  # lines that are there if the kernel uses one of the names
    ("s", "s = cuda.shared.array(64, int64)"),
    ("counts", "counts = cuda.shared.array(4, int64)"),
    ("z", "t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y"),
    ("z", "n = cuda.blockDim.x * cuda.blockDim.y"),
    ("z", "i = cuda.blockIdx.x * n + t"),
    ("a|b|c", "a, b, c = int64(xa[i]), int64(t), int64(m)"),
    ("u|v", "u, v = int64(m + 1), int64(cuda.blockIdx.x + 3)"),
    ("w", "w = int64(t // 32)"),
    ("l|e|d", "l, e = cuda.local.array(4, int64), cuda.local.array(4, int64)"),
    ("d", "d = cuda.local.array((2, 4), int64)"),
    ("l|e|d", "for k in range(4):"),
    ("l|e|d", "    l[k], e[k] = t, k"),
    ("d", "    d[0, k], d[1, k] = t + k, -k"),
    ("row|other", "row, other = rows[i % 8], rows[(t + 1) % 8]"),
    ("colour", "colour = Colour.RED if m == 3 else Colour.BLUE"),
    ("shade", "shade = Shade.LIGHT if m == 3 else Shade.DARK"),
    ("point", "point = Point(eight, m - 1)"),
    ("s", "s[t] = 0"),
    ("counts", "counts[t % 4] = 0"),
    ("s|counts", "cuda.syncthreads()"),
]
