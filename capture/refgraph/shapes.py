"""Shapes and lengths that no guard fixes, since they depend on values or were seen to change: at which paths a continuation finds
such tensors."""
from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from capture import _C
from capture.refgraph import size_marks
from capture.refgraph.identical import length_in_c
from capture.refgraph.memory import hides_methods, is_plain_class, layout_of, storage_of
from capture.refgraph.node import SCALARS, Build, DictState, Expr, FunctionState, ListState, RefNode, Shadow, TensorState
from capture.refgraph.shape_specs import Spec
from capture.refgraph.source import Attr, Function, InstanceDict, Item, Local, Source

BUFFER = re.compile(r"\._buffers\['[^']*'\]$")


class Shapes:
    """The paths of one compiled function at which shapes of tensors, or lengths of lists, must not be fixed by a guard.

    `known`: paths of tensors whose shapes depend on values in a trace that led here, or were seen to change. awaited: the parameter
    that holds the result of a call that no trace holds; tensors in it count as changing once a capture has met another size.
    takes_sizes: whether the backend takes graphs whose tensors change in size; at_once: whether already the first trace is to be
    one. spec: what the program says of sizes (`shapes_spec`).
    """

    __slots__ = ("known", "takes_sizes", "at_once", "spec", "_awaited", "_met", "_sizes", "_free", "_varies", "_anew", "_first",
                 "_strides", "_moved")

    def __init__(self, awaited: str | None = None) -> None:
        self.known: set[Source] = set()
        self.takes_sizes = self.at_once = False
        self.spec: Spec | None = None
        self._sizes: dict[str, torch.Size] = {}         # by path, as text: it is to hold nothing of the program alive
        self._free: dict[str, set[int]] = {}
        self._strides: dict[str, tuple[int, ...]] = {}  # … as they follow from what lies within, where they do
        self._moved: dict[str, set[int]] = {}
        self._varies = False                            # some size was found to be another, or will be
        self._anew, self._first = False, True           # see `begin`
        self._awaited = awaited
        self._met: dict[Source, Any] = {}

    def take_sizes(self, at_once: bool, spec: Spec | None) -> None:
        """Traces may hold for all sizes from now on. at_once: of all tensors, before any size was seen to change."""
        self.takes_sizes, self.at_once, self.spec = True, at_once, spec

    def begin(self, anew: bool, first: bool) -> None:
        """A capture begins. anew: its call differs from all captured ones in more than sizes. If some size of the function varies,
        all sizes are taken to vary in such a call, and at paths that no capture has looked at. first: none was made before."""
        self._anew, self._first = anew, first

    def note_known(self, found: Iterable[Source]) -> None:
        """Shapes of tensors at these paths depend on values."""
        self.known.update(found)

    def grow(self, found: Iterable[tuple[str, int]]) -> None:
        """Tensors in these places, as text, have other sizes in these dimensions in each call."""
        for path, dim in found:
            self._free.setdefault(path, set()).add(dim)
            self._varies = True

    def state_at(self, source: Source, tensor: torch.Tensor) -> TensorState:
        """The state at entry of the tensor at a path. One that is nested, or of a subclass that dispatches operations in Python, or
        that hides methods, has no properties: no guard can hold it."""
        try:
            properties = _C.tensor_properties(tensor)
        except TypeError:
            return TensorState(None, None)
        if properties.has_attributes and hides_methods(tensor):
            return TensorState(None, None)
        found, dynamic = properties, self._depends_on_values(source, tensor)
        if dynamic:
            properties = properties.of_any_shape()
        elif self._may_change(source, tensor):
            properties = properties.with_free(self.free_dims(source, tensor), self.moved_dims(source, properties))
        state = TensorState(None, properties, dynamic, storage_of(tensor))
        state.found = found
        return state

    def free_dims(self, source: Source, tensor: torch.Tensor) -> list[int]:
        """The dimensions in which the tensor at a path had other sizes in some capture, or is said to vary (`size_marks.py`). A
        tensor without elements says nothing about others, nor does one of a single element, which programs read as a number."""
        path, now = str(source), tensor.shape
        if self.spec is not None and (varying := self.spec.varying(path, now)) is not None:
            return [dim for dim in varying if tensor.numel() > 1]
        free, anew = self._free.setdefault(path, set()), not self._first and (self._anew or path not in self._sizes)
        before = self._sizes.setdefault(path, now)
        if len(before) != len(now):
            return []
        changed = [dim for dim, (size, other) in enumerate(zip(before, now, strict=True)) if size != other]
        self._varies |= bool(changed)
        if self._varies and anew:
            changed += [dim for dim, size in enumerate(now) if size > 1]
        free.update(range(len(now)) if self.at_once else changed)
        said = size_marks.varying(tensor) | size_marks.named(source, len(now))
        return sorted(dim for dim in (free | said) - size_marks.static(tensor) if dim < len(now) and tensor.numel() > 1)

    def moved_dims(self, source: Source, properties: _C.TensorProperties) -> set[int]:
        """The dimensions in which the tensor at a path had other strides in some capture, as parts of larger tensors do."""
        path, now = str(source), properties.with_free(range(len(properties.shape))).stride
        before, moved = self._strides.setdefault(path, now), self._moved.setdefault(path, set())
        if len(before) == len(now):
            moved.update(dim for dim, (stride, other) in enumerate(zip(before, now)) if stride != other and max(stride, other) > 0)
        return {dim for dim in moved if dim < len(now)}

    def _may_change(self, source: Source, tensor: torch.Tensor) -> bool:
        """Whether the tensor at a path may have other sizes and strides in other calls. Parameters and buffers have those that they
        have."""
        return (self.takes_sizes and type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.dim() > 0
                and not BUFFER.search(str(source)))

    @property
    def changing(self) -> dict[str, set[int]]:
        """The dimensions of tensors in which other sizes were found, by the text of their paths."""
        return {path: set(dims) for path, dims in self._free.items() if dims and not self.at_once}

    def meet(self, source: Source, size: torch.Size, stride: tuple[int, ...]) -> None:
        """A call that was not captured is given a tensor of this size at a path. stride: see `moved_dims`."""
        self._sizes.setdefault(str(source), size)
        self._strides.setdefault(str(source), stride)

    def foresee(self, changing: dict[str, set[int]]) -> None:
        """Takes these dimensions to change before any change was seen."""
        for path, dims in changing.items():
            self._free.setdefault(path, set()).update(dims)

    def _depends_on_values(self, source: Source, tensor: torch.Tensor) -> bool:
        """Whether the shape of the tensor at a path is another one from call to call. (A number has but one.)"""
        if not is_plain_class(type(tensor)) or layout_of(tensor) is not torch.strided or torch.Tensor.dim(tensor) == 0:
            return False
        return source in self.known or self._is_awaited(source) and self.changes(source, torch.Tensor.size(tensor))

    def is_of_any_length(self, source: Source, container: Any) -> bool:
        """Whether the list or range at a path is of another length from call to call."""
        return self._is_awaited(source) and self.changes(source, length_in_c(container))

    def changes(self, source: Source, now: Any) -> bool:
        """Whether `now`, or what an earlier capture knew of a path, differs from what was first met there."""
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
    """The value of an attribute or method by which a tensor tells its shape."""
    told = len if name == "len" else getattr(type(tensor), name)
    return told(tensor, *args) if callable(told) else told.__get__(tensor)
