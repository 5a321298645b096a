"""What torch.func asks of Python besides its levels and wrappers, which are operations of the graph (`transform_levels.py`)."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import vmap
from torch.utils import _pytree as pytree

from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.core.registry import model, polyfill
from capture.refgraph.node import Const, Shadow


@polyfill(pytree._broadcast_to_and_flatten, applies=lambda *args, **kwargs: True)
def broadcast_to_and_flatten(tree: Any, treespec: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any] | None:
    """The original, which evaluates annotations on each call."""
    result: list[Any] = []

    def add_leaves(x, subtree):  # type: ignore[no-untyped-def]
        result.extend([x] * pytree.tree_structure(subtree, is_leaf=is_leaf).num_leaves)
    try:
        pytree.tree_map_(add_leaves, tree, pytree.tree_unflatten([0] * treespec.num_leaves, treespec), is_leaf=is_leaf)
    except ValueError:
        return None
    return result


@model(vmap.lazy_load_decompositions)
def load_decompositions(interp: Interpreter, result: None) -> Shadow:
    """What `vmap` loads of torch, once in a process."""
    return Const(None)


@model(torch._C._dynamo.compiled_autograd.set_autograd_compiler)
def set_autograd_compiler(interp: Interpreter, result: Any, *args: Value) -> Shadow:
    """torch.func switches compiled autograd off, which is off."""
    if result[0] is not None or args[0].real is not None:
        raise Break("changing-global-state", "compiled autograd was switched")
    return Const(result)
