"""docs/tour.md names files and functions that there are."""
from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(capture/[\w/.]+)`(?: `([\w.]+)`)?")


def names(path: Path) -> set[str]:
    """What a file of Python defines (functions, classes, methods with their classes, tables); of C++, all its words."""
    if path.suffix != ".py":
        return set(re.findall(r"\w+", path.read_text()))
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def missing(text: str) -> list[str]:
    """The names in a text that lead nowhere."""
    found = []
    for file, name in NAMED.findall(text):
        path = ROOT / file
        if not path.exists() or name and name not in names(path):
            found.append(f"{file} {name}")
    return found


def test_all_that_the_tour_names_is_there() -> None:
    text = (ROOT / "docs/tour.md").read_text()
    assert len(NAMED.findall(text)) > 30 and missing(text) == []


def test_what_is_missing_is_found() -> None:
    assert missing("`capture/api.py` `compile`, `capture/api.py` `compiles`, `capture/none.py`, `capture/entries.py`") == [
        "capture/api.py compiles", "capture/none.py "]
