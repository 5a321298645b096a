"""A graph in two parts: a core, which computes, and a tail, which makes views of the core's results and of inputs, and detaches.

The core is compiled. The tail runs uncompiled: so views, autograd nodes, and what autograd allows are as in eager mode.
"""
from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import increment_version

from capture.backends.aot.aten import storage_of
from capture.backends.aot.observed import Eager, end
from capture.backends.aot.size_nodes import emit_size
from capture.backends.aot.symbols import Symbols
from capture.backends.native.job import Modes
from capture.backends.native.saved_tensors import version
from capture.backends.native.signature import Input, Result, Unsupported


@dataclass(frozen=True, slots=True)
class Split:
    """core: returns the tensors `results`, each with memory of its own. tail: takes `arguments`, Results being numbered as the core
    returns them, and returns what the graph does; None if that is `arguments`. roots: for each differentiable result an output of
    the graph, and whether it is the output's base. after_writes: of each result, whether it follows from a tensor after a
    write, or was written to. nodes: the nodes of the tail's graph for all tensors through which gradients flow and that it takes
    or makes. taken: for each of its placeholders, what that is."""

    core: fx.GraphModule
    results: tuple[Tensor, ...]
    arguments: tuple[Input | Result, ...]
    tail: fx.GraphModule | None
    roots: tuple[tuple[int, bool] | None, ...]
    after_writes: tuple[bool, ...]
    graph: fx.Graph
    nodes: tuple[tuple[Tensor, fx.Node], ...]
    taken: Mapping[fx.Node, Input | Result]

    @property
    def differentiable(self) -> list[Tensor]:
        """The results that gradients flow to."""
        return [tensor for tensor in self.results if tensor.requires_grad]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors in `nodes`."""
        return [tensor for tensor, _ in self.nodes]


def split(graph: fx.GraphModule, positions: Sequence[int], eager: Eager, modes: Modes, symbols: Symbols,
          spent: Collection[Tensor] = ()) -> Split:
    """Splits a graph; its outputs are at `positions` of its results. spent: outputs to which no gradients flow any more. Raises
    Unsupported if views cannot be made again."""
    parts = _Parts(graph, eager, symbols, spent)
    outputs = [eager.outputs[position] for position in positions]
    returned = list(map(parts.node_for, outputs))
    return parts.finish(returned, outputs, modes)


class _Parts:
    def __init__(self, graph: fx.GraphModule, eager: Eager, symbols: Symbols, spent: Collection[Tensor]) -> None:
        self.graph, self.eager, self.spent = graph, eager, set(map(id, spent))
        self.tail = fx.Graph()
        self.inputs = {id(fake): place for place, fake in enumerate(eager.inputs)}
        self.nodes: dict[int, fx.Node] = {}                         # of tensors, by id
        self.tensors: dict[int, Tensor] = {}                        # these tensors
        self.copies: dict[fx.Node, fx.Node] = {}                    # of the graph's nodes
        self.taken: dict[fx.Node, Input | Result] = {}              # what the tail takes
        self.symbols = symbols
        self.sizes: dict[Any, Any] = {}                             # by torch's expression: a node, or a number
        self.results: list[tuple[Tensor, fx.Node, bool]] = []       # tensor, a node of the graph, whether it is the base of that
        self.storages = set(map(storage_of, eager.inputs))          # of inputs and results

    # --- the tail

    def node_for(self, tensor: Tensor) -> fx.Node:
        """The tail's node for a tensor."""
        if id(tensor) not in self.nodes:
            self.nodes[id(tensor)] = self._made(tensor)
            self.tensors[id(tensor)] = tensor
        return self.nodes[id(tensor)]

    def _made(self, tensor: Tensor) -> fx.Node:
        if id(tensor) in self.inputs:
            return self._take(Input(self.inputs[id(tensor)]))
        maker = self.eager.makers[id(tensor)]
        if self._operation(maker) in self.eager.views and tensor._base is None and tensor.grad_fn is not None:
            raise Unsupported("a result that gradients flow through shares memory with what it is no view of")     # `unsafe_chunk`
        self._check_order(tensor, maker)
        if self._repeatable(maker):
            return self._copy(maker)
        if tensor._base is None:
            return self._result(tensor, maker, False)
        base = tensor._base
        if not any(id(base) in known for known in (self.nodes, self.inputs, self.eager.makers)):
            self.nodes[id(base)] = self._result(base, maker, True)
            self.tensors[id(base)] = base
        return self._strided(self.node_for(base), tensor, base, self.eager.grad[maker])

    def _operation(self, maker: fx.Node) -> fx.Node:
        """What has made a tensor that `maker` takes out of several results; else `maker`."""
        while maker.target is operator.getitem and not isinstance(self.eager.values[maker.args[0]], Tensor):
            (maker,) = maker.all_input_nodes
        return maker

    def _check_order(self, tensor: Tensor, maker: fx.Node) -> None:
        """Raises Unsupported for views whose errors would be others if they were made after a write, as the tail makes them."""
        base = tensor._base
        if base is None or not base.requires_grad or version(tensor) == self.eager.born[id(tensor)]:
            return
        if self._operation(maker) is not maker or not self.eager.grad[maker]:
            raise Unsupported("a view that cannot be written to was made before its base was written to")
        if any(isinstance(value := self.eager.values[arg], Tensor) and value._base is base for arg in maker.all_input_nodes):
            raise Unsupported("a view of a view was made before the base was written to: gradients no longer pass the first one")

    def _repeatable(self, maker: fx.Node) -> bool:
        """Whether a node makes views of one tensor alone, so that it can be run again."""
        if maker not in self.eager.views:
            return False
        operands = [arg for arg in maker.all_input_nodes if not isinstance(self.eager.values[arg], torch.SymInt)]
        if maker.target is operator.getitem and isinstance(self.eager.values[operands[0]], (tuple, list)):
            return self._repeatable(operands[0])
        return len(operands) == 1 and isinstance(self.eager.values[operands[0]], Tensor)

    def _copy(self, maker: fx.Node) -> fx.Node:
        if maker not in self.copies:
            copies = {arg: self._operand(arg) for arg in maker.all_input_nodes}
            self.copies[maker] = self.tail.node_copy(maker, copies.__getitem__)
            self.copies[maker].meta = {"grad": self.eager.grad[maker]}
        return self.copies[maker]

    def _operand(self, arg: fx.Node) -> Any:
        value = self.eager.values[arg]
        if isinstance(value, torch.SymInt):
            return self._size(value)
        return self.node_for(value) if isinstance(value, Tensor) else self._copy(arg)

    def _size(self, size: int | torch.SymInt) -> Any:
        """A size, computed of those of inputs where it changes."""
        if isinstance(size, int):
            return size
        expr = size.node.expr
        if expr not in self.sizes:
            self.sizes[expr] = emit_size(self.tail, size, self._size_of_input)
        return self.sizes[expr]

    def _size_of_input(self, name: str) -> fx.Node:
        place, dim = self.symbols.places[name]
        known = next((node for node, taken in self.taken.items() if taken == Input(place)), None)
        return self.tail.call_method("size", (known or self._take(Input(place)), dim))

    def _strided(self, base: fx.Node, tensor: Tensor, known: Tensor, grad: bool) -> fx.Node:
        """A view as the graph has made it within some operation."""
        if tensor.dtype != known.dtype or tensor.is_neg() != known.is_neg():
            raise Unsupported("a result is a view of another dtype")
        offset: Any = tensor.storage_offset() - known.storage_offset()
        whole = offset == 0 and known.is_contiguous() and tensor.numel() == known.numel()
        if whole and tensor.stride() == known.detach().view(tensor.shape).stride():
            node = self.tail.call_method("view", (base, tuple(map(self._size, tensor.shape))))
        else:
            first = self.tail.call_method("storage_offset", (base,))
            offset = self.tail.call_function(operator.add, (first, self._size(offset))) if offset else first
            sizes, strides = tuple(map(self._size, tensor.shape)), tuple(map(self._size, tensor.stride()))
            node = self.tail.call_method("as_strided", (base, sizes, strides, offset))
        node.meta = {"grad": grad}
        if tensor.is_conj() != known.is_conj():
            node = self.tail.call_method("conj", (node,))
            node.meta = {"grad": grad}
        return node

    def _take(self, name: Input | Result) -> fx.Node:
        made = next((node for node in self.tail.nodes if node.op != "placeholder"), None)
        with self.tail.inserting_before(made) if made else contextlib.nullcontext():
            node = self.tail.placeholder(f"given_{len(self.taken)}")
        self.taken[node] = name
        return node

    def _result(self, tensor: Tensor, maker: fx.Node, base: bool) -> fx.Node:
        if storage_of(tensor) in self.storages:
            raise Unsupported("results share memory in a way that cannot be told")
        if tensor.untyped_storage().nbytes() != end(tensor) * tensor.itemsize:
            raise Unsupported("a result has more memory than its elements take")
        self.results.append((tensor, maker, base))
        self.storages.add(storage_of(tensor))
        return self._take(Result(len(self.results) - 1))

    # --- both parts

    def finish(self, returned: list[fx.Node], outputs: list[Tensor], modes: Modes) -> Split:
        made = any(node.op != "placeholder" for node in self.tail.nodes)
        arguments = tuple(self.taken.values()) if made else tuple(self.taken[node] for node in returned)
        roots = self._roots(outputs)
        self._return_results(roots)
        tail = self._finished_tail(returned, outputs, modes) if made else None
        tensors = tuple(tensor if root else tensor.detach() for (tensor, _, _), root in zip(self.results, roots, strict=True))
        after_writes = tuple(node in self.eager.after_writes or version(tensor) > self.eager.born.get(id(tensor), 0)
                             for tensor, node, _ in self.results)
        if not made:
            self.tail.output(tuple(returned))
        detached = {id(tensor) for (tensor, _, _), root in zip(self.results, roots, strict=True) if root is None}
        nodes = tuple((tensor, self.nodes[key]) for key, tensor in self.tensors.items()
                      if tensor.requires_grad and id(tensor if tensor._base is None else tensor._base) not in detached)
        return Split(self.graph, tensors, arguments, tail, tuple(roots), after_writes, self.tail, nodes, self.taken)

    def _roots(self, outputs: Sequence[Tensor]) -> list[tuple[int, bool] | None]:
        """Of each result: which output it is, or is the base of; None for others, and for those that no gradients flow to."""
        places: dict[int, tuple[int, bool]] = {}
        for is_base in (False, True):
            for place, out in enumerate(outputs):
                places.setdefault(id(out._base if is_base else out), (place, is_base))
        return [None if id(tensor) in self.spent else places.get(id(tensor)) for tensor, _, _ in self.results]

    def _return_results(self, roots: list[tuple[int, bool] | None]) -> None:
        """Has the graph return the results: detached, where the program gets them so alone."""
        graph = self.graph.graph
        end = graph.output_node()
        nodes = []
        with graph.inserting_before(end):
            for (tensor, node, base), root in zip(self.results, roots, strict=True):
                if base:        # in the trace, where operations are others, it may be of another shape
                    node = graph.call_function(getattr, (node, "_base"))
                    if tensor.is_contiguous():
                        node = graph.call_method("view", (node, tuple(map(self._size_in_core, tensor.shape))))
                if root is None and tensor.requires_grad:
                    node = graph.call_method("detach", (node,))
                nodes.append(node)
        end.args = (tuple(nodes),)
        self.graph.recompile()

    def _size_in_core(self, size: int | torch.SymInt) -> fx.Node | int:
        """As `_size`, at the place in the core where nodes are inserted."""
        graph = self.graph.graph

        def size_of_input(name: str) -> fx.Node:
            place, dim = self.symbols.places[name]
            return graph.call_method("size", (graph.find_nodes(op="placeholder")[place], dim))
        return size if isinstance(size, int) else emit_size(graph, size, size_of_input)

    def _finished_tail(self, returned: list[fx.Node], outputs: list[Tensor], modes: Modes) -> fx.GraphModule:
        self.tail.output(tuple(returned))
        now = modes.grad
        for node in list(self.tail.nodes):
            wanted = node.meta.get("grad", modes.grad if node.op == "output" else now)
            if wanted != now:
                with self.tail.inserting_before(node):
                    self.tail.call_function(torch._C._set_grad_enabled, (wanted,))
                now = wanted
        tail = fx.GraphModule({}, self.tail, "Tail")
        self._match_writes(tail, outputs, modes)
        return tail

    def _match_writes(self, tail: fx.GraphModule, outputs: list[Tensor], modes: Modes) -> None:
        """Checks that the tail makes the same tensors as the graph, and makes it count the same writes."""
        given = [self.eager.inputs[name.index] if isinstance(name, Input) else self.results[name.index][0]
                 for name in self.taken.values()]
        with modes.active(), given[0].fake_mode:
            made = tail(*given)
        end, counted = self.tail.output_node(), False
        for node, ours, theirs in zip(end.args[0], made, outputs, strict=True):
            if not _alike(ours, theirs):
                raise Unsupported("a view was changed in a way that cannot be told")
            missing = version(theirs) - version(ours)
            if missing < 0:
                raise Unsupported("a view counts writes in a way that cannot be told")
            counted |= missing > 0
            for _ in range(missing):
                with self.tail.inserting_before(end):
                    self.tail.call_function(increment_version, (node,))
                increment_version(ours)
        if counted:
            tail.recompile()


def _alike(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are laid out alike, and so are the tensors that they are views of."""
    if _layout(ours) != _layout(theirs) or ours.requires_grad != theirs.requires_grad:
        return False
    return ours._base is None or theirs._base is None or _layout(ours._base) == _layout(theirs._base)


def _layout(tensor: Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
