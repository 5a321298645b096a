"""Hooks of ours on nodes of autograd: they take none of the numbers by which the program's hooks are known."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle


def hook_before(node: Any, hook: Callable[..., Any]) -> Callable[[], dict[Any, Any] | None]:
    """Has `hook` called before a pass goes through the node. The result gives all hooks that are, as long as the node lives."""
    return _unnumbered(node.register_prehook(hook))


def hook_behind(node: Any, hook: Callable[..., Any]) -> None:
    """Has `hook` called once a pass has gone through the node."""
    _unnumbered(node.register_hook(hook))


def _unnumbered(handle: RemovableHandle) -> Callable[[], dict[Any, Any] | None]:
    """Gives back the number of a hook that was just registered, which is the handle's `id` and the hook's key."""
    hooks = handle.hooks_dict_ref
    registered = hooks()
    registered[handle] = registered.pop(handle.id)      # before the program can get a hook of that number
    if RemovableHandle.next_id == handle.id + 1:        # else another thread has registered one since
        RemovableHandle.next_id = handle.id
    return hooks
