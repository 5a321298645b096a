"""Runs the graph in eager mode on tensors without data, to learn which tensors are views and what the backward pass saves."""
from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.autograd.graph import increment_version
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from capture import _C
from capture.backends.aot import casts
from capture.backends.aot.aten import storage_of, tensors_in
from capture.backends.aot.fakes import fake_inputs
from capture.backends.aot.strides import noted, set_order
from capture.backends.aot.symbols import refusing_guards, unguarded
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.nodes import expected
from capture.backends.native.saved_tensors import version
from capture.backends.native.signature import Unsupported
from capture.operators.facts import facts_of

# What is said where C++ operators take no symbols, as `constant_pad_nd`, and where they would fix them under `refusing_guards`.
NO_SYMBOLS = "expected to contain only concrete integers", "Guard attempted while ShapeEnv guards are frozen"
Kind = tuple[torch.dtype, bool, type | None]        # of a tensor; the type is that of `grad_fn`
Deeds = tuple[tuple[type, ...], bool, bool]     # of a node: the nodes of autograd that it makes, whether it writes, and makes views


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Nodes of autograd within an activation checkpoint: their sequence numbers. own: what the checkpoint was given, and saved in
    these versions."""

    numbers: range
    own: tuple[Tensor, ...]
    versions: tuple[int, ...]


class Differs(Exception):
    """A run with sizes that change is not like that with the sizes of one call."""


@dataclass(frozen=True, slots=True)
class Eager:
    """A run of a graph in eager mode, on tensors without data."""

    inputs: Sequence[Tensor]                    # after the call
    outputs: Sequence[Tensor]
    values: Mapping[fx.Node, Any]               # of each node
    makers: Mapping[int, fx.Node]               # by a tensor's id, the node that made it …
    born: Mapping[int, int]                     # … and how often it had been written to by then
    views: frozenset[fx.Node]                   # nodes that only made views
    grad: Mapping[fx.Node, bool]                # whether gradients were enabled when a node ran
    after_writes: frozenset[fx.Node]            # nodes that use a tensor after a write to it
    writers: Mapping[Any, fx.Node]              # the last node that wrote to a storage
    regions: tuple[Recomputed, ...]             # the parts of activation checkpoints …
    recomputed: frozenset[StorageWeakRef]       # … and the storages from outside that these read
    idle: frozenset[Any]                        # nodes of autograd that have saved nothing, of classes that may
    kinds: Mapping[fx.Node, list[Kind]]         # of each node, as it was made
    deeds: Mapping[fx.Node, Deeds]              # … and what else it did
    casts: frozenset[int]                       # inputs of which it uses casts that autocast keeps
    noted: frozenset[StorageWeakRef]            # storages of tensors whose memory order was noted in the capture
    unsure: bool                                # whether what is written to may be a view here and a copy where torch traces it

    def holds(self, node: Any) -> bool:
        """Whether a node of autograd has saved tensors to free, so that only one pass may go through it."""
        return node not in self.idle and (bool(saved_names(type(node))) or type(node).__name__ == "CopySlices")

    @classmethod
    def run(cls, graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> Eager:
        """Runs the graph. If a C++ operator asks for a value, the run is repeated with torch's decompositions in Python. If sizes
        change, these come first, since C++ turns many sizes into numbers; that run counts if, sizes apart, it equals the run with
        the sizes of one call, and ends where it does not: with symbols it takes several times as long. If it does not count, only
        those operators that would fix a size are replaced by their decompositions, where each does the same with the sizes of one
        call."""
        if any(isinstance(size, torch.SymInt) for spec in specs for size in spec.shape):
            of_one_size = cls.run(graph, list(map(of_one_call, specs)), modes)
            with contextlib.suppress(Differs):
                found = cls._run(graph, specs, modes, enable_python_dispatcher, of_one_size)
                if found.structure() == of_one_size.structure():
                    return found
            with contextlib.suppress(Differs, DataDependentOutputException):
                return cls._run(graph, specs, modes, contextlib.nullcontext, of_one_size, refuses=True)
        try:
            return cls._run(graph, specs, modes, contextlib.nullcontext)
        except DataDependentOutputException:
            return cls._run(graph, specs, modes, enable_python_dispatcher)

    def structure(self) -> list[Any]:
        """What must be the same for all sizes: which tensors are the same or views of one another; what autograd knows of each, and
        its nodes in order."""
        numbers: dict[int, int] = {}

        def number(tensor: Tensor | None) -> int | None:
            return None if tensor is None else numbers.setdefault(id(tensor), len(numbers))
        values = [leaf for value in self.values.values() for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        tensors = [*self.inputs, *values, *self.outputs]
        bases = [tensor._base for tensor in tensors]        # kept: of what has died another may have the id
        rows = [(number(tensor), number(base), tensor.requires_grad, version(tensor), tensor.dtype, type(tensor.grad_fn))
                for tensor, base in zip(tensors, bases, strict=True)]
        nodes = sorted(set().union(*map(below, self.outputs)), key=lambda node: node._sequence_nr())
        return [rows, [(type(node), [type(following) for following, _ in node.next_functions]) for node in nodes],
                self.views, self.after_writes]

    @classmethod
    def _run(cls, graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes,
             how: Callable[[], AbstractContextManager[Any]], like: Eager | None = None, refuses: bool = False) -> Eager:
        """how: what it runs in. like: a run whose nodes make values of the same kinds; Differs is raised at the first other one.
        refuses: operators of C++ that would put a condition on a size are replaced."""
        inputs = fake_inputs(specs)
        with modes.active(), inputs[0].fake_mode if inputs else FakeTensorMode(), \
                casts.observed(graph, inputs, specs, modes) as used, how():      # begins as it is made
            run = _Run(graph, like, functools.partial(refusing_guards, inputs[0]) if refuses else contextlib.nullcontext)
            outputs = _C.with_modes_put_back(lambda: run.run(*inputs))
        with unguarded(inputs[0]) if inputs else contextlib.nullcontext():
            nodes = set().union(*map(below, outputs))
            asked = [node for node in nodes if saved_names(type(node)) and not run.is_inside(node)]
            idle = frozenset(node for node in asked if not any(_is_saved(node, name) for name in saved_names(type(node))))
        return cls(inputs, outputs, run.env, run.makers, run.born, frozenset(run.views), run.grad, frozenset(run.after_writes),
                   run.writers, tuple(run.regions), frozenset(run.recomputed), idle, run.kinds, run.deeds, frozenset(used),
                   frozenset(run.noted), run.unsure)


def of_one_call(spec: TensorSpec) -> TensorSpec:
    """A spec with the sizes of the call that is compiled for."""
    return replace(spec, shape=tuple(map(expected, spec.shape)), stride=tuple(map(expected, spec.stride)))


MOST_PLACES = 1 << 18      # of elements that are gone through, to see whether two tensors have one in common


class _Run(fx.Interpreter):
    """Notes what each node does."""

    def __init__(self, graph: fx.GraphModule, like: Eager | None,
                 refusing: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.like, self.refusing = like, refusing
        self.replaced: set[fx.Node] = set()                 # nodes that decompositions ran for
        self.kinds: dict[fx.Node, list[Kind]] = {}
        self.deeds: dict[fx.Node, Deeds] = {}
        self.makers: dict[int, fx.Node] = {}
        self.born: dict[int, int] = {}
        self.views: set[fx.Node] = set()
        self.grad: dict[fx.Node, bool] = {}
        self.after_writes: set[fx.Node] = set()
        self.writers: dict[Any, fx.Node] = {}
        self.regions: list[Recomputed] = []
        self.given: dict[Any, tuple[int, ...]] = {}         # to each checkpoint: the versions
        self.recomputed: set[StorageWeakRef] = set()
        self.shared: set[StorageWeakRef] = set()            # in which tensors lie that schemas call new
        self.resized: set[int] = set()                      # tensors that have other numbers of elements by now
        self.outside: set[Any] = set()                      # the storages of inputs
        self.noted: set[StorageWeakRef] = set()             # … and of tensors with a noted memory order
        self.moved: set[fx.Node] = set()                    # what follows from tensors that torch lays out otherwise without data
        self.unsure = False                                 # whether such was written to, of memory of the graph's own

    def is_inside(self, node: Any) -> bool:
        """Whether a node of autograd belongs to an activation checkpoint: to ask it for what it has saved runs that."""
        return any(node._sequence_nr() in region.numbers for region in self.regions)

    def run_node(self, n: fx.Node) -> Any:
        try:
            return self._observed(n)
        except Exception as error:
            if getattr(error, "place", None) is None:
                vars(error)["place"] = n.meta.get("place")
            raise

    def _value(self, n: fx.Node) -> Any:
        """What a node gives. Where an operator of C++ takes no symbols, or would fix them, Python's decomposition of it runs."""
        try:
            with self.refusing():
                return super().run_node(n)
        except RuntimeError as error:
            if not any(said in str(error) for said in NO_SYMBOLS):
                raise
        self.replaced.add(n)
        try:
            with enable_python_dispatcher():
                return super().run_node(n)
        except (NotImplementedError, TypeError) as error:       # the decomposition takes no symbols either
            if self.like is None:
                raise
            raise Differs from error

    def _observed(self, n: fx.Node) -> Any:
        self.grad[n] = torch.is_grad_enabled()
        taken = self._taken(n)
        region = n.meta.get("region")
        own = tuple(self.env[arg] for arg in region.own) if region else ()
        given = self.given.setdefault(region, tuple(map(version, own)))
        before = _versions(taken)
        elements = [tensor.numel() for tensor in taken]
        places = list(map(storage_of, taken))
        if n.op != "output" and not self.resized.isdisjoint(map(id, taken)):     # operators would be told the old size
            raise Unsupported("a tensor is used whose number of elements an operation has changed")
        if not self.after_writes.isdisjoint(n.all_input_nodes) or any(
                version(tensor) > self.born.get(id(tensor), 0) for tensor in taken):
            self.after_writes.add(n)
        first = torch._C._autograd._get_sequence_nr()
        value = self._value(n)
        made = tensors_in(value) if n.op != "output" else []
        self.kinds[n] = list(map(_kind, made))
        storages = {storage_of(tensor) for tensor in taken}
        self.deeds[n] = (_nodes_made(made, first), before != _versions(taken),
                         any(storage_of(tensor) in storages for tensor in made))
        if self.like is not None and (
                self.like.kinds[n] != self.kinds[n] or n in self.replaced and self.like.deeds[n] != self.deeds[n]):
            raise Differs
        if any(tensor.requires_grad and storage_of(tensor) != place for tensor, place in zip(taken, places, strict=True)):
            raise Unsupported("a tensor that requires gradients is set to other memory: autograd takes a leaf for a new one then")
        self._note_resized([tensor for tensor, number in zip(taken, elements, strict=True) if tensor.numel() != number])
        if facts_of(n.target).shares_unseen and not self._is_reshaped_alone(n):
            self.shared |= {storage_of(tensor) for tensor in taken}
        self._count(n, before, value)
        written = {storage_of(tensor) for tensor in taken if version(tensor) != before[id(tensor)]}
        self.writers |= dict.fromkeys(written, n)
        if n.op == "placeholder":
            self.outside |= set(map(storage_of, made))
        follows = not self.moved.isdisjoint(n.all_input_nodes)
        if follows and (written - self.outside or not written and n.meta.get("writes")):        # inference tensors count none
            self.unsure = True
        for tensor, order in noted(n, value):
            self.noted.add(storage_of(tensor))
            follows |= set_order(tensor, order)
        if follows:
            self.moved.add(n)
        if region:
            self.regions.append(Recomputed(range(first, torch._C._autograd._get_sequence_nr()), own, given))
            self.recomputed |= {storage_of(tensor) for tensor in taken}
        if isinstance(value, Tensor) and id(value) not in self.makers:
            self.makers[id(value)] = n
            self.born[id(value)] = version(value)
        if made and before == _versions(taken) and all(storage_of(tensor) in storages for tensor in made) and not (
                self._is_reshaped_alone(n)):
            self.views.add(n)
        return value

    def _taken(self, n: fx.Node) -> list[Tensor]:
        """The tensors that a node takes: of several results of one operation the one that it picks."""
        if n.target is operator.getitem and type(n.args[1]) is int and isinstance(self.env[n.args[0]], (tuple, list)):
            return tensors_in(self.env[n.args[0]][n.args[1]])
        return tensors_in([self.env[arg] for arg in n.all_input_nodes])

    def _is_reshaped_alone(self, n: fx.Node) -> bool:
        """Whether a node gives what an operation has made another shape, and nothing else uses that: no view for autograd."""
        return n.target is torch.ops.aten._unsafe_view.default and len(n.args[0].users) == 1 and (
            n.args[0].op == "call_function" and n.args[0] not in self.views)

    def _note_resized(self, tensors: Sequence[Tensor]) -> None:
        """Notes tensors that have another number of elements now. Raises Unsupported for one that shares its memory with others:
        what is written to it lies there in these, too, where no view of theirs says so."""
        places = {storage_of(tensor) for tensor in tensors}
        if tensors and any(storage_of(other) in places and not any(other is tensor for tensor in tensors)
                           for value in self.env.values() for other in tensors_in(value)):
            raise Unsupported("a tensor is given another number of elements that shares its memory with others")
        self.resized |= set(map(id, tensors))

    def _count(self, n: fx.Node, before: Mapping[int, int], made: Any) -> None:
        """Has versions count the writes that the operation does on tensors with data. Raises Unsupported for a write to a tensor
        that overlaps itself or an operand: what comes of that depends on the order in which its elements are written."""
        results = made if isinstance(made, (tuple, list)) else [made]
        operands = [self.env[arg] for arg in n.all_input_nodes if isinstance(self.env[arg], Tensor)]
        if n.meta.get("writes") and self._writes_to_operand(n):
            raise Unsupported("an operation writes to memory that it reads as another tensor, too")
        for place, count in n.meta.get("writes", ()):
            tensor = results[-1 - place] if place < 0 else operands[place]
            if not tensor.is_inference():
                increment_version([tensor] * (before.get(id(tensor), 0) + count - version(tensor)))
            if storage_of(tensor) in self.shared:       # it would not be seen there
                raise Unsupported("a tensor is written to that shares its memory with what it is no view of")
            if overlaps_itself(tensor):
                raise Unsupported("a tensor is written to that overlaps itself in memory")
            if _meets_in_lists(n.args, tensor, self.env):
                raise Unsupported("a tensor in a list is written to that overlaps others there")

    def _writes_to_operand(self, n: fx.Node) -> bool:
        """Whether an operation writes, to its first argument or to `out`, where another argument lies."""
        target = n.kwargs.get("out") or n.args and n.args[0]
        if not isinstance(target, fx.Node) or not isinstance(written := self.env[target], Tensor):
            return False
        if n.target is operator.setitem:
            subscript: Any = fx.map_arg(n.args[1], self.env.__getitem__)
            if not tensors_in(subscript):
                with torch.no_grad():
                    written = written[subscript]
        return any(_meets_elsewhere(written, self.env[arg]) for arg in n.all_input_nodes if arg is not target)


