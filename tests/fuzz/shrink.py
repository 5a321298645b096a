"""Makes a case that fails small: steps, statements and parts of expressions are left out as long as it fails in the same way."""
from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Case

Fails = Callable[[Case], bool]
MOST_RUNS = 1500


class _Budget:
    """A test that gives up after so many runs."""

    def __init__(self, fails: Fails, runs: int) -> None:
        self.fails, self.left = fails, runs

    def __call__(self, case: Case) -> bool:
        self.left -= 1
        return self.left >= 0 and self.fails(case)


def shrink(case: Case, fails: Fails, runs: int = MOST_RUNS) -> Case:
    """The smallest case found that still fails. `fails` runs a case; it may be called `runs` times."""
    budget = _Budget(fails, runs)
    while budget.left > 0:
        before = case
        case = _steps(case, budget)
        for edits in (_removals, _unwrappings, _simplifications):
            case = _edited(case, edits, budget)
        if case == before:
            break
    return case


def _steps(case: Case, fails: Fails) -> Case:
    """Leaves out steps: halves, quarters, … and single ones."""
    size = max(1, len(case.steps) // 2)
    while True:
        start = 0
        while start < len(case.steps):
            smaller = replace(case, steps=case.steps[:start] + case.steps[start + size:])
            if fails(smaller):
                case = smaller
            else:
                start += size
        if size == 1:
            return case
        size //= 2


def _edited(case: Case, edits: Callable[[ast.Module], Iterator[Callable[[], Callable[[], None]]]], fails: Fails) -> Case:
    """Tries each edit of the source once, and keeps those with which it still fails. An edit returns how to undo it."""
    tree = ast.parse(case.source)
    for edit in edits(tree):
        undo = edit()
        try:
            smaller = replace(case, source=ast.unparse(ast.fix_missing_locations(tree)))
            fails_still = smaller != case and fails(smaller)
        except (SyntaxError, ValueError):
            fails_still = False
        if fails_still:
            case = smaller
        else:
            undo()
    return case


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """All lists of statements, outer ones first."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                yield body


def _slices(body: list[ast.stmt], start: int, stop: int, new: list[ast.stmt]) -> Callable[[], Callable[[], None]]:
    def edit() -> Callable[[], None]:
        old = body[:]
        body[start:stop] = new
        if not body and isinstance(old[0], ast.stmt):
            body.append(ast.Pass())

        def undo() -> None:
            body[:] = old
        return undo
    return edit


def _removals(tree: ast.Module) -> Iterator[Callable[[], Callable[[], None]]]:
    """Statements left out, from the last to the first: a use goes before its definition; larger runs of statements first."""
    for body in _bodies(tree):
        size = max(1, len(body) // 2)
        while size:
            stop = len(body)
            while stop > 0:
                start = max(0, stop - size)
                if not all(isinstance(each, ast.Pass) for each in body[start:stop]):
                    yield _slices(body, start, stop, [])
                stop = min(start, len(body))
            size //= 2


def _unwrappings(tree: ast.Module) -> Iterator[Callable[[], Callable[[], None]]]:
    """Compound statements replaced by what is in them."""
    for body in _bodies(tree):
        for index in reversed(range(len(body))):
            if index < len(body) and isinstance(body[index], (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                statement = body[index]
                for inner in (statement.body, getattr(statement, "orelse", []), getattr(statement, "finalbody", [])):
                    if inner and index < len(body) and body[index] is statement:
                        yield _slices(body, index, index + 1, inner)


LISTS = {"elts", "targets", "args", "keywords", "decorator_list", "bases", "names", "items", "comparators", "keys"}


def _simplifications(tree: ast.Module) -> Iterator[Callable[[], Callable[[], None]]]:
    """Expressions replaced by a part of theirs or a constant; items and arguments left out."""
    for node in list(ast.walk(tree)):
        for name, value in list(ast.iter_fields(node)):
            if isinstance(value, list) and name in LISTS:
                for index in reversed(range(len(value))):
                    if len(value) > 1 or name in ("elts", "args", "keywords", "decorator_list", "bases"):
                        yield _slices(value, index, index + 1, [])
            elif isinstance(value, ast.expr) and not isinstance(value, (ast.Name, ast.Constant)):
                if not isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
                    continue
                parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
                for part in [*parts, ast.Constant(1)]:
                    if getattr(node, name) is value:
                        yield _field(node, name, part)


def _field(node: ast.AST, name: str, new: ast.expr) -> Callable[[], Callable[[], None]]:
    def edit() -> Callable[[], None]:
        old = getattr(node, name)
        setattr(node, name, new)
        return lambda: setattr(node, name, old)
    return edit
