"""torch-level graph -> functional ATen graphs, forward and backward.

The graph is run on fake tensors and what operators do is recorded, or else torch's AOTAutograd traces it: mutations become
functional, operators are decomposed, and the backward pass is traced with it and then separated. At run time AOTAutograd would use
closures, which neither another process nor a file can hold. So only graphs are made, and a `Signature` says in plain data how they
are called.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from capture.backends.aot import gradient_mode, inlined_backward, transforms
from capture.backends.aot.aten import is_random, storage_of, tensors_in
from capture.backends.aot.casts import cached
from capture.backends.aot.casts import check as check_casts
from capture.backends.aot.effects import HasEffects, place_of_effects
from capture.backends.aot.expansion import run_expanded
from capture.backends.aot.fakes import fake_inputs, tracing_modes
from capture.backends.aot.inlining import prepared
from capture.backends.aot.inner import cut_out
from capture.backends.aot.joint import Joint
from capture.backends.aot.observed import Eager, below
from capture.backends.aot.results import Traced, finished
from capture.backends.aot.saving import Saving
from capture.backends.aot.size_arguments import pass_sizes_to_backward
from capture.backends.aot.symbols import Symbols
from capture.backends.aot.tail import split
from capture.backends.aot.uninitialized import fill_uninitialized
from capture.backends.decompositions import undecomposed
from capture.backends.native.index import known_span
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.saved_tensors import version
from capture.backends.native.signature import Unsupported
from capture.backends.traceable import makes_leaf

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


def trace(gm: fx.GraphModule, inputs: Sequence[torch.Tensor | TensorSpec], modes: Modes | None = None,
          symbols: Symbols | None = None, rewrite: Callable[[fx.GraphModule], object] | None = None) -> Traced:
    """Traces `gm`, recorded on inputs like these and under `modes` (default: those in force). symbols: the sizes that change from
    call to call; it is given the conditions on them that the trace depends on. rewrite: is called with the graph when transforms
    are written out, and may change it. Raises Unsupported for a graph that compiled code could not reproduce exactly."""
    symbols = symbols or Symbols()
    specs = symbols.of([spec if isinstance(spec, TensorSpec) else TensorSpec.of(spec) for spec in inputs])
    modes = modes or Modes.current()
    gm, found = inlined_backward.written_out(gm)
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing_modes(modes))
        stack.enter_context(functorch_config.patch(SETTINGS))
        stack.enter_context(undecomposed())
        stack.enter_context(_use_lazy_graph_module(True))       # graphs are turned into Python code when that is run
        try:
            gm, freed = transforms.written_out(gm, specs, modes, symbols.places)
            if rewrite is not None:
                rewrite(gm)
            graph, positions = prepared(gm)
            grad_after = gradient_mode.mode_after(graph.graph, modes)
            if modes.inference:
                gradient_mode.drop_switches(graph.graph)
            check_casts(graph, specs, modes)
            eager = run_expanded(graph, specs, modes)
            spent = []
            if found is not None:
                spent = inlined_backward.spent(eager)
            elif freed:
                found = inlined_backward.of_results(len(positions), specs)
                spent = inlined_backward.apart([eager.outputs[place] for place in dict.fromkeys(map(positions.__getitem__, freed))])
            _check_leaves(eager, spent)
            _check_shapes(eager)
            _check_inputs(eager, specs)
            parts = split(graph, positions, eager, modes, symbols, spent)
            inner = cut_out(parts, eager, specs, modes)
            saving = Saving(eager, parts, specs)       # which counts writes that there are none of
            kept, further = (saving.names, ()) if inner is None else (saving.with_inner(inner.tensors, len(specs)), inner.specs)
            joint = Joint(kept, cached(specs, modes), len(further))
            joint.trace(parts.core, functools.partial(fake_inputs, [*specs, *further]), eager.unsure)
        except HasEffects as error:
            raise Unsupported(str(error), place_of_effects(graph, specs, modes)) from None
        except Unsupported as error:
            raise Unsupported(without_nodes(error), error.place) from None
        except DynamicOutputShapeException as error:
            raise Unsupported(f"the shape of the result of {error.func} depends on values", _place(error)) from error
        except Exception as error:      # whatever an operator of the program does on tensors without data
            raise Unsupported(f"the graph cannot be traced: {type(error).__name__}: {without_nodes(error)}",
                              _place(error)) from error
        _check(joint, specs)
        _check_regions(joint, eager)
        traced = finished(joint, eager, parts, saving, specs, modes, inner)
        signature = replace(traced.signature, layouts=symbols.layouts, grad_after=grad_after)
        if found is not None:
            signature = replace(signature, inlined_backward=inlined_backward.with_spent(found, spent, eager, positions))
        traced = replace(traced, signature=signature)
        if symbols.places:
            saved = [pass_sizes_to_backward(traced.forward, gm, names) for gm, names in zip(
                traced.graphs[1:], traced.signature.arguments(), strict=True)]
            traced = replace(traced, signature=traced.signature.with_arguments(saved))
        for one in traced.graphs:
            fill_uninitialized(one)
        return traced


def _check_leaves(eager: Eager, spent: Sequence[torch.Tensor]) -> None:
    """Raises Unsupported if the graph returns a tensor that the graph itself makes require gradients, such as a view made without
    gradients, or a value computed only from such tensors. The results of a compiled graph belong to its autograd node: none is a
    leaf, and the node depends on inputs alone. If such a tensor is not returned, its gradient is dropped, which does no harm. The
    graph is divided around the operation that makes such a tensor, if there is one."""
    given = {id(tensor) for tensor in eager.inputs}
    held = {id(tensor) for out in eager.outputs for tensor in (out, out._base)}
    given |= set(map(id, spent))
    own = [out for out in eager.outputs if out.requires_grad and id(out) not in given]
    roots = [out._base if out.is_leaf else out for out in own]          # views made without gradients are leaves
    leaves = [{id(node.variable) for node in below(root) if hasattr(node, "variable")} for root in roots
              if root is not None and not root.is_leaf]
    if any(out.is_leaf and out._base is None for out in own) or not all(
            known & given and not (known - given) & held for known in leaves):
        place = next((node.meta.get("place") for node in eager.values if makes_leaf(node)), None)
        raise Unsupported(
            "the graph returns a tensor of its own that it makes require gradients, or what it computes of such", place)


def _check_shapes(eager: Eager) -> None:
    """Raises Unsupported for a result whose shape was changed without autograd's notice: its gradient has the shape from before."""
    for out in eager.outputs:
        if out.grad_fn is not None and tuple(out.grad_fn._input_metadata[out.output_nr].shape) != tuple(out.shape):
            raise Unsupported("the shape of a result is changed while gradients are disabled")


