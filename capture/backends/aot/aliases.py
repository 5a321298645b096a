"""What a graph returns is a view of what: of each other, of inputs, of what was computed on the way. Eager mode is asked, on
tensors without data."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._subclasses import FakeTensorMode

from capture.backends.aot.aten import is_view, storage_of
from capture.backends.aot.fakes import fake_inputs
from capture.backends.aot.joint import OWN_TENSORS, Joint, is_differentiable
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Input, Result, Unsupported, View

INTERMEDIATE_BASES = frozenset({OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output})


@dataclass(frozen=True, slots=True)
class Returned:
    """One output: the node whose value it is, or the node it is a view of, `view` telling how."""

    node: fx.Node
    view: Callable[[Input | Result], View] | None = None


@dataclass(frozen=True, slots=True)
class Eager:
    """What eager mode does, on tensors without data: `inputs`, after the call, and `outputs`."""

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]

    @classmethod
    def run(cls, graph: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes) -> Eager:
        inputs = fake_inputs(specs)
        with modes.active(), inputs[0].fake_mode if inputs else FakeTensorMode():
            return cls(inputs, graph(*inputs))


def may_share_memory(joint: Joint) -> bool:
    """Whether outputs may be views: of each other, of inputs, or of what was changed through a view."""
    if any(info.output_type not in OWN_TENSORS for info in joint.metadata.output_info):
        return True
    storages = {storage_of(node.meta["val"]) for node in joint.values}
    if len(storages) < len(joint.values):
        return True
    names = {node.target.__name__.partition(".")[0] for node in joint.forward.graph.nodes if node.op == "call_function"}
    return len(storages) > 1 and any(name.endswith("_scatter") for name in names)


def returned_by(joint: Joint, eager: Eager | None, inputs: Sequence[fx.Node]) -> list[Returned]:
    """The outputs of the graph, in order. eager: None when nothing is a view of anything."""
    values, infos = joint.values, joint.metadata.output_info
    if eager is None:
        return list(map(Returned, values))
    anchors = {storage_of(fake): (node, fake) for fake, node in zip(eager.inputs, inputs, strict=True)}
    for value, out, info in zip(values, eager.outputs, infos, strict=True):
        if info.output_type in INTERMEDIATE_BASES:
            anchors[storage_of(out)] = joint.bases[info.base_idx], out._base
        elif is_differentiable(info):
            anchors[storage_of(out)] = value, out
    shared = Counter(map(storage_of, eager.outputs))
    results = []
    for value, out, info in zip(values, eager.outputs, infos, strict=True):
        if is_differentiable(info) or info.output_type in OWN_TENSORS and shared[storage_of(out)] == 1:
            results.append(Returned(value))
            continue
        if storage_of(out) not in anchors:
            anchors[storage_of(out)] = _anchor(out, values, eager.outputs)
        node, base = anchors[storage_of(out)]
        results.append(Returned(node) if out is base else Returned(node, _view(out, base)))
    return results


def _anchor(out: torch.Tensor, values: Sequence[fx.Node], outs: Sequence[torch.Tensor]) -> tuple[fx.Node, torch.Tensor]:
    """The tensor of which outputs in one storage are views, when no gradient is asked for: an output, or computed on the way."""
    base = out if out._base is None else out._base
    for value, other in zip(values, outs, strict=True):
        if other is base:
            return value, base
    node = values[[other is out for other in outs].index(True)]
    while is_view(node):
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
