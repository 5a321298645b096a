"""Collectives of `torch.distributed` as operations of a graph: they name their group, and are made as the program makes them."""
from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

# Functions -> the parameter that holds the tensor, or the tensors, that they write to.
WRITTEN: dict[Any, str] = {getattr(dist, name): parameter for name, parameter in (
    ("all_reduce", "tensor"), ("broadcast", "tensor"), ("reduce", "tensor"), ("all_gather", "tensor_list"))
    if hasattr(dist, name)}
FUNCTIONS = {function.__name__: function for function in WRITTEN}


def group_named(name: Any) -> Any:
    """The group of a name."""
    return dist.distributed_c10d._resolve_process_group(name)


def is_named(group: Any, name: Any) -> bool:
    """Whether a group has this name, and has not been left."""
    return bool(dist.distributed_c10d._world.pg_names.get(group) == name)


def collective(name: str, group: str | None, op: str | None, **arguments: Any) -> None:
    """`dist.<name>(**arguments)` in a group, the default one if none is named. op: of `dist.ReduceOp`, for those that reduce."""
    if op is not None:
        arguments["op"] = getattr(dist.ReduceOp, op)
    FUNCTIONS[name](**arguments, group=None if group is None else group_named(group))


def written(function: Any, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call of one of these functions writes to."""
    found = arguments[WRITTEN[function]]
    return [found] if isinstance(found, torch.Tensor) else list(found)
