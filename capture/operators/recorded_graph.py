"""Graphs that call the very functions which they were recorded with, whatever the program puts in the places of these."""
from __future__ import annotations

from typing import Any

from torch import fx
from torch.fx.graph import PythonCode, _is_from_torch
from torch.fx.node import _get_qualified_name


class RecordedGraph(fx.GraphModule):
    """A graph module whose code calls its targets. That of others names functions of torch by where they are found, and so calls
    what the program has put there since."""

    def recompile(self) -> PythonCode:
        code = super().recompile()
        names = type(self).forward.__globals__
        for target in {node.target for node in self.graph.nodes if node.op == "call_function"}:
            if _is_from_torch(target) and "torch" in names:
                _, *path, name = _get_qualified_name(target).split(".")
                place = names["torch"] = names["torch"] if type(names["torch"]) is Namespace else Namespace(names["torch"])
                for part in path:
                    if type(place.__dict__.get(part)) is not Namespace:
                        place.__dict__[part] = Namespace(getattr(place, part))
                    place = place.__dict__[part]
                place.__dict__[name] = target
        return code


def with_graph(gm: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """A module that runs `graph` as `gm` runs its own: with all that is done around it (gm.meta["around"]), such as to leave
    inference mode when an operation raises."""
    made = RecordedGraph(gm, graph)
    made.meta.update(gm.meta)
    around = gm.meta.get("around")
    if around is not None:
        made.forward = around(made)
    return made


class Namespace:
    """A namespace of torch's with the functions that a graph was recorded with."""

    def __init__(self, namespace: Any) -> None:
        self.__dict__[""] = namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__[""], name)
