"""What a graph must undo when it raises on a hit: levels of torch.func, inference mode, kernel choices, default devices; all its
changes, if the call then runs natively; and warning filters of the program."""
from __future__ import annotations

import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, overrides

from capture import _C
from capture._C import is_a
from capture.errors import CheckFailed
from capture.interp.recording import kernel_settings
from capture.operators import transform_levels


def enter_device(device: torch.device) -> None:
    """Begins `with device:`, in which tensors are made on that device."""
    device.__enter__()


def leave_device(device: torch.device) -> None:
    """Ends it."""
    device.__exit__(None, None, None)


def restore_modes(modes: list[Any]) -> None:
    """Sets the stack of `__torch_function__` modes, outermost first."""
    while overrides._len_torch_function_stack():
        overrides._pop_mode()
    for mode in modes:
        overrides._push_mode(mode)


def around(gm: fx.GraphModule, undone: bool, silent: bool) -> Callable[..., Any]:
    """The forward function of a graph, with what is done around it. undone: what it undoes when it raises; silent: it gives no
    warnings."""
    forward = protected(gm) if undone else gm.forward
    return without_warnings(forward) if silent else forward


def protected(gm: fx.GraphModule) -> Callable[..., Any]:
    """The forward function of a graph, wrapped so that it restores this state if it raises."""
    note_kernels = kernel_settings.restoring(gm.graph.nodes)

    def run(*args: Any) -> Any:
        drawn = _C.get_random_state()
        put_kernels_back = note_kernels()
        modes = overrides._get_current_function_mode_stack()
        try:
            return type(gm).forward(gm, *args)      # a backend may have changed the graph
        except BaseException as error:
            let_go(error.__traceback__, type(gm).forward.__code__)
            transform_levels.leave(gm.meta["modes"])
            put_kernels_back()
            restore_modes(modes)
            if isinstance(error, CheckFailed):
                _C.set_random_state(drawn)
            raise
    return run


def let_go(entry: types.TracebackType | None, code: types.CodeType) -> None:
    """Has the frames of `code` in a traceback drop what they hold: a block of inference mode ends when the object that stands for
    it dies, and then sets the modes that were in force before it."""
    while entry is not None:
        if entry.tb_frame.f_code is code:
            entry.tb_frame.clear()
        entry = entry.tb_next


def without_warnings(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward function of a graph without its warnings: in the capture the program filtered them out, and its filters are not
    in force while the graph runs."""
    def run(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return forward(*args)
    return run


def with_gradients(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that itself turns gradients off to begin with, for calls that begin without them."""
    def run(*args: Any) -> Any:
        torch._C._set_grad_enabled(True)
        return graph(*args)
    return run


# -- taking back -------------------------------------------------------------------------------------------------------

class Before:
    """The state that a call is about to change, for it to run again. It holds the memory of the tensors `written`, which they share
    with those that are `counted` (whose versions are increased); the gradients of the tensors `dropped`; the state of `streams` of
    random numbers; and, if it `draws`, that of the CPU's own generator."""

    __slots__ = ("random", "states", "tensors")

    def __init__(self, written: tuple[torch.Tensor, ...], counted: tuple[torch.Tensor, ...], dropped: tuple[torch.Tensor, ...],
                 streams: tuple[Any, ...], draws: bool) -> None:
        self.tensors = _C.Undo(written, counted, dropped) if counted or dropped else None
        self.states = [(stream, state_of(stream)) for stream in streams]
        self.random = _C.get_random_state() if draws else None

    def put_back(self) -> None:
        """Restores that state."""
        if self.tensors is not None:
            self.tensors.put_back()
        for stream, state in self.states:
            set_state(stream, state)
        if self.random is not None:
            _C.set_random_state(self.random)


def state_of(stream: Any) -> Any:
    """The state of a stream of random numbers, of Python or numpy."""
    if is_a(stream, random.Random):
        return stream.getstate()
    return stream.bit_generator.state if hasattr(stream, "bit_generator") else stream.get_state()


def set_state(stream: Any, state: Any) -> None:
    """Sets the state of such a stream."""
    if is_a(stream, random.Random):
        stream.setstate(state)
    elif hasattr(stream, "bit_generator"):
        stream.bit_generator.state = state
    else:
        stream.set_state(state)
