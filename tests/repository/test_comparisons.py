"""Classes are compared by identity: `in` asks Python code of their metaclass whether they are equal, and a set for their hash."""
from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import capture.api  # noqa: F401
from capture.refgraph.identical import Classes

ROOT = Path(__file__).parents[2]
PARTS = "interp", "refgraph", "guards"
FILES = [path for part in PARTS for path in sorted((ROOT / "capture" / part).rglob("*.py"))]


def is_class(node: ast.expr) -> bool:
    """Whether an expression is a class of a value, as far as its text tells."""
    text = ast.unparse(node)
    return text == "cls" or text.endswith(".cls") or text.startswith(("type(", "lookup_class(")) and text.endswith(")")


def asks(container: ast.expr, module: ModuleType) -> bool:
    """Whether a search in a container compares or hashes."""
    if isinstance(container, ast.Name):
        return isinstance(getattr(module, container.id, None), (tuple, list, set, frozenset)) and (
            not isinstance(getattr(module, container.id), Classes))
    return isinstance(container, (ast.Tuple, ast.List, ast.Set))


def comparisons(text: str, module: ModuleType) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)) and is_class(node.left) and (
                asks(node.comparators[0], module)):
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_classes_are_compared_by_identity(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    assert not list(comparisons(path.read_text(), module))


def test_what_asks_is_found() -> None:
    module = ModuleType("module")
    vars(module).update(SOME=frozenset((int, str)), CLASSES=Classes((int, str)))
    found = comparisons("type(x) in (int, str)\ncls not in SOME\ncls in CLASSES\ntype(x) is int\ntype(x).a in (1, 2)", module)
    assert list(found) == ["1: type(x) in (int, str)", "2: cls not in SOME"]
