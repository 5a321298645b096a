"""Records ATen graphs, forward and backward, as eager mode runs a graph on tensors without data: in a fifth of AOTAutograd's time,
which runs it twice, below two more layers.

A write becomes an operation that makes a new tensor, which later reads take. What is not recorded here AOTAutograd traces
(`NotRecorded`): above all writes to parts of tensors.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._higher_order_ops.effects import has_effects
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import snapshot_fake
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

from capture.backends.aot.aten import ALIASES, aten, is_composed, is_write, steps, storage_of
from capture.backends.aot.inlined_backward import noting_seeds
from capture.backends.aot.strides import copied, lies_in, moves, noted, set_order
from capture.backends.aot.two_passes import TANGENT
from capture.backends.native.nodes import expected, same
from capture.backends.native.signature import Unsupported
from capture.operators.facts import facts_of
from capture.operators.memory_order import Order, outermost_first, strides_in
from capture.operators.schemas import Overload, is_written

OTHER_NAMES = {"normal_": "normal_functional"}      # of what makes a new tensor

Geometry = tuple[Any, ...]


class NotRecorded(Exception):
    """The graph does something that AOTAutograd has to trace."""


@dataclass(frozen=True, slots=True)
class JointGraph:
    """graph: takes the inputs, and gradients of results that have any; returns the results, and, if any of these has a gradient,
    that of each input or None. It writes to inputs at its end. written: whether it writes to each input. differentiable: whether
    each result has a gradient. seeds: the names of the nodes with which backward passes inside of the graph begin."""

    graph: fx.GraphModule
    written: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    seeds: Collection[str]


def record(gm: fx.GraphModule, inputs: Sequence[FakeTensor], decompositions: Mapping[Any, Callable[..., Any]]) -> JointGraph:
    """Runs a graph on `inputs`, and a backward pass from its results, within the modes in force. Raises NotRecorded, and what
    operators raise."""
    if not inputs or any("region" in node.meta for node in gm.graph.nodes):
        raise NotRecorded("without inputs, or with activation checkpoints")
    recorder = Recorder(decompositions)
    graph, grad = recorder.graph, torch.is_grad_enabled()
    for place, tensor in enumerate(inputs, 1):
        recorder.bind(tensor, graph.placeholder(f"primals_{place}"))
    with inputs[0].fake_mode, enable_python_dispatcher(), recorder, noting_seeds(lambda: graph) as seeds:
        try:
            results = _Replay(gm, recorder).run(*inputs)
        finally:
            torch._C._set_grad_enabled(grad)
        if any(id(result) in recorder.parts and recorder.parts[id(result)].moved for result in results):
            raise NotRecorded("a result that lies elsewhere")
        returned = list(map(recorder.read, results))
        roots = [result for result in results if result.requires_grad]
        gradients = recorder.gradients(roots, inputs) if roots else []
    recorder.backward = False
    for tensor, node in zip(inputs, graph.find_nodes(op="placeholder"), strict=False):
        if recorder.was_written(tensor):
            recorder.note(graph.call_function(aten.copy_.default, (node, recorder.read(tensor))), node.meta["val"])
    graph.output((*returned, *gradients))
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_write(node))
    return JointGraph(_LazyGraphModule({}, graph), tuple(map(recorder.was_written, inputs)),
                      tuple(result.requires_grad for result in results), seeds)


class _Replay(fx.Interpreter):
    """Runs a graph with new tensors as they lie in eager mode."""

    def __init__(self, gm: fx.GraphModule, recorder: Recorder) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        check_dtypes(value, n.meta.get("dtypes", ()), n.target, n.meta.get("place"))
        for tensor, order in noted(n, value):
            if not lies_in(tensor, order):
                self.recorder.lay_out(tensor, order)
        return value


def check_dtypes(made: Any, dtypes: Iterable[tuple[int, str]], operation: Any, node_place: int | None) -> None:
    """Raises Unsupported where what is traced is of another dtype than in the capturing call: some of torch's kernels without data
    find another one than those that compute. dtypes: of results by their places. node_place: of the node in the captured graph."""
    results = made if isinstance(made, (tuple, list)) else [made]
    for place, name in dtypes:
        result = results[place]         # None where the graph reads `_base` of what the trace copies
        if isinstance(result, Tensor) and result.dtype != getattr(torch, name):
            called, other = getattr(operation, "__name__", operation), str(result.dtype).removeprefix("torch.")
            raise Unsupported(f"{called} gives {name}, and {other} where it is traced", node_place)


@dataclass(slots=True)
class Part:
    """A tensor, and its aliases, that shares memory with others unseen (`unsafe_chunk`): a write to it makes a tensor of its own,
    as in torch's functionalization. node: what makes it. moved: whether it was written to, so that the node's result lies elsewhere
    in memory than the tensor."""

    node: fx.Node
    moved: bool = False


class Recorder(TorchDispatchMode):
    """Writes down what operators do, decomposed by a table, in `graph`. backward: whether they are part of a backward pass."""

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.decompositions = decompositions
        self.graph = fx.Graph()
        self.backward = False
        self.decomposed: OpOverload | None = None                   # what the program, or a backward pass, calls
        self.alive: list[Tensor] = []                               # of what has died another may have the id
        self.nodes: dict[int, fx.Node] = {}                         # of each tensor, by its id, …
        self.times: dict[int, int] = {}                             # … after how many writes to its memory
        self.views: dict[int, tuple[Any, Any, Any]] = {}            # the operator that made a view, and what that took
        self.forward_storages: set[StorageWeakRef] = set()          # once there is a backward pass
        self.writes: dict[StorageWeakRef, tuple[int, Tensor]] = {}  # how many to a storage, and what was written last: all of it
        self.parts: dict[int, Part] = {}                            # of tensors that share memory unseen, by their id
        self.spoilt: set[StorageWeakRef] = set()                    # whose parts were written to

    def gradients(self, roots: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[fx.Node | None]:
        """The gradients of inputs, which a backward pass from `roots` makes."""
        leaves = [tensor for tensor in inputs if tensor.requires_grad]
        tangents = [torch.empty_strided(root.shape, root.stride(), dtype=root.dtype, device=root.device) for root in roots]
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        self.backward = True
        for place, tangent in enumerate(tangents, 1):
            with self.graph.inserting_before(first):
                self.bind(tangent, self.graph.placeholder(f"{TANGENT}{place}"))
        self.forward_storages = set(map(storage_of, self.alive))
        with torch._C._DisableAutocast():
            found = torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
        by_leaf = {id(leaf): gradient for leaf, gradient in zip(leaves, found, strict=True) if gradient is not None}
        return [self.read(by_leaf[id(tensor)]) if id(tensor) in by_leaf else None for tensor in inputs]

    def was_written(self, tensor: Tensor) -> bool:
        return storage_of(tensor) in self.writes

    # --- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.as_strided_.default and _lies_there(*args, **kwargs):
            return func(*args, **kwargs)
        if not isinstance(func, OpOverload) or not _is_plain(func):
            raise NotRecorded(f"{func} is called")
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if func in ALIASES:
            return self._alias(func(*args, **kwargs), args[0])
        if func._schema.is_mutable:
            return self._write(func, args, kwargs)
        if self.decomposed is None:
            self.decomposed = func
            try:
                return self._computed(func, args, kwargs)
            finally:
                self.decomposed = None
        return self._computed(func, args, kwargs)

    def _computed(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """What an operator that writes to nothing makes, or those that it is decomposed into."""
        decompose = self.decompositions.get(func) or (func.decompose if _is_composed(func, _device_of(args)) else None)
        result = NotImplemented
        if decompose is not None:
            with self:
                result = decompose(*args, **kwargs)
        if result is NotImplemented:
            result = self._call(func, args, kwargs)
        if isinstance(result, (list, tuple)) and facts_of(func).shares_unseen:
            self.parts |= {id(one): Part(self.read(one)) for one in result}
        return result

    def _call(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        taken = self._mapped(args, kwargs)
        if func.is_view and (part := self.parts.get(id(args[0]))) is not None and part.moved:
            raise NotRecorded("a view of what lies elsewhere")
        result = func(*args, **kwargs)
        node = self.graph.call_function(func, *taken)
        if isinstance(result, Tensor):
            self.bind(result, node)
            if func.is_view:
                self.views[id(result)] = func, args, kwargs
        else:
            self.note(node, [self._seen(one) for one in result] if isinstance(result, (tuple, list)) else result)
            for place, one in enumerate(result if isinstance(result, (tuple, list)) else ()):
                if isinstance(one, Tensor):
                    self.bind(one, self.graph.call_function(operator.getitem, (node, place)))
        return result

    def _alias(self, result: Tensor, of: Tensor) -> Tensor:
        node = self.read(of)
        if id(of) in self.parts:
            self.parts[id(result)] = self.parts[id(of)]
        self.alive.append(result)
        self.nodes[id(result)], self.times[id(result)] = node, self.times[id(of)]
        if id(of) in self.views:
            self.views[id(result)] = self.views[id(of)]
        return result

    def _write(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Has operators that write make new tensors, and writes these down as what the tensors are now."""
        functional, places = _functional(func)
        with self:
            made = functional(*args, **kwargs)
        if len(places) > 1 or not Overload(func._schema).is_in_place:       # the new tensors come after the results
            results = len(func._schema.returns)
            for place, new in zip(places, made[results:], strict=True):
                self._assign(args[place], new)
            return made[:results] if results > 1 else made[0]
        target = args[0]
        for one, new in zip(target, made, strict=True) if isinstance(target, (list, tuple)) else [(target, made)]:
            self._assign(one, new)
        return target if func._schema.returns else None

    def _assign(self, tensor: Tensor, new: Tensor) -> None:
        if (part := self.parts.get(id(tensor))) is not None and (tensor.dtype, tensor.shape) == (new.dtype, new.shape):
            part.node, part.moved = self.read(new), True
            self.spoilt.add(storage_of(tensor))
            return
        if not _is_whole(tensor) or _geometry(tensor) != _geometry(new):
            raise NotRecorded("a write to a part of a tensor, or of another dtype")
        if storage_of(tensor) in self.forward_storages:
            raise NotRecorded("a backward pass writes to a tensor of the forward pass")
        if torch.is_grad_enabled() and tensor.requires_grad and tensor.is_leaf:
            raise NotRecorded("a write to a leaf")
        storage = storage_of(tensor)
        self.writes[storage] = self._times(storage) + 1, new
        self.read(tensor)

    # --- tensors

    def bind(self, tensor: Tensor, node: fx.Node) -> None:
        """Notes that a node makes a tensor."""
        if tensor.is_conj() or tensor.is_neg():
            raise NotRecorded("a conjugate or negative view")
        self.note(node, self._seen(tensor))
        self.alive.append(tensor)
        self.nodes[id(tensor)], self.times[id(tensor)] = node, self._times(storage_of(tensor))

    def note(self, node: fx.Node, value: Any) -> None:
        """Writes down what passes over the graph read of a node."""
        node.meta["val"] = value
        node.meta["partitioner_tag"] = "is_backward" if self.backward else "is_forward"
        node.meta["original_aten"] = self.decomposed

    def lay_out(self, tensor: Tensor, order: Order) -> None:
        """Has a new tensor, and what autograd has saved of it, lie in memory in an order."""
        node = new = self.read(tensor)
        aliases = [one for one in self.alive if self.nodes[id(one)] is node]
        with _pop_mode_temporarily():
            if moves(tensor, strides_in(order, tensor.shape)):
                if id(tensor) in self.parts or id(tensor) in self.views:
                    raise NotRecorded("a view that lies elsewhere")
                with torch._C._AutoDispatchBelowAutograd():
                    copy = copied(tensor, order, lambda op, *args, **kwargs: self._call(op, args, kwargs))
                new = self.nodes[id(copy)]
            for one in aliases:
                self.nodes[id(one)] = new
                set_order(one, order)
        if new is node and node.target is not operator.getitem and id(tensor) not in self.views:
            node.meta["val"] = self._seen(tensor)       # else, what lays it out is another node

    def read(self, tensor: Tensor) -> fx.Node:
        """The node that makes a tensor as it is now."""
        if id(tensor) not in self.nodes:
            raise NotRecorded("a constant tensor")
        if id(tensor) in self.parts:
            return self.parts[id(tensor)].node
        if storage_of(tensor) in self.spoilt:
            raise NotRecorded("a tensor is read after a write to what shares its memory unseen")
        if self.times[id(tensor)] != (times := self._times(storage_of(tensor))):
            self.nodes[id(tensor)], self.times[id(tensor)] = self._after_write(tensor), times
        return self.nodes[id(tensor)]

    def _after_write(self, tensor: Tensor) -> fx.Node:
        """The node for a tensor whose memory was written to since it was made."""
        _, written = self.writes[storage_of(tensor)]
        if _geometry(written) == _geometry(tensor):
            return self.read(written)
        if id(tensor) in self.views:
            func, args, kwargs = self.views[id(tensor)]
            node = self.graph.call_function(func, *self._mapped(args, kwargs))
            self.note(node, self._seen(tensor))
            return node
        if written.dtype != tensor.dtype or not _is_whole(tensor):
            raise NotRecorded("a tensor is read after a write to a view of it")
        # both are all of the memory: in its order, one is another shape of the other
        order = _in_memory(tensor)
        flat = self._permuted(written, _in_memory(written))
        shape = [tensor.shape[dim] for dim in order]
        if list(flat.shape) != shape:
            flat = self._call(aten.view.default, (flat, shape), {})
        return self.read(self._permuted(flat, [order.index(dim) for dim in range(tensor.dim())]))

    def _permuted(self, tensor: Tensor, order: list[int]) -> Tensor:
        return tensor if order == sorted(order) else self._call(aten.permute.default, (tensor, order), {})

    def _times(self, storage: StorageWeakRef) -> int:
        return self.writes[storage][0] if storage in self.writes else 0

    def _seen(self, value: Any) -> Any:
        return snapshot_fake(value) if isinstance(value, Tensor) else value

    def _mapped(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self._map, args)), {name: self._map(value) for name, value in kwargs.items()}

    def _map(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.read(value)
        return [self._map(one) for one in value] if isinstance(value, (list, tuple)) else value


def _geometry(tensor: Tensor) -> Geometry:
    """Where the elements of a tensor lie; the strides of single ones do not matter."""
    return tensor.dtype, tuple(tensor.shape), steps(tensor), tensor.storage_offset()


def _lies_there(tensor: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> bool:
    """Whether the elements of a tensor lie already as is asked for."""
    return same(tensor.shape, size) and storage_offset in (None, tensor.storage_offset()) and not moves(tensor, stride)


@functools.cache
def _is_plain(func: OpOverload) -> bool:
    """Whether an operator only computes tensors, or writes to them."""
    return not has_effects(func) and torch.Tag.inplace_view not in func.tags


def _is_whole(tensor: Tensor) -> bool:
    """Whether a tensor is all of its memory, each element once."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize \
        and aten.is_non_overlapping_and_dense(tensor)


def _in_memory(tensor: Tensor) -> list[int]:
    """The dimensions in the order of memory, the outermost first, which is the same for all sizes."""
    return outermost_first(list(map(expected, tensor.shape)), list(map(expected, tensor.stride())))


@functools.cache
def _is_composed(func: OpOverload, device: str) -> bool:
    """Whether C++ composes an operator of others, having no kernel of its own for tensors on this type of device."""
    return is_composed(func) and not torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C._dispatch_key_for_device(device))


def _device_of(args: Any) -> str:
    """The type of the device of the first tensor among arguments."""
    for arg in args:
        if isinstance(arg, Tensor):
            return arg.device.type
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor):
            return str(arg[0].device.type)
    return "cpu"


@functools.cache
def _functional(func: OpOverload) -> tuple[OpOverload, tuple[int, ...]]:
    """What makes new tensors in the place of an operator that writes, and the places of the arguments that it writes to. Raises
    NotRecorded."""
    arguments = func._schema.arguments
    places = tuple(place for place, argument in enumerate(arguments) if is_written(argument))
    name = func._schema.name.removeprefix("aten::")
    if places == (0,) and name.endswith("_"):
        packet = OTHER_NAMES.get(name, name[:-1])
    else:
        packet = f"{name}_functional"
    found = getattr(getattr(aten, packet, None), func._overloadname, None)
    if found is None or any(arguments[place].kwarg_only for place in places):
        raise NotRecorded(f"{func} writes to a tensor")
    return found, places
