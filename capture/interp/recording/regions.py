"""Regions of the fx graph that belong to one call of torch: the body of an activation checkpoint.

The body is recorded like any other code. When the graph is finished, it becomes a graph of its own, which the function of torch
calls: on a hit its activations are recomputed in the backward pass, as the program asked.
"""
from __future__ import annotations

import functools
import linecache
import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.graph_module import _loader

from capture.operators.recorded_graph import RecordedGraph


@dataclass(slots=True, eq=False)
class Region:
    """Nodes `[start, end)` of a graph, run by `governor(body, *own, **options)`. `end` is set when the body is over. `own`, the
    arguments of `start`: what the program passed to it, used by the body or not; all else is bound to the body, as it is to the
    program's function. `obstacle`: why backends cannot compile it."""

    governor: Callable[..., Any]
    options: dict[str, Any]
    start: fx.Node
    end: fx.Node | None = None
    obstacle: str | None = None

    @property
    def own(self) -> tuple[fx.Node, ...]:
        return self.start.args  # type: ignore[return-value]


def begin(*own: torch.Tensor) -> None:
    """Marks the start of a region while it is recorded."""


def end() -> None:
    """Marks the end of a region while it is recorded."""


def graph_module(root: torch.nn.Module, graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph module of this class name. Torch keeps the source of each for good; here it is forgotten with the module."""
    module = RecordedGraph(root, graph, name)
    forget = weakref.finalize(module, _forget_source, type(module).forward.__code__.co_filename)
    forget.atexit = False
    _warn_no_more(module)
    return module


def _warn_no_more(module: fx.GraphModule) -> None:
    """Silences a graph: the capture gave its warnings. (By default Python warns once for each line, and lines of generated code
    would be new ones.)"""
    nodes, told = list(module.graph.nodes), {}
    for line, index in (module._lineno_map or {}).items():
        if index is not None and "warned" in nodes[index].meta:
            version, keys = nodes[index].meta["warned"]
            told["version"] = max(version, told.get("version", 0))
            told.update({(text, category, line + module._prologue_start): True for text, category, _ in keys})  # type: ignore[misc]
    if told:
        module.forward.__func__.__globals__["__warningregistry__"] = told  # type: ignore[attr-defined]


def _forget_source(filename: str) -> None:
    _loader.eval_cache.pop(filename, None)
    linecache.cache.pop(filename, None)


def outline(graph: fx.Graph, regions: list[Region], modules: dict[str, torch.nn.Module]) -> torch.nn.Module:
    """Moves every region into a graph module. Returns the module that holds them, to be the root of `graph`.

    regions: in the order in which they ended, so that inner ones come before those around them. modules: what the graph refers to.
    """
    root = torch.nn.Module()
    for node in graph.nodes:
        if node.op == "get_attr":
            setattr(root, node.target, modules[node.target])
    for index, region in enumerate(regions):
        _outline(graph, region, root, f"checkpoint_{index}")
        for marker in (region.start, region.end):
            graph.erase_node(marker)  # type: ignore[arg-type]
    return root


def _outline(graph: fx.Graph, region: Region, root: torch.nn.Module, name: str) -> None:
    body, node = [], region.start.next
    while node is not region.end:
        if node.op != "placeholder":
            body.append(node)
        node = node.next
    inside = set(body)
    others = list(dict.fromkeys(n for node in body for n in node.all_input_nodes if n not in inside and n not in region.own))
    outputs = [node for node in body if any(user not in inside for user in node.users)]
    if not outputs:
        return
    inner = fx.Graph()
    copies = {n: inner.placeholder(n.name) for n in (*others, *region.own)}
    for node in body:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    inner.output(tuple(copies[n] for n in outputs))
    holder = torch.nn.Module()
    for node in body:
        if node.op == "get_attr":
            setattr(holder, node.target, getattr(root, node.target))  # type: ignore[arg-type]
    setattr(root, name, graph_module(holder, inner, "CheckpointedGraph"))
    with graph.inserting_before(region.end):
        function = graph.get_attr(name)
        if others:
            function = graph.call_function(functools.partial, (function, *others))
        call = graph.call_function(region.governor, (function, *region.own), region.options)
        call.meta["stack"] = body[0].meta.get("stack", ())
        if region.obstacle is not None:
            call.meta["obstacle"] = region.obstacle
        for index, output in enumerate(outputs):
            replacement = graph.call_function(operator.getitem, (call, index))
            output.replace_all_uses_with(replacement, delete_user_cb=lambda user: user not in inside)
    for node in reversed(body):
        graph.erase_node(node)

