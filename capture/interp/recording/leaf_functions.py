"""Functions and classes of torch that are one operation of the graph each, besides those which subclasses of tensors may override;
and what keeps backends from compiling a graph that calls them."""
from __future__ import annotations

import copy
from typing import Any

import torch
from torch import random
from torch._C import _functorch as functorch

from capture._C import is_a
from capture.interp.recording import kernel_settings, rollback
from capture.operators.transform_levels import LEVELS, WRAPPERS
from capture.torch_versions import existing


def duplicate(tensor: torch.Tensor, *twins: torch.Tensor) -> torch.Tensor:
    """`copy.deepcopy(tensor)`. twins: tensors copied before by the same `deepcopy`, each followed by its copy: what shared memory
    with them shares it again."""
    storages = {twin.untyped_storage()._cdata: copied.untyped_storage() for twin, copied in zip(twins[::2], twins[1::2])
                if twin.layout is torch.strided}
    return copy.deepcopy(tensor, {"torch": storages})  # type: ignore[dict-item]


def shallow(tensor: torch.Tensor) -> torch.Tensor:
    """`copy.copy(tensor)`."""
    return copy.copy(tensor)


RANDOM_STATE = dict.fromkeys((
    *existing(torch.Generator, "manual_seed set_state get_state clone_state graphsafe_get_state graphsafe_set_state"),
    *existing(random, "manual_seed _manual_seed_impl set_rng_state"),
    torch.cuda.manual_seed, torch.cuda.manual_seed_all, torch.Generator), "changes the state of random numbers")
COPIES = dict.fromkeys((duplicate, shallow), "copies a tensor with all that belongs to it")
KERNELS = dict.fromkeys(kernel_settings.ATTENTION, "chooses kernels of attention")
# Default devices, which are modes in Python, by the methods that enter and leave them.
DEVICES = {torch.device.__enter__: rollback.enter_device,
           torch.device.__exit__: rollback.leave_device}
# Operators that call functions of the program's, which are graphs of their own.
CONTROL_FLOW = dict.fromkeys(existing(torch.ops.higher_order, "cond map_impl while_loop scan associative_scan"),
                             "has control flow of torch's")
# What follows from the transforms that a trace has entered itself.
TENSOR_FACTS = frozenset(existing(
    functorch, "is_batchedtensor is_gradtrackingtensor is_functorch_wrapped_tensor is_functionaltensor is_legacy_batchedtensor "
               "is_dead_tensor_wrapper maybe_get_level maybe_get_bdim"))
# Operations whose graphs only torch itself can run, and why.
OBSTACLES: dict[Any, str] = {
    **RANDOM_STATE, **COPIES, **KERNELS, **CONTROL_FLOW,
    **dict.fromkeys(DEVICES.values(), "changes the default device"),
    torch.Tensor.untyped_storage: "looks at the memory of a tensor", random.get_rng_state: "reads the state of random numbers"}
LEAVES: frozenset[Any] = frozenset({*WRAPPERS, *COPIES, *RANDOM_STATE, random.get_rng_state, torch.autograd.grad})
# What leaves something behind when the graph raises after it.
UNDONE = frozenset({*LEVELS, *KERNELS, *DEVICES.values()})
# What does nothing to the operations around it.
CONTAINED = frozenset({*RANDOM_STATE, *CONTROL_FLOW, random.get_rng_state})
# What C knows of these objects that is the same on every call.
FACTS = frozenset({"name", "device"})
# … and what is told of them by models of its own.
MODELLED = frozenset({"initial_seed"})


def obstacle(target: Any, cls: type | None = None) -> str | None:
    """Why no backend can compile a graph with an operation (an fx target; of the class `cls`, if it is a method), or None."""
    if is_a(target, str):
        target = getattr(cls, target, None)
    try:
        return OBSTACLES.get(target)
    except TypeError:
        return None
