"""Modules that come to be there, or go, between two calls."""
from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch

from tests.helpers import call, check

X = torch.tensor([1.0, -2.0])
NAME = "tests_stale_imports_optional"


def by_statement(x):
    try:
        import tests_stale_imports_optional
    except ImportError as error:
        return x - 1, type(error)
    return x * tests_stale_imports_optional.scale


def by_name(x):
    try:
        from tests_stale_imports_optional import scale
    except ImportError:
        return x - 1
    return x * scale


def of_a_package(x):
    try:
        import json.tests_stale_imports_optional  # noqa: F401
    except ModuleNotFoundError:
        return x - 1
    return x + 1


def by_function(x):
    try:
        return x * importlib.import_module(NAME).scale
    except ImportError:
        return x - 1


@pytest.mark.parametrize("program", [by_statement, by_name, of_a_package, by_function], ids=lambda program: program.__name__)
def test_a_module_comes_to_be_there(program, monkeypatch) -> None:
    def provide(scale):
        def change(state):
            for name in (NAME, f"json.{NAME}"):
                monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
                sys.modules[name].scale = scale
        return change

    def take_away(state):
        for name in (NAME, f"json.{NAME}"):
            monkeypatch.delitem(sys.modules, name)
    check(lambda: program, call(X), call(X), provide(2.0), call(X), call(X), provide(3.0), call(X), take_away, call(X), call(X),
          captures=None, fullgraph=False)


def test_a_folder_comes_to_be_looked_into(tmp_path, monkeypatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("scale = 5.0\n")

    def forget(state):
        monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(tmp_path)])
        sys.modules.pop(NAME, None)
    check(lambda: by_statement, call(X), call(X), lambda state: monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)]),
          call(X), call(X), forget, call(X), call(X), captures=None, fullgraph=False)


def test_an_optional_module_that_is_not_there_is_one_graph() -> None:
    check(lambda: by_name, call(X), call(X), call(X + 1), graphs=1)


def test_a_module_that_raises_runs_on_each_import(tmp_path, monkeypatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("import builtins\nbuiltins.print('runs')\nraise ImportError('not here')\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    check(lambda: by_name, call(X), call(X), call(X), captures=None, fullgraph=False)
