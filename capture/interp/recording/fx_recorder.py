"""Recording of tensor operations, already done for real, as an fx graph."""
from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import equal as same  # whatever the program puts in its place
from torch import fx

from capture import _C
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.recording import arrays, constant_tensors, fx_numbers, leaf_functions, regions, subclass_unwrapping, subscripts
from capture.interp.recording.recomputable_tensors import Told
from capture.interp.recording.regions import Region, graph_module, outline
from capture.interp.recording.result_shapes import COUNTED, OVERWRITING, ROWS, is_dynamic, name_of
from capture.interp.recording.scalar_specialization import SPLITTING, Numbers, Place, is_of_sizes, place_of
from capture.interp.recording.undo_log import MOST_BYTES, RELAYING, Overwritten, size_of
from capture.interp.recording.writes import note_writes, uncounted, versions_of
from capture.refgraph.effects import Effect, Replayed
from capture.refgraph.facts import current_gpu
from capture.refgraph.graph import PINNED, VALUES, RefGraph
from capture.refgraph.identical import LISTS
from capture.refgraph.lookup import parts
from capture.refgraph.memory import asking_nobody, is_handle, pin_tensor_class, storage_of
from capture.refgraph.ndarrays import is_scalar_of_torch, scalar_of_torch
from capture.refgraph.node import (
    ArrayState,
    Build,
    Const,
    DictState,
    Expr,
    External,
    HandleState,
    ListState,
    RefNode,
    Shadow,
    TensorState,
    source_of,
)
from capture.refgraph.result_types import IN_PLACE
from capture.refgraph.source import Computed, Literal, Local, Source, named

SUBSCRIPTING = frozenset({"getitem", "setitem"})            # the operators whose second argument is a subscript
TENSOR_TYPE = type(torch.FloatTensor)                       # the class of the types of tensors of old
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}     # what torch takes these for


