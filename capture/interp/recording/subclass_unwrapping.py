"""Operations of a graph on tensor subclasses: the graph works on plain tensors, so that no `__torch_function__` is called."""
from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from capture.operators import properties
from capture.operators.facts import facts_of
from capture.operators.schemas import name_of
from capture.operators.transform_levels import OF_TRANSFORMS
from capture.refgraph.memory import PLAIN_TENSORS, as_subclass, is_overriding

OBSTACLE = "works on a tensor of a class with operations of its own"
# What hands out or is kept with the very tensor, besides what gives it another shape, memory or history.
OF_ITSELF = frozenset({"register_hook", "backward", "data_ptr", "untyped_storage", "storage", "_typed_storage"})
UNWRAPPING = OF_TRANSFORMS | {torch.autograd.grad}      # what torch does in other ways with tensors of other classes


@dataclass(frozen=True)
class Classes:
    """Which inputs of a graph are given to it as plain tensors, and what classes its results get, by their places."""

    given: tuple[int, ...]
    returned: tuple[tuple[int, type], ...]

    def plain(self, inputs: Sequence[Any]) -> list[Any]:
        """What the graph is given."""
        result = list(inputs)
        for place in self.given:
            result[place] = None if result[place] is None else as_subclass(result[place], torch.Tensor)     # which is gone
        return result

    def around(self, graph: Callable[..., Any]) -> Callable[..., Any]:
        """The graph, of tensors of these classes."""
        def run(*args: Any) -> Any:
            results = list(graph(*self.plain(args)))
            for place, cls in self.returned:
                results[place] = as_subclass(results[place], cls)
            return results
        return run


def of_class(node: fx.Node, cls: type) -> None:
    """Notes that a node is a tensor of a subclass, where it is one: generators and storages are handles."""
    if cls not in PLAIN_TENSORS and issubclass(cls, torch.Tensor):
        node.meta["subclass"] = cls


def note(node: fx.Node, asking: bool) -> fx.Node:
    """Notes of an operation whether some class might be asked about it. asking: the program has classes asked where it stands."""
    classes = [operand.meta["subclass"] for operand in node.all_input_nodes if "subclass" in operand.meta]
    if classes and (not asking or any(map(is_overriding, classes))):
        node.meta["unasked"] = True
    return node


def unwrap(graph: fx.Graph, whole: bool) -> Classes | None:
    """Has the operations of a graph ask nobody. whole: it has no parts that are graphs. None if it takes tensors as they are."""
    concerned = [node for node in graph.nodes if "subclass" in node.meta or any("subclass" in n.meta for n in node.all_input_nodes)]
    operations = [node for node in concerned if node.op not in ("placeholder", "output")]
    if not concerned:
        return None
    if whole and all(map(_is_of_memory, operations)):
        return _made_plain(graph)
    for node in operations:
        if "unasked" in node.meta:
            method = node.op == "call_method"
            node.target = _unasked(getattr(torch.Tensor, node.target) if method else node.target)
            node.op, node.meta["obstacle"] = "call_function", OBSTACLE
    for node in concerned:
        if "subclass" in node.meta:
            node.meta["obstacle"] = f"{'takes' if node.op == 'placeholder' else 'returns'} a {node.meta['subclass'].__name__}"
    return None


def _is_of_memory(node: fx.Node) -> bool:
    """Whether an operation does the same with a tensor as with another that shares its memory."""
    if "obstacle" in node.meta or node.target in UNWRAPPING:
        return False
    if is_conversion(node):
        return True
    if node.target is getattr:
        return node.args[1] in properties.VIEWS
    if name_of(node.target) in OF_ITSELF or facts_of(node.target).relays:
        return False
    if node.op == "call_method":
        return True
    module = getattr(node.target, "__module__", None) or ""
    return isinstance(node.target, types.BuiltinFunctionType) or isinstance(
        node.target, (types.FunctionType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)) and module.startswith("torch")


def is_conversion(node: fx.Node) -> bool:
    """Whether a node is nothing but the tensor that it is given, as one of another class."""
    return getattr(node.target, "conversion", False) is True


def _made_plain(graph: fx.Graph) -> Classes:
    """Has a graph work on plain tensors alone."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(iter(reversed(graph.nodes)))
    results: Any = output.args[0]
    returned = tuple((place, node.meta["subclass"]) for place, node in enumerate(results) if "subclass" in node.meta)
    given = tuple(place for place, node in enumerate(placeholders) if "subclass" in node.meta)
    for node in list(graph.nodes):
        if is_conversion(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return Classes(given, returned)


@functools.cache
def _unasked(function: Any) -> Any:
    """The function, under a name that generated code can refer to."""
    def unasked(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)
    unasked.__name__, unasked.__module__ = f"plain_{getattr(function, '__name__', 'operation')}", "tensors"
    return unasked
