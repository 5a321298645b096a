"""What is scored: cases, each a module and the arguments of its calls, in projects, which run in processes of their own."""
from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One test case. `build` makes its module anew; `arguments` makes those of one call, from torch's random numbers."""

    name: str
    build: Callable[[], nn.Module]
    arguments: Callable[[], Arguments]


@dataclass(frozen=True)
class Project:
    """Cases that are loaded together. `load` may raise whatever a project's code raises."""

    name: str
    load: Callable[[], list[Case]]


THEMES: dict[str, list[Case]] = {}


def inputs(*args: Any, **kwargs: Any) -> Arguments:
    """The arguments of one call."""
    return args, kwargs


def program(arguments: Callable[[], Arguments]) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Registers a function that makes a module as a case of its file's theme; `arguments` makes those of one call."""
    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        theme = build.__module__.rpartition(".")[2]
        THEMES.setdefault(theme, []).append(Case(build.__name__, build, arguments))
        return build
    return register


def subset(names: list[str] | None = None) -> list[Project]:
    """Our own programs by theme; only those which `names` names, by theme or by name. Raises ValueError for an unknown name."""
    from paritybench_subset import programs
    for module in pkgutil.iter_modules(programs.__path__):
        import_module(f"{programs.__name__}.{module.name}")
    known = {case.name for cases in THEMES.values() for case in cases} | set(THEMES)
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"no program or theme is called {unknown[0]!r}")
    chosen = {theme: [case for case in cases if names is None or theme in names or case.name in names]
              for theme, cases in THEMES.items()}
    return [Project(theme, lambda cases=cases: cases) for theme, cases in chosen.items() if cases]
