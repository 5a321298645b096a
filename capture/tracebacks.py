"""The traceback of an exception that a hit raised: the user's own frames in place of generated code."""
from __future__ import annotations

import os
import types
from typing import Any

import torch

from capture import _C

BACKENDS = os.path.join(os.path.dirname(__file__), "backends", "")


def show_program_frames(exception: BaseException, function: types.FunctionType, graph_module: torch.fx.GraphModule | None,
          generated: frozenset[str], positions: tuple[tuple[types.CodeType, int, int], ...] | None = ()) -> None:
    """Replaces the traceback entries of generated code (files `generated`) and of backends by the user's frames from which
    the failing operation was recorded; below them stay those of torch's own Python functions.

    positions: where the program made a call that raised when it was repeated; None when frames like the user's are there.
    When the backend's callable does not tell which operation failed, the entry names the compiled function alone.
    """
    tail = entry = exception.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if graph_module is not None and code is type(graph_module).forward.__code__:
            positions = position_of(graph_module, entry.tb_lineno)
            tail = entry.tb_next
        elif code.co_filename in generated or code.co_filename.startswith(BACKENDS):
            tail = entry.tb_next
        entry = entry.tb_next
    if positions == ():
        positions = ((function.__code__, 0, function.__code__.co_firstlineno),)
    for code, lasti, line in reversed(positions or ()):
        tail = _C.make_traceback(tail, code, function.__globals__, lasti, line)
    exception.__traceback__ = tail


def position_of(graph_module: torch.fx.GraphModule, line: int) -> tuple[Any, ...]:
    """The line of the program at which the operation on a line of the generated `forward` was recorded."""
    nodes = list(graph_module.graph.nodes)
    index = (graph_module._lineno_map or {}).get(line - graph_module._prologue_start)
    return nodes[index].meta.get("stack", ()) if index is not None else ()
