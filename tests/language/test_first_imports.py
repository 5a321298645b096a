"""Modules that a compiled function is the first to import: that call runs natively, later ones are captured."""
from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import capture

NUMBERS = itertools.count()
PROGRAMS = {
    "statement": """
def program(x):
    import NAME
    return x * NAME.value
""",
    "by name": """
def program(x):
    with torch.no_grad():
        module = importlib.import_module("NAME")
    return x * module.value
""",
    "of a package": """
def program(x):
    from package_NAME import inner
    return x * inner.value
""",
    "relative": """
def program(x):
    return x * importlib.import_module(".inner", "package_NAME").value
""",
    "where no continuation can begin": """
def program(x):
    def body(row):
        import NAME
        return row * NAME.value
    return torch.vmap(body)(x)
"""}
MISSING = """
def program(x):
    try:
        return x * importlib.import_module("NAME").value
    except (ImportError, ValueError):
        return x + 1
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that nobody has imported, which a package of the name `package_<name>` has as `inner`, too."""
    name = f"never_imported_{next(NUMBERS)}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"package_{name}").mkdir()
    for file in (f"{name}.py", f"package_{name}/inner.py"):
        (tmp_path / file).write_text("print('imported')\nvalue = 3\n")
    (tmp_path / f"package_{name}" / "__init__.py").write_text("")
    yield name
    for module in [module for module in sys.modules if name in module]:
        del sys.modules[module]


def made(text: str, name: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"torch": torch, "importlib": __import__("importlib")}
    exec(text.replace("NAME", name), scope)
    return scope["program"]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_later_calls_are_captured(text: str, name: str, fullgraph: bool, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = capture.compile(made(text, name), backend="eager", fullgraph=fullgraph)
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert capsys.readouterr().out == "imported\n"
    stats = capture.stats(compiled)
    assert (stats.native_calls, stats.captures, stats.hits, stats.breaks) == (1, 1, 2, 0)


@pytest.mark.parametrize("code", [None, "print('imported')\nraise ValueError\n"], ids=["none", "raises"])
def test_what_cannot_be_imported(code: str | None, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if code is None:
        (tmp_path / f"{name}.py").unlink()
    else:
        (tmp_path / f"{name}.py").write_text(code)
    compiled = capture.compile(made(MISSING, name), backend="eager")
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert capsys.readouterr().out == ("imported\n" * 4 if code else "")


def test_a_relative_name_that_leads_out_of_all_packages() -> None:
    def function(x):
        try:
            return x, importlib.import_module("..inner", "package").__name__
        except ImportError as error:
            return x + 1, str(error)
    compiled = capture.compile(function, backend="eager")
    for _ in range(3):
        result, said = compiled(torch.ones(2))
        assert torch.equal(result, torch.full((2,), 2.0)) and "beyond top-level package" in said


def test_dropped_each_time(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a call breaks at the import from the second time on, instead of running natively for ever."""
    program = made("import sys\ndef program(x):\n    import NAME\n    del sys.modules['NAME']\n    return x * NAME.value\n", name)
    compiled = capture.compile(program, backend="eager")
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert capsys.readouterr().out == "imported\n" * 4
    assert capture.stats(compiled).breaks
