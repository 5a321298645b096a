"""Hooks of ours on nodes of autograd: they take none of the numbers by which the program's hooks are known."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle


def hook_before(node: Any, hook: Callable[..., Any]) -> None:
    """Has `hook` called before a pass goes through the node."""
    _keep(node.register_prehook(hook))


def hook_behind(node: Any, hook: Callable[..., Any]) -> None:
    """Has `hook` called once a pass has gone through the node."""
    _keep(node.register_hook(hook))


def hook_alone_before(node: Any, hook: Callable[..., Any]) -> Callable[[], dict[Any, Any] | None]:
    """The same of a hook that is not needed where the program has some there: the first of these takes its number, and so its
    place, for good. The result gives all hooks that are called before a pass, as long as the node lives."""
    handle = node.register_prehook(hook)
    _give_back(handle)
    return handle.hooks_dict_ref


def _keep(handle: RemovableHandle) -> None:
    """Gives back the number of a hook that was just registered, which is also its key."""
    hooks: Any = handle.hooks_dict_ref()
    hooks[handle] = hooks.pop(handle.id)        # before the program can get a hook of that number
    _give_back(handle)


def _give_back(handle: RemovableHandle) -> None:
    number = handle.id
    if RemovableHandle.next_id == number + 1:       # else another thread has registered one since
        RemovableHandle.next_id = number
