"""Writes down what reaches operators on plain tensors from within levels of torch.func."""
from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import _functorch as functorch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from capture import _C
from capture.backends.aot import written_casts
from capture.backends.aot.aten import aten, draws
from capture.backends.aot.size_nodes import emit_size
from capture.backends.native.signature import Unsupported
from capture.operators import paused_autocast, transform_levels
from capture.operators.schemas import Overload

UNKNOWN = "a transform of torch.func computes with a tensor that the graph does not make"
Places = Mapping[str, tuple[int, int]]      # of which input, and in which dimension, a symbol is the size


@contextlib.contextmanager
def levels_left() -> Iterator[None]:
    """Leaves what was entered, whatever is raised."""
    before, depth = _C.modes(), len(functorch.get_interpreter_stack() or ())
    try:
        with written_casts.put_back():
            yield
    except BaseException:
        transform_levels.leave(before, depth)
        raise
    finally:
        torch._C._set_grad_enabled(before.grad)


class BelowLevels(TorchDispatchMode):
    """Writes down operators on plain tensors. grad: the mode in which the graph is where it has come to. place: that of the node
    which the operators stand for. casting: for which types of devices autocast is on in that node; it makes its casts before
    operators come here. paused: those of which the graph has paused autocast where it has come to."""

    def __init__(self, graph: fx.Graph, places: Places) -> None:
        super().__init__()
        self.graph, self.places = graph, places
        self.grad = torch.is_grad_enabled()
        self.place: int | None = None
        self.casting: tuple[str, ...] = ()
        self.paused: tuple[str, ...] = ()
        self.nodes: dict[int, fx.Node] = {}     # of each tensor, by its id
        self.alive: list[Tensor] = []           # of what has died another may have the id
        self.own: set[int] = set()              # tensors that were made within levels
        self.draws = False                      # whether random numbers were drawn
        self.sizes: dict[str, Any] = {}         # nodes of symbols, and of what is calculated from them, by their text

    def bind(self, tensor: Tensor, node: fx.Node) -> None:
        """Notes that a node makes a tensor."""
        self.alive.append(tensor)
        self.nodes[id(tensor)] = node

    def note_modes(self, pause: tuple[str, ...] = ()) -> None:
        """Writes down whether gradients are enabled, and for which types of devices autocast is paused, if that has changed."""
        if (grad := torch.is_grad_enabled()) != self.grad:
            self.graph.call_function(torch._C._set_grad_enabled, (grad,))
            self.grad = grad
        if pause != self.paused:
            for function, names in ((paused_autocast.resume, self.paused), (paused_autocast.pause, pause)):
                if names:
                    self.graph.call_function(function, names)
            self.paused = pause

    def note_kept(self, cast: Tensor, of: Tensor) -> None:
        """Notes that autocast keeps a cast. If it was not written down, another part of the graph has made it."""
        node = self.nodes.get(id(cast))
        if node is not None and node.target is aten._to_copy.default and node.args[0] is self.nodes[id(of)]:
            node.target, node.kwargs = paused_autocast.kept_cast, {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(self._is_unknown, pytree.tree_leaves((args, kwargs)))):
            raise Unsupported(UNKNOWN)
        result = func(*args, **kwargs)
        if not isinstance(func, OpOverload):
            raise Unsupported(f"a transform of torch.func calls {func}")
        if func.namespace == "prim":
            return result
        self.note_modes(self.casting)
        self.draws |= draws(func, args, kwargs)
        if torch.Tag.inplace_view in func.tags:
            return self._reshaped(func, result)
        node = self._call(func, args, kwargs)
        if func._schema.is_mutable:
            if not Overload(func._schema).is_in_place or not isinstance(args[0], Tensor):
                raise Unsupported(f"a transform of torch.func calls {func}")
            node.meta["writes"] = ((0, 1),)
            return result
        if isinstance(result, Tensor):
            self._made(result, node)
        for item, one in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(one, Tensor):
                self._made(one, self.graph.call_function(operator.getitem, (node, item)))
        return result

    def _reshaped(self, func: OpOverload, tensor: Tensor) -> Tensor:
        """An operator that gives a tensor itself another shape, as rules of `vmap` do with what they have just made: another tensor
        on its memory, of which autograd knows no base either, takes its place."""
        if id(tensor) not in self.own or func.overloadpacket not in (aten.squeeze_, aten.unsqueeze_):
            raise Unsupported(f"a transform of torch.func calls {func}")
        self.bind(tensor, self._call(aten._unsafe_view.default, (tensor, tuple(tensor.shape)), {}))
        return tensor

    def _call(self, func: OpOverload, args: Any, kwargs: Any) -> fx.Node:
        if func is aten._to_copy.default and not isinstance(args[0], Tensor):       # a number of the program's
            func, args, kwargs = aten.full.default, ([], args[0]), {"dtype": kwargs.get("dtype"), "device": kwargs.get("device")}
        elif func is aten.bernoulli.p and not any(args[0].stride()):    # an element, repeated: torch.func's own form of dropout
            node = self.graph.call_function(aten.empty.memory_format, (self.mapped(tuple(args[0].shape)),), {
                "dtype": args[0].dtype, "device": args[0].device})
            return self.graph.call_function(func, (node, *args[1:]))
        node = self.graph.call_function(func, self.mapped(args), self.mapped(kwargs))
        node.meta["place"] = self.place
        return node

    def _made(self, tensor: Tensor, node: fx.Node) -> None:
        self.own.add(id(tensor))
        self.bind(tensor, node)

    def _is_unknown(self, value: Any) -> bool:
        """Whether this is a tensor with data, or of autograd's own making in C++, and no number: operators do not take it here."""
        return isinstance(value, Tensor) and not isinstance(value, FakeTensor) and id(value) not in self.nodes and value.dim() > 0

    def mapped(self, value: Any) -> Any:
        """Arguments, with nodes in the places of tensors and of sizes that change."""
        return pytree.tree_map(self._map, value)

    def _map(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.nodes and not isinstance(value, FakeTensor) and value.dim() == 0:     # a number, in C++
                with unset_fake_temporarily():
                    number = value.item()
                self.bind(value, self.graph.call_function(aten.full.default, ([], number), {"dtype": value.dtype}))
            if id(value) not in self.nodes:
                weight = next((one for one in self.alive if written_casts.look_up(one) is value), None) if self.casting else None
                if weight is None:
                    raise Unsupported(UNKNOWN)
                self.bind(value, self.graph.call_function(paused_autocast.kept_cast, (self.nodes[id(weight)],)))
            return self.nodes[id(value)]
        if isinstance(value, torch.SymInt):
            key = str(value)
            if key not in self.sizes:
                self.sizes[key] = emit_size(self.graph, value, self._size)
            return self.sizes[key]
        return value

    def _size(self, name: str) -> fx.Node:
        place, dim = self.places[name]
        return self.graph.call_method("size", (self.graph.find_nodes(op="placeholder")[place], dim))
