"""The site, built and read in a browser: what a reader sees at both widths, in both colours.

The browser is Chromium, which finds no host but this machine. What it asks others for is noted.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]'")

WIDTHS = (1400, 390)  # of a desk and of a telephone, in pixels
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
# Tables, blocks of code and pictures that stick out of the column, without a box within it that
# scrolls. On a telephone the column goes to the edge of the screen.
TOO_WIDE = """() => {
    const column = document.querySelector(".md-content__inner").getBoundingClientRect();
    const edge = innerWidth < 600 ? 17 : 1;
    const isWithin = (box) => box.right <= column.right + edge && box.left >= column.left - edge;
    const out = [];
    for (const one of document.querySelectorAll("article :is(table, pre, img)")) {
        let [box, fits] = [one, isWithin(one.getBoundingClientRect()) || !one.offsetWidth];
        while (!fits && (box = box.parentElement).tagName !== "ARTICLE")
            fits = ["auto", "scroll"].includes(getComputedStyle(box).overflowX)
                && isWithin(box.getBoundingClientRect());
        if (!fits) out.push(one.tagName + ": " + one.textContent.trim().slice(0, 60));
    }
    if (document.documentElement.scrollWidth > innerWidth) out.push("the page itself");
    return out;
}"""

# The page's script gives each table a box that scrolls.
BOXED = """[...document.querySelectorAll("article table:not([class])")].every(
    table => table.closest(".md-typeset__scrollwrap")
)"""
# What moves to its new place, as the search's box does, is there at once. Everything has its place
# and size, and nothing is painted, which is a fifth of the work.
STILL = """addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "*, ::before, ::after {transition: none !important}"
        + "body {visibility: hidden !important}";
    document.head.append(style);
})"""
# A page has its new width when two frames have been drawn; its scripts change the second.
LAID_OUT = "new Promise(then => requestAnimationFrame(() => requestAnimationFrame(then)))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning fails the build."""
    target = tmp_path_factory.mktemp("site")
    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(target)],
        cwd=ROOT, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    return target


