"""docs/design.md names the files that there are, and no others (sections 3 and 8); its lines are short."""
from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Folders of `capture`, whose files are named one by one.
NAMED = ("", "csrc", "refgraph", "interp", "guards", "backends", "backends/native", "reports")
LABEL = 25, 20              # where names begin in the rows of the layouts of sections 3 and 8


def layouts(text: str) -> Iterator[list[str]]:
    """The lines of the layout in sections 3 and 8, without what they say in parentheses."""
    for section in (3, 8):
        found = re.search(rf"^## {section}\. .*?^```\n(.*?)^```", text, re.M | re.S)
        assert found is not None, f"section {section} has no layout"
        yield re.sub(r"\([^()]*(\([^()]*\)[^()]*)*\)", "", found[1]).splitlines()


def words(lines: list[str]) -> set[str]:
    return {word for line in lines for word in re.findall(r"\w+", line)}


def files(folder: str) -> set[str]:
    """The files of one folder of `capture` that design.md is to name, without suffix."""
    found = {path.stem for path in (ROOT / "capture" / folder).iterdir() if path.suffix in {".py", ".c", ".cpp"}}
    return found - {"__init__"}


def rows(lines: list[str], column: int) -> Iterator[str]:
    """The names in the rows below a folder or a title: what stands from a column on, one by one."""
    for line in lines:
        if line.startswith("    "):
            yield from re.findall(r"[\w./]+", line[column:])


@pytest.fixture(scope="module")
def design() -> list[list[str]]:
    return list(layouts((ROOT / "docs" / "design.md").read_text()))


@pytest.mark.parametrize("folder", NAMED)
def test_all_files_are_named(folder: str, design: list[list[str]]) -> None:
    named = words(design[1] if folder == "backends/native" else design[0])
    assert files(folder) - named == set()


def test_no_others_are_named(design: list[list[str]]) -> None:
    paths = [path for path in (ROOT / "capture").rglob("*") if "__pycache__" not in path.parts]
    known = {path.stem for path in paths} | {path.name for path in paths} | {"with"}
    for lines, column in zip(design, LABEL, strict=True):
        named = [name.removeprefix("../").strip("/") for name in rows(lines, column)]
        assert len(named) > 15 and [name for name in named if name not in known] == []


def test_what_is_missing_is_found() -> None:
    text = ("## 3. A\n```\ncapture/\n  refgraph/    the heap\n    known                one (and two)  three\n```\n"
            "## 8. B\n```\n    code            four\n```\n")
    first, second = layouts(text)
    assert list(rows(first, 25)) == ["one", "three"] and list(rows(second, 20)) == ["four"] and "two" not in words(first)


def test_no_line_is_too_long() -> None:
    lines = (ROOT / "docs" / "design.md").read_text().splitlines()
    assert [line for line in lines if len(line) > 132 and not line.startswith("|")] == []
