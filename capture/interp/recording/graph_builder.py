"""What operations of a graph are given: tensors, constants, and numbers that change from call to call."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.special import WALKING
from capture.interp.recording import arrays, constant_tensors, fx_numbers, fx_sizes, subclass_unwrapping, subscripts
from capture.interp.recording.graph_inputs import GraphInputs
from capture.interp.recording.printable_graphs import PrintableGraph
from capture.interp.recording.scalar_specialization import Numbers, Place, counts_in, place_of
from capture.interp.recording.schedules import scheduled
from capture.operators.facts import OpFacts
from capture.operators.schemas import shown_name
from capture.refgraph.class_attributes import pin_special
from capture.refgraph.effects import Replayed
from capture.refgraph.entry_state import PINNED, VALUES
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import NUMBERS, is_one_of, items_in_c
from capture.refgraph.keys import held_by
from capture.refgraph.lookup import name_of, parts
from capture.refgraph.ndarrays import is_scalar_of_torch, scalar_of_torch
from capture.refgraph.node import ArrayState, Build, Const, Expr, External, HandleState, RefNode, Shadow, TensorState, source_of
from capture.refgraph.repetitions import repetition
from capture.refgraph.source import Computed, Literal, Local, Source, named

TENSOR_TYPE = type(torch.FloatTensor)                       # the class of the types of tensors of old
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}     # what torch takes these for
# The builtin value of an instance of a subclass.
PLAIN_VALUE: dict[type, Callable[[Any], Any]] = {int: int.__index__, float: float.__float__, str: str.__str__}


class GraphBuilder:
    """An fx graph, and the nodes in it that stand for values of the program."""

    def __init__(self, refs: RefGraph, seen: Numbers) -> None:
        self.refs, self.seen = refs, seen
        self.fx: fx.Graph = PrintableGraph()
        self.inputs = GraphInputs(self.fx)
        self.arrays = arrays.Arrays(seen)
        self.sizes = fx_sizes.SizeNodes(refs)
        self.numbers: dict[tuple[Shadow, bool], Any] = {}       # see fx_numbers
        self.bodies: list[tuple[Any, Any]] = []             # see control_flow_bodies: those that are being recorded
        self._numbers_outside: list[dict[tuple[Shadow, bool], Any]] = []        # `numbers` before each of them
        self.asking = [True]                    # whether classes are asked about operations; the last counts
        self.has_dynamic_offset = False                      # a number that changes says where in memory some tensor lies
        self.resized = False                    # the operation being recorded takes a slice of a length that changes

    @property
    def operations(self) -> int:
        """The number of recorded operations."""
        return len(self.fx.nodes) - len(self.inputs.tensors) - len(self.inputs.numbers)

    def node(self, tensor: RefNode) -> fx.Node:
        """The fx node of a tensor; an outside tensor becomes an input of the graph when it is first used."""
        state: TensorState = tensor.state
        if state.node is None:
            self.refs.touch(tensor)
            source = tensor.source
            name = source.name if isinstance(source, Local) else named(str(source))
            state.node = self.inputs.add_tensor(tensor, name)
            state.node.meta["source"] = str(source)
            subclass_unwrapping.of_class(state.node, tensor.cls)
            if isinstance(state, HandleState):
                state.node.meta["obstacle"] = f"takes a {tensor.cls.__name__}"
            elif state.dynamic:
                state.node.meta.update(any_shape=True, obstacle="takes a tensor whose shape depends on values")
        if state.node._erased:
            raise Break("opaque-call", "a tensor made in a body of torch's control flow is used outside of it")
        return state.node

    def number(self, shadow: Shadow, key: Source | Shadow, real: int | float) -> fx.Node:
        """The node of a number that is an input of the graph: guarded by its type, of any value. key: its path, or the shadow of
        the call that returned it."""
        node = self.inputs.number(key)
        if node is None:
            name = str(key) if isinstance(key, Source) else "number"
            if isinstance(key, Source):
                self.refs.require(key, "TYPE", type(real))
            node = self.inputs.add_number(key, name, Value(real, shadow))
            node.meta.update(source=name, number=type(real))
        return node

    def varies(self, source: Source, real: Any) -> bool:
        """Whether a number differed in an earlier call, or is known to change, and so becomes an input of the graph. (Bodies of
        torch's control flow take tensors alone.)"""
        if not self.seen.knows(source) and self.refs.context.takes_numbers():
            self.seen.note_varying(map(str, scheduled(source, self.refs.nodes)))
        return not self.bodies and self.seen.varies(source, real)

    def place_input(self, shadow: Shadow, real: int) -> Any:
        """An integer that says where in a tensor something lies, from outside or returned by a call: backends can calculate with it
        as with sizes."""
        if fx_sizes.is_place(shadow):
            return self.sizes.write_place(self, shadow)
        node = self.number(shadow, source_of(shadow) or shadow, real)
        node.meta["size"] = True
        return node

    def size_input(self, source: Source, real: int | float) -> fx.Node:
        """The node of a number that is an input of the graph, and says how large something is if it is an integer."""
        node = self.number(External(source, real), source, real)
        if type(real) is int:
            node.meta["size"] = True
        return node

    def plain_number(self, source: Source) -> Any:
        """A number from outside that is no tensor's size, in an expression with sizes."""
        real = self.refs.sizes.values[source]
        if type(real) in NUMBERS and self.varies(source, real):
            return self.size_input(source, real)
        self.refs.hold(source, "VALUE", real)
        return self.literal(real)

    def drawn(self, tensor: torch.Tensor, shadow: Shadow) -> RefNode:
        """A tensor of random numbers drawn before the graph, which takes it after all others. shadow: how each call makes it."""
        return self.refs.create(tensor, TensorState(self.inputs.add_drawn(tensor, shadow), None))

    def changing_number(self, shadow: Shadow, real: Any, place: Place) -> fx.Node | None:
        """The node of a number that is an input of the graph; None if it is to be a constant."""
        key = source = source_of(shadow)
        if not place.allows(real):
            return None
        if fx_numbers.is_read(shadow):
            if place is Place.RATE or self.refs.type_of(shadow) is not type(real):
                return None
            self.has_dynamic_offset |= place is Place.INDEX
            return fx_numbers.write(self, shadow, False)
        if place is Place.SIZE:
            return None
        if source is None:
            if place is Place.RATE:
                return None
            if self.refs.type_of(shadow) is not type(real) or not self.refs.make_early(shadow):
                return None
            key = shadow  # type: ignore[assignment]
        elif not self.varies(source, real):
            return None
        elif place is Place.RATE:
            for special in (0, 1):
                self.refs.require(Computed(operator.eq, (source, Literal(special))), "VALUE", real == special)
        if place in (Place.INDEX, Place.ROW):
            self.has_dynamic_offset |= place is Place.INDEX
            return self.place_input(shadow, real)
        return self.number(shadow, key, real)  # type: ignore[arg-type]

    def argument(self, shadow: Shadow, real: Any, place: Place = Place.FIXED) -> Any:
        """A value as an argument of an fx node. Scalars become constants, and are guarded, unless `place` lets them change."""
        if isinstance(shadow, Const):
            return self.literal(shadow.value)
        if self.refs.sizes.is_free(shadow) and not self.bodies:
            source = source_of(shadow)
            assert source is not None
            if type(real) is int and not fx_sizes.is_symbolic(source) or not self.sizes.can_write(self, source):
                return self.size_input(source, real)
            return self.sizes.write(self, source)
        if isinstance(shadow, (External, Expr)):
            number = self.changing_number(shadow, real, place)
            if number is not None:
                return number
            self.refs.depend(shadow, real)
            return self.literal(real)
        if is_a(real, (list, tuple)):
            pin_special(self.refs, type(real), *WALKING)
        if isinstance(shadow, Build):
            inner = place.inner if is_one_of(shadow.cls, tuple, torch.Size) else Place.FIXED
            items = [self.argument(s, r, inner) for s, r in zip(shadow.items, parts(real), strict=True)]
            if shadow.cls is slice:
                return slice(*items)
            if issubclass(shadow.cls, tuple):
                return tuple(items)
        elif isinstance(shadow, RefNode):
            if isinstance(shadow.state, TensorState) and not isinstance(shadow.state, ArrayState):
                return self.node(shadow)
            if is_a(real, list):
                inner = Place.ROW if place is Place.INDEX else place.inner
                return [self.argument(s, r, inner) for s, r in zip(
                    self.refs.list_state(shadow).items, items_in_c(real), strict=True)]
            if is_a(real, dict):
                held = held_by(real)
                return {key: self.argument(self.refs.dict_get(shadow, key), held[key]) for key in self.refs.dict_keys(shadow)}
            if is_a(real, (*PINNED, *VALUES)):
                return self.literal(real)
            if place is Place.INDEX and (index := self.arrays.index(self, shadow, real)) is not None:
                return index
            if self.arrays.is_computed(real):
                return self.fx.call_function(self.arrays.maker(real)) if arrays.is_array(real) else real.item()
            if is_scalar_of_torch(real) and shadow.source is not None:
                return self.argument(External(Computed(scalar_of_torch, (shadow.source,)), real.item()), real.item(), place)
            drawn = isinstance(shadow.origin, Replayed) and shadow.origin.returns is type(real)
            if drawn and (kind := arrays.kind_of_number(real)) is not None:
                return self.argument(Expr(kind, (shadow.origin,)), kind(real), place)  # type: ignore[arg-type]
            if is_a(real, (int, float, str)):     # IntEnum and other subclasses, from outside or of a fixed value
                self.refs.depend(shadow, real)
                return next(convert(real) for cls, convert in PLAIN_VALUE.items() if is_a(real, cls))
        raise Break("opaque-call", f"a {name_of(type(real))} is an argument of a tensor operation")

    def operand(self, facts: OpFacts, target: Any, where: int | str, value: Value, args: Sequence[Value], changing: bool) -> Any:
        """The argument `where` of an operation. A number that was read out of a tensor may be calculated with, and, if `changing`,
        one that is another on each call."""
        number = fx_numbers.operand(self, facts, value.shadow, args)
        if number is not None:
            return number
        place = place_of(target, where, value.real) if changing else Place.FIXED
        if (repeated := repetition(value.shadow)) is not None and where == 0 and facts.joins:
            items = [self.argument(shadow, real, place.inner) for shadow, real in zip(repeated.once, value.real)]
            return self.fx.call_function(operator.mul, (items, self.sizes.write(self, self.refs.sizes.path(repeated.times))))
        if place is Place.FIXED and facts.is_of_sizes(where, value.real) and fx_numbers.has_read(value.shadow):
            place, self.resized = Place.SIZE, True
        elif place is Place.FIXED and (counts := counts_in(facts, where, value.real)) and not self.pin(*counts):
            raise Break("data-dependent", f"{shown_name(target)}() takes an integer that a tensor holds")
        elif place is Place.FIXED and facts.is_of_sizes(where, value.real):
            self.sizes.free(self, value.shadow)
        if place is Place.INDEX and facts.takes_subscript and subscripts.is_short(value.real, args[0].real):
            self.seen.note_short(self.refs.context.position())
        if place is Place.INDEX and isinstance(value.shadow, Build) and facts.takes_subscript:
            return self._subscript(value.shadow, value.real, args[0].real)
        return self.argument(value.shadow, value.real, place)

    def _subscript(self, shadow: Build, real: Any, tensor: torch.Tensor) -> Any:
        """A slice, or a tuple with slices in it, that a tensor is subscripted with."""
        shadow, real = subscripts.with_known_bounds(shadow, real, self.pin)
        key = [real] if shadow.cls is slice else real
        sizes = [None] * len(key) if self.is_dynamic(tensor) else subscripts.sizes(key, tensor)
        items = [shadow] if shadow.cls is slice else shadow.items
        if self.refs.shapes.takes_sizes and self._is_resized(items, key, sizes):
            self.sizes.free(self, shadow)
        for part in items:
            if isinstance(part, Build) and part.cls is slice and self.refs.sizes.is_free_in(part):
                self.sizes.free(self, part)         # its other bound may change as well
        if self.sizes.of(tensor) is not None or self.refs.sizes.is_free_in(shadow):
            return self.argument(shadow, real, Place.INDEX)
        if shadow.cls is slice:
            return self._slice(shadow, real, *sizes)
        return tuple(self._slice(part, item, size) if isinstance(part, Build) and part.cls is slice
                     else self.argument(part, item, Place.INDEX)
                     for part, item, size in zip(shadow.items, real, sizes, strict=True))

    def _is_resized(self, items: Sequence[Shadow], key: Sequence[Any], sizes: Sequence[int | None]) -> bool:
        """Whether some slice was found to take another number of elements in another call."""
        slices = [(part, item, size) for part, item, size in zip(items, key, sizes, strict=True)
                  if isinstance(part, Build) and part.cls is slice and size is not None]
        paths = [(subscripts.length_at_entry(part.items, size), subscripts.length(*parts(item), size))  # type: ignore[call-arg]
                 for part, item, size in slices]
        return any(self.seen.may_vary(path, length) for path, length in paths if path is not None)

    def _slice(self, shadow: Build, real: slice, size: int | None) -> slice:
        """A slice of a dimension of this size. Its bounds may differ on each call, with the same number of elements between them.
        The number may differ too, once a capture has found another one, or if a bound is computed on every call."""
        path = None if size is None else subscripts.length_at_entry(shadow.items, size)
        bounds = list(zip(shadow.items, parts(real), strict=True))
        if any(source_of(bound) is None for bound in shadow.items):
            self.resized = True
            return slice(*(self.argument(bound, value, Place.INDEX) for bound, value in bounds))
        if path is None or all(isinstance(bound, Const) for bound in shadow.items):
            return slice(*(self.argument(bound, value) for bound, value in bounds))
        length = subscripts.length(*parts(real), size)  # type: ignore[call-arg]
        resized = self.seen.varies(path, length)
        moved = [type(value) is int and not isinstance(bound, Const) and self.seen.varies(source_of(bound), value)  # type: ignore[arg-type]
                 for bound, value in bounds]
        if any(moved):
            self.has_dynamic_offset = True
            if resized:
                self.resized = True
            else:
                self.refs.require(path, "VALUE", length)
        return slice(*(self.place_input(bound, value) if moves else self.argument(bound, value)
                       for (bound, value), moves in zip(bounds, moved)))

    def literal(self, real: Any) -> Any:
        """A constant as fx can print it: its source code loses the signs of zeros in complex numbers, and of NaNs, and cannot name
        classes, which stand for types of tensors (`x.to(float)`, `x.type(torch.LongTensor)`). Raises Break for other classes."""
        if type(real) is complex:
            return self.fx.call_function(complex, (self.literal(real.real), self.literal(real.imag)))
        if type(real) is float and real != real and math.copysign(1.0, real) < 0:
            return self.fx.call_function(operator.neg, (math.nan,))
        if arrays.is_value(real):
            return real.item()
        if not is_a(real, type):
            return real
        if type(real) is TENSOR_TYPE:
            return f"{real.__module__}.{real.__name__}"
        if real in DTYPES:
            return DTYPES[real]
        raise Break("opaque-call", f"the class {real.__name__} is an argument of a tensor operation")

    def effect(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        """Appends an operation on torch's modes, such as switching gradients off."""
        node = subclass_unwrapping.note(self.fx.call_function(target, args), self.asking[-1])
        node.meta["stack"] = self.refs.context.positions()
        return node

    def begin_operation(self) -> None:
        """Arguments of the next operation follow."""
        self.resized = False

    def pin(self, *tensors: torch.Tensor) -> bool:
        """Whether tensors follow from constants, and from numbers and sizes from outside, which are then guarded by value."""
        needed = self.numbers_behind(*tensors)
        if needed is None or not all(isinstance(source, Source) for source, _ in needed):       # what a call returned
            return False
        for source, real in needed:
            self.refs.hold(source, "VALUE", real)  # type: ignore[arg-type]
        return True

    def numbers_behind(self, *tensors: torch.Tensor) -> list[tuple[Source | Shadow, Any]] | None:
        """The numbers and sizes from outside of which, and of constants, tensors are computed, and what these are. None if they
        follow from anything else."""
        if not all(constant_tensors.is_fixed(self.refs, tensor) for tensor in tensors):
            return None
        seen = self.behind(tensors)
        numbers = zip(self.inputs.numbers, self.inputs.paths_of_numbers().items())
        return [*((source, number.real) for number, (node, source) in numbers if node in seen), *self.sizes.read_in(seen)]

    def rests_on_sizes(self, tensor: torch.Tensor) -> bool:
        """Whether what a tensor holds follows from constants and from sizes that change."""
        return bool(self.refs.sizes) and constant_tensors.is_fixed(self.refs, tensor) and bool(
            self.sizes.read_in(self.behind((tensor,))))

    def behind(self, tensors: Sequence[torch.Tensor]) -> set[fx.Node]:
        """The nodes of tensors, and of all that they are computed from."""
        nodes = [self.node(self.refs.find(tensor)) for tensor in tensors]  # type: ignore[arg-type]
        seen = set(nodes)
        for node in nodes:
            fresh = [source for source in node.all_input_nodes if source not in seen]
            seen.update(fresh)
            nodes += fresh
        return seen

    def stop_asking(self) -> None:
        """No `__torch_function__` of a class is called until `ask_again`."""
        self.asking.append(False)

    def ask_again(self) -> None:
        """As before `stop_asking`."""
        self.asking.pop()

    def note_number(self, shadow: Shadow, as_tensor: bool, node: Any) -> None:
        """A number that was needed is computed in the graph. See fx_numbers."""
        self.numbers[shadow, as_tensor] = node

    def begin_body(self, body: Any, start: Any) -> None:
        """From now on a body of torch's control flow is recorded. See control_flow_bodies."""
        self.bodies.append((body, start))
        self._numbers_outside.append(dict(self.numbers))

    def end_body(self) -> Any:
        """The body has ended. Returns where it began."""
        self.numbers = self._numbers_outside.pop()
        return self.bodies.pop()[1]

    def require_inside(self, real: Any) -> None:
        """Raises RuntimeError unless an object was made by the body of torch's control flow that is recorded: it only computes."""
        node = self.refs.find(real)
        if node is None or not node.created or node.serial <= self.bodies[-1][1].mark:
            raise RuntimeError("a body of torch's control flow changes an object that was there before it")

    def is_dynamic(self, tensor: torch.Tensor) -> bool:
        node = self.refs.find(tensor)
        return node is not None and node.state.dynamic
