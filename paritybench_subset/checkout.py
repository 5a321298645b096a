"""The projects of a checkout of ParityBench: its `generated/test_*.py` files, whose `TESTCASES` are classes and lambdas."""
from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paritybench_subset import standins
from paritybench_subset.cases import Arguments, Case, Project

HELPERS = "_paritybench_helpers"


def projects(checkout: Path, names: list[str]) -> list[Project]:
    """The projects called `names`, or all. Raises FileNotFoundError for a folder that is no checkout, and for an unknown name."""
    folder = checkout / "generated"
    if not (folder / f"{HELPERS}.py").exists():
        raise FileNotFoundError(f"{checkout} is no checkout of jansel/pytorch-jit-paritybench: it has no generated/{HELPERS}.py")
    files = [folder / f"test_{name}.py" for name in names] if names else sorted(folder.glob("test_*.py"))
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{file} does not exist")
    import_helpers(checkout)
    return [Project(file.stem.removeprefix("test_"), lambda file=file: load(file)) for file in files]


def import_helpers(checkout: Path) -> None:
    """Imports what the test files import of ParityBench itself, without its `torch.manual_seed`, which ignores its argument."""
    manual_seed = torch.manual_seed
    sys.path.append(str(checkout))
    try:
        path = checkout / "generated" / f"{HELPERS}.py"
        module = types.ModuleType(HELPERS)
        module.__file__ = str(path)
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), vars(module))
        sys.modules[HELPERS] = module
    finally:
        sys.path.remove(str(checkout))
        torch.manual_seed = manual_seed


def load(file: Path) -> list[Case]:
    """The test cases of a file. Raises what its top level raises."""
    module = types.ModuleType(file.stem)
    module.__file__ = str(file)
    vars(module)["__stand_in__"] = standins.stand_in
    sys.modules[module.__name__] = module
    tree = standins.guard_imports(ast.parse(file.read_text()))
    with standins.importing():
        exec(compile(tree, str(file), "exec", dont_inherit=True), vars(module))
    return [case_of(number, *test) for number, test in enumerate(vars(module).get("TESTCASES", ()))]


def case_of(number: int, cls: Any, constructor_arguments: Callable[[], Arguments], arguments: Callable[[], Arguments],
            compiles: bool) -> Case:
    """One entry of `TESTCASES`."""
    def build() -> nn.Module:
        args, kwargs = constructor_arguments()
        return cls(*args, **kwargs)
    return Case(f"{number:03d} {getattr(cls, '__name__', cls)}", build, arguments)