def _kind(tensor: Tensor) -> Kind:
    """What is known of a tensor that was just made. To ask for the `grad_fn` of a view makes it anew, after writes to its base."""
    return tensor.dtype, tensor.requires_grad, None if tensor._is_view() else type(tensor.grad_fn)


def _nodes_made(made: Sequence[Tensor], first: int) -> tuple[type, ...]:
    """The types of the nodes of autograd below tensors that have come about from a sequence number on, in order. Those of views are
    left out: to ask for one makes it anew, after writes to the base."""
    own = range(first, torch._C._autograd._get_sequence_nr())
    stack = [tensor.grad_fn for tensor in made if tensor.requires_grad and not tensor._is_view()]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is not None and node._sequence_nr() in own and node not in seen:
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
    return tuple(type(node) for node in sorted(seen, key=lambda node: node._sequence_nr()))


def _meets_in_lists(lists: Sequence[Any], written: Tensor, env: Mapping[fx.Node, Any]) -> bool:
    """Whether a tensor may overlap items at several places of lists: operators go through these in order, and see what they have
    written."""
    places = {place for items in lists if isinstance(items, (list, tuple)) for place, item in enumerate(items)
              if isinstance(item, fx.Node) and isinstance(env[item], Tensor) and _may_overlap(env[item], written)}
    return len(places) > 1