def _check_inputs(eager: Eager, specs: Sequence[TensorSpec]) -> None:
    """Raises Unsupported if the graph changes the shape, strides, storage or autograd state of an input."""
    for fake, spec in zip(eager.inputs, specs, strict=True):
        writer = eager.writers.get(storage_of(fake))
        place = None if writer is None else writer.meta.get("place")
        if (fake.shape, fake.stride(), fake.storage_offset()) != (spec.shape, spec.stride, 0):
            raise Unsupported("the shape, strides or storage of an input are changed")
        if fake.requires_grad != spec.requires_grad:
            raise Unsupported("the graph changes whether an input requires gradients", place)
        if fake.requires_grad and not spec.leaf and version(fake):
            raise Unsupported("an input is written to that requires gradients and is no leaf", place)
        if spec.is_view_leaf and (_is_used_by_views(fake, eager) or _is_counted_elsewhere(spec, eager, specs)):
            raise Unsupported("an input that is a leaf and a view is written to: its other views give it no gradients then", place)


def _is_used_by_views(fake: torch.Tensor, eager: Eager) -> bool:
    """Whether views of an input are used, or returned, after a write that was not to what they were made of then."""
    return any(view._base is fake and version(view) > eager.born.get(id(view), 0)
               for node in eager.after_writes for arg in node.all_input_nodes for view in tensors_in(eager.values[arg]))


def _is_counted_elsewhere(spec: TensorSpec, eager: Eager, specs: Sequence[TensorSpec]) -> bool:
    """Whether another input is written to that lies in the same storage, and may count its writes together with this one."""
    return spec.storage is not None and any(
        version(fake) and other is not spec and other.storage is not None and other.storage[0] == spec.storage[0]
        for fake, other in zip(eager.inputs, specs, strict=True))


def _place(error: Exception) -> int | None:
    """The place of the node in whose run an exception was raised, if it was."""
    return getattr(error, "place", None)


def without_nodes(error: Exception) -> str:
    """The text of an exception, without the node and the advice on logs that fx adds to it, and without C++'s backtrace."""
    return str(error).partition("\n\nWhile executing")[0].partition("\nException raised from")[0]


def _check(joint: Joint, specs: Sequence[TensorSpec]) -> None:
    """Raises Unsupported when the graph does what the runtime cannot reproduce."""
    tenants: dict[int, list[TensorSpec]] = {}       # of each storage that is known
    for spec in specs:
        if spec.storage is not None:
            tenants.setdefault(spec.storage[0], []).append(spec)
    for written in itertools.compress(specs, joint.written):
        others = tenants[written.storage[0]] if written.storage is not None else ()
        if any(other is not written and _overlap(written, other) for other in others):
            raise Unsupported("an input is written to that shares its memory with another one")
    for gm in (joint.forward, joint.backward):
        for node in gm.graph.nodes if gm else ():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized):
                raise Unsupported(f"a tensor of layout {value.layout} is computed")
    drawn = Counter(node.target for node in joint.forward.graph.nodes if is_random(node))
    if drawn != joint.drawn:
        raise Unsupported("random numbers are drawn that nothing uses, or in the backward pass")


def _check_regions(joint: Joint, eager: Eager) -> None:
    """Raises Unsupported if an activation checkpoint may write to an input (the statistics of a batch normalisation): eager mode
    writes once more when it computes the body again."""
    written = set(map(storage_of, itertools.compress(eager.inputs, joint.written)))
    for node in eager.values if not written.isdisjoint(eager.recomputed) else ():
        if "region" not in node.meta:
            continue
        if not all(arg in eager.values for arg in node.all_input_nodes):
            raise Unsupported("a checkpoint is given a result, where an input is written to", node.meta["place"])
        if any(storage_of(eager.values[arg]) in written for arg in node.all_input_nodes
               if isinstance(eager.values[arg], torch.Tensor)):
            raise Unsupported("a checkpoint writes to a tensor from outside", node.meta["place"])


def _overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two inputs of one storage may share memory. Where nothing is known of storages, the guards say that they do not."""
    return a.storage[1] < b.storage[1] + _extent(b) and b.storage[1] < a.storage[1] + _extent(a)


def _extent(spec: TensorSpec) -> int:
    """Bytes from the first element to behind the last one."""
    return known_span(spec.shape, spec.stride) * spec.dtype.itemsize
