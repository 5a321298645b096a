"""torch-level graph -> functional ATen graphs, forward and backward, by torch's AOTAutograd.

AOTAutograd traces the graph with tensors that have no data: mutations become functional, operators are decomposed, the
backward pass is traced along and cut off. What it makes of these graphs at run time are closures, which neither another
process nor a file can hold; so only the graphs are taken, and a `Signature` says in plain data how they are called.
"""
from __future__ import annotations

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import MutationType, OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import grad_mode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint

from capture.backends.decompositions import decompositions, undecomposed
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Input, Result, Signature, Tangent, Unsupported, View
from capture.backends.traceable import obstacle

aten = torch.ops.aten

# AOTAutograd's settings, as far as this version of torch has them.
SETTINGS: dict[str, Any] = {
    "functionalize_rng_ops": False,             # random numbers come from torch's own generators
    "graphsafe_rng_functionalization": False,
    "backward_pass_autocast": "off",            # the backward pass of eager mode runs outside of autocast
    "debug_assert": False,
    "donated_buffer": False,
    "view_replay_for_aliased_outputs": False,
    "check_custom_op_aliasing": False,
    "enable_autograd_cache": False,
    "cse": False,                               # `merge_duplicates` does it, without importing torch._inductor
}


@dataclass(frozen=True, slots=True)
class Traced:
    """The graphs of one trace. `backward` is None when no gradient is asked for.

    forward: placeholders are the inputs of the torch-level graph, all of them and in order; backward: `signature.saved`, then
    `signature.tangents`. Every node's `meta["val"]` is a FakeTensor. Inputs are written to by `aten.copy_` in `forward`.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    signature: Signature


def trace(gm: fx.GraphModule, inputs: Sequence[torch.Tensor | TensorSpec], modes: Modes | None = None) -> Traced:
    """Traces `gm`, recorded on inputs like these and under `modes` (default: those in force).

    Raises Unsupported for what a compiled graph could not reproduce exactly.
    """
    specs = [spec if isinstance(spec, TensorSpec) else TensorSpec.of(spec) for spec in inputs]
    modes = modes or Modes.current()
    graph, positions = _prepared(gm)
    if not any(spec.requires_grad for spec in specs) and any(node.target is setattr for node in graph.graph.nodes):
        raise Unsupported("the graph makes a tensor of its own require gradients, and has no other that does")
    joint = _Joint()
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing_modes(modes))
        settings = {name: value for name, value in SETTINGS.items() if hasattr(functorch_config, name)}
        stack.enter_context(functorch_config.patch(settings))
        stack.enter_context(undecomposed())
        stack.enter_context(_use_lazy_graph_module(True))       # graphs are turned into Python code when that is run
        fakes = fake_inputs(specs)
        try:
            joint.trace(graph, fakes)
        except Unsupported as error:        # without the nodes that fx adds to it
            raise Unsupported(str(error).partition("\n\nWhile executing")[0]) from None
        except Exception as error:      # whatever an operator of the program does on tensors without data
            raise Unsupported(f"AOTAutograd cannot trace the graph: {type(error).__name__}: {error}") from error
        _check(joint, specs)
        return _finished(joint, graph, positions, specs, modes)


@contextlib.contextmanager
def tracing_modes(modes: Modes) -> Iterator[None]:
    """Puts `modes` in force for graphs to be traced in: instead of inference mode, the same operations on tensors that AOTAutograd
    understands."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(modes.active())
        if modes.inference:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        yield


def fake_inputs(specs: Sequence[TensorSpec]) -> list[FakeTensor]:
    """FakeTensors as the specs say, of storages of their own. Raises Unsupported for layouts other than strided."""
    mode = FakeTensorMode()
    return [_fake(mode, spec) for spec in specs]


