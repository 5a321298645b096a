"""The state in which a trace began: what of it the trace depends on, and the shadows of what was found there."""
from __future__ import annotations

import decimal
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from capture import _C
from capture._C import is_a
from capture.errors import Break, UserFrame
from capture.refgraph.changes import Changes
from capture.refgraph.context import Context
from capture.refgraph.effects import Replayed, decision
from capture.refgraph.identical import BOUNDS, PROXIES
from capture.refgraph.lookup import can_change_class, descriptor_of, has, methods_of, parts
from capture.refgraph.memory import (
    COMPARISONS,
    StorageWeakRef,
    asking_nobody,
    held_storage,
    is_address,
    is_handle,
    pin_tensor_class,
    storage_id,
)
from capture.refgraph.node import (
    SCALARS,
    Build,
    Const,
    Expr,
    External,
    HandleState,
    RefNode,
    Shadow,
    TensorState,
    roots_of_identity,
    source_of,
)
from capture.refgraph.requirements import Key, agree, key_of
from capture.refgraph.result_types import IN_PLACE, may_raise, may_vary
from capture.refgraph.shape_specs import Heeded
from capture.refgraph.shapes import Shapes
from capture.refgraph.size_marks import Mark, marks_of
from capture.refgraph.sizes import Cut, Size, Sizes, as_size, cuts_at_entry, size_at, stride_at
from capture.refgraph.source import Attr, Computed, Constant, Item, Source
from capture.refgraph.state_queries import is_of
from capture.refgraph.value_types import content, has_content, require_decimal_rules

