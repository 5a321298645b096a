"""Transforms of torch.func in a graph: the functions that enter and leave their levels, and those that wrap tensors for them."""
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch._C import _functorch as functorch
from torch._functorch import predispatch

from capture import _C
from capture.torch_versions import existing

# What has saved tensors' hooks refused within a level, and allowed again.
HOOK_SWITCHES = frozenset(existing(torch._C._autograd, "_saved_tensors_hooks_disable _saved_tensors_hooks_enable"))
HOOK_GETTERS = frozenset(existing(
    torch._C._autograd, "_saved_tensors_hooks_get_disabled_error_message _saved_tensors_hooks_is_enabled"))
LEVELS = frozenset((
    *existing(predispatch, "_vmap_increment_nesting _vmap_decrement_nesting _jvp_increment_nesting _jvp_decrement_nesting "
                            "_enter_dual_level _exit_dual_level"),
    *existing(functorch, "_vmap_increment_nesting _vmap_decrement_nesting _grad_increment_nesting _grad_decrement_nesting "
                          "_jvp_increment_nesting _jvp_decrement_nesting set_inplace_requires_grad_allowed"),
    *existing(torch._C, "_enter_dual_level _exit_dual_level _set_fwd_grad_enabled"), *HOOK_SWITCHES))
ENTRIES = frozenset(function for function in LEVELS if "increment" in function.__name__ or function.__name__ == "_enter_dual_level")
EXITS = frozenset(function for function in LEVELS if "decrement" in function.__name__ or function.__name__ == "_exit_dual_level")
FOR_MAPPING = frozenset(function for function in ENTRIES if "vmap" in function.__name__)        # the others are for gradients
WRAPPERS = frozenset((
    *existing(predispatch, "_add_batch_dim _remove_batch_dim _unwrap_for_grad _make_dual _unpack_dual"),
    *existing(functorch, "_add_batch_dim _remove_batch_dim _wrap_for_grad _unwrap_for_grad"),
    *existing(torch._VF, "_make_dual _unpack_dual")))
OF_TRANSFORMS = LEVELS | WRAPPERS


def leave(before: _C.Modes, depth: int = 0) -> None:
    """Leaves what a graph that has raised had entered: levels beyond so many, and the one of forward-mode AD, which these do not
    hold. before: the modes in which the graph began."""
    functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    if _C.modes().dual_level and not before.dual_level:
        torch._C._exit_dual_level(level=0)
    torch._C._set_fwd_grad_enabled(before.forward_grad)


def within_levels(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes from where a graph enters a level to where it has left it, and those that prepare this. Of a graph that does not
    leave what it enters, or the other way round, none."""
    depth, found = 0, []
    for node in graph.nodes:
        depth += node.target in ENTRIES
        if (depth or node.target in OF_TRANSFORMS) and node.op not in ("placeholder", "output"):
            found.append(node)
        depth -= node.target in EXITS
        if depth < 0:
            return iter(())
    return iter(() if depth else found)
