"""Transforms of torch.func (`vmap`, `grad`, `jvp`, and what is made of these), and gradients that a graph computes
(`torch.autograd.grad`), written out: in place of levels, wrapped tensors and backward passes a graph gets the ATen operations on
plain tensors that these come down to.

The graph is run on tensors without data, and what reaches operators from within levels is written down. These are the operations
that autograd sees outside of them, so that gradients of the results, and what is saved for these, are those of eager mode. A graph
that computes gradients is run within a level of its own up to there: autograd works in that level, and what it does becomes
operations that autograd around the graph sees, where eager mode sees them (`create_graph`).
"""
from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import _functorch as functorch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from capture.backends.aot import written_casts
from capture.backends.aot.below_levels import BelowLevels, Places, levels_left
from capture.backends.aot.fakes import fake_inputs
from capture.backends.aot.inlined_backward import freed_below, gradients, own_leaf
from capture.backends.aot.written_casts import CastsFirst
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Unsupported
from capture.operators.paused_autocast import SWITCHES
from capture.operators.transform_levels import ENTRIES, FOR_MAPPING, HOOK_SWITCHES, within_levels


def written_out(gm: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes,
                places: Places) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """A graph without transforms and gradients that it computes, and the results from which a backward pass can only raise, since
    such gradients were computed without `retain_graph`. A graph that has neither stays as it is. Raises Unsupported, and what
    operators raise on tensors without data."""
    if within := frozenset(within_levels(gm.graph)):
        gm = _made(_Run(gm, within, places), specs, modes)
    operations = _operations(gm.graph)
    last = max((place for place, node in enumerate(operations, 1) if node.target is torch.autograd.grad), default=0)
    if not last:
        return gm, ()
    run = _WithLevel(gm, frozenset(operations[:last]), places)
    try:
        return _made(run, specs, modes), run.spent
    except _GoesOn:
        run = _WithLevel(gm, frozenset(operations), places)
        return _made(run, specs, modes), run.spent


def _made(run: _Run, specs: Sequence[TensorSpec], modes: Modes) -> fx.GraphModule:
    if modes.inference and not all(node.target in FOR_MAPPING for node in run.within if node.target in ENTRIES):
        raise Unsupported("a transform of torch.func leaves the inference mode within it")
    inputs = fake_inputs(specs)
    in_python = any(isinstance(size, torch.SymInt) for spec in specs for size in spec.shape)
    if isinstance(run.recorder, CastsFirst) and written_casts.is_used(run.module.graph, modes):
        written_casts.before_levels()
        in_python = True
    how: Callable[[], AbstractContextManager[Any]] = enable_python_dispatcher if in_python else contextlib.nullcontext
    with inputs[0].fake_mode if inputs else FakeTensorMode(), levels_left(), how():
        run.run(*inputs)
    written_casts.mark_others(run.made, specs)
    return _LazyGraphModule(run.module, run.made)


def _operations(graph: fx.Graph) -> list[fx.Node]:
    """The operations of a graph up to its first backward pass."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")
             and node.target not in (own_leaf, *SWITCHES)]
    return list(itertools.takewhile(lambda node: node.target is not gradients, nodes))


class _GoesOn(Unsupported):
    """Behind a level the graph goes on with what autograd knows in it alone."""


class _Run(fx.Interpreter):
    """Runs a graph, and copies its nodes to `made`, or writes there what those do that are within levels."""

    recording: type[BelowLevels] = BelowLevels

    def __init__(self, gm: fx.GraphModule, within: frozenset[fx.Node], places: Places) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.within = within
        self.made = fx.Graph()
        self.copies: dict[fx.Node, Any] = {}
        self.recorder = self.recording(self.made, places)

    def run_node(self, n: fx.Node) -> Any:
        if n.target in HOOK_SWITCHES:           # hooks would have kept the graph from being called
            return None
        if n.target in SWITCHES or n not in self.within and not self._takes_wrapped(n):
            return self._copied(n)
        self.recorder.place, self.recorder.casting = n.meta.get("place"), written_casts.devices()
        with self.recorder:
            return self.run_within(n)

    def run_within(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        for tensor in self._taken(n) if self.recorder.casting else ():
            if id(tensor) in self.recorder.nodes and (cast := written_casts.look_up(self.seen_within(tensor))) is not None:
                self.recorder.note_kept(self.seen_without(cast), tensor)
        return value

    def _taken(self, n: fx.Node) -> list[Tensor]:
        return [one for one in pytree.tree_leaves([self.env[node] for node in n.all_input_nodes]) if isinstance(one, Tensor)]

    def seen_within(self, tensor: Tensor) -> Tensor:
        """What stands for a plain tensor where nodes run that are within levels."""
        return tensor

    def seen_without(self, tensor: Tensor) -> Tensor:
        """The plain tensor that something stands for there."""
        return tensor

    def _takes_wrapped(self, n: fx.Node) -> bool:
        """Whether a node takes tensors of a level that was left, as the pass of `vjp` does."""
        return any(map(functorch.is_gradtrackingtensor, self._taken(n)))

    def _copied(self, n: fx.Node) -> Any:
        self.recorder.note_modes()
        if n.target is operator.getitem and isinstance(items := self._copy_of(n.args[0]), (tuple, list)):
            self.copies[n] = items[n.args[1]]
            return super().run_node(n)
        copy = self.copies[n] = self.made.node_copy(n, self._copy_of)
        value = super().run_node(n)
        self.recorder.grad = torch.is_grad_enabled()
        if isinstance(value, Tensor):
            self.recorder.bind(value, copy)
        return value

    def _copy_of(self, n: fx.Node) -> Any:
        if n not in self.copies:                # it is within levels
            self.copies[n] = self.recorder.mapped(self.env[n])
        return self.copies[n]


class _OwnLevel(BelowLevels, CastsFirst):
    """Writes down what comes from within `_WithLevel`'s own level, which eager mode does not enter."""


