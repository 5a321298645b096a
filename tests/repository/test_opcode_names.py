"""What an opcode does is said where its handler is registered (`Does`): nothing else knows opcodes by their names.

So a new opcode of CPython's is one handler, and code that asks what instructions do cannot have forgotten it.
"""
from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from pathlib import Path

import pytest

from capture.interp.core.instructions import ABSORBED, HALVES
from capture.interp.opcodes import NOT_IN_CODE

CAPTURE = Path(__file__).parents[2] / "capture"

# Modules that may name opcodes besides, and why.
DECODE = {
    "interp/core/instructions.py": "decoding: what of CPython's code is an instruction, and what its argument means",
    "interp/opcodes/__init__.py": "which opcodes need no handler",
    "step_loops.py": "runs before torch is imported, and with it the handlers; writes the code of gates",
    "loop_bodies.py": "makes code of a function from code of a module",
    "config.py": "a flag has the name of an opcode",
}
WRITE = {       # but not to compare them with those of other code
    "interp/breaks/continuation_code.py": "writes the code of continuations",
    "interp/core/program_frames.py": "writes code that looks like a frame of the program's",
    "interp/opcodes/classes.py": "writes a function that calls an intrinsic of CPython's",
}
CHOOSING = (ast.Compare, ast.Set, ast.Dict, ast.Match, ast.Subscript)


def decorators(tree: ast.AST) -> Iterator[ast.expr]:
    """Where handlers are registered."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (each for each in node.decorator_list if isinstance(each, ast.Call) and ast.unparse(each.func) == "opcode")


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


SOURCES = {str(path.relative_to(CAPTURE)): ast.parse(path.read_text()) for path in sorted(CAPTURE.rglob("*.py"))}
NAMES = {text.value for tree in SOURCES.values() for each in decorators(tree) for text in texts(each)}.union(
    dis.opmap, ABSORBED, HALVES, NOT_IN_CODE)


def named(tree: ast.AST, may_write: bool) -> list[str]:
    """Where a module asks for opcodes by their names, as lines and texts. may_write: it may say what code is to be made of."""
    parts = [part for node in ast.walk(tree) if isinstance(node, CHOOSING) for part in texts(node)] if may_write else texts(tree)
    registered = {id(text) for each in decorators(tree) for text in texts(each)}
    found = {(part.lineno, part.value) for part in parts if part.value in NAMES and id(part) not in registered}
    asked = {(node.lineno, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "opname"}
    return [f"{line}: {text}" for line, text in sorted(found | asked)]


@pytest.mark.parametrize("file", sorted(set(SOURCES) - set(DECODE)))
def test_no_module_asks_for_opcodes_by_name(file: str) -> None:
    assert named(SOURCES[file], file in WRITE) == []


@pytest.mark.parametrize("file", sorted(set(DECODE) | set(WRITE)))
def test_the_exceptions_are_still_needed(file: str) -> None:
    assert named(SOURCES[file], False)


@pytest.mark.parametrize("source, may_write, found", [
    ("step.opname == kind", False, ["1: opname"]), ("step.name in ('POP_TOP', 'NOP')", True, ["1: NOP", "1: POP_TOP"]),
    ("SLOTS = frozenset({'LOAD_FAST'})", True, ["1: LOAD_FAST"]), ("emit('LOAD_FAST', name)", True, []),
    ("emit('LOAD_FAST', name)", False, ["1: LOAD_FAST"]), ("@opcode('LOAD_FAST', does=Does.MAKES)\ndef load(): pass", False, [])])
def test_names_are_found(source: str, may_write: bool, found: list[str]) -> None:
    assert named(ast.parse(source), may_write) == found