@pytest.fixture(scope="module")
def pages(folder: Path) -> list[str]:
    """The addresses of all pages, below the site's."""
    found = folder.rglob("index.html")
    return sorted(p.parent.relative_to(folder).as_posix().replace(".", "") for p in found)


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """The address of the site, which this process serves."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install '.[docs]'"
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium on the path: apt-get install chromium")
    with api.sync_playwright() as running:
        yield running.chromium.launch(executable_path=path, args=list(QUIET))


@pytest.fixture
def opened(browser: Any, site: str) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end of the test no page may have asked another host."""
    asked: list[str] = []
    contexts = []

    def opening(path: str = "", width: int = WIDTHS[0], scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme,
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        contexts.append(context)
        context.on("request", lambda request: asked.append(request.url))
        context.set_default_timeout(300_000)
        page = context.new_page()
        page.goto(site + path)
        return page

    yield opening
    for context in contexts:
        context.close()
    assert asked and [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []


def test_it_is_built(folder: Path, pages: list[str]) -> None:
    assert len(pages) > 40 and {"", "how-to/cancel", "coming-from/numba"} <= set(pages)
    assert not [*folder.rglob("*.py"), *folder.rglob("loop.json")]


def test_powers_are_not_taken_for_emphasis(folder: Path) -> None:
    """`2**-24` without backquotes in a docstring, twice in one paragraph."""
    for page in folder.rglob("index.html"):
        found = re.search(r"\d<strong>[^<]*</strong>", page.read_text(encoding="utf-8"))
        assert found is None, (page.parent.name, found and found[0])


def test_nothing_overflows_and_no_host_is_asked(
    opened: Callable[..., Any], pages: list[str], site: str
) -> None:
    wide, page, widths = [], opened(), WIDTHS
    page.add_init_script(STILL)
    # Building the index of the search for each page would be half of the work. A route could stop
    # that as well, but would turn off the browser's cache.
    blocking = page.context.new_cdp_session(page)
    blocking.send("Network.enable")
    blocking.send("Network.setBlockedURLs", {"urls": ["*/search_index.json"]})
    for path in pages:
        page.goto(f"{site}{path}/" if path else site)
        page.wait_for_function(BOXED)
        for width in widths:
            if page.viewport_size["width"] != width:
                page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(LAID_OUT)
            wide += [(path, width, what) for what in page.evaluate(TOO_WIDE)]
        widths = widths[::-1]  # the next page is loaded at the width that this one ended with
    assert wide == []


def test_a_table_that_sticks_out_is_found(opened: Callable[..., Any]) -> None:
    page = opened("performance/h200/", width=390)
    page.add_init_script(STILL)
    page.reload()
    page.add_style_tag(content="article div {overflow: visible !important}")
    assert any(found.startswith("TABLE") for found in page.evaluate(TOO_WIDE))


@pytest.mark.parametrize("query", ["install", "how to cancel"])
def test_the_search_finds(opened: Callable[..., Any], query: str) -> None:
    wanted = {"install": "get-started/", "how to cancel": "how-to/cancel/"}[query]
    page = opened("reference/")
    page.locator("input.md-search__input").click()
    page.keyboard.type(query)
    # A result's address has the words that were looked for: before all is typed, others.
    page.wait_for_function(
        """word => [...document.querySelectorAll('.md-search-result__item > a')].some(
            a => (new URL(a.href).searchParams.get('h') || '').includes(word))""",
        arg=query.rpartition(" ")[2],
    )
    found = page.locator(".md-search-result__item > a").evaluate_all("all => all.map(a => a.href)")
    assert any(wanted in address for address in found[:3]), found


def test_it_is_light_and_dark(opened: Callable[..., Any]) -> None:
    def brightness(page: Any) -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / (3 * 255)

    def shown(page: Any) -> list[str]:
        names: list[str] = page.locator("article img").evaluate_all(
            "all => all.filter(i => i.offsetWidth).map(i => i.src.split('/').pop().split('#')[0])"
        )
        return names

    light, dark = opened(), opened(scheme="dark")
    assert brightness(light) > 0.9 and brightness(dark) < 0.2
    assert shown(light) == ["loop.svg", "trace.png", "await.svg"]
    assert shown(dark) == ["loop-dark.svg", "trace-dark.png", "await-dark.svg"]
    while brightness(light) > 0.5:  # the button: system, light, dark
        light.locator("label.md-header__button[for^=__palette]:visible").click()
    assert shown(light) == shown(dark)


def test_a_block_of_code_is_copied(opened: Callable[..., Any]) -> None:
    page = opened("get-started/")
    blocks = page.locator("article pre > code")
    buttons = page.locator("article button[data-md-type=copy], article .md-clipboard")
    assert buttons.count() == blocks.count() > 5
    page.locator("article button[data-md-type=copy]:visible, article .md-clipboard:visible").nth(
        1
    ).click()
    page.locator(".md-dialog--active").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("import asyncio") and "@na.launcher\n@cuda.jit\n" in copied


def test_headings_have_anchors(opened: Callable[..., Any]) -> None:
    page = opened("how-to/graphs/")
    for heading in page.locator("article :is(h2, h3)").all():
        assert heading.locator("a.headerlink").get_attribute("href") == "#" + heading.get_attribute(
            "id"
        )


def test_tabs_show_one_machine_at_a_time(opened: Callable[..., Any]) -> None:
    page = opened()
    with_gpu, without = page.locator("article .tabbed-block").all()
    assert with_gpu.is_visible() and not without.is_visible()
    page.get_by_text("Without a GPU", exact=True).click()
    without.wait_for(state="visible")
    assert not with_gpu.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", ["", "how-to/cache/", "coming-from/numba/", "errors/", "reference/graphs/"]
)
def test_it_is_accessible(opened: Callable[..., Any], path: str, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: '.[docs]'"
    )
    found = axe.Axe().run(opened(path, scheme=scheme)).response["violations"]
    serious = [
        (one["id"], [node["html"][:120] for node in one["nodes"][:4]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