def _may_overlap(a: Tensor, b: Tensor) -> bool:
    return storage_of(a) == storage_of(b) and a.storage_offset() < end(b) and b.storage_offset() < end(a)


def _meets_elsewhere(written: Tensor, operand: Any) -> bool:
    """Whether an operand lies, in part, where an operation writes, and is not the same elements in the same order. (Of tensors
    whose sizes are open it is asked in the run with the sizes of one call.)"""
    if not isinstance(operand, Tensor) or written.numel() == 0 or operand.numel() == 0 or any(
            isinstance(number, torch.SymInt) for tensor in (written, operand) for number in (*tensor.shape, *tensor.stride())):
        return False
    same = written.shape == operand.shape and written.stride() == operand.stride()
    return _may_overlap(written, operand) and not (same and written.storage_offset() == operand.storage_offset()) \
        and _share_elements(written, operand)


def _share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors in one storage have an element at one place; of very many, that may be."""
    low = min(a.storage_offset(), b.storage_offset())
    starts = a.storage_offset() - low, b.storage_offset() - low
    dims = [sorted(((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1), reverse=True)
            for tensor in (a, b)]
    while all(dims) and dims[0][0] == dims[1][0] and all(        # both go the same steps, within which the rest of them lies
            start + sum(stride * (size - 1) for stride, size in rest) < stride_of_step
            for start, ((stride_of_step, _), *rest) in zip(starts, dims)):
        for one in dims:
            del one[0]
    if any(math.prod(size for _, size in one) > MOST_PLACES for one in dims):
        return True
    places: list[set[int]] = []
    for start, one in zip(starts, dims):
        found = [start]
        for stride, size in one:
            found = [place + i * stride for place in found for i in range(size)]
        places.append(set(found))
    return not places[0].isdisjoint(places[1])


def end(tensor: Tensor) -> int:
    """The place in its storage behind the last element."""
    if tensor.numel() == 0:
        return tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.storage_offset() + 1 + sum((size - 1) * stride for size, stride in steps)


def _versions(tensors: Sequence[Tensor]) -> dict[int, int]:
    return {id(tensor): version(tensor) for tensor in tensors}


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether elements of a tensor may lie at one place in memory."""
    reach = 0           # of the dimensions of smaller strides
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


