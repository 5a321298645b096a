"""Indices by which an operation looks up rows: a guard can promise that they are in range, so that it does not raise on a hit."""
from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from capture.interp.core.frame import Value
from capture.interp.recording import constant_tensors
from capture.interp.recording.fx_recorder import FxRecorder
from capture.interp.recording.undo_log import is_within, reach
from capture.refgraph.facts import are_indices
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.node import RefNode, TensorState
from capture.refgraph.source import Computed, Literal

EMBEDDING = inspect.signature(torch.nn.functional.embedding)


def lookup(recorder: FxRecorder, function: Any, args: Sequence[Value],
           kwargs: Mapping[str, Value]) -> tuple[torch.Tensor, int] | None:
    """The indices and the number of rows, if the operation does nothing else, and that number is the same on each hit."""
    if function is torch.nn.functional.embedding:
        given = EMBEDDING.bind(*args, **kwargs).arguments
        index, table = given["input"].real, given["weight"].real
        if "max_norm" in given and given["max_norm"].real is not None:
            return None
    elif function in (operator.getitem, torch.Tensor.__getitem__):
        table, index = (value.real for value in args)
    else:
        return None
    plain = type(index) in PLAIN_TENSORS and type(table) in PLAIN_TENSORS and index.dtype is torch.int64 and table.dim()
    same = plain and recorder.sizes.of(table) is None and not recorder.is_dynamic(table)
    return (index, table.shape[0]) if same else None


def are_known(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether the operation looks up the same rows on each hit."""
    found = lookup(recorder, function, args, kwargs)
    return found is not None and constant_tensors.is_fixed(recorder.refs, found[0])


def promise(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Computed | None:
    """What must be true at entry for the operation not to raise, and is true; None if there is no such guard."""
    found = lookup(recorder, function, args, kwargs)
    holder = None if found is None else _holder(recorder, found[0])
    if found is None or holder is None or holder.source is None or not are_indices(holder.real, found[1]):
        return None
    return Computed(are_indices, (holder.source, Literal(found[1])))


def _holder(recorder: FxRecorder, index: torch.Tensor) -> RefNode | None:
    """The tensor from outside whose elements the indices are, as they were at entry."""
    graph, storage = recorder.refs, storage_id(index)
    if not index.is_cpu or graph.written_since(0, storage):         # to look at those of a GPU is to wait for it
        return None
    for node in recorder.inputs.tensors:
        real = node.real
        if (type(node.state) is TensorState and type(real) in PLAIN_TENSORS and real.dtype == index.dtype
                and storage_id(real) == storage and real.is_contiguous() and is_within(reach(index), reach(real))):
            return node
    own = graph.find(index)
    return own if own is not None and index.is_contiguous() else None
