"""Names of torch's that are private, or that not all versions of torch have: each that capture uses is there.

They are read out of the sources, so that nobody has to list them; with a new torch this is the list of what has to be looked at.
"""
from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from capture.torch_versions import SINCE, VERSION

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Use:
    """A name of torch's, and where it is used. optional: by code that does without."""

    path: str
    place: str
    optional: bool


@pytest.mark.parametrize("file", [str(path.relative_to(ROOT)) for path in sorted((ROOT / "capture").rglob("*.py"))])
def test_torch_has_the_names_that_are_used(file: str) -> None:
    assert list(missing(uses_of((ROOT / file).read_text(), file))) == []


def test_every_name_that_some_versions_have_is_used() -> None:
    files = sorted((ROOT / "capture").rglob("*.py"))
    used = {use.path for path in files for use in uses_of(path.read_text(), path.name) if use.optional}
    assert set(SINCE) <= used


def test_a_missing_name_is_told_in_a_sentence() -> None:
    source = """
import sys
import torch
from torch._C import _functorch as functorch
from torch._ops import OpOverlord

def f(x):
    import torch._dynamic as dynamic
    owner = sys.modules.get("torch._dynamo.eval_frame")
    print(getattr(owner, "_stances", None), dynamic.x, functorch.maybe_current_level, functorch.gone, x._private, torch.no_grad)
    return torch._C._set_grad_enabled, torch._C._gone_too(torch.Tensor.__add__)
"""
    version = ".".join(map(str, VERSION))
    assert list(missing(uses_of(source, "f.py"))) == [
        f"torch {version} has no torch._ops.OpOverlord, which f.py, line 5, uses",
        f"torch {version} has no torch._dynamic, which f.py, line 8, uses",
        f"torch {version} has no torch._dynamo.eval_frame._stances, which f.py, line 10, uses",
        f"torch {version} has no torch._dynamic.x, which f.py, line 10, uses",
        f"torch {version} has no torch._C._functorch.gone, which f.py, line 10, uses",
        f"torch {version} has no torch._C._gone_too, which f.py, line 11, uses"]


def missing(uses: Iterator[Use]) -> Iterator[str]:
    """A sentence for each name that this torch lacks, or has though it is said not to."""
    for use in uses:
        since = SINCE.get(use.path, VERSION) if use.optional else VERSION
        if exists(use.path) != (VERSION >= since):
            lacks = "has no" if not exists(use.path) else "has a"
            yield f"torch {'.'.join(map(str, VERSION))} {lacks} {use.path}, which {use.place}, uses"


@functools.cache
def exists(path: str) -> bool:
    """Whether a dotted path leads to a module, or from one by attributes."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        try:
            functools.reduce(getattr, parts[end:], found)
        except AttributeError:
            return False
        return True
    return False


def uses_of(source: str, file: str) -> Iterator[Use]:
    """The private names of torch's in a file, and all that it asks for with `getattr`, `hasattr` or `existing`."""
    tree = ast.parse(source)
    names = aliases(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in sorted(filter(is_placed, ast.walk(tree)), key=lambda node: (node.lineno, node.col_offset)):
        place = f"{file}, line {node.lineno}"
        for path in imported(node):
            if is_private(path):
                yield Use(path, place, False)
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            path = path_of(node, names)
            if path is not None and is_private(path):
                yield Use(path, place, False)
        for path in asked(node, names):
            yield Use(path, place, True)


def is_placed(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """Whether a node has a place in the file."""
    return isinstance(node, (ast.stmt, ast.expr))


def imported(node: ast.AST) -> Iterator[str]:
    """What a statement imports of torch."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("torch."))
    elif isinstance(node, ast.ImportFrom) and node.module is not None and f"{node.module}.".startswith("torch."):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def aliases(tree: ast.AST) -> dict[str, str]:
    """What names of a file stand for, of torch."""
    found = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: path for alias, path in zip(node.names, imported(node))})
        elif isinstance(node, ast.Import):
            found.update({alias.asname: alias.name for alias in node.names if alias.asname and alias.name.startswith("torch.")})
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
            path = node.value.args[0].value if node.value.args and isinstance(node.value.args[0], ast.Constant) else None
            if ast.unparse(node.value.func) in ("sys.modules.get", "importlib.import_module") and str(path).startswith("torch."):
                found[node.targets[0].id] = str(path)
    return found


def path_of(node: ast.AST, names: dict[str, str]) -> str | None:
    """The dotted path that an expression takes from torch, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = path_of(node.value, names)
        return None if base is None else f"{base}.{node.attr}"
    return next(asked(node, names), None)


def asked(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """What is asked for by name: `getattr(torch, "name")`, `existing(torch, "several names")`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "existing") and len(node.args) > 1:
        base, text = path_of(node.args[0], names), node.args[1]
        if base is not None and isinstance(text, ast.Constant):
            yield from (f"{base}.{name}" for name in text.value.split())


def is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))
