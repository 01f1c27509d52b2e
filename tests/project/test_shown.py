"""What notebooks show for objects: escaped, without scripts, and without waiting."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import numbasync as na
from numbasync import notebook, testing
from tests.common import add_one


def parsed(html: str) -> ElementTree.Element:
    """The elements, which are also well-formed XML; no script, no reference, no handler."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    for element in root.iter():
        assert element.tag.split("}")[-1] not in ("script", "iframe", "image", "use", "style"), html
        for name, value in element.attrib.items():
            assert not name.startswith("on") and "href" not in name and "url(" not in value, html
    return root


def text_of(html: str) -> str:
    return " ".join(" ".join(parsed(html).itertext()).split())


def test_a_tensor(device: na.Device) -> None:
    with na.use_device(device):
        t = na.zeros((3, 4), np.int32).sync()
    told = f"Tensor shape (3, 4) dtype int32 bytes 48 device {device.label} state "
    assert text_of(t._repr_html_()) == f"{told}ready"
    assert text_of(t.shared()._repr_html_()) == f"Shared{told}ready"
    moved = t.take()
    assert text_of(t._repr_html_()).endswith("state moved by take()")
    assert text_of(moved._repr_html_()) == f"{told}ready"
    meta = na.meta(4).sync()
    assert text_of(meta._repr_html_()).endswith("device none, of na.meta state no memory")


def test_a_tensor_is_shown_without_waiting(device: na.Device, stream: na.Stream) -> None:
    with na.use_device(device):
        t = na.zeros(4).sync()
    na.fill(t, 1).sync_on(stream)  # loads what fills
    with testing.gate(stream):
        na.fill(t, 2).async_on(stream)
        assert text_of(t._repr_html_()).endswith("state being written by work in flight")
    stream.synchronize()
    assert text_of(t._repr_html_()).endswith("state ready")


def entries(html: str) -> list[Any]:
    """The nested lists of a tree: for each item its text, and its list."""
    found = parsed(html).find("div/ul")
    return [] if found is None else _entries(found)


def _entries(of: ElementTree.Element) -> list[Any]:
    found = []
    for item in of.findall("li"):
        below = item.find("ul")
        found.append((str(item.findtext("code")), [] if below is None else _entries(below)))
    return found


def test_an_operation_is_a_tree() -> None:
    shared = na.ones(3).shared()
    op = na.zip(
        add_one(na.zeros(4)).then(lambda r: na.value(r)).to_host(),
        na.concatenate([na.ones(2), np.ones(3, np.float32)]),
        shared,
    )
    assert ".to_host(), concatenate(" in str(op), "what no program has written is not shown"
    assert entries(op._repr_html_()) == [
        (str(op), [
            ("0: add_one(z)", [("z: zeros((4,))", [])]),
            (".then(<lambda>)", []),
            (".to_host()", []),
            ("1: concatenate(2 tensors)", [("0: ones((2,))", [])]),
            ("2: ones((3,)).shared()", [("ones((3,))", [])]),
        ])
    ]  # fmt: skip
    assert text_of(op._repr_html_()).startswith("DeviceOp, not run")
    shared.sync()
    op.suppress_warning()
    first, _ = na.zip(na.value(1), na.value(2)).unzip()
    ((_, [(zipped, _)]),) = entries(first._repr_html_())
    assert zipped == "zip(value(int), value(int)).shared()"
    assert first.sync() == 1
    assert text_of(first._repr_html_()).startswith("DeviceOp, used")


def test_a_long_or_deep_operation_is_cut_off() -> None:
    op: na.DeviceOp[Any] = na.value(0)
    for _ in range(100):
        op = op.map(lambda x: x + 1)
    shown = entries(op._repr_html_())
    assert len(shown) == 52 and shown[-1] == ("... 50 more", [])
    assert op.sync() == 100
    wide = na.zip(*map(na.value, range(70)))
    ((_, parts),) = entries(wide._repr_html_())
    assert len(parts) == 51 and parts[-1] == ("... 20 more", [])
    wide.suppress_warning()
    deep: na.DeviceOp[Any] = na.value(0)
    for _ in range(30):
        deep = na.zip(deep)
    assert deep._repr_html_().count("<ul>") == 13
    deep.suppress_warning()


def test_a_graph(device: na.Device, stream: na.Stream) -> None:
    with na.use_device(device):
        z, x = na.zeros(4).sync(), na.ones(4).sync()
    with na.CudaGraph.scope(stream) as s:
        s.record(na.fill(x, 3))
        beside = s.fork()
        beside.record(na.fill(z, 1))
        s.record(add_one(x))
        s.join(beside)
        s.record(na.memcpy(z, x))
    root = parsed(s.graph._repr_html_())
    assert "CudaGraph on" in "".join(root.itertext())
    svg = parsed(s.graph.topology()._repr_svg_())
    name = "{http://www.w3.org/2000/svg}"
    assert [t.text for t in svg.iter(f"{name}text")] == ["fill", "fill", "add_one", "copy"]
    places = [(r.get("x"), r.get("y")) for r in svg.iter(f"{name}rect")]
    assert places == [("1", "1"), ("1", "61"), ("211", "61"), ("1", "121")]
    edges = len(s.graph.topology().edges)
    assert len([*svg.iter(f"{name}path")]) == 2 * edges == 8


def test_a_plan_an_explanation_and_results() -> None:
    b = na.CommandBatch()
    odds = b.softmax(b.upload(np.ones((64, 1000), np.float32)))
    columns = b.sum(odds, axis=0)
    plan = b.plan()
    told = text_of(plan._repr_html_())
    assert all(cell in told for row in plan.rows() for cell in row)
    assert all(why in told for why in plan.reasons()) and plan.reasons()
    del columns
    explained = add_one.explain(na.meta(1000))
    assert "bytes written 4,000 bytes" in text_of(explained._repr_html_())
    tuned = na.autotune(add_one, [{"threads": 32}, {"threads": 5000}], rounds=2)
    results = tuned.results(na.zeros(8).sync())
    assert isinstance(results, tuple) and len(results) == 2
    told = text_of(results._repr_html_())
    assert "threads=32 pending" in told and "threads=5000 pending" in told
    assert "threads=32 pending" in text_of(results[0]._repr_html_())


@pytest.mark.parametrize("text", ["<script>x</script>", '"&amp;"', "a" * 200])
def test_text_is_escaped(text: str) -> None:
    assert text_of(notebook.table(text, [(text, text)], (text, text))).count(text) == 5
    assert text_of(notebook.tree(text, [(text, [(text, [])])])).count(text) == 3
    shown = text_of(notebook.picture([text], []))
    assert text[:21] in shown and "<script>" not in notebook.picture([text], [])


def test_a_picture_of_many_nodes_is_cut_off() -> None:
    count = notebook.MOST_NODES + 50
    picture = notebook.picture(["node"] * count, [(i, i + 1) for i in range(count - 1)])
    assert picture.count("<rect") == notebook.MOST_NODES
    assert f"{count} nodes" in text_of(picture)
    assert len(re.findall("<path", picture)) == 2 * (notebook.MOST_NODES - 1)


def test_ipython_shows_it() -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    op = na.value(1)
    for one in (na.zeros(3).sync(), op, na.fill(na.zeros(3).sync(), 1).graph().topology()):
        shown, _ = formatters.DisplayFormatter().format(one)
        assert shown.keys() >= {"text/plain"} and len(shown) == 2, shown.keys()
    op.suppress_warning()
