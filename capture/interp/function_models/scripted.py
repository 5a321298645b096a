"""Scripted modules: what they keep in C++, and calls of their methods, one operation each."""
from __future__ import annotations

from typing import Any

import torch

from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model
from capture.interp.recording import scripts
from capture.interp.recording.fx_recorder import tensors_in
from capture.interp.recording.writes import versions_of
from capture.refgraph.node import SCALARS, RefNode, Shadow
from capture.refgraph.source import Computed, Literal, Source


@model(torch.jit.RecursiveScriptModule.__getattr__, applies=scripts.has_member)
def member(interp: Interpreter, result: Any, module: Value, name: Value) -> Shadow:
    """`module.name` of what C++ keeps. A method is kept in the module's `__dict__` from then on."""
    node, graph = module.shadow, interp.graph
    known = is_a(result, (torch.Tensor, torch.nn.Module, scripts.METHOD)) or type(result) in SCALARS
    if not isinstance(node, RefNode) or node.source is None or not known:
        raise Break("opaque-call", f"attribute {name.real!r} of a scripted module was read")
    graph.touch(node)
    shadow = graph.external(result, Computed(scripts.member_of, (node.source, Literal(name.real))))
    if is_a(result, scripts.METHOD):
        graph.dict_set(graph.attributes(node), name.real, shadow)  # type: ignore[arg-type]
    return shadow


def not_an_operation(interp: Interpreter, method: Value, *args: Value, **kwargs: Value) -> Break | None:
    """Why a method cannot be an operation of the graph."""
    if not scripts.follows_from_arguments(method.real):
        return Break("opaque-call", f"{method.real.name}() of a scripted module, which reads values of tensors, prints, or calls "
                                    f"Python")
    if not isinstance(method.shadow, RefNode) or method.shadow.source is None or not scripts.reads_plain_data(method.real):
        return Break("opaque-call", f"{method.real.name}() of a scripted module, which has attributes that are no plain data")
    return None


def note_versions(interp: Interpreter, method: Value, *args: Value, **kwargs: Value) -> None:
    """Before the call, which may write to tensors."""
    tensors = [*scripts.tensors_of(method.real).values(), *tensors_in(args, kwargs)]
    interp.recorder.note_before_call(versions_of(tensors))


@model(scripts.call_method, prepare=note_versions, refuses=not_an_operation)
def call(interp: Interpreter, result: Any, method: Value, *args: Value, **kwargs: Value) -> Shadow:
    """`method(*args, **kwargs)`: what it reads of its module is guarded, and the tensors among that are inputs of the graph."""
    graph, recorder, real = interp.graph, interp.recorder, method.real
    source: Source = method.shadow.source  # type: ignore[attr-defined]
    graph.require(source, "ID", real)
    graph.require(Computed(scripts.facts_of, (source,)), "VALUE", scripts.facts_of(real))
    tensors = [Value(tensor, graph.external(tensor, Computed(scripts.tensor_of, (source, Literal(path)))))
               for path, tensor in scripts.tensors_of(real).items()]
    if scripts.normalises(real):
        recorder.wrote([tensor.real for tensor in tensors if not tensor.real.requires_grad])
    operation = scripts.operation(real, len(tensors))
    return recorder.record("call_function", operation, [*tensors, *args], kwargs, result, recorder.before_call())
