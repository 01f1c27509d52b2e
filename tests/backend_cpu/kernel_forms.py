"""Statements of random kernels about one kind of thing: complex numbers, floats of 16 and 32 bits,
records that are written, dynamic shared memory. A kernel has some of these kinds, or none.

What the writer draws stands for itself in a form: `{a}` and `{b}` integers, `{p}` and `{q}`
numbers, `{c}` a condition, `{k}` an index of a small array, `{u}` and `{f}` what all threads of the
block have the same. `sync` is a barrier.

Numbers stay exact: components of complex numbers and floats of 32 bits are under 1000 with at most
four bits behind the point, those of 16 bits under 128 with two. numba-cuda rounds float16 to the
nearest integer, as Python does not; float32 stands between.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What kernels do with one kind of thing.

    Attributes:
        head: lines before all others, each with the names that need it.
        own: forms that a thread carries out by itself.
        block: forms that all threads of the block carry out, none having returned.
        ends: values that are written at the end, each with the name that it is of.
    """

    head: tuple[tuple[str, str], ...]
    own: tuple[str, ...]
    block: tuple[str, ...]
    ends: tuple[tuple[str, str], ...]


_MINE = "sync\nown = made[i]"
_TALLIED = "if t < 4:\n    tally[t] = {u}\nsync\n"
_TALLY = "sync\nfb = float32(int64(tally[t % 4]) % 999)\nsync"

COMPLEX = Kind(
    head=(
        ("cx|cy", "cx, cy = complex(t, m), xz[i]"),
        ("lz", "lz = cuda.local.array(2, complex64)"),
        ("lz", "lz[0], lz[1] = xz[t], 0"),
        ("sz", "sz = cuda.shared.array(64, complex128)"),
        ("sy", "sy = cuda.shared.array(64, complex64)"),
    ),
    own=(
        "cx = complex(float64(int64({p}) % 99), {a} % 99)", "cx = xz[(t + {k}) % 128]",
        "cx, cy = cy, cx", "cy = cx * 1j", "cx = -cy.conjugate()", "cx = cx if {c} else cy",
        "cy = {a} % 99 + 2j if {c} else cx", "cy = complex64(complex({a} % 99, t))",
        "cx = complex((cx + cy).real % 99, (cx - cy).imag % 99)",
        "cy = complex(int64((cx * cy).real) % 99, (cx * 2).imag % 99)", "cx = {a} % 99",
        "{p} = cx.real", "{p} = int64(cx.imag) - {k}", "{p} = cx == cy", "{p} = abs(cy.imag)",
        "{a} = int64(cx.real) % 1021", "lz[{k} % 2] = cx", "cy = lz[{b} % 2]",
        "cx, {p} = turned(cy, {q} > 3)", "cx = turned(xz[t], cy == cx)[0]",
        "for j in range({u} % 4):\n    cx = complex(-cx.imag, cx.real) if j % 2 else cx * -1j",
    ),
    block=(
        "sz[t] = cx\nsync\ncy = sz[(t + {k}) % n]\nsync",
        "sy[t] = cy\nsync\ncx = sy[n - 1 - t] if {c} else sy[t]\nsync",
        "cx = complex(int64({f} > 2), {u} % 9)\nsync\ncy = cx",
        "cy = passed(cx, t, n)", "cx = complex64(passed(complex64(cy), t, n))",
    ),
    ends=(("cx", "cx.real - 128 * cx.imag"), ("cy", "cy.real + 128 * cy.imag")),
)  # fmt: skip

HALF = Kind(
    head=(
        ("ha|hb", "ha, hb = float16(t % 60), xh[i]"),
        ("lh", "lh = cuda.local.array(4, float16)"),
        ("lh", "for k in range(4):"),
        ("lh", "    lh[k] = float16(k)"),
        ("sh", "sh = cuda.shared.array(64, float16)"),
    ),
    own=(
        "ha = float16(int64({p}) % 60)", "ha = xh[(t + {k}) % 128]", "ha, hb = hb, ha",
        "ha = near(ha + hb)", "hb = near(ha - hb)", "hb = near(ha * float16(2))", "ha = -ha",
        "hb = abs(ha)", "ha = ha if {c} else hb", "ha = max(ha, hb)", "hb = min(ha, float16(t))",
        "hb = near(float16(int64(float32(ha))) / float16(2))", "ha += float16(1)\nha = near(ha)",
        "{p} = float32(ha)", "{p} = float64(ha + hb)", "{p} = ha < hb", "{a} = int64(float32(ha))",
        "{p} = float32(hb) * 2", "lh[{k} % 4] = ha", "hb = lh[{b} % 4]", "hb = float16({c})",
        "for j in range({u} % 4):\n    hb = near(hb + xh[j])",
    ),
    block=(
        "sh[t] = ha\nsync\nhb = sh[(t + {k}) % n]\nsync",
        "s[t], sh[t] = {a}, hb\nsync\n{b}, ha = s[n - 1 - t], sh[(t + {k}) % n]\nsync",
        "sh[t] = near(hb + ha)\nsync\nha = sh[n - 1 - t] if {c} else hb\nsync",
        "ha = float16({u} % 50)\nsync\nhb = near(ha + hb)",
    ),
    ends=(("ha", "float32(ha)"), ("hb", "float32(hb)")),
)  # fmt: skip