# --- what is saved

@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that a node of autograd has saved, in the attribute `name`; or the activation checkpoint that it is part of, without
    a name. keeper: what has the attribute: the node, or that of a write to a part of a tensor, which it calls."""

    node: Any
    keeper: Any
    name: str
    tensor: Tensor


def below(tensor: Tensor) -> set[Any]:
    """The autograd nodes that a backward pass from a tensor reaches."""
    found: set[Any] = set()
    stack = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            stack += [following for following, _ in node.next_functions]
    return found


def edge(tensor: Tensor) -> tuple[Any, int]:
    """Where autograd goes on from a tensor, as nodes name it: one node may make several tensors."""
    return tensor.grad_fn, tensor.output_nr


def edges_below(tensor: Tensor) -> set[tuple[Any, int]]:
    """The same of all tensors whose gradients a backward pass from one computes, itself among them."""
    return {edge(tensor)}.union(*(node.next_functions for node in below(tensor)))


def saved_by(node: Any, eager: Eager) -> Iterator[Saved]:
    """What a node has saved, in the order in which a backward pass looks at it. For a node of an activation checkpoint: what the
    checkpoint has saved, from which it is computed again. Raises Unsupported if something has changed since, and where only C++
    knows what is saved (`torch._foreach_add`)."""
    for region in eager.regions:
        if node._sequence_nr() in region.numbers:
            if tuple(map(version, region.own)) != region.versions:
                raise Unsupported("the backward pass fails: what a checkpoint was given is written to")
            yield from (Saved(node, node, "", tensor) for tensor in region.own if eager.holds(node))
            return
    for keeper in keepers(node):
        if type(keeper).__name__ == "CppFunction":
            raise Unsupported(f"autograd does not tell what {keeper.name()} saves")
        for name in saved_names(type(keeper)):
            try:
                value = getattr(keeper, name)
            except RuntimeError as error:
                raise Unsupported(f"the backward pass fails: {error}") from None
            yield from (Saved(node, keeper, name, tensor) for tensor in tensors_in(value))


def keepers(node: Any) -> Iterator[Any]:
    """A node of autograd, and that of a write to a part of a tensor, which it calls and no other node knows."""
    while node is not None:
        yield node
        node = _C.node_of_part(node)


def _is_saved(node: Any, name: str) -> bool:
    """Whether a node has saved this tensor: some save what they need for the gradients that are asked for. Nodes of autograd
    functions have a tuple."""
    try:
        value = getattr(node, name)
    except RuntimeError:        # it was written to since, or freed
        return True
    return value is not None and not (isinstance(value, tuple) and not value)


@functools.cache
def saved_names(cls: type) -> tuple[str, ...]:
    """The attributes of nodes of a class that are saved tensors: operands, then results."""
    raw = [name for name in dir(cls) if name.startswith("_raw_saved_")]
    names = [next(name for name in (full.removeprefix("_raw"), full.removeprefix("_raw_")) if hasattr(cls, name)) for full in raw]
    return tuple(sorted(names, key=lambda name: (name.startswith("_saved_result"), name)))
