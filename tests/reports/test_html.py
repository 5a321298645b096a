"""The page: one file, readable on a phone, with a search and filters that work. In headless Chromium where there is one."""
from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import capture
from capture.reports import layout
from capture.reports.source import annotated
from capture.reports.tree import Graph, Node, Report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: apt install chromium")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).split(8, dim=-1)
        return x + self.out(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v)


def decides(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y


@capture.disable
def left_alone(x):
    return x + 1


@pytest.fixture(scope="module")
def report() -> Report:
    """A model captured twice, a break, and a text that must be escaped."""
    attention, broken = capture.compile(Attention()), capture.compile(decides)
    chosen = capture.compile(lambda x, mode: x * 2 if mode == "</script><b>" else x)
    for n in (2, 2, 3):
        attention(torch.ones(n, 8))
    for _ in range(2):
        broken(torch.ones(3))
    for mode in ("a", "</script><b>"):
        chosen(torch.ones(2), mode)
    return capture.report(attention, broken, chosen)


def test_the_page_is_one_file_without_references(report: Report) -> None:
    class Page(HTMLParser):
        seen: list[tuple[str, dict]] = []
        open: list[str] = []

        def handle_starttag(self, tag, attributes):
            self.seen.append((tag, dict(attributes)))
            if tag not in ("meta", "input", "path", "rect"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            if self.open and self.open[-1] == tag:
                self.open.pop()

    page, text = Page(), report.html("my title")
    page.feed(text)
    assert page.open == []                                                # every element is closed
    assert not [tag for tag, attributes in page.seen
                if attributes.keys() & {"src", "href", "srcset"} or tag in ("link", "iframe", "img")]
    style = text[:text.index("</style>")]
    assert "@import" not in style and "url(" not in style and "</script><b>" not in text
    assert "my title" in text and text.count("<svg") == 5 and "data-dependent" in text


def test_the_source_is_marked(report: Report) -> None:
    source, = annotated(report)
    assert source.path == __file__
    marks = {line.text.strip(): (line.mark, line.note) for line in source.lines if line.text.strip()}
    assert marks["y = x * 2"] == ("captured", "1 operation") and marks["q, k, v = self.qkv(x).split(8, dim=-1)"][0] == "captured"
    mark, note = marks["if y.sum() > 0:"]
    assert mark == "break" and "[data-dependent]" in note and "Remedy:" in note
    assert marks["return y + 1"][0] == "captured" and marks["def left_alone(x):"] == ("", "") and marks["import json"] == ("", "")


def test_functions_that_run_natively_are_marked() -> None:
    @capture.compile
    def raises(x):
        raise ValueError("calls like this one run natively")
    for _ in range(2):
        with pytest.raises(ValueError):
            raises(torch.ones(2))
    source, = annotated(capture.report(raises))
    assert [line.text.strip() for line in source.lines if line.mark == "native"] == [
        "@capture.compile", "def raises(x):", 'raise ValueError("calls like this one run natively")']


def node(name: str, *inputs: str, kind: str = "operation", label: str = "") -> Node:
    return Node(name, kind, label or name, inputs, None)


def boxes(picture: str) -> dict[str, tuple[float, float, float]]:
    """Left, upper edge and width of each box, by label."""
    return {html.unescape(label): (float(x), float(y), float(w)) for x, y, w, label in
            re.findall(r'<rect x="([\d.-]+)" y="([\d.]+)" width="([\d.]+)"[^>]*/><text[^>]*>([^<]*)</text>', picture)}


def test_pictures_have_layers_without_overlaps() -> None:
    nodes = (node("x", kind="input"), node("w", kind="input", label="self.linear.weight"),
             node("a", "x", "w"), node("b", "x"), node("c", "a", "b"), node("d", "c"),
             node("e", "d", "x"), node("<f>", "e", "a"), node("output", "<f>", kind="output"))
    picture = layout.picture(Graph(6, nodes, "", ""))
    placed = boxes(picture)
    assert set(placed) == {"x", "a", "b", "c", "d", "e", "<f>", "output"} and "self.linear.weight" in picture
    for user in nodes:
        for name in user.inputs:
            if name in placed:
                assert placed[name][1] < placed[user.name][1], "data flows downwards"
    for one, (x, y, w) in placed.items():
        for other, (x2, y2, w2) in placed.items():
            assert one == other or y != y2 or x + w <= x2 or x2 + w2 <= x, "boxes of a layer stand side by side"
    width = float(re.search(r'width="(\d+)"', picture)[1])
    assert all(x >= 0 and x + w <= width for x, _, w in placed.values())


def test_large_graphs_are_drawn_in_part() -> None:
    nodes = tuple(node(f"n{i}", *([f"n{i - 1}"] if i else [])) for i in range(3000))
    assert len(boxes(layout.picture(Graph(3000, nodes, "", "")))) == layout.MOST


def browse(page: Path, width: int = 1100) -> str:
    """The page's elements after its scripts have run."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu",
               f"--user-data-dir={page.parent}/profile", f"--window-size={width},900",
               "--virtual-time-budget=3000", "--allow-file-access-from-files", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def ask(report: Report, folder: Path, script: str, width: int | None = None) -> object:
    """What `script`, an expression, says in the page; in a frame of that width."""
    page = folder / "page.html"
    asks = f"<script>onload = () => parent.postMessage(JSON.stringify({script}), '*')</script></body>"
    page.write_text(report.html().replace("</body>", asks))
    around = folder / "around.html"
    around.write_text(f"<iframe src='page.html' style='width: {width or 1100}px; height: 800px; border: 0'></iframe><pre></pre>"
                      "<script>onmessage = e => document.querySelector('pre').textContent = e.data</script>")
    return json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", browse(around), re.DOTALL)[1]))


@needs_browser
@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_is_wider_than_the_screen(report: Report, tmp_path: Path, width: int) -> None:
    script = """(document.querySelectorAll('details').forEach(d => d.open = true),
                 [document.documentElement.scrollWidth, innerWidth])"""
    found, available = ask(report, tmp_path, script, width)
    assert found <= available == width


@needs_browser
def test_a_long_path_is_broken_on_a_small_screen(tmp_path: Path) -> None:
    deep = nn.Sequential(nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 2)))))
    compiled = capture.compile(deep)
    for needed in (True, False):
        compiled(torch.ones(1, 2))
        deep.requires_grad_(not needed)
    script = "[document.documentElement.scrollWidth, innerWidth]"
    report = capture.report(compiled)
    assert len(report.frames[0].recaptures) == 1
    found, available = ask(report, tmp_path, script, 360)
    assert found <= available == 360


@needs_browser
def test_search_and_filters(report: Report, tmp_path: Path) -> None:
    script = """(() => {
      const shown = selector => [...document.querySelectorAll(selector)].filter(e => e.offsetParent !== null).length;
      const count = () => [shown(".frame"), shown("tr.item"), shown(".file")];
      const type = text => { search.value = text; search.dispatchEvent(new Event("input")); return count(); };
      const click = name => { [...document.querySelectorAll("button")].find(b => b.textContent === name).click(); return count(); };
      const plain = () => shown("tr.plain");
      return {all: count(), typed: type("attention softmax"), none: type(String.fromCharCode(1234)),
              cleared: type(""), native: click("native"),
              breaks: click("breaks"), recaptured: click("recaptured"), again: click("all"),
              hidden: plain(), whole: (document.getElementById("all").click(), plain() > 50)};
    })()"""
    seen = ask(report, tmp_path, script)
    assert seen == {"all": [4, 2, 1], "typed": [1, 0, 1], "none": [0, 0, 0], "cleared": [4, 2, 1], "native": [0, 2, 1],
                    "breaks": [1, 2, 1], "recaptured": [2, 2, 1], "again": [4, 2, 1], "hidden": 0, "whole": True}
