"""docs/modules.md is what the files say of themselves; docs/design.md names the files of the native backend, and no others."""
from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import modules

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "capture" / "backends" / "native"
LABEL = 20                  # where names begin in the rows of the layout of section 8


def layout(text: str) -> list[str]:
    """The lines of the layout in section 8, without what they say in parentheses."""
    found = re.search(r"^## 8\. .*?^```\n(.*?)^```", text, re.M | re.S)
    assert found is not None, "section 8 has no layout"
    return re.sub(r"\([^()]*(\([^()]*\)[^()]*)*\)", "", found[1]).splitlines()


def words(lines: list[str]) -> set[str]:
    return {word for line in lines for word in re.findall(r"\w+", line)}


def rows(lines: list[str]) -> Iterator[str]:
    """The names in the rows below a title: what stands from a column on, one by one."""
    for line in lines:
        if line.startswith("    "):
            yield from re.findall(r"[\w./]+", line[LABEL:])


@pytest.fixture(scope="module")
def design() -> list[str]:
    return layout((ROOT / "docs" / "design.md").read_text())


def test_all_files_of_the_native_backend_are_named(design: list[str]) -> None:
    assert {path.stem for path in NATIVE.glob("*.py")} - {"__init__"} - words(design) == set()


def test_no_others_are_named(design: list[str]) -> None:
    paths = [path for path in (ROOT / "capture").rglob("*") if "__pycache__" not in path.parts]
    known = {path.stem for path in paths} | {path.name for path in paths} | {"with"}
    named = [name.removeprefix("../").strip("/") for name in rows(design)]
    assert len(named) > 15 and [name for name in named if name not in known] == []


def test_what_is_missing_is_found() -> None:
    lines = layout("## 8. B\n```\n    code            four (and two)  three\n```\n")
    assert list(rows(lines)) == ["four", "three"] and "two" not in words(lines)


def test_tests_are_in_folders_that_are_named() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    named = {name for code in re.findall(r"`([\w./]+)`", text) for name in code.split("/")}
    tests = list((ROOT / "tests").rglob("test_*.py"))
    assert [path.name for path in tests if path.parent == ROOT / "tests"] == []
    assert {path.relative_to(ROOT / "tests").parts[0] for path in tests} - named == set()


def test_no_line_is_too_long() -> None:
    lines = (ROOT / "docs" / "design.md").read_text().splitlines()
    assert [line for line in lines if len(line) > 132 and not line.startswith("|")] == []


def test_every_file_says_what_it_is_for() -> None:
    assert [file for file, purpose in modules.described() if not purpose] == []


def test_the_list_of_modules_is_what_the_files_say() -> None:
    assert modules.PAGE.read_text() == modules.page(), "python -m tests.modules"