# Immutable, interned or never re-created: read from a path, these are pinned by identity at once. Their *attributes*
# may still change, and are guarded where they are read.
PINNED = (type, types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
          types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
          types.CodeType, torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
BOUND_IN_C = (types.BuiltinFunctionType, types.MethodWrapperType)   # and subclasses: methods of C, bound to an object
LONGEST = 64        # steps in which a scalar that guards can compute is computed of others: all that are written out
MOST_STEPS = 256    # … and one that only a hit can
# Values of C types whose equality is total and builtin.
VALUES = (torch.device, torch.Size)


class EntryState(Changes):
    """What a trace knows of the state in which it began, and what of that must be the same on a hit."""

    def __init__(self, shapes: Shapes | None = None, context: Context | None = None) -> None:
        super().__init__(context)
        self.shapes = shapes or Shapes()
        self.sizes = Sizes(self)
        self.heeded = None if self.shapes.spec is None else Heeded(self.shapes.spec, self.sizes)
        self.requirements: dict[Key, tuple[Source | None, str, Any]] = {}
        self.places: dict[Key, UserFrame] = {}          # where the program first asked for it, by the same keys
        # Of what was computed, by id: what, and in how many steps, each as often as it is written out: `x = x + x` doubles them.
        self.lengths: dict[int, tuple[Expr, int]] = {}
        self.risks: list[Expr] = []                 # arithmetic on what only a hit knows, and that may raise there
        self.marks: dict[Source, tuple[Mark, int]] = {}     # what was said of sizes, and what they are
        self.storages: set[int | None] = {None}     # that tensors from outside had at entry, and None
        self.kept_storages: dict[int, StorageWeakRef] = {}      # by identities that no new storage gets, though the old one dies
        self.sharing: set[RefNode] = set()          # outside tensors whose sharing of memory is guarded …
        self.placed: set[RefNode] = set()           # … and whose place in it is guarded, too
        self.overriding = False                     # some object met has a say in what functions of torch do
        self.pinned_specials: dict[tuple[int, str], type] = {}  # special methods that classes are known to keep …
        self.pinned_together: set[tuple[int, tuple[str, ...]]] = set()      # … and several of one class that were asked for at once
        # What classes were found to have, by their identity and the name; and the shadows that are guarded as descriptors.
        self.class_attributes: dict[tuple[int, str], tuple[bool, Any, Shadow]] = {}
        self.pinned_kinds: dict[tuple[int, str], Shadow] = {}
        self.pinned_library: dict[int, Any] = {}    # functions of Python's library that go on to do what they did

    # -- what the trace depends on ----------------------------------------------------------------------------------

    def require(self, source: Source | None, kind: str, expected: Any) -> None:
        """Notes that the trace holds only while `kind` (a name of `Kind`) of the object at `source` is `expected`."""
        assert not self.sealed, f"{kind} of {source} was required of a sealed graph"
        key = key_of(source, kind, expected)
        known = self.requirements.get(key)
        if known is not None and not agree(kind, known[2], expected):
            if self.replaces:
                raise Break("finalizer", f"code that ran as an object died changed {source}")
            raise AssertionError(f"{kind} of {source}: {known[2]!r:.80}, and {expected!r:.80}")
        if known is None:
            self.requirements[key] = source, kind, expected
            place = self.context.position()
            if place is not None:
                self.places[key] = place

    def hold(self, source: Source, kind: str, expected: Any) -> None:
        """`require` for a value that decides what the program does. Raises Break if many captures each met another value there, and
        the trace can end."""
        name = None if key_of(source, kind, expected) in self.requirements else self.context.changes_often(source, kind)
        if name is not None:
            raise Break("changing-value", f"the program depends on the value of {name}")
        self.require(source, kind, expected)

    def depend(self, shadow: Shadow, real: Any, decided: str = "Python code") -> None:
        """Makes everything that `shadow` says of `real` hold on a hit: afterwards it may be treated as a constant.

        decided: what depends on it, in words. Raises Break for a tensor, whose value no guard may fix.
        """
        if type(real) is decimal.Decimal:
            require_decimal_rules(self)
        if isinstance(shadow, External):
            self.hold(shadow.source, "VALUE", real)
        elif isinstance(shadow, Expr) and shadow.op in COMPARISONS and all(map(is_address, shadow.args)):
            for arg in shadow.args:
                self.note_places(*self._in_memory(arg.args[0]))  # type: ignore[attr-defined]
        elif isinstance(shadow, Expr) and shadow.op is id:
            node = shadow.args[0]                   # of an object of ours, nothing but its being itself can matter
            if isinstance(node, RefNode) and node.source is not None:
                self.require(node.source, "ID", node.real)
        elif isinstance(shadow, Expr) and (roots := roots_of_identity(shadow)):         # which no path tells
            for root in roots:
                self.depend(root, getattr(root, "value", None), decided)
        elif isinstance(shadow, Expr):
            source = self.context.path_to(shadow)
            if source is None:
                raise decision(decided, [shadow])
            self.hold(source, "VALUE", real)
        elif isinstance(shadow, Build):
            for item, part in zip(shadow.items, parts(real), strict=True):
                self.depend(item, part)
        elif isinstance(shadow, RefNode):
            if type(shadow.state) is TensorState:
                raise Break("data-dependent", "Python code depends on the value of a tensor")
            if isinstance(shadow.origin, Replayed) and has_content(real):       # a number of numpy's that each hit computes
                raise decision(decided, [shadow])
            if shadow.source is not None and has_content(real):
                self.require(shadow.source, "TYPE", shadow.cls)
                self.hold(Computed(content, (shadow.source,)), "VALUE", content(real))
            elif shadow.source is not None and is_a(real, weakref.ref):
                self.require(Attr(self.touch(shadow).source, "()"), "ID", real())
            elif shadow.source is not None:
                self.require(shadow.source, "ID", real)

    def computed(self, op: Callable[..., Any], operands: tuple[Shadow, ...], result: Any) -> Shadow:
        """The shadow of a scalar that a pure builtin function made of others.

        Even if a hit never uses it, computing it must not fail or run code of the program: so the types of the operands are
        guarded, or, if only a hit knows these, it is computed on each hit. What takes too many steps, as in a loop that counts, is
        a constant: where it began is guarded by value.
        """
        expr = Expr(IN_PLACE.get(op, op), operands)
        length = 1 + sum(self.lengths[id(operand)][1] for operand in operands if id(operand) in self.lengths)
        if length > LONGEST and source_of(expr) is not None:
            for operand in operands:
                self.depend_on_roots(operand)
            return Const(result)
        if length > MOST_STEPS:                     # what follows works on expressions by recursion
            raise Break("opaque-call", f"a value of tensors or of calls was computed in more than {MOST_STEPS} steps")
        self.lengths[id(expr)] = expr, length
        for operand in operands:
            if isinstance(operand, External) and not self.sizes.is_free(operand):
                self.require(operand.source, "TYPE", type(operand.value))
        source = source_of(expr)
        if source is None and may_raise(op):
            self.risks.append(expr)
        elif source is not None and may_vary(op):
            self.require(source, "TYPE", type(result))
        return expr

    def note_sharing(self, *tensors: RefNode) -> None:
        """Guards from now on which tensors from outside share memory with these."""
        self.sharing.update(tensors)

    def note_places(self, *tensors: RefNode) -> None:
        """Guards from now on which tensors from outside share memory with these, and where in it these lie."""
        self.placed.update(tensors)

    def note_risk(self, shadow: Expr) -> None:
        """Notes an expression that may raise when a hit computes it."""
        self.risks.append(shadow)

    def note_overriding(self) -> None:
        """Notes that an object was met whose class may override functions of torch."""
        self.overriding = True

    def note_library(self, function: Any) -> bool:
        """Notes that guards are made of all that such a function reaches. Returns whether there were none yet."""
        if id(function) in self.pinned_library:
            return False
        self.pinned_library[id(function)] = function
        return True

    def note_special(self, cls: type, name: str) -> None:
        """Guards that a class keeps a special method."""
        self.pinned_specials[id(cls), name] = cls

    def note_specials(self, cls: type, names: tuple[str, ...]) -> None:
        """All of these special methods of a class are noted."""
        self.pinned_together.add((id(cls), names))

    def note_class_attribute(self, cls: type, name: str, found: tuple[bool, Any, Shadow]) -> None:
        """Guards are made of what a class from outside has under a name. (They keep the class.)"""
        self.class_attributes[id(cls), name] = found

    def note_kind(self, cls: type, name: str, shadow: Shadow) -> None:
        """Guards are made of the part that what a class has under a name takes in attribute access."""
        self.pinned_kinds[id(cls), name] = shadow

    def is_long(self, shadow: Shadow) -> bool:
        """Whether a value takes too many steps for a guard to compute it."""
        return id(shadow) in self.lengths and self.lengths[id(shadow)][1] > LONGEST

    def depend_on_roots(self, shadow: Shadow) -> None:
        """Guards the values from outside of which others were computed."""
        stack, seen = [shadow], set()
        while stack:
            shadow = stack.pop()
            if id(shadow) not in seen:
                seen.add(id(shadow))
                stack += shadow.parts
                if isinstance(shadow, External):
                    self.depend(shadow, shadow.value)

    def _in_memory(self, shadow: Shadow) -> list[RefNode]:
        """The outside tensors on the memory of a tensor or storage, whose address matters."""
        if not isinstance(shadow, RefNode) or shadow.real is None:
            raise Break("data-dependent", "Python code depends on the address of memory that was freed")
        real = shadow.real
        storage = real._cdata if is_a(real, torch.UntypedStorage) else storage_id(real)
        return [self.touch(node) for node in self.nodes if node.source is not None and type(node.state) is TensorState
                and node.state.storage is not None and node.state.storage[0] == storage]

    # -- objects -----------------------------------------------------------------------------------------------------

    def external(self, real: Any, source: Source) -> Shadow:
        """The shadow of a value found outside at `source`, as it was at entry."""
        cls = type(real)
        if cls in SCALARS:
            if self.heeded is not None and self.heeded.number(source, real):
                self.require(source, "VALUE", real)
            return External(source, real)
        if cls in PROXIES:               # which would answer for what they stand for
            return self._at(real, source)
        if is_a(real, VALUES):
            self.require(source, "VALUE", real)
            return Const(real)
        if cls is slice:
            self.require(source, "TYPE", cls)
            return Build(cls, tuple(self.external(getattr(real, name), Attr(source, name)) for name in BOUNDS), source)
        if cls is tuple and self.shapes.is_of_any_length(source, real):
            self.require(source, "TYPE", cls)
            return self._at(real, source)
        if cls is tuple or (is_a(real, tuple) and has(cls, "_fields")):
            self.require(source, "TYPE", cls)
            self.require(source, "LENGTH", tuple.__len__(real))
            return Build(cls, tuple(self.external(item, Item(source, i)) for i, item in enumerate(tuple.__iter__(real))), source)
        if cls is types.MethodType:
            self.require(source, "TYPE", cls)
            return Build(cls, (self.external(real.__func__, Attr(source, "__func__")),
                               self.external(real.__self__, Attr(source, "__self__"))), source)
        if is_a(real, BOUND_IN_C) and not isinstance(source, Constant) and (descriptor := descriptor_of(real)) is not None:
            owner = Attr(source, "__self__")        # bound anew each time: its identity says nothing
            self.require(source, "TYPE", cls)
            self.require(Attr(source, "__name__"), "VALUE", real.__name__)
            self.require(owner, "TYPE", type(real.__self__))
            if len(methods_of(real.__self__, real.__name__)) > 1:
                self.require(Computed(is_of, (source, Constant(descriptor))), "VALUE", True)
            return Build(cls, (Const(descriptor), self.external(real.__self__, owner)), source)
        if is_a(real, PINNED) and not isinstance(source, Constant):
            self.require(source, "ID", real)
            source = Constant(real)             # what is read of it further on does not depend on how we came here
        node = self._at(real, source)
        if node.state is None and is_a(real, torch.Tensor):
            with asking_nobody(cls):
                node.state = self.shapes.state_at(source, real)
                self.storages.add(node.state.storage and node.state.storage[0])
                self.keep_storage(real)
                if node.state.properties is not None and node.state.properties.open_sizes:
                    node.state.sizes, node.state.cuts = self._open_layout(source, real, node.state.properties)
                if self.shapes.takes_sizes:
                    self._heed_marks(source, real, node.state.sizes or ())
        elif node.state is None and is_handle(real):
            node.state = HandleState(None, None)
        return node

    def keep_storage(self, tensor: torch.Tensor) -> None:
        """Keeps the identity of a tensor's storage from being given to a storage that the trace makes later."""
        identity = storage_id(tensor)
        if identity is not None and identity not in self.kept_storages and (storage := held_storage(tensor)) is not None:
            self.kept_storages[identity] = storage

    def _open_layout(self, source: Source, tensor: torch.Tensor, properties: _C.TensorProperties) -> tuple[
            tuple[Size, ...], tuple[Cut, ...]]:
        """The sizes of the tensor at a path, some of which change, and what decides how densely it lies in memory."""
        now = tensor.stride()
        sizes = tuple(self.sizes.atom(size_at(source, dim), tensor.shape[dim]) if size < 0 else as_size(size)
                      for dim, size in enumerate(properties.shape))
        strides = {dim: as_size(stride) if stride >= 0 else self.sizes.atom(stride_at(source, dim), now[dim])
                   for dim, stride in enumerate(properties.stride) if stride >= 0 or stride <= _C.AROUND}
        return sizes, cuts_at_entry(sizes, [strides.get(dim) for dim in range(len(now))], now)

    def promised(self, tensor: RefNode) -> Any:
        """The properties of a tensor from outside that hold on each hit: a size that guards fix by now is not open in these."""
        properties, source = tensor.state.properties, tensor.source
        if source is None or properties is None or not properties.open_sizes:
            return properties
        free = [dim for dim, size in enumerate(properties.shape) if size < 0 and not self.sizes.is_fixed(size_at(source, dim))]
        return tensor.state.found.with_free(free, [dim for dim, stride in enumerate(properties.stride) if stride <= _C.AROUND])

    def _heed_marks(self, source: Source, tensor: torch.Tensor, sizes: Sequence[Size]) -> None:
        """Guards the ranges that are marked of the sizes of a tensor, and notes what the program is not to contradict."""
        for dim, mark in marks_of(tensor):
            free = bool(sizes) and sizes[dim].constant is None
            now = tensor.shape[dim]
            self.marks[size_at(source, dim)] = mark if free and now > 1 else replace(mark, strict=False), now
            if free and mark.least is not None and now >= mark.least:
                self.sizes.decide(operator.ge, sizes[dim], mark.least)
            if free and mark.most is not None and now <= mark.most:
                self.sizes.decide(operator.le, sizes[dim], mark.most)
        if self.heeded is not None:
            for dim, now in self.heeded.tensor(source, tensor.shape, sizes).items():
                self.marks[size_at(source, dim)] = Mark(strict=now > 1), now

    def _at(self, real: Any, source: Source) -> RefNode:
        """The node of an object with identity that was found at `source`."""
        node = self.find(real)
        if node is None:
            return self._register(RefNode(real, source, self._next()))
        if node in self.kept:       # on a hit it may be another object
            raise Break("changing-result", f"a {node.cls.__name__} that a functools.lru_cache keeps is found elsewhere, too")
        if node.source is not None and node.source != source:
            self.require(source, "ALIAS", node.source)
        return node

    def constant(self, real: Any) -> Shadow:
        """The shadow of an object whose identity is already established (a class that was guarded, a builtin)."""
        if type(real) in SCALARS:
            return Const(real)
        return self.external(real, Constant(real))

    def touch(self, node: RefNode) -> RefNode:
        """Guards the type of an outside object, on which the program is about to depend."""
        if node.source is not None and (not isinstance(node.source, Constant) or can_change_class(node.cls)):
            if type(node.state) is TensorState:
                if node.state.properties is None:
                    raise Break("unsupported-tensor", f"a {node.cls.__name__} was used")
                pin_tensor_class(self, node.cls)
                self.require(node.source, "TENSOR", node.state.properties)
            else:
                self.require(node.source, "TYPE", node.cls)
        return node
