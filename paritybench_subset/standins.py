"""Stand-ins for what a project imports and is not installed: inert while its file is imported, an error when used later."""
from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Iterator
from typing import Any

from paritybench_subset.results import Reason

USED: list[str] = []            # the names of the stand-ins that were used after the import; whoever judges a case clears it
_importing = False


class StandInUsed(Exception):
    """Something that is not installed was used."""


def reason() -> Reason | None:
    """Why a case cannot run, if it has used a stand-in, even where it caught the error."""
    return Reason("not-installed", USED[0]) if USED else None


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within it stand-ins may be called, subclassed, iterated over and so on, and nothing comes of it."""
    global _importing
    _importing = True
    try:
        yield
    finally:
        _importing = False


def use(name: str) -> None:
    """Raises StandInUsed, and notes it for a program that catches exceptions, unless a file is being imported."""
    if not _importing:
        USED.append(name)
        raise StandInUsed(f"{name} is not installed")


class StandIn:
    """What a missing name is bound to. Everything that is taken from it, or made by calling it, is a stand-in again."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        use(self._name)
        return StandIn(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        use(self._name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        use(self._name)
        return (type(self._name.rpartition(".")[2], (_Base,), {"_stand_in": self._name}),)

    def __iter__(self) -> Iterator[Any]:
        use(self._name)
        return iter(())

    def __bool__(self) -> bool:
        use(self._name)
        return True

    def __len__(self) -> int:
        use(self._name)
        return 0

    def __exit__(self, *error: object) -> None:
        use(self._name)

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


def _forward(name: str) -> Any:
    def method(self: StandIn, *args: Any, **kwargs: Any) -> Any:
        use(self._name)
        return StandIn(f"{self._name}.{name}" if name != "__call__" else f"{self._name}()")
    return method


for _name in ("call getitem enter add radd sub rsub mul rmul truediv rtruediv floordiv mod pow neg matmul or ror and rand "
              "eq ne lt le gt ge instancecheck subclasscheck").split():
    setattr(StandIn, f"__{_name}__", _forward(f"__{_name}__"))
StandIn.__hash__ = object.__hash__


class _Base:
    """The base of classes that a project derives from a stand-in; they have no instances."""

    _stand_in = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        use(cls._stand_in)
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()


def guard_imports(tree: ast.Module) -> ast.Module:
    """The same file, but each import at its top level which fails binds its names to stand-ins. Imports within `try` and in
    functions are left to the program."""
    body: list[ast.stmt] = []
    for statement in tree.body:
        body += _guarded(statement) if isinstance(statement, (ast.Import, ast.ImportFrom)) else [statement]
    tree.body = body
    return ast.fix_missing_locations(tree)


def _guarded(statement: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
    """One `try` for each name, so that what is installed stays what it is."""
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return [statement]
    guarded: list[ast.stmt] = []
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            single: ast.stmt = ast.ImportFrom(statement.module, [alias], statement.level)
            bound, full, before = alias.asname or alias.name, f"{statement.module}.{alias.name}", "None"
        else:
            single = ast.Import([alias])
            bound = alias.asname or alias.name.partition(".")[0]
            full, before = (alias.name, "None") if alias.asname else (bound, f"globals().get({bound!r})")
        fallback = "pass" if alias.name == "*" else f"{bound} = __stand_in__({full!r}, {before})"
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, ast.parse(fallback).body)
        guarded.append(ast.copy_location(ast.Try([single], [handler], [], []), statement))
    return guarded


def stand_in(name: str, before: Any) -> Any:
    """What a failed import binds. `import package.missing` leaves a package that is there bound."""
    return before if isinstance(before, types.ModuleType) and before.__name__ == name else StandIn(name)