SINGLE = Kind(
    head=(
        ("fa|fb", "fa, fb = float32(t), float32(xa[i])"),
        ("lf", "lf = cuda.local.array(4, float32)"),
        ("lf", "for k in range(4):"),
        ("lf", "    lf[k] = k"),
        ("sf", "sf = cuda.shared.array((2, 64), float32)"),
        ("tally", "tally = cuda.shared.array(4, float32)"),
    ),
    own=(
        "fa = float32(int64({p}) % 999)", "fa = float32(int64(fa * fb) % 999)",
        "fb = float32((fa + fb) % float32(500))", "fa = abs(fa - fb) % float32(99)",
        "fa, fb = fb, fa", "fb = fa if {c} else fb", "fa = max(fa, fb)", "fb = float32({c})",
        "fa = min(float32({a} % 99), fb)", "fb = float32(int64(fa) // 3)", "fa = {a} % 99",
        "{p} = fa", "{p} = fa > fb", "{a} = int64(fb)", "{p} = fa / float32(4)",
        "lf[{k} % 4] = fa", "fb = lf[{b} % 4]", "{p} = math.floor(fa / float32(4))",
        "for j in range({u} % 9):\n    fa = (fa + lf[j % 4]) % float32(500)",
        "fa = float32(math.fmod(fa, float32(7)))", "{p} = math.sqrt(float32(int64(fb) % 9) ** 2)",
    ),
    block=(
        "sf[0, t] = fa\nsf[1, t] = fb\nsync\nfa, fb = sf[1, (t + {k}) % n], sf[0, n - 1 - t]\nsync",
        _TALLIED + "cuda.atomic.add(tally, {a} % 4, float32(int64(fa)))\n" + _TALLY,
        _TALLIED + "cuda.atomic.max(tally, t % 4, float32(fb))\n" + _TALLY,
        "fa = float32({u} % 50)\nsync\nfb = (fa + fb) % float32(99)",
    ),
    ends=(("fa", "fa"), ("fb", "fb")),
)  # fmt: skip

RECORDS = Kind(
    head=(
        ("own", "own = made[i]"),
        ("mine", "mine = cuda.local.array(2, cell)"),
        ("mine", "mine[0], mine[1] = records[t % 3], records[1]"),
        ("cells", "cells = cuda.shared.array(64, cell)"),
        ("cells", "cells[t] = records[0]"),
        ("cells", "cuda.syncthreads()"),
    ),
    own=(
        "own.a = {a}", "own.b = float64({p})", "own['c'] = abs({a}) % 200", "made[i].a = t",
        "made[i]['b'] = {a} % 99 / 4", "made[i] = records[{k} % 3]", "{p} = own.b % 1021",
        "{a} = int64(own.a) % 1021", "{p} = own['c'] + made[i].a % 99", "own.a = own.a % 99 - 1",
        "own = made[i]", "own = made[i] if {c} else mine[{k} % 2]", "own = mine[{b} % 2]",
        "mine[{k} % 2].a = {a}", "mine[{b} % 2] = own", "{a} = mine[{b} % 2].a % 1021",
        "made[i] = mine[{k} % 2]", "own.b, own.a = own.a % 512, {b} % 512", "written(own, {a})",
        "{a} = written(mine[{k} % 2], {b})", "if {c}:\n    own.a = 3\nelse:\n    own.c = 9",
        "for j in range({u} % 4):\n    own.b = (own.b + own.a) % 512",
    ),
    block=(
        "made[i].a = {a}\nsync\n{b} = made[i - t + (t + {k}) % n].a\nsync",
        "made[i].b = float64({p})\nown.c = {u} % 200\nsync\n{q} = made[i - t + n - 1 - t].b\nsync",
        "cells[t].a = {a}\ncells[t].c = t\nsync\nown = cells[(t + {k}) % n]\n{b} = own.a\n" + _MINE,
        "cells[t] = made[i]\nsync\nmade[i] = cells[n - 1 - t]\nsync",
        "own = made[i]\nsync\nown.a = {a}\nsync\n{b} = made[i].a",
    ),
    ends=(("own|made", "own.a + own.b - made[i].c"), ("mine", "mine[0].a - mine[1].b")),
)  # fmt: skip

DYNAMIC = Kind(
    head=(
        ("dy|up|df", "dy = cuda.shared.array(0, int64)"),
        ("up", "up = dy[dy.shape[0] - n:]"),
        ("df", "df = cuda.shared.array(0, float32)"),
        ("dy|up|df", "dy[t], dy[n + t] = 0, t"),
        ("dy|up|df", "cuda.syncthreads()"),
    ),
    own=(
        "dy[n + t] = {a}", "{a} = dy[n + t] % 1021", "up[t] = {a}", "{b} = up[t]",
        "up[t] += 1\n{a} = up[t] % 1021", "{p} = dy.shape[0] - up.shape[0]",
        "up = dy[n:] if {c} else up", "cuda.atomic.add(up, t, 2)\n{b} = up[t] % 1021",
    ),
    block=(
        "dy[t] = {a}\nsync\n{b} = dy[(t + {k}) % n]\nsync",
        "dy[t], s[t] = {a}, {b}\nsync\n{a}, {b} = s[(t + {k}) % n], dy[n - 1 - t]\nsync",
        "df[t], df[n + t] = {a}, {u}\nsync\n{p}, {q} = df[(t + {k}) % n], df[2 * n - 1 - t]\nsync",
        "up[t] = {a}\nsync\n{b} = up[n - 1 - t]\nsync", "{p} = lent(float64({q}), t, n)",
        "dy[t] = {a}\nsync\nfor j in range(n):\n    {b} = ({b} + dy[j]) % 1021\nsync",
    ),
    ends=(("dy", "dy[n + t]"), ("up", "up[t]")),
)  # fmt: skip

KINDS = (COMPLEX, HALF, SINGLE, RECORDS, DYNAMIC)