class _WithLevel(_Run):
    """Runs nodes within a level of autograd that is entered before the first and left after the last of them. Raises _GoesOn if
    some of those behind belong into it."""

    recording = _OwnLevel

    def __init__(self, gm: fx.GraphModule, within: frozenset[fx.Node], places: Places) -> None:
        super().__init__(gm, within, places)
        self.left = len(within)                         # nodes to run
        self.level = 0
        self.wrapped: dict[int, Tensor] = {}            # inputs of the level, by the id of the plain tensor
        self.differentiable: dict[int, set[bool]] = {}  # whether what is taken out of the level requires gradients in it, by its id
        self.freed: dict[int, set[bool]] = {}           # whether what the nodes below it have saved was freed, of each that has
        self.spent: tuple[int, ...] = ()                # results of which all was freed

    def run_within(self, n: fx.Node) -> Any:
        if not self.level:
            if not torch.is_grad_enabled():
                raise Unsupported("the graph computes gradients, and begins in a mode without any")
            self.level = functorch._grad_increment_nesting()
        functorch.set_inplace_requires_grad_allowed(True)       # after each pass it is not
        self.recorder.draws = False
        self.env[n] = value = self._data(n) if n.target is getattr and n.args[1] == "data" else super().run_within(n)
        if self.recorder.draws and not all(one.is_contiguous() for one in self._taken(n)):
            raise Unsupported("random numbers are drawn as memory lies, which a level does not tell")
        self.left -= 1
        if self.left:
            return value
        for node in self.within:
            self.env[node] = pytree.tree_map_only(Tensor, self._unwrapped, self.env[node])
        functorch._grad_decrement_nesting()
        return self.env[n]

    def _data(self, n: fx.Node) -> Tensor:
        """The `.data` of a tensor: within a level it would be the plain tensor itself, wrapped anew, and writes to it would count
        as writes to that."""
        (tensor, _), _ = self.fetch_args_kwargs_from_env(n)
        plain = functorch._unwrap_for_grad(tensor, self.level)
        with torch._C._DisableFuncTorch():
            data: Tensor = plain.data           # a tensor without data calls `detach` for it
        node = self.recorder.nodes[id(data)]
        node.target, node.args = getattr, (*node.args, "data")
        return functorch._wrap_for_grad(data, self.level)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        found = super().fetch_args_kwargs_from_env(n)
        return pytree.tree_map_only(Tensor, self._wrapped, found) if n in self.within else found

    def _wrapped(self, tensor: Tensor) -> Tensor:
        if functorch.maybe_get_level(tensor) == self.level:
            return tensor
        if id(tensor) not in self.wrapped:
            self.wrapped[id(tensor)] = functorch._wrap_for_grad(tensor, self.level).requires_grad_(tensor.requires_grad)
        return self.wrapped[id(tensor)]

    def seen_within(self, tensor: Tensor) -> Tensor:
        return self.wrapped.get(id(tensor), tensor)

    def seen_without(self, tensor: Tensor) -> Tensor:
        within = functorch.maybe_get_level(tensor) == self.level
        return functorch._unwrap_for_grad(tensor, self.level) if within else tensor

    def _unwrapped(self, tensor: Tensor) -> Tensor:
        if functorch.maybe_get_level(tensor) != self.level:
            return tensor
        plain: Tensor = functorch._unwrap_for_grad(tensor, self.level)
        self.differentiable.setdefault(id(plain), set()).add(tensor.requires_grad)
        self.freed.setdefault(id(plain), set()).update(freed_below(tensor))
        return plain

    def _copied(self, n: fx.Node) -> Any:
        taken = pytree.tree_leaves([self.env[node] for node in n.all_input_nodes if node in self.within])
        if not all(self.differentiable[id(one)] == {one.requires_grad} for one in taken if isinstance(one, Tensor)):
            raise (Unsupported if n.op == "output" else _GoesOn)(
                "the graph returns, or goes on with, what it computes of a tensor of its own that requires gradients")
        if n.op == "output":
            self.spent = tuple(place for place, node in enumerate(n.args[0]) if self._is_spent(self.env[node]))
            return super()._copied(n)
        value = super()._copied(n)
        made = [one for one in pytree.tree_leaves(value) if isinstance(one, Tensor)]
        if any(map(self._is_spent, taken)) and any(one.requires_grad for one in made):
            raise _GoesOn("the graph goes on with what it has computed gradients of, without `retain_graph`")
        return value

    def _is_spent(self, value: Any) -> bool:
        """Whether a backward pass from a tensor can only raise."""
        freed = self.freed.get(id(value), set()) if isinstance(value, Tensor) and value.requires_grad else set()
        if len(freed) > 1:
            raise Unsupported("the graph returns, or goes on with, what has a history of which it has freed a part")
        return True in freed
