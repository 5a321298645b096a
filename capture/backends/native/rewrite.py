"""Walking and rewriting expressions and statements of the IR."""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from capture.backends.native.index import Atom, Index, Size, Value, Var, index
from capture.backends.native.ir import (
    Batch,
    Expr,
    Extern,
    Kernel,
    Load,
    Nest,
    Op,
    Position,
    Program,
    Stage,
    Store,
    View,
    intern,
    nested,
    position,
)


def walk(roots: Iterable[Expr | None]) -> Iterator[Expr]:
    """Every expression below `roots`, each once, those within indices too."""
    seen: set[Expr] = set()
    stack = [root for root in roots if root is not None]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(node.children())


def loads_of(stores: Iterable[Store]) -> list[Load]:
    """The distinct loads that stores make, also those in the indices that they store at."""
    return [node for node in walk(roots_of(stores)) if isinstance(node, Load)]


def roots_of(stores: Iterable[Store]) -> Iterator[Expr | None]:
    """The expressions of stores: values, masks, and what is computed for their indices."""
    for store in stores:
        yield store.value
        yield store.mask
        for atom in store.index.atoms():
            if isinstance(atom, Value):
                yield atom.expr


def indices_of(stores: Iterable[Store]) -> Iterator[Index]:
    """Every index expression in stores, with repetition."""
    stores = tuple(stores)
    for store in stores:
        yield store.index
    for node in walk(roots_of(stores)):
        if isinstance(node, (Load, Position)):
            yield node.index


class Rewriter:
    """Replaces loop variables by index expressions, and loads by other expressions, throughout. Remembers what it did."""

    def __init__(self, variables: Mapping[Var, Size], load: Callable[[Load], Expr | None] = lambda node: None) -> None:
        self.variables = variables
        self.load = load
        self._done: dict[Expr, Expr] = {}
        self._indices: dict[Index, Index] = {}

    def index(self, old: Index) -> Index:
        new = self._indices.get(old)
        if new is None:
            changes = any(isinstance(atom, Value) or atom in self.variables for atom in old.atoms())
            new = self._indices[old] = old.substitute(self._atom) if changes else old
        return new

    def _atom(self, atom: Atom) -> Size | None:
        if isinstance(atom, Value):
            return index(replace(atom, expr=self.expr(atom.expr)))
        return self.variables.get(atom) if isinstance(atom, Var) else None

    def expr(self, old: Expr) -> Expr:
        new = self._done.get(old)
        if new is None:
            new = self._done[old] = self._expr(old)
        return new

    def _expr(self, old: Expr) -> Expr:
        if isinstance(old, Op):
            return intern(Op, old.name, tuple(map(self.expr, old.args)), old.dtype)
        if isinstance(old, Position):
            return position(self.index(old.index), old.dtype)
        if isinstance(old, Load):
            new = intern(Load, old.buffer, self.index(old.index), old.dtype, self.expr(old.mask) if old.mask is not None else None)
            return self.load(new) or new
        return old

    def store(self, old: Store) -> Store:
        return replace(old, index=self.index(old.index), value=self.expr(old.value),
                       mask=self.expr(old.mask) if old.mask is not None else None)

    def stores(self, old: Iterable[Store]) -> tuple[Store, ...]:
        return tuple(map(self.store, old))


S = TypeVar("S", Kernel, Extern)


def renamed(statement: S, name: Callable[[str], str]) -> S:
    """A kernel or call with other buffers. name: of each buffer its new name."""
    if isinstance(statement, Extern):
        return _renamed_extern(statement, name)
    rewriter = Rewriter({}, lambda node: intern(Load, name(node.buffer), node.index, node.dtype, node.mask))

    def stores(stage: Stage) -> tuple[Store, ...]:
        return tuple(replace(store, buffer=name(store.buffer)) for store in rewriter.stores(stage.stores))
    return replace(statement, stages=tuple(replace(stage, stores=stores(stage)) for stage in statement.stages),
                   locals=tuple(replace(local, name=name(local.name)) for local in statement.locals))


def _renamed_extern(extern: Extern, name: Callable[[str], str]) -> Extern:
    def in_value(value: Any) -> Any:
        if isinstance(value, View):
            return replace(value, buffer=name(value.buffer))
        return type(value)(map(in_value, value)) if isinstance(value, (list, tuple)) else value
    results = tuple(None if result is None else name(result) for result in extern.results)
    return replace(extern, args=in_value(extern.args), kwargs={key: in_value(value) for key, value in extern.kwargs.items()},
                   results=results, mutates=tuple(map(name, extern.mutates)))


@functools.cache
def reads(statement: Nest | Kernel | Batch | Extern) -> frozenset[str]:
    """Names of the buffers whose contents a statement depends on."""
    if isinstance(statement, Extern):
        outs = {view.buffer for view in nested(statement.kwargs, View)} & set(statement.results) if statement.out else set()
        return frozenset(view.buffer for view in nested((statement.args, statement.kwargs), View)) - (outs - {
            view.buffer for view in nested(statement.args, View)})
    stores = stores_of(statement)
    return frozenset(node.buffer for node in loads_of(stores)) | {store.buffer for store in stores if store.mode != "set"}


@functools.cache
def writes(statement: Nest | Kernel | Batch | Extern) -> frozenset[str]:
    """Names of the buffers that a statement writes to."""
    if isinstance(statement, Extern):
        return frozenset(name for name in (*statement.results, *statement.mutates) if name is not None)
    return frozenset(store.buffer for store in stores_of(statement))


def forget_statements() -> None:
    """Drops what is known of statements; called when a program has been compiled."""
    reads.cache_clear()
    writes.cache_clear()


def stores_of(statement: Nest | Kernel | Batch | Stage) -> tuple[Store, ...]:
    """All stores of a nest, a stage, a kernel or several."""
    if isinstance(statement, Batch):
        return tuple(store for kernel in statement.kernels for store in stores_of(kernel))
    if isinstance(statement, Kernel):
        return tuple(store for stage in statement.stages for store in stage.stores)
    return statement.stores


def needed_outside(program: Program) -> set[str]:
    """Buffers that outlive the body: what the program returns, and what is not its own."""
    returned = {output.buffer for output in program.outputs if isinstance(output, View)}
    return returned | {name for name, buffer in program.buffers.items() if buffer.kind in ("input", "output", "constant")}