class FxRecorder:
    """The fx graph of one capture, in the order of execution. Every node's `meta["stack"]` says where in the program it comes
    from."""

    def __init__(self, refs: RefGraph, seen: Numbers, most: float = MOST_BYTES) -> None:
        """seen: the numbers from outside that change from call to call. most: bytes of what the graph changes outside of it that
        can be taken back."""
        self.refs, self.seen = refs, seen
        self.fx = fx.Graph()
        self.inputs: list[RefNode] = []                     # outside tensors, in the order of the placeholders
        self.number_inputs: list[Value] = []                # … and numbers that change, whose placeholders come after them
        self._last_input: fx.Node | None = None
        self._placeholders: dict[Source | Shadow, fx.Node] = {}         # of numbers: by their paths, or as what a call returned
        self.numbers: dict[tuple[Shadow, bool], Any] = {}       # see fx_numbers
        self.counted: dict[RefNode, tuple[External, int]] = {}          # see scalar_tensors
        self.arrays = arrays.Arrays(seen)
        self.told = Told()
        self.devices: set[str] = set()                      # types of those that results lie on
        self.regions: list[Region] = []
        self.bodies: list[tuple[Any, Any]] = []             # see control_flow_bodies: those that are being recorded
        self.modules: dict[str, torch.nn.Module] = {}       # … and what became of others
        self.asking = [True]                    # whether classes are asked about operations; the last counts
        self.switched: set[Callable[..., Any]] = set()      # what tells of the kernels that the graph has chosen
        self.state: Any = None                  # of the program, before an operation which is code of its own
        self.versions: dict[int, int | None] = {}      # of tensors, before a call of a scripted method
        self.moves = False                      # a number that changes says where in memory some tensor lies
        self.silent = False                     # some operation was called under filters of warnings that the program had set
        # What the graph changes: an existing tensor; one from outside, or other state; what is to be undone when it raises.
        self.mutates = self.changes = self.leaves_behind = False
        self.overwritten, self.most = Overwritten(), most
        # What is taken for granted of tensors, what looks whether it is so, and whether the graph had changed something by then;
        # whether changes are taken back if it is not.
        self.expected: list[tuple[Shadow, bool | int, Callable[..., Any], bool, bool]] = []
        self.takes_back = False
        # Some operation may raise on a hit; the program tells how far it came, by a handler or by effects; how many effects come
        # before the first of these operations.
        self.fails = self.watched = False
        self.effects_before: int | None = None
        self._snapshots: list[tuple[fx.Node, torch.Tensor, int | None, int]] = []
        self._resized = False                   # the operation being recorded takes a slice of a length that changes
        self._random = _C.get_random_state()

    @property
    def operations(self) -> int:
        """The number of recorded operations."""
        return len(self.fx.nodes) - len(self.inputs) - len(self.number_inputs)

    def node(self, tensor: RefNode) -> fx.Node:
        """The fx node of a tensor; an outside tensor becomes an input of the graph when it is first used."""
        state: TensorState = tensor.state
        if state.node is None:
            self.refs.touch(tensor)
            source = tensor.source
            name = source.name if isinstance(source, Local) else named(str(source))
            first = next(iter(self._placeholders.values()), None)
            with self.fx.inserting_after(self._last_input) if first is None else self.fx.inserting_before(first):
                state.node = self._last_input = self.fx.placeholder(name)
            state.node.target = state.node.name         # a parameter's name, made unique by fx
            state.node.meta["source"] = str(source)
            subclass_unwrapping.of_class(state.node, tensor.cls)
            if isinstance(state, HandleState):
                state.node.meta["obstacle"] = f"takes a {tensor.cls.__name__}"
            elif state.dynamic:
                state.node.meta.update(any_shape=True, obstacle="takes a tensor whose shape depends on values")
            self.inputs.append(tensor)
        if state.node._erased:
            raise Break("opaque-call", "a tensor made in a body of torch's control flow is used outside of it")
        return state.node

    def number(self, shadow: Shadow, key: Source | Shadow, real: int | float) -> fx.Node:
        """The node of a number, which the graph takes as it is on each call: of this type, and any value. key: its path, or it
        itself if a call returned it."""
        if key not in self._placeholders:
            name = str(key) if isinstance(key, Source) else "number"
            if isinstance(key, Source):
                self.refs.require(key, "TYPE", type(real))
            last = next(reversed(self._placeholders.values()), self._last_input)
            with self.fx.inserting_after(last):
                node = self._placeholders[key] = self.fx.placeholder(name)
            node.target = node.name
            node.meta.update(source=name, number=type(real))
            self.number_inputs.append(Value(real, shadow))
        return self._placeholders[key]

    def drawn(self, tensor: torch.Tensor, shadow: Shadow) -> RefNode:
        """A tensor of random numbers drawn before the graph, which takes it after all others. shadow: how each call makes it."""
        last = next(reversed(self._placeholders.values()), self._last_input)
        with self.fx.inserting_after(last):
            node = self._placeholders[shadow] = self.fx.placeholder("drawn")
        node.target = node.name
        node.meta.update(source="random numbers", obstacle="takes an array of random numbers")
        self.number_inputs.append(Value(tensor, shadow))
        return self.refs.create(tensor, TensorState(node, None))

    def changing_number(self, shadow: Shadow, real: Any, place: Place) -> fx.Node | None:
        """The node of a number that may be another one on each call; None for what is to be a constant."""
        key = source = source_of(shadow)
        if not place.allows(real):
            return None
        if fx_numbers.is_read(shadow):
            if place is Place.RATE or self.refs.type_of(shadow) is not type(real):
                return None
            self.moves |= place is Place.INDEX
            return fx_numbers.write(self, shadow, False)
        if place is Place.SIZE:
            return None
        if source is None:
            if place is Place.RATE:
                return None
            if self.refs.type_of(shadow) is not type(real) or not self.refs.make_early(shadow):
                return None
            key = shadow  # type: ignore[assignment]
        elif self.bodies or not self.seen.varies(source, real):     # torch's control flow takes tensors
            return None
        elif place is Place.RATE:
            for special in (0, 1):
                self.refs.require(Computed(operator.eq, (source, Literal(special))), "VALUE", real == special)
        self.moves |= place is Place.INDEX
        return self.number(shadow, key, real)  # type: ignore[arg-type]

    def argument(self, shadow: Shadow, real: Any, place: Place = Place.FIXED) -> Any:
        """A value as an argument of an fx node. Scalars become constants, and are guarded, unless `place` lets them change."""
        if isinstance(shadow, Const):
            return self.literal(shadow.value)
        if isinstance(shadow, (External, Expr)):
            number = self.changing_number(shadow, real, place)
            if number is not None:
                return number
            self.refs.depend(shadow, real)
            return self.literal(real)
        if isinstance(shadow, Build):
            inner = place.inner if shadow.cls in (tuple, torch.Size) else Place.FIXED
            items = [self.argument(s, r, inner) for s, r in zip(shadow.items, parts(real), strict=True)]
            if shadow.cls is slice:
                return slice(*items)
            if issubclass(shadow.cls, tuple):
                return tuple(items)
        elif isinstance(shadow, RefNode):
            if isinstance(shadow.state, TensorState) and not isinstance(shadow.state, ArrayState):
                return self.node(shadow)
            if isinstance(real, list):
                return [self.argument(s, r, place.inner) for s, r in zip(self.refs.list_state(shadow).items, real, strict=True)]
            if isinstance(real, dict):
                return {key: self.argument(self.refs.dict_get(shadow, key), real[key]) for key in self.refs.dict_keys(shadow)}
            if isinstance(real, (*PINNED, *VALUES)):
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
            if isinstance(real, (int, float, str)):     # IntEnum and other subclasses, from outside or of a fixed value
                self.refs.depend(shadow, real)
                return next(convert(real) for cls, convert in PLAIN_VALUE.items() if isinstance(real, cls))
        raise Break("opaque-call", f"a {type(real).__name__} is an argument of a tensor operation")

    def _operand(self, target: Any, where: int | str, value: Value, args: Sequence[Value], changing: bool) -> Any:
        """The argument `where` of an operation. A number that was read out of a tensor may be calculated with, and, if `changing`,
        one that is another on each call."""
        name = name_of(target)
        number = fx_numbers.operand(self, name, value.shadow, args)
        if number is not None:
            return number
        place = place_of(target, where, value.real) if changing else Place.FIXED
        if place is Place.FIXED and is_of_sizes(name, where, value.real) and fx_numbers.has_read(value.shadow):
            place, self._resized = Place.SIZE, True
        if place is Place.INDEX and isinstance(value.shadow, Build) and name in SUBSCRIPTING:
            return self._subscript(value.shadow, value.real, args[0].real)
        return self.argument(value.shadow, value.real, place)

    def _subscript(self, shadow: Build, real: Any, tensor: torch.Tensor) -> Any:
        """A slice, or a tuple with slices in it, that a tensor is subscripted with."""
        shadow, real = subscripts.with_known_bounds(shadow, real, self.pin)
        key = [real] if shadow.cls is slice else real
        sizes = [None] * len(key) if self._dynamic(tensor) else subscripts.sizes(key, tensor)
        if shadow.cls is slice:
            return self._slice(shadow, real, *sizes)
        return tuple(self._slice(part, item, size) if isinstance(part, Build) and part.cls is slice
                     else self.argument(part, item, Place.INDEX)
                     for part, item, size in zip(shadow.items, real, sizes, strict=True))

    def _slice(self, shadow: Build, real: slice, size: int | None) -> slice:
        """A slice of a dimension of this size. Its bounds may be others on each call, with as many elements between them; once a
        capture has found another number of elements, or if a bound is computed on every call, with any number."""
        path = None if size is None else subscripts.length_at_entry(shadow.items, size)
        bounds = list(zip(shadow.items, parts(real), strict=True))
        if any(source_of(bound) is None for bound in shadow.items):
            self._resized = True
            return slice(*(self.argument(bound, value, Place.INDEX) for bound, value in bounds))
        if path is None or all(isinstance(bound, Const) for bound in shadow.items):
            return slice(*(self.argument(bound, value) for bound, value in bounds))
        length = subscripts.length(*parts(real), size)  # type: ignore[call-arg]
        resized = self.seen.varies(path, length)
        moved = [type(value) is int and not isinstance(bound, Const) and self.seen.varies(source_of(bound), value)  # type: ignore[arg-type]
                 for bound, value in bounds]
        if any(moved):
            self.moves = True
            if resized:
                self._resized = True
            else:
                self.refs.require(path, "VALUE", length)
        return slice(*(self.number(bound, source_of(bound), value) if moves else self.argument(bound, value)  # type: ignore[arg-type]
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
        if not isinstance(real, type):
            return real
        if type(real) is TENSOR_TYPE:
            return f"{real.__module__}.{real.__name__}"
        if real in DTYPES:
            return DTYPES[real]
        raise Break("opaque-call", f"the class {real.__name__} is an argument of a tensor operation")

    def record(self, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value], result: Any,
               versions: dict[int, int | None], warned: Any = None) -> Shadow:
        """Appends an operation, whose real result is `result`, and returns its shadow.

        op: "call_function" or "call_method". versions: `versions_of` the arguments before the operation. warned: see
        `program_frames.warned`. Raises Break, having taken back what it appended.
        """
        last = next(iter(reversed(self.fx.nodes)), None)
        before = self.changes, self.overwritten
        try:
            return self._record(op, target, args, kwargs, result, versions, warned)
        except Break:
            self.changes, self.overwritten = before
            for node in reversed(self.fx.nodes):
                if node is last:
                    break
                if node.op != "placeholder":
                    self.fx.erase_node(node)
            raise

    def _record(self, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value], result: Any,
                versions: dict[int, int | None], warned: Any) -> Shadow:
        changing, self._resized = not is_dynamic(target, args, kwargs) and is_of_tensors(result), False
        arguments = tuple(self._operand(target, place, a, args, changing) for place, a in enumerate(args))
        if target in IN_PLACE and not isinstance(arguments[0], fx.Node):
            target = IN_PLACE[target]           # `0 += tensor` makes a new tensor
        node = self.fx.create_node(op, target, arguments, {
            name: self._operand(target, name, v, (), changing) for name, v in kwargs.items()})
        node.meta["stack"] = self.refs.context.positions()
        subclass_unwrapping.note(node, self.asking[-1])
        if warned is not None:
            node.meta["warned"] = warned
        filters = self.refs.find(warnings.filters)
        self.silent |= filters is not None and filters.created
        self._note_obstacle(node, args)
        if (target if isinstance(target, str) else getattr(target, "__name__", "")) in RELAYING:
            self.overwritten = self.overwritten.beyond_recall()
        tensors = list(tensors_in(args, kwargs))
        computes = constant_tensors.computes(name_of(target), kwargs)
        follows = (computes and self.told.covers(node.all_input_nodes)
                   and all(constant_tensors.is_told(self.refs, t) for t in tensors))
        now = versions_of(tensors)
        note_writes(node, result, tensors, versions, now, self.refs.find)
        if versions != now:
            self.wrote(changed := [t for t in tensors if versions.get(id(t)) != now[id(t)]])
            if follows:
                self._note_told_write(node, changed)
        if written := uncounted(target if isinstance(target, str) else getattr(target, "__name__", ""), args, kwargs):
            self.wrote(written)
        if target in leaf_functions.RANDOM_STATE or any(isinstance(v.real, torch.Generator) for v in (*args, *kwargs.values())):
            self.wrote(())
        shaping = tensors_in(args[:1]) if name_of(target) in OVERWRITING else tensors
        dynamic = self._resized or any(self._dynamic(t) for t in shaping)
        if dynamic and self._counts(target, args, kwargs):
            raise Break("data-dependent-shape", f"{name_of(target)} of a tensor whose shape depends on values")
        if is_dynamic(target, args, kwargs) and not self.pin(*constant_tensors.deciding(name_of(target), args, tensors)):
            dynamic = True
        known = computes and all(constant_tensors.is_fixed(self.refs, tensor) for tensor in tensors) and all(
            source in self.told.fixed or "number" in source.meta for source in node.all_input_nodes)
        return self._result(node, result, dynamic, known, follows and not known and not dynamic)

    def _note_told_write(self, node: fx.Node, tensors: Iterable[torch.Tensor]) -> None:
        """These tensors were written to by an operation on what follows from constants and from numbers held at entry."""
        storages = frozenset((storage_of(tensor) or (None,))[0] for tensor in tensors)
        self.told.told.add(node)
        self.told.writers[node] = storages  # type: ignore[assignment]
        self.refs.wrote_told(storages)  # type: ignore[arg-type]

    def pin(self, *tensors: torch.Tensor) -> bool:
        """Whether values of tensors follow from constants and from numbers from outside, which are guarded by value from now on."""
        if not all(constant_tensors.is_fixed(self.refs, tensor) for tensor in tensors):
            return False
        nodes = [self.node(self.refs.find(tensor)) for tensor in tensors]  # type: ignore[arg-type]
        seen = set(nodes)
        for node in nodes:
            fresh = [source for source in node.all_input_nodes if source not in seen]
            seen.update(fresh)
            nodes += fresh
        numbers = zip(self.number_inputs, self._placeholders.items())
        needed = [(source, number.real) for number, (source, node) in numbers if node in seen]
        if not all(isinstance(source, Source) for source, _ in needed):       # what a call returned
            return False
        for source, real in needed:
            self.refs.hold(source, "VALUE", real)  # type: ignore[arg-type]
        return True

    def paths_of_numbers(self) -> dict[fx.Node, Source | Shadow]:
        """The nodes of numbers: their paths, or what they are if a call returned them."""
        return {node: key for key, node in self._placeholders.items()}

    @property
    def snapshots(self) -> set[fx.Node]:
        """The nodes of values that are kept as they were when they were read."""
        return {node for node, *_ in self._snapshots}

    def _note_obstacle(self, node: fx.Node, args: Sequence[Value]) -> None:
        """Notes why no backend can compile a graph with this node."""
        self.leaves_behind |= node.target in leaf_functions.UNDONE
        found = leaf_functions.obstacle(node.target, type(args[0].real) if args else None)
        if found is not None:
            node.meta["obstacle"] = found

    def uses(self, device: str) -> None:
        """The trace uses a device of this type. Where a program does not say which, it means the current one."""
        if device not in self.devices:
            self.devices.add(device)
            if device != "cpu":
                self.refs.require(Computed(current_gpu, ()), "VALUE", current_gpu())

    def has_drawn(self) -> bool:
        """Whether random numbers of the CPU's were drawn."""
        return not same(self._random, _C.get_random_state())

    def is_harmless(self) -> bool:
        """Whether the graph has changed nothing so far that outlives it: neither a tensor nor the state of random numbers."""
        return not self.changes and not self.has_drawn()

    def wrote(self, tensors: Iterable[torch.Tensor], for_good: bool = False) -> None:
        """These tensors were written to, or may have been; none: other state was changed. for_good: in a way that no copy brings
        back. Raises Break for one from outside where the call is to run again if an earlier operation fails, and now could not."""
        self.mutates = True
        tensors = self.arrays.with_shared(self.refs, list(tensors))
        storages = [(storage_of(t) or (None,))[0] for t in tensors]
        states = (node.state for node in self.refs.nodes)
        outside = {None, *(state.storage[0] for state in states if type(state) is TensorState and state.storage)}
        written = [tensor for tensor, storage in zip(tensors, storages) if storage in outside]
        if not storages or written:
            before = self.changes, self.overwritten
            overwritten = self.overwritten.adding(written, self.inputs, self.refs.find)
            self.changes, self.overwritten = True, overwritten if storages and not for_good else overwritten.beyond_recall()
            if (self.watched or self.expected and self.refs.context.can_cut()) and not self.can_take_back():
                self.changes, self.overwritten = before
                raise Break("failing-operation", "a write to a tensor after an operation or check that may fail")
        self.refs.wrote(storages)

    @property
    def dropped(self) -> list[RefNode]:
        """The tensors that lose their gradients before the graph runs."""
        return [effect.target for effect in self.refs.effects if isinstance(effect, Effect) and effect.early]

    @property
    def kept_bytes(self) -> int:
        """How much is kept on a hit for the call to run again."""
        return self.overwritten.bytes + sum(size_of(node.real) for node in self.dropped if node.real is not None)

    def can_take_back(self) -> bool:
        """Whether all that was done so far can be taken back, for the call to run again. Random numbers always can be."""
        return self.kept_bytes <= self.most and not (self.changes and self.overwritten.for_good)

    def snapshot(self, tensor: RefNode, real: torch.Tensor) -> RefNode:
        """The values that a tensor has now, for what happens after the graph. They are copied if they are written to later."""
        node = subclass_unwrapping.note(self.fx.call_method("detach", (self.node(tensor),)), self.asking[-1])
        node.meta["stack"] = self.refs.context.positions()
        detached = real.detach()
        subclass_unwrapping.of_class(node, type(detached))
        self._snapshots.append((node, detached, None if detached.is_inference() else detached._version, self.refs.mark))
        told = constant_tensors.is_told(self.refs, real)
        self.told.note(node, real, False, told)
        return self.refs.create(detached, TensorState(node, None, tensor.state.dynamic, told=told))

    def _copy_snapshots(self) -> None:
        """Copies those tensors of `snapshot` that were written to afterwards."""
        for node, tensor, version, serial in self._snapshots:
            unseen = version is None or self.mutates and self.arrays.tensors       # in inference mode, and on shared arrays
            if unseen or tensor._version != version or self.refs.written_since(serial, (storage_of(tensor) or (None,))[0]):
                with self.fx.inserting_after(node):
                    copy = subclass_unwrapping.note(self.fx.call_method("clone", (node,)), self.asking[-1])
                subclass_unwrapping.of_class(copy, type(tensor))
                node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)  # type: ignore[misc]
        self._snapshots.clear()

    def expect(self, value: Value, held: bool | int, operation: Callable[..., Any], at_once: bool) -> None:
        """Takes what a tensor holds, or a value that follows from tensors, or its truth, for granted; `operation` looks whether it
        is so. at_once: in the midst of the graph, since the tensor does not outlive what has begun there."""
        known = self.snapshot(value.shadow, value.real) if isinstance(value.shadow, RefNode) else value.shadow
        self.expected.append((known, held, operation, at_once, self.changes))

    def settle_expectations(self) -> None:
        """Looks at what is taken for granted when the graph has run; in its midst if it then changes something for good."""
        for known, held, operation, at_once, changed in self.expected:
            revocable = self.can_take_back()
            self.takes_back |= revocable and (changed or not at_once and self.kept_bytes <= MOST_BYTES)
            if revocable and not at_once and (changed or self.kept_bytes <= MOST_BYTES):
                self.refs.note_risk(Expr(operation, (known, Const(held))))
                continue
            if changed and not revocable:
                raise Break("failing-operation", "a check between a write to a tensor and what cannot be taken back")
            if not isinstance(known, RefNode):
                raise Break("data-dependent", "a value computed on every call decides something before a write to a tensor")
            node = self.node(known)
            with self.fx.inserting_after(node):
                check = self.fx.call_function(operation, (node, held))
            check.meta.update(stack=node.meta["stack"], obstacle="checks what a tensor holds")
            self.leaves_behind = True

    def effect(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        """Appends an operation on torch's modes, such as switching gradients off."""
        node = subclass_unwrapping.note(self.fx.call_function(target, args), self.asking[-1])
        node.meta["stack"] = self.refs.context.positions()
        return node

    def switch(self, function: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> None:
        """Appends a call that sets a mode of torch or of the process."""
        self.told.ended |= function is not torch._C._set_grad_enabled
        node = self.fx.create_node("call_function", function, tuple(self.argument(a.shadow, a.real) for a in args),
                                   {name: self.argument(v.shadow, v.real) for name, v in kwargs.items()})
        node.meta["stack"] = self.refs.context.positions()
        self._note_obstacle(node, ())

    def begin_region(self, governor: Callable[..., Any], options: dict[str, Any], own: Sequence[fx.Node]) -> Region:
        """What is recorded until `end_region` will be called by `governor`, which is given `own`."""
        return Region(governor, options, self.effect(regions.begin, *own))

    def end_region(self, region: Region) -> None:
        region.end = self.effect(regions.end)
        self.regions.append(region)

    def _counts(self, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> bool:
        """Whether the shapes of its operands say how many tensors, or dimensions, an operation returns. Of rows, only the number
        depends on values."""
        name, given = name_of(target), [value.real for value in (*args[1:], *kwargs.values())]
        if name != "squeeze":
            return name in COUNTED and not (name in SPLITTING and any(isinstance(real, (list, tuple)) for real in given))
        operand, = tensors_in(args, kwargs)
        dims = [value.real for value in (*args, *kwargs.values()) if value.real is not operand]
        return dims not in ([1], [-1]) or name_of(self.refs.find(operand).state.node.target) not in ROWS  # type: ignore[union-attr]

    def _dynamic(self, tensor: torch.Tensor) -> bool:
        node = self.refs.find(tensor)
        return node is not None and node.state.dynamic

    def _result(self, node: fx.Node, real: Any, dynamic: bool, known: bool = False, told: bool = False) -> Shadow:
        """The shadow of a result. known: its values follow from constants; told: and from numbers that tensors held at entry."""
        self.told.note(node, real, known, told)
        if isinstance(real, torch.Tensor):
            pin_tensor_class(self.refs, type(real))
            subclass_unwrapping.of_class(node, type(real))
            with asking_nobody(type(real)):
                self.uses(real.device.type)
            return self._found(real) or self.refs.create(real, TensorState(
                node, None, dynamic and real.dim() > 0, fixed=known, told=told))
        if is_handle(real):
            return self._found(real) or self.refs.create(real, HandleState(node, None))
        if isinstance(real, (tuple, list)) and not isinstance(real, torch.Size):
            lengths = len(real) == 2 and name_of(node.target) in constant_tensors.LENGTHS and not dynamic
            items = [self._result(
                self.fx.call_function(operator.getitem, (node, i)), item, dynamic, known or lengths and i == 1, told)
                if contains_tensor(item) else self._constant(item, dynamic) for i, item in enumerate(real)]
            return self.refs.create(real, ListState(items)) if isinstance(real, list) else Build(type(real), tuple(items))
        if isinstance(real, dict):
            return self.refs.create(real, DictState({
                key: self._result(self.fx.call_function(operator.getitem, (node, key)), item, dynamic, known, told)
                if contains_tensor(item) else self._constant(item, dynamic) for key, item in real.items()}, complete=True))
        return self._constant(real, dynamic)

    def _found(self, real: Any) -> RefNode | None:
        """The node of a tensor that is known already: an operation in place returned it."""
        found = self.refs.find(real)
        if found is not None and found.state.node is None:
            self.node(found)
        return found

    @staticmethod
    def _constant(real: Any, dynamic: bool) -> Shadow:
        if real is None or (isinstance(real, (torch.dtype, *VALUES)) and not dynamic):
            return Const(real)
        raise Break("data-dependent", f"a tensor operation returned a {type(real).__name__}")

    def finish(self, outputs: Iterable[RefNode]) -> fx.GraphModule:
        """The recorded graph, returning the tensors `outputs` as a tuple."""
        self.fx.output(tuple(self.node(t) for t in outputs))
        for node in reversed(self.fx.nodes):
            if node.target is getattr and node.args[1] == "grad_fn" and not node.users:
                self.fx.erase_node(node)        # the program asked whether there is one
        for tensor in self.inputs:
            if self.changes and self.arrays.has_tensor(tensor):
                tensor.state.node.meta["obstacle"] = "takes the memory of an array, which may overlap with what is written to"
        self._copy_snapshots()
        classes = subclass_unwrapping.settle(self.fx, whole=not self.regions)
        gm = graph_module(outline(self.fx, self.regions, self.modules), self.fx, "CapturedGraph")
        gm.meta.update(devices=self.devices, classes=classes)
        return gm


def contains_tensor(real: Any) -> bool:
    """Whether a result of an operation holds a tensor."""
    if isinstance(real, torch.Tensor):
        return True
    if isinstance(real, (tuple, list)):
        return any(contains_tensor(item) for item in real)
    return isinstance(real, dict) and any(contains_tensor(item) for item in real.values())


def is_of_tensors(real: Any) -> bool:
    """Whether a result of an operation holds nothing but tensors."""
    return real is None or isinstance(real, torch.Tensor) or type(real) in LISTS and all(map(is_of_tensors, real))


def tensors_in(args: Iterable[Value], kwargs: dict[str, Value] | None = None) -> Iterable[torch.Tensor]:
    """The tensors among arguments, also inside tuples, lists and dicts, which may hold themselves."""
    stack = [a.real for a in args] + ([v.real for v in kwargs.values()] if kwargs else [])
    seen: set[int] = set()
    while stack:
        real = stack.pop()
        if isinstance(real, torch.Tensor):
            yield real
        elif (type(real) is list or type(real) is tuple or type(real) is dict) and id(real) not in seen:
            seen.add(id(real))
            stack.extend(real.values() if type(real) is dict else real)


# The builtin value of an instance of a subclass.
PLAIN_VALUE: dict[type, Callable[[Any], Any]] = {int: int.__index__, float: float.__float__, str: str.__str__}
