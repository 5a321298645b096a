"""Sizes that change from call to call, in the fx graph: nodes that compute them, and what is known of each tensor's."""
from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from capture import _C
from capture._C import is_a
from capture.errors import InternalError
from capture.interp.core.frame import Value
from capture.interp.recording import subclass_unwrapping
from capture.interp.recording.fx_numbers import nameable
from capture.interp.recording.recorder import Recorder
from capture.interp.recording.shape_rules import Copied, Many, Shaper, Unknown, is_loose, rule_of, shapes_of, views
from capture.refgraph.graph import RefGraph
from capture.refgraph.memory import StorageWeakRef, held_storage, storage_id
from capture.refgraph.node import Const, Expr, External, ListState, RefNode, Shadow, TensorState, source_of
from capture.refgraph.repetitions import repetition
from capture.refgraph.sizes import Cut, Size, as_size
from capture.refgraph.source import Computed, Literal, Source


class Form(NamedTuple):
    """What is known of a tensor: see the fields of `TensorState`."""

    sizes: Sequence[Size] | None = None
    cuts: tuple[Cut, ...] = ()
    lies: tuple[int, ...] | None = None
    copies: tuple[Copied, ...] = ()


class SizeNodes:
    """The sizes in one graph. The nodes that compute them stand before all operations: sizes are as they were at entry."""

    def __init__(self, graph: RefGraph) -> None:
        self.graph = graph
        self._nodes: dict[Source, Node] = {}
        self._numbers: set[Source] = set()      # from outside, which are sizes
        self.sources: dict[Node, Source] = {}
        self._last: Node | None = None
        self._copies: list[tuple[list[StorageWeakRef], Shaper]] = []    # storages, and what knows of what decides if they are one

    def free(self, recorder: Recorder, shadow: Shadow | None) -> None:
        """Treats numbers from outside that say how large a result is as sizes, if they were seen to change."""
        if not self.graph.shapes.takes_sizes or shadow is None or repetition(shadow) is not None:
            return
        if isinstance(shadow, External):
            sizes = self.graph.sizes
            if type(shadow.value) is int and not sizes.is_free(shadow) and recorder.varies(shadow.source, shadow.value):
                self.graph.require(shadow.source, "TYPE", int)
                sizes.free(shadow.source, shadow.value)
                self._numbers.add(shadow.source)
            return
        parts = shadow.state.items if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState) else shadow.parts
        for part in parts:
            self.free(recorder, part)

    def can_write(self, recorder: Recorder, source: Source) -> bool:
        """Whether a number is computed of sizes and other numbers alone: not looked up under a key that follows from sizes. No
        backend calculates with sizes and floats that change."""
        sizes = self.graph.sizes
        if isinstance(source, Literal) or source in self._numbers:
            return True
        if source in sizes.values and not sizes.includes(source):
            return type(real := sizes.values[source]) is not float or not recorder.varies(source, real)
        return isinstance(source, Computed) and (source.op in (_C.size, _C.stride) or all(
            self.can_write(recorder, arg) for arg in source.args))

    def write(self, recorder: Recorder, source: Source) -> Any:
        """The node of a number that follows from sizes."""
        if isinstance(source, Literal):
            return source.value
        if source in self._nodes:
            return self._nodes[source]
        sizes = self.graph.sizes
        if source in self._numbers or not isinstance(source, Computed) or source in sizes.values and not sizes.includes(source):
            return recorder.plain_number(source)
        if source.op in (_C.size, _C.stride):
            tensor, dim = source.args
            made = self._append(recorder, "call_method", source.op.__name__, recorder.node(self._tensor(tensor)), dim.value)  # type: ignore[attr-defined]
        elif source.op is float:            # of a tensor it would read a value
            made = self._append(recorder, "call_function", operator.truediv, self.write(recorder, source.args[0]), 1)
        else:
            made = self._append(recorder, "call_function", nameable(source.op), *(self.write(recorder, arg) for arg in source.args))
        self._nodes[source], self.sources[made] = made, source
        return made

    def write_place(self, recorder: Recorder, shadow: Shadow) -> Any:
        """The node of an integer that says where in a tensor something lies, see `is_place`: calculated in the graph from numbers
        from outside, so that backends know how far apart two places are."""
        if isinstance(shadow, Const):
            return shadow.value
        if isinstance(shadow, External):
            return recorder.size_input(shadow.source, shadow.value)
        source = source_of(shadow)
        assert isinstance(shadow, Expr) and source is not None
        if source not in self._nodes:
            made = self._append(recorder, "call_function", shadow.op, *(self.write_place(recorder, arg) for arg in shadow.args))
            self._nodes[source], self.sources[made] = made, source
        return self._nodes[source]

    def read_in(self, nodes: Collection[Node]) -> list[tuple[Source, int]]:
        """The sizes of tensors among these nodes: their paths, and what they are."""
        return [(source, self.graph.sizes.real(source)) for node, source in self.sources.items()
                if node in nodes and node.target == "size"]

    def _append(self, recorder: Recorder, op: str, target: Any, *args: Any) -> Node:
        with recorder.fx.inserting_after(self._last or recorder.inputs.last):
            self._last = subclass_unwrapping.note(recorder.fx.create_node(op, target, args), True)
        self._last.meta["stack"] = self.graph.context.positions()
        return self._last

    def _tensor(self, source: Source) -> RefNode:
        return next(node for node in self.graph.nodes if node.source == source)

    def of(self, tensor: torch.Tensor) -> tuple[Size, ...] | None:
        """The sizes of a tensor, some of which change; None where none does."""
        sizes = tuple(map(self.graph.sizes.resolved, self._form_of(tensor).sizes or ()))
        return sizes if any(size.constant is None for size in sizes) else None

    def of_open_layout(self, tensor: torch.Tensor) -> tuple[Size, ...] | None:
        """The sizes of a tensor whose sizes, or whose strides alone, change from call to call; None for others."""
        return self.of(tensor) or (tuple(map(as_size, tensor.shape)) if self._form_of(tensor).cuts else None)

    def strides_of(self, tensor: torch.Tensor, dims: Sequence[int]) -> list[Size] | None:
        """The strides in these dimensions of a tensor whose sizes change, where they follow from its sizes, which is guarded. None
        where such a dimension has less than two elements, or other elements lie between the tensor's own."""
        sizes, form, dims = self.of(tensor), self._form_of(tensor), [dim % tensor.dim() for dim in dims]
        strides, end = list(map(as_size, tensor.stride())), as_size(1)
        single = {dim for dim, size in enumerate(sizes or ()) if size.constant == 1}        # whose stride may be any
        if sizes is None or form.cuts or not single.isdisjoint(dims):
            return None
        several = sorted(set(range(len(sizes))) - single, key=lambda dim: strides[dim].real)
        if any(sizes[dim].real < 2 for dim in several):
            return None
        for dim in several:
            if strides[dim].real == end.real:
                strides[dim] = end
            elif strides[dim].real and end.constant is None:        # 0: it is expanded
                return None
            end = sizes[dim] * strides[dim] if strides[dim].real else end
        for dim in several:
            self.graph.sizes.decide(operator.ge, sizes[dim], 2)
        for copied in form.copies:
            Shaper(self.graph).require_copy(*copied)
        return [strides[dim] for dim in dims]

    def are_free(self, values: Iterable[Value]) -> bool:
        """Whether among these arguments are tensors whose sizes change, or numbers that follow from such."""
        return bool(self.graph.sizes) and any(self._is_free(value.shadow) if not is_a(value.real, torch.Tensor) else
                                              self.of(value.real) is not None for value in values)

    def of_results(self, target: Any, args: Sequence[Value], kwargs: dict[str, Value], tensors: Sequence[torch.Tensor],
                   result: Any, in_body: bool) -> list[Form] | None:
        """The sizes of an operation's results (None where they do not change) and their cuts. If no rule gives them, the sizes of
        the operands are fixed. in_body: of torch's control flow, whose graphs take only tensors."""
        if not self.graph.sizes:
            return None
        free = [sizes for tensor in tensors if (sizes := self.of(tensor)) is not None]
        numbers = [value for value in (*args, *kwargs.values()) if self._is_free(value.shadow)]
        cuts = {storage_id(tensor): held for tensor in tensors if (held := self._form_of(tensor).cuts)}
        found = list(flat(result))
        silent = result is None and rule_of(target) is not None         # `x[i] = y` must fit, too
        if not found and not silent or not free and not numbers and not cuts:
            return None
        shaper = Shaper(self.graph, result)
        try:
            if in_body:
                raise Unknown
            shapes = shapes_of(shaper, target, args, kwargs)
        except Unknown:
            shapes = None
        if shapes is None or not free and not numbers:          # then it is asked for what it guards alone
            self.fix(tensors)
            for value in numbers:
                self._fix(value.shadow, value.real)
            return [Form(None, cuts.get(storage_id(tensor), ())) for tensor in found]
        each = shapes if isinstance(shapes, Many) else [] if silent else [shapes]
        if [[size.real for size in shape] for shape in each] != [list(tensor.shape) for tensor in found]:
            raise InternalError(f"the rule for the sizes of {target} makes {each} of {[tensor.shape for tensor in found]}")
        if shaper.copying:
            storages = map(held_storage, (*tensors, *found))
            self._copies.append(([storage for storage in storages if storage is not None], shaper))
        made = tuple(cut for cut in shaper.cuts if (cut[0] - cut[1]).constant is None)
        views, lies = set(map(storage_id, tensors)), shaper.lies
        if lies is None and any(map(self._is_loose, tensors)):
            lies = ()
        copies = tuple(dict.fromkeys((*(copy for tensor in tensors for copy in self._form_of(tensor).copies), *shaper.copying)))
        return [Form(shape, (*cuts.get(memory, ()), *made) if (memory := storage_id(tensor)) in views else (), lies, copies)
                for tensor, shape in zip(found, each, strict=True)]

    def _is_loose(self, tensor: torch.Tensor) -> bool:
        sizes = self.of(tensor)
        return sizes is not None and (self._form_of(tensor).lies is not None or len(sizes) != tensor.dim()
                                      or is_loose(tensor.stride(), sizes))

    def _state_of(self, tensor: torch.Tensor) -> TensorState | None:
        node = self.graph.find(tensor)
        return node.state if node is not None and isinstance(node.state, TensorState) else None

    def _form_of(self, tensor: torch.Tensor) -> Form:
        state = self._state_of(tensor)
        return Form() if state is None else Form(state.sizes, state.cuts, state.lies, state.copies)

    def wrote(self, storages: Collection[int | None]) -> None:
        """Notes that these storages were written to (none: any): which other tensors share them is guarded from now on."""
        for shared, shaper in self._copies:
            if not storages or any(storage.cdata in storages for storage in shared):
                for copied in shaper.copying:
                    shaper.require_copy(*copied)

    def guard_contiguity(self, tensor: Value) -> None:
        """Guards all that decides whether a tensor is contiguous."""
        views.contiguous(Shaper(self.graph), tensor)

    def fix(self, tensors: Iterable[torch.Tensor]) -> None:
        """Guards the sizes of these tensors by value."""
        for tensor in tensors if self.graph.sizes else ():
            self.graph.sizes.pin(self.of(tensor) or ())

    def fix_layout(self, tensors: Iterable[torch.Tensor]) -> None:
        """Guards the sizes and strides of these tensors by value."""
        for tensor in tensors if self.graph.sizes else ():
            self.fix([tensor])
            form = self._form_of(tensor)
            self.graph.sizes.pin(size for cut in form.cuts for size in cut)
            for copied in form.copies:
                Shaper(self.graph).require_copy(*copied)

    def fix_seen_layout(self, tensors: Iterable[torch.Tensor]) -> None:
        """The same where the program is told of strides: along single elements, copies have those of tensors from outside."""
        self.fix_layout(tensors)
        self.graph.sizes.pin_strides()

    def fix_all(self) -> None:
        """Guards all sizes by value: what follows cannot be recorded with sizes that change."""
        self.graph.sizes.pin_all()

    def _is_free(self, shadow: Shadow | None) -> bool:
        """Whether a number, or some of several, changes with sizes."""
        if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState):
            return repetition(shadow) is not None or any(map(self.graph.sizes.is_free_in, shadow.state.items))
        return self.graph.sizes.is_free_in(shadow)

    def _fix(self, shadow: Shadow | None, real: Any) -> None:
        if isinstance(shadow, RefNode) and isinstance(shadow.state, ListState):
            for part, item in zip(shadow.state.items, real, strict=True):
                self._fix(part, item)
        elif self.graph.sizes.is_free_in(shadow):
            self.graph.depend(shadow, real)  # type: ignore[arg-type]

    def note(self, result: Any, forms: list[Form] | None) -> None:
        """Notes the sizes and cuts of an operation's results."""
        for tensor, form in zip(flat(result), forms or (), strict=forms is not None):
            state = self._state_of(tensor)
            if state is not None:
                state.sizes = tuple(form.sizes) if form.sizes and any(size.constant is None for size in form.sizes) else None
                # Nested tensors have no strides, nor are they asked for any.
                state.lies = None if form.lies is None or form.lies == tensor.stride() else form.lies
                state.cuts, state.copies = form.cuts, form.copies


# What backends can calculate with sizes that are symbols.
SYMBOLIC = frozenset({operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.pos,
                      operator.pow, abs, max, min, _C.size, _C.stride})


PLACING = frozenset((operator.add, operator.sub, operator.mul, operator.neg))
DEEPEST = 8


def is_place(shadow: Shadow, deepest: int = DEEPEST) -> bool:
    """Whether a number is an integer from outside, or calculated from such, for any that there may be, by what makes integers of
    integers and never raises."""
    if isinstance(shadow, (Const, External)):
        return type(shadow.value) is int
    return type(shadow) is Expr and shadow.op in PLACING and deepest > 0 and all(is_place(arg, deepest - 1) for arg in shadow.args)


def is_symbolic(source: Source) -> bool:
    """Whether a number is calculated of sizes by what can be done with symbols, too."""
    return not isinstance(source, Computed) or source.op in SYMBOLIC and all(map(is_symbolic, source.args))


def flat(result: Any) -> Iterable[torch.Tensor]:
    """The tensors of a result, in order."""
    if is_a(result, torch.Tensor):
        yield result
    elif is_a(result, (tuple, list)):
        for item in result:
            yield from flat(item)

