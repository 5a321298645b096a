"""Shapes and lengths that depend on values: where a continuation finds such tensors, and what was found to change."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from capture import _C
from capture.refgraph.memory import is_plain, storage_of
from capture.refgraph.node import SCALARS, Build, DictState, Expr, FunctionState, ListState, RefNode, Shadow, TensorState
from capture.refgraph.source import Attr, Function, InstanceDict, Item, Local, Source


class Shapes:
    """Which of the things that one compiled function is given have shapes, or lengths, that no guard may fix.

    `known`: the paths of tensors whose shapes depend on values in a trace that led here, and of what was seen to change. awaited:
    the parameter for what a call has returned that no trace holds: what is in there changes once a capture has met another size.
    """

    __slots__ = ("known", "_awaited", "_met")

    def __init__(self, awaited: str | None = None) -> None:
        self.known: set[Source] = set()
        self._awaited = awaited
        self._met: dict[Source, Any] = {}

    def state_at(self, source: Source, tensor: torch.Tensor) -> TensorState:
        """The state at entry of the tensor at a path. One that is nested, or of a subclass that dispatches operations in Python,
        has no properties: no guard can hold it."""
        try:
            properties = _C.tensor_properties(tensor)
        except TypeError:
            return TensorState(None, None)
        dynamic = self._depends_on_values(source, tensor)
        return TensorState(None, properties.of_any_shape() if dynamic else properties, dynamic, storage_of(tensor))

    def _depends_on_values(self, source: Source, tensor: torch.Tensor) -> bool:
        """Whether the shape of the tensor at a path is another one from call to call. (A number has but one.)"""
        if not is_plain(type(tensor)) or tensor.layout is not torch.strided or tensor.dim() == 0:
            return False
        return source in self.known or self._is_awaited(source) and self.changes(source, tensor.shape)

    def is_of_any_length(self, source: Source, container: Any) -> bool:
        """Whether the list or range at a path is of another length from call to call."""
        return self._is_awaited(source) and self.changes(source, len(container))

    def changes(self, source: Source, now: Any) -> bool:
        """Whether what is known of a path was found to be something else than `now` in this capture or in an earlier one."""
        if self._met.setdefault(source, now) != now:
            self.known.add(source)
        return source in self.known

    def _is_awaited(self, source: Source) -> bool:
        while source.base is not None:
            source = source.base
        return isinstance(source, Local) and source.name == self._awaited


def of_any_shape(parameters: Iterable[tuple[str, Shadow]], cells: Iterable[Shadow]) -> set[Source]:
    """The paths, for a function with these parameters and cells, of the tensors whose shapes depend on values."""
    found: set[Source] = set()
    seen: set[RefNode] = set()
    todo: list[tuple[Source, Shadow]] = [(Local(name, index), shadow) for index, (name, shadow) in enumerate(parameters)]
    todo += of_closure(Function(), cells)
    while todo:
        source, shadow = todo.pop()
        if isinstance(shadow, Build):
            todo += ((Item(source, i), item) for i, item in enumerate(shadow.items) if issubclass(shadow.cls, tuple))
        elif isinstance(shadow, Expr) and shadow.op is _C.continuation:
            todo += of_closure(source, shadow.args[2].items)  # type: ignore[attr-defined]
        elif isinstance(shadow, RefNode) and isinstance(shadow.state, TensorState):
            if shadow.state.dynamic:
                found.add(source)
        elif isinstance(shadow, RefNode) and shadow not in seen:
            seen.add(shadow)
            todo += of_object(source, shadow)
    return found


def of_closure(function: Source, cells: Iterable[Shadow]) -> list[tuple[Source, Shadow]]:
    """The cells of a function, and their paths."""
    return [(Item(Attr(function, "__closure__"), i), cell) for i, cell in enumerate(cells)]


def of_object(source: Source, node: RefNode) -> list[tuple[Source, Shadow]]:
    """What the trace knows to be held by an object, and the paths to it."""
    state = node.state
    held: list[tuple[Source, Shadow]] = [(Attr(source, name), shadow) for name, shadow in node.slots.items()]
    if node.attrs is not None:
        held.append((InstanceDict(source), node.attrs))
    if isinstance(state, ListState):
        held += ((Item(source, i), item) for i, item in enumerate(state.items))
    elif isinstance(state, DictState):
        held += ((Item(source, key), item) for key, item in state.items.items() if type(key) in SCALARS)
    elif isinstance(state, FunctionState):
        held += of_closure(source, state.closure)
    return held


def ask(tensor: torch.Tensor, name: str, *args: Any) -> Any:
    """What a tensor tells of its shape by an attribute or method."""
    told = len if name == "len" else getattr(type(tensor), name)
    return told(tensor, *args) if callable(told) else told.__get__(tensor)
