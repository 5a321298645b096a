"""The stub of the extension module, `capture/_C.pyi`, says of it what there is."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from capture import _C

STUB = Path(_C.__file__).parent / "_C.pyi"
SET_BY_PYTHON = {"CacheEntry.guards", "CompiledFunction.capture_unit", "CompiledFunction.capture_rebuild",
                 "CompiledFunction.__wrapped__", "CompiledFunction.__name__", "CompiledFunction.__qualname__"}


def stated() -> Iterator[str]:
    """All names of the stub: `name`, or `Class.name`."""
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.AnnAssign):
            yield node.target.id
        elif isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            for member in node.body:
                if isinstance(member, ast.AnnAssign):
                    yield f"{node.name}.{member.target.id}"
                elif isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}"


def is_there(name: str) -> bool:
    owner, _, member = name.rpartition(".")
    if owner == "Modes" and member == "__getattr__":        # which stands for its fields
        return _C.modes().grad is not None
    cls = type(_C.RUN_NATIVELY) if name == "RunNatively" or owner == "RunNatively" else getattr(_C, owner) if owner else _C
    return cls is not None and (name == "RunNatively" or hasattr(cls, member))


def test_what_the_stub_states_is_there() -> None:
    names = set(stated()) - SET_BY_PYTHON
    assert len(names) > 60 and {name for name in names if not is_there(name)} == set()


def test_what_is_there_is_stated() -> None:
    public = {name for name in vars(_C) if not name.startswith("_")}
    assert public - set(stated()) == set()
