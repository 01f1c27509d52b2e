"""HTML and SVG that notebooks show for objects, by their `_repr_html_` and `_repr_svg_`.

Text is escaped, there are no scripts and no references to anything else, and colours are those of
the page around, so that light and dark pages show the same. Nothing here waits for a device: what
is shown is known on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# An entry of a tree: its text, and the entries below it.
Entry = tuple[str, "list[Entry]"]

MOST_NODES = 100  # that a picture shows
_MOST_LETTERS = 24  # of a node's name
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 180, 30, 30, 30  # of a node, and between nodes, in pixels
_CELL = ' style="text-align: left; padding: 2px 8px"'


def table(title: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """A table with a caption. The first cell of a row is its heading."""
    lines = [f'<table><caption style="text-align: left">{_escaped(title)}</caption>']
    if columns:
        cells = "".join(f"<th{_CELL}>{_escaped(c)}</th>" for c in columns)
        lines.append(f"<thead><tr>{cells}</tr></thead>")
    lines.append("<tbody>")
    for first, *others in rows:
        cells = "".join(f"<td{_CELL}>{_escaped(str(cell))}</td>" for cell in others)
        lines.append(f"<tr><th{_CELL}>{_escaped(str(first))}</th>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def tree(title: str, entries: list[Entry]) -> str:
    """Nested lists."""
    return f"<div>{_escaped(title)}\n{_listed(entries)}</div>"


def _listed(entries: list[Entry]) -> str:
    if not entries:
        return ""
    items = (f"<li><code>{_escaped(text)}</code>{_listed(below)}</li>" for text, below in entries)
    return f"<ul>{''.join(items)}</ul>"


def picture(names: Sequence[str], edges: Iterable[tuple[int, int]]) -> str:
    """Boxes with names, each below those that it starts after, and lines between them.

    Args:
        names: of the nodes, by number, in an order that the edges agree with.
        edges: pairs of numbers: the second starts after the first. Those of nodes that are not
            shown are left out.
    """
    shown = list(names[:MOST_NODES])
    kept = sorted((a, b) for a, b in edges if b < len(shown))
    rows = [0] * len(shown)
    for a, b in sorted(kept, key=lambda edge: edge[1]):
        rows[b] = max(rows[b], rows[a] + 1)
    taken: dict[int, int] = {}
    places = []
    for row in rows:
        column = taken.get(row, 0)
        taken[row] = column + 1
        places.append((column * (_WIDTH + _ACROSS) + 1, row * (_HEIGHT + _DOWN) + 1))
    width = max((x for x, _ in places), default=0) + _WIDTH + 1
    height = max((y for _, y in places), default=0) + _HEIGHT + 1
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img"',
        f'viewBox="0 0 {width} {height}" fill="none" stroke="currentColor">',
        f"<title>{len(names)} nodes</title>",
    ]
    lines += [_line(places[a], places[b]) for a, b in kept]
    lines += [_box(name, x, y) for name, (x, y) in zip(shown, places, strict=True)]
    return "\n".join([*lines, "</svg>"])


def _line(above: tuple[int, int], below: tuple[int, int]) -> str:
    """From the lower edge of one box to an arrowhead at the upper edge of another."""
    x0, y0 = above[0] + _WIDTH // 2, above[1] + _HEIGHT
    x1, y1 = below[0] + _WIDTH // 2, below[1]
    return (
        f'<path d="M{x0} {y0}L{x1} {y1 - 6}"/>'
        f'<path d="M{x1 - 4} {y1 - 8}L{x1} {y1}L{x1 + 4} {y1 - 8}z" fill="currentColor"/>'
    )


def _box(name: str, x: int, y: int) -> str:
    text = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 3]}..."
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 19}" text-anchor="middle" font-family="monospace" '
        f'font-size="12" fill="currentColor" stroke="none">{_escaped(text)}</text>'
    )


def _escaped(text: str) -> str:
    from html import escape  # here: few programs show anything

    return escape(text)