def _fake(mode: FakeTensorMode, spec: TensorSpec) -> FakeTensor:
    if spec.layout != torch.strided:
        raise Unsupported(f"an input has the layout {spec.layout}")
    with mode, torch.device(spec.device):
        fake = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    return fake.requires_grad_(spec.requires_grad)


# --- the graph as AOTAutograd shall see it

def _prepared(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """A copy of `gm` with checkpointed regions inlined, every output once; and for each output of `gm` which of them it is."""
    graph = fx.Graph()
    returned = _inline(graph, gm, [graph.placeholder(n.name) for n in gm.graph.nodes if n.op == "placeholder"], None)
    distinct = list(dict.fromkeys(returned))
    graph.output(tuple(distinct))
    return fx.GraphModule({}, graph), [distinct.index(node) for node in returned]


def _inline(graph: fx.Graph, gm: fx.GraphModule, arguments: Sequence[fx.Node], region: int | None) -> Sequence[fx.Node]:
    """Copies the nodes of `gm` to `graph` and returns its outputs there. region: the checkpoint that they are part of."""
    copies: dict[fx.Node, Any] = {}
    placeholders = iter(arguments)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(placeholders)
        elif node.op == "output":
            return fx.map_arg(node.args[0], copies.__getitem__)
        elif node.op == "get_attr" and isinstance(getattr(gm, node.target), fx.GraphModule):
            copies[node] = getattr(gm, node.target)
        elif node.target is checkpoint.checkpoint:
            body, *values = (copies[arg] if isinstance(arg, fx.Node) else arg for arg in node.args)
            if node.kwargs.get("use_reentrant") is not False or node.kwargs.get("preserve_rng_state", True) is not True:
                raise Unsupported("a checkpoint that is reentrant or does not preserve the random state")
            copies[node] = _inline(graph, body, values, len(graph.nodes) if region is None else region)
        elif node.target is operator.getitem and isinstance(copies[node.args[0]], tuple):
            copies[node] = copies[node.args[0]][node.args[1]]
        else:
            _check_portable(node)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].target = CHECKED.get(node.target, node.target)
            copies[node].meta = {}
            if region is not None:
                copies[node].meta = {"recompute": checkpoint.CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": region}
    raise AssertionError("a graph without output")


def _one_hot(index: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`one_hot`, which compares and so accepts every index where it is traced."""
    zeros = torch.zeros((*index.shape, num_classes), dtype=torch.int64, device=index.device)
    return zeros.scatter(-1, index.unsqueeze(-1), 1)


# Functions that forget to check their arguments where these are traced, and what stands for them there.
CHECKED: dict[Any, Callable[..., Any]] = {torch.nn.functional.one_hot: _one_hot}


def _check_portable(node: fx.Node) -> None:
    if node.op not in ("call_function", "call_method"):
        raise Unsupported(f"the graph has a node {node.op} {node.target}")
    if node.target is grad_mode._enter_inference_mode:
        raise Unsupported("the graph switches the inference mode")
    found = obstacle(node)
    if found is not None:
        raise Unsupported(f"the graph {found}")
    owner = getattr(getattr(node.target, "func", None), "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        raise Unsupported(f"the autograd function {owner.__name__}, which is Python code of the program, is called")


# --- AOTAutograd

@functools.cache
def _random_packets() -> frozenset[Any]:
    """The operators that draw random numbers, in their functional forms."""
    names = ("bernoulli", "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "multinomial",
             "normal", "normal_functional", "uniform", "exponential", "cauchy", "geometric", "log_normal", "random", "poisson",
             "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_functional",
             "native_dropout", "_fused_dropout")
    return frozenset(getattr(aten, name) for name in names if hasattr(aten, name))


def is_random(node: fx.Node) -> bool:
    """Whether a node of an ATen graph draws random numbers. Attention does only where it drops out."""
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return (node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)) != 0.0


# Operators whose functional forms draw in another order than what they are the functional forms of, or with another method.
LAYOUT_MATTERS = frozenset({aten.bernoulli.p, aten.normal_functional.default})


class _Joint:
    """What AOTAutograd made of one graph: `forward`, which returns `values`, `bases` of views among them, and `saved`; `backward`;
    `metadata`. tangents: the values that have gradients, in the order in which `backward` takes these. drawn: the random
    operators that were run."""

    forward: fx.GraphModule
    backward: fx.GraphModule | None = None
    metadata: Any
    values: list[fx.Node]
    bases: list[fx.Node]
    saved: list[fx.Node]
    tangents: list[fx.Node]

    def __init__(self) -> None:
        self.drawn: Counter[Any] = Counter()
        self.tangents = []

    def trace(self, gm: fx.GraphModule, fakes: list[FakeTensor]) -> None:
        context = TracingContext(fakes[0].fake_mode if fakes else FakeTensorMode())
        with tracing(context):
            aot_module_simplified(gm, fakes, self._compile, partition_fn=self._partition, inference_compiler=self._compile,
                                  decompositions=self._counting(decompositions()), keep_inference_input_mutations=True)
        self.metadata = context.fw_metadata
        if any(info.mutation_type == MutationType.MUTATED_OUT_GRAPH for info in self.metadata.input_info):
            raise Unsupported("an input that requires gradients is written to, or its shape, strides or storage changed")
        if self.metadata.tokens:
            raise Unsupported("the graph calls an operator with side effects")
        if self.backward is None:
            merge_duplicates(self.forward.graph)
        self._split()

    def _split(self) -> None:
        """Tells apart what the forward graph returns."""
        infos = self.metadata.output_info
        returned = list(_output(self.forward.graph))
        end = len(infos) + self.metadata.num_intermediate_bases
        self.values, self.bases, self.saved = returned[:len(infos)], returned[len(infos):end], returned[end:]
        for i, info in enumerate(infos):
            if self.values[i].op == "placeholder" and info.output_type in OWN_TENSORS:      # a copy that was optimised away
                self.values[i] = _cloned(self.forward, self.values[i])
        if self.backward:
            self.tangents = [v for v, info in zip(self.values, infos, strict=True) if _is_differentiable(info)] + self.bases

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.forward = gm
        return _never_called

    def _partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The partition of least memory traffic. What is random is saved."""
        for node in joint.graph.nodes:
            if is_random(node):
                node.meta["recompute"] = checkpoint.CheckpointPolicy.MUST_SAVE
        merge_duplicates(joint.graph)
        forward, self.backward = min_cut_rematerialization_partition(joint, inputs, **options)
        return forward, self.backward

    def _counting(self, table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
        """The table, made to count the random operators that are run: tracing drops those of which nothing is used."""
        counting = dict(table)
        for packet in _random_packets():
            for name in packet.overloads():
                op = getattr(packet, name)
                if op not in counting:
                    counting[op] = functools.partial(self._count, op)
        return counting

    def _count(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        self.drawn[op] += 1
        if op in LAYOUT_MATTERS and not args[0].is_contiguous():
            raise Unsupported("random numbers are drawn into a tensor that is not contiguous")
        return NotImplemented


def _never_called(*args: Any) -> Any:
    raise AssertionError("what AOTAutograd returns is not used")


def _check(joint: _Joint, specs: Sequence[TensorSpec]) -> None:
    """Raises Unsupported when the graph does what the runtime cannot reproduce."""
    mutated = [spec for spec, info in zip(specs, joint.metadata.input_info, strict=True) if info.mutates_data]
    for written in mutated:
        if any(other is not written and _overlap(written, other) for other in specs):
            raise Unsupported("an input is written to that shares its memory with another one")
    for gm in (joint.forward, joint.backward):
        for node in gm.graph.nodes if gm else ():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized):
                raise Unsupported(f"a tensor of layout {value.layout} is computed")
    drawn = Counter(node.target for node in joint.forward.graph.nodes if is_random(node))
    if drawn != joint.drawn:
        raise Unsupported("random numbers are drawn that nothing uses, or in the backward pass")


def _overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two inputs may share memory. Without knowledge of storages the guards say that nothing is shared."""
    if a.storage is None or b.storage is None or a.storage[0] != b.storage[0]:
        return False
    return a.storage[1] < b.storage[1] + _extent(b) and b.storage[1] < a.storage[1] + _extent(a)


def _extent(spec: TensorSpec) -> int:
    """Bytes from the first element to behind the last one."""
    if 0 in spec.shape:
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.stride, strict=True))) * spec.dtype.itemsize


# --- operations that are done twice

def merge_duplicates(graph: fx.Graph) -> None:
    """Replaces operations by earlier ones on the same arguments. Tensors that are returned stay separate ones."""
    returned = {_storage(node.meta["val"]) for node in graph.output_node().all_input_nodes}
    known: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or is_random(node) or _is_write(node):
            continue
        if isinstance(value, torch.Tensor) and _storage(value) in returned:
            continue
        first = known.setdefault((node.target, _key(node.args), _key(node.kwargs), node.meta.get("ac_graph_id")), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(argument: Any) -> Any:
    """An argument as a key, by which 1, 1.0 and True differ."""
    if isinstance(argument, (tuple, list)):
        return tuple(map(_key, argument))
    if isinstance(argument, dict):
        return tuple((name, _key(value)) for name, value in argument.items())
    return type(argument), argument


def _is_write(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


# --- what is a view of what

@dataclass(frozen=True, slots=True)
class _Returned:
    """One output: the node whose value it is, or the node it is a view of, `view` telling how."""

    node: fx.Node
    view: Callable[[Input | Result], View] | None = None


@dataclass(frozen=True, slots=True)
class _Eager:
    """What eager mode does, on tensors without data: `inputs`, after the call, and `outputs`."""

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]

    @classmethod
    def run(cls, graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> _Eager:
        inputs = fake_inputs(specs)
        with modes.active(), inputs[0].fake_mode if inputs else FakeTensorMode():
            return cls(inputs, graph(*inputs))


def _may_share_memory(joint: _Joint) -> bool:
    """Whether outputs may be views: of each other, of inputs, or of what was changed through a view."""
    if any(info.output_type not in OWN_TENSORS for info in joint.metadata.output_info):
        return True
    storages = {_storage(node.meta["val"]) for node in joint.values}
    if len(storages) < len(joint.values):
        return True
    names = {node.target.__name__.partition(".")[0] for node in joint.forward.graph.nodes if node.op == "call_function"}
    return len(storages) > 1 and any(name.endswith("_scatter") for name in names)


def _outputs(joint: _Joint, eager: _Eager | None, inputs: Sequence[fx.Node]) -> list[_Returned]:
    """The outputs of the graph, in order. eager: None when nothing is a view of anything."""
    values, infos = joint.values, joint.metadata.output_info
    if eager is None:
        return list(map(_Returned, values))
    anchors = {_storage(fake): (node, fake) for fake, node in zip(eager.inputs, inputs, strict=True)}
    for value, out, info in zip(values, eager.outputs, infos, strict=True):
        if info.output_type in INTERMEDIATE_BASES:
            anchors[_storage(out)] = joint.bases[info.base_idx], out._base
        elif _is_differentiable(info):
            anchors[_storage(out)] = value, out
    shared = Counter(map(_storage, eager.outputs))
    results = []
    for value, out, info in zip(values, eager.outputs, infos, strict=True):
        if _is_differentiable(info) or info.output_type in OWN_TENSORS and shared[_storage(out)] == 1:
            results.append(_Returned(value))
            continue
        if _storage(out) not in anchors:
            anchors[_storage(out)] = _anchor(out, values, eager.outputs)
        node, base = anchors[_storage(out)]
        results.append(_Returned(node) if out is base else _Returned(node, _view(out, base)))
    return results


OWN_TENSORS = frozenset({OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view})
INTERMEDIATE_BASES = frozenset({OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output})


def _is_differentiable(info: Any) -> bool:
    """Whether AOTAutograd made a tangent for an output. Versions of torch differ in how they tell."""
    return info.output_type in OWN_TENSORS and getattr(info, "requires_grad_for_backward", info.requires_grad)


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _anchor(out: torch.Tensor, values: Sequence[fx.Node], outs: Sequence[torch.Tensor]) -> tuple[fx.Node, torch.Tensor]:
    """The tensor of which outputs in one storage are views, when no gradient is asked for: an output, or computed on the way."""
    base = out if out._base is None else out._base
    for value, other in zip(values, outs, strict=True):
        if other is base:
            return value, base
    node = values[[other is out for other in outs].index(True)]
    while _is_view(node):
        node = node.args[0]
    if node.op != "call_function" or _layout(node.meta["val"]) != _layout(base):
        raise Unsupported("results share memory in a way that cannot be told")
    return node, base


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype


def _view(out: torch.Tensor, base: torch.Tensor) -> Callable[[Input | Result], View]:
    """How `out` is made from `base`, given the base's name."""
    if out.dtype != base.dtype or out.is_conj() != base.is_conj() or out.is_neg() != base.is_neg():
        raise Unsupported("a result is a view of another dtype")
    if out.requires_grad and not base.requires_grad:
        raise Unsupported("a result that shares memory was made to require gradients")
    known = out._base is base or out._base is not None and out._base is base._base
    detached = "" if known else "view" if out._base is None else "base"
    return lambda name: View(name, tuple(out.shape), out.stride(), out.storage_offset() - base.storage_offset(), detached,
                             grad=not (out.requires_grad and out.grad_fn is None))


def _is_view(node: fx.Node) -> bool:
    """Whether a node is a view of its first argument, and of that alone."""
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view and len(node.all_input_nodes) == 1


# --- from AOTAutograd's convention to that of the signature

def _finished(joint: _Joint, graph: fx.GraphModule, positions: Sequence[int], specs: Sequence[TensorSpec], modes: Modes) -> Traced:
    """The graphs with the results, saved values and gradients that the signature names. positions: as of `_prepared`."""
    forward, backward, metadata = joint.forward, joint.backward, joint.metadata
    inputs = [node for node in forward.graph.nodes if node.op == "placeholder"]
    written = {node.args[0] for node in forward.graph.nodes if node.target is aten.copy_.default}
    eager = _Eager.run(graph, specs, modes) if written or _may_share_memory(joint) else None
    outputs = _outputs(joint, eager, inputs)
    tangents = joint.tangents
    if len(set(tangents)) < len(tangents):
        raise Unsupported("two results are one tensor")
    saved = _sink_views(joint.saved, backward) if backward else []
    copies = {node: _cloned(forward, node) for node in written.intersection(saved)}
    saved = [copies.get(node, node) for node in saved]
    names: dict[fx.Node, Input | Result] = {node: Input(i) for i, node in enumerate(inputs)}
    results: list[fx.Node] = []
    for node in (*tangents, *(out.node for out in outputs), None, *saved):
        if node is None:
            visible = len(results)
        elif node not in names:
            names[node] = Result(len(results))
            results.append(node)
    forward.graph.output_node().args = (tuple(results),)
    _clean(forward)
    gradients, used = _finish_backward(backward, len(saved)) if backward else ((), ())
    return Traced(forward, backward, Signature(
        inputs=len(specs),
        outputs=tuple(out.view(names[out.node]) if out.view else names[out.node] for out in map(outputs.__getitem__, positions)),
        differentiable=len(tangents),
        visible=visible,
        saved=tuple(names[node] for node in saved),
        tangents=used,
        gradients=gradients,
        written=tuple(i for i, node in enumerate(inputs) if node in written),
        advanced=tuple(i for i, fake in enumerate(eager.inputs) for _ in range(fake._version)) if eager else (),
        snapshots=tuple(i for i, node in enumerate(inputs) if node in written and _matters(node, results)) if backward else (),
        random=bool(joint.drawn),
        numbers=tuple(i for i, spec in enumerate(specs) if spec.number), domains=(),
        modes=modes,
        grad_after=metadata.grad_enabled_mutation))


def _cloned(forward: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A copy of an input as it is at the beginning."""
    with forward.graph.inserting_after(_last_placeholder(forward.graph)):
        copy = forward.graph.call_function(aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"].clone()
    return copy


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    return [node for node in graph.nodes if node.op == "placeholder"][-1]


def _matters(node: fx.Node, results: Sequence[fx.Node]) -> bool:
    """Whether some result is computed from the value of an input before the graph writes to it."""
    reached, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            if user not in reached and user.target is not aten.copy_.default:
                reached.add(user)
                stack.append(user)
    return not reached.isdisjoint(results)


def _sink_views(saved: Sequence[fx.Node], backward: fx.GraphModule) -> list[fx.Node]:
    """Computes saved views in the backward graph, from what they are views of; returns what is saved then, once each.

    That way tensors which the program can reach are saved as themselves, and not by a view that autograd knows nothing of,
    so that a change of them before the backward pass is noticed.
    """
    graph = backward.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = {}
    roots: list[fx.Node] = []
    first = next(node for node in graph.nodes if node.op != "placeholder")

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            if _is_view(node):
                source = copy(node.args[0])
                with graph.inserting_before(first):
                    copies[node] = graph.node_copy(node, lambda _: source)
            else:
                with graph.inserting_before(placeholders[0]):
                    copies[node] = graph.placeholder(node.name)
                copies[node].target = copies[node].name         # as fx made it unique
                copies[node].meta = dict(node.meta)
                roots.append(node)
        return copies[node]

    for node, placeholder in zip(saved, placeholders, strict=False):
        placeholder.replace_all_uses_with(copy(node))
    for placeholder in placeholders[:len(saved)]:
        graph.erase_node(placeholder)
    return roots


def _finish_backward(backward: fx.GraphModule, saved: int) -> tuple[Any, Any]:
    """Makes the backward graph take the tangents that it uses and return each gradient once.

    Returns `Signature.gradients` and `Signature.tangents`.
    """
    graph = backward.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    order = placeholders[saved:]
    for node in graph.nodes:
        if node.target is aten.alias.default or node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    results: dict[fx.Node, Result] = {}
    gradients: list[tuple[int, Result | Tangent]] = []
    for i, node in enumerate(_output(graph)):
        if node is None:
            continue
        if node in order:
            gradients.append((i, _tangent(order.index(node), node)))
            continue
        if node.op == "placeholder":
            with graph.inserting_before(graph.output_node()):
                copy = graph.call_function(aten.clone.default, (node,))
            copy.meta["val"] = node.meta["val"].clone()
            node = copy
        gradients.append((i, results.setdefault(node, Result(len(results)))))
    graph.output_node().args = (tuple(results),)
    _clean(backward)
    used = tuple(_tangent(i, node) for i, node in enumerate(order) if node.users)
    for node in order:
        if not node.users:
            graph.erase_node(node)
    backward.recompile()
    return tuple(gradients), used


def _tangent(index: int, node: fx.Node) -> Tangent:
    value = node.meta["val"]
    return Tangent(index, tuple(value.shape), value.stride(), value.dtype, value.device)


def _output(graph: fx.Graph) -> Sequence[fx.Node | None]:
    return graph.output_node().args[0]


def _clean(gm: fx.GraphModule) -> None:
    """Drops what is not needed for the output."""
    gm.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_random(node) or _is_write(node))
    gm.recompile()
