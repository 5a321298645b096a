"""The names of torch's that capture uses and that are private, or that not all versions of torch have: `docs/torch_names.md`.

They are read out of the sources. `python -m tests.torch_names` makes the page anew, and has a sentence for each name that the torch
which is installed lacks: with a new torch, this is the list of what has to be looked at.
"""
from __future__ import annotations

import ast
import functools
import importlib
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from capture.torch_versions import SINCE, VERSION

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "torch_names.md"
HEADING = """# Private names of torch

All that capture uses, by the module or class that has them (`python -m tests.torch_names`). They hold for torch 2.11 to 2.15, but
for those with another first version: these are in `capture/torch_versions.py`, and capture does without them before.
"""
WIDTH = 130


@dataclass(frozen=True)
class Use:
    """A name of torch's, and where it is used. optional: by code that does without."""

    path: str
    place: str
    optional: bool


def page() -> str:
    """The text of `docs/torch_names.md`."""
    paths = sorted({tuple(use.path.rpartition(".")[::2]) for use in all_uses()})
    parts = [HEADING]
    for owner, names in itertools.groupby(paths, lambda path: path[0]):
        told = ", ".join(f"`{name}`{_since(f'{owner}.{name}')}" for _, name in names)
        parts.append(textwrap.fill(f"- `{owner}`: {told}", WIDTH, subsequent_indent="  ", break_long_words=False,
                                   break_on_hyphens=False))
    return "\n".join(parts) + "\n"


def _since(path: str) -> str:
    return f" (since {'.'.join(map(str, SINCE[path]))})" if path in SINCE else ""


def all_uses() -> Iterator[Use]:
    """What capture uses, file by file."""
    for file in sorted((ROOT / "capture").rglob("*.py")):
        yield from uses_of(file.read_text(), str(file.relative_to(ROOT)))


def missing(uses: Iterable[Use]) -> Iterator[str]:
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


@functools.cache        # several tests ask for each file
def uses_of(source: str, file: str) -> tuple[Use, ...]:
    """The private names of torch's in a file, and all that it asks for with `getattr`, `hasattr` or `existing`."""
    nodes = list(ast.walk(ast.parse(source)))
    names = aliases(nodes)
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    found: list[Use] = []
    for node in sorted(filter(is_placed, nodes), key=lambda node: (node.lineno, node.col_offset)):
        place = f"{file}, line {node.lineno}"
        private = list(imported(node))
        if isinstance(node, ast.Attribute) and id(node) not in inner and (path := path_of(node, names)) is not None:
            private.append(path)
        found += (Use(path, place, False) for path in private if is_private(path))
        found += (Use(path, place, True) for path in asked(node, names))
    return tuple(found)


def is_placed(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """Whether a node has a place in the file."""
    return isinstance(node, (ast.stmt, ast.expr))


def imported(node: ast.AST) -> Iterator[str]:
    """What a statement imports of torch."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("torch."))
    elif isinstance(node, ast.ImportFrom) and node.module is not None and f"{node.module}.".startswith("torch."):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def aliases(nodes: list[ast.AST]) -> dict[str, str]:
    """What names of a file stand for, of torch."""
    found = {"torch": "torch"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname or alias.name: path for alias, path in zip(node.names, imported(node))})
        elif isinstance(node, ast.Import):
            found.update({alias.asname: alias.name for alias in node.names if alias.asname and alias.name.startswith("torch.")})
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
            path = node.value.args[0].value if node.value.args and isinstance(node.value.args[0], ast.Constant) else None
            if str(path).startswith("torch.") and ast.unparse(node.value.func) in ("sys.modules.get", "importlib.import_module"):
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
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Name) and function.id in ("getattr", "hasattr", "existing") and len(node.args) > 1:
        base, text = path_of(node.args[0], names), node.args[1]
        if base is not None and isinstance(text, ast.Constant):
            yield from (f"{base}.{name}" for name in text.value.split())


def is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


if __name__ == "__main__":
    PAGE.write_text(page())
    print(*missing(all_uses()), sep="\n")
