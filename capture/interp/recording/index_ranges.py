"""Indices by which an operation looks up rows or classes: a guard can promise that they are in range, so that it does not raise on
a hit."""
from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from capture.interp.core.frame import Value
from capture.interp.recording import constant_tensors
from capture.interp.recording.fx_recorder import FxRecorder
from capture.interp.recording.undo_log import is_within, reach
from capture.operators.facts import facts_of
from capture.operators.schemas import name_of
from capture.refgraph.identical import is_one_of
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.node import Const, External, RefNode, TensorState
from capture.refgraph.source import Computed, Literal
from capture.refgraph.state_queries import are_indices

EMBEDDING, PAD = inspect.signature(torch.nn.functional.embedding), inspect.signature(torch.nn.functional.pad)
LOSSES = {loss: inspect.signature(loss) for loss in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)}
CONVERSIONS = frozenset({"to", "long"})     # which may be to the dtype of indices, or to another device alone


class Lookup(NamedTuple):
    """What an operation looks up: by which indices, in how many rows. spare: an index that it passes over."""

    indices: torch.Tensor
    rows: int
    spare: int | None = None


def lookup(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Lookup | None:
    """What the operation looks up, if it does nothing else that may fail, and the number of rows is the same on each hit."""
    dim, spare = 0, None
    if function is torch.nn.functional.embedding:
        given = EMBEDDING.bind(*args, **kwargs).arguments
        index, table = given["input"].real, given["weight"].real
        if "max_norm" in given and given["max_norm"].real is not None:
            return None
    elif function in LOSSES:
        given = LOSSES[function].bind(*args, **kwargs).arguments
        index, table = given["target"].real, given["input"].real
        default = LOSSES[function].parameters["ignore_index"].default
        ignored = given.get("ignore_index", Value(default, Const(default)))
        spare = ignored.real
        if type(spare) is not int or not _is_constant(recorder, ignored):
            return None
        dim = min(1, table.dim() - 1)
    elif is_one_of(function, operator.getitem, torch.Tensor.__getitem__):
        table, index = (value.real for value in args)
    else:
        return None
    if type(index) not in PLAIN_TENSORS or type(table) not in PLAIN_TENSORS or index.dtype is not torch.int64 or not table.dim():
        return None
    sizes = recorder.sizes.of(table)
    same = not recorder.is_dynamic(table) and (sizes is None or sizes[dim].constant is not None)
    return Lookup(index, table.shape[dim], spare) if same else None


def _is_constant(recorder: FxRecorder, number: Value) -> bool:
    """Whether a number that is no more than an option of an operation is the same on each hit: as one from outside it is guarded,
    unless it is a size that changes."""
    return isinstance(number.shadow, Const) or isinstance(number.shadow, External) and not recorder.sizes.are_free([number])


def are_known(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether the operation looks up the same rows on each hit."""
    found = lookup(recorder, function, args, kwargs)
    return found is not None and constant_tensors.is_fixed(recorder.refs, found.indices)


def promises(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Computed] | None:
    """What must be true at entry for the operation not to raise, and is true; None if there are no such guards."""
    found = lookup(recorder, function, args, kwargs)
    origins = None if found is None else _origins(recorder, found.indices)
    if found is None or origins is None:
        return None
    tensors, constants = origins
    holds = all(are_indices(tensor.real, found.rows, found.spare) for tensor in tensors) and all(
        0 <= number < found.rows or number == found.spare for number in constants)
    return [Computed(are_indices, (tensor.source, Literal(found.rows), Literal(found.spare)))
            for tensor in tensors] if holds else None


def _origins(recorder: FxRecorder, index: torch.Tensor) -> tuple[list[RefNode], list[int]] | None:
    """Tensors from outside and constants, of whose elements at entry those of `index` are. None if there may be others."""
    holder = _holder(recorder, index)
    if holder is not None and holder.source is not None:
        return [holder], []
    known, constants = recorder.refs.find(index), list[int]()
    made: fx.Node | None = known.state.node if known is not None and type(known.state) is TensorState else None
    if made is None or recorder.refs.written_since(0, None):
        return None
    while made.op != "placeholder":
        if len(made.all_input_nodes) != 1 or not _is_left_alone(made):
            return None
        if made.target is torch.nn.functional.pad:
            given = PAD.bind(*made.args, **made.kwargs).arguments
            constant = given.get("value") or 0
            if given.get("mode", "constant") != "constant" or type(constant) is not int:
                return None
            constants.append(constant)
        elif not (facts_of(made.target).rearranges or name_of(made.target) in CONVERSIONS) or any(
                isinstance(given, torch.dtype) and given is not index.dtype for given in (*made.args, *made.kwargs.values())):
            return None
        made, = made.all_input_nodes
    source = next((node for node in recorder.inputs.tensors if node.state.node is made), None)
    return None if source is None or source.source is None or not _is_as_made(recorder, source.real, index.dtype) else (
        [source], constants)


def _is_left_alone(made: fx.Node) -> bool:
    """Whether no operation that follows from this one, and so may have a view of its result, writes to anything."""
    users, todo = set[fx.Node](), list(made.users)
    while todo:
        user = todo.pop()
        facts = facts_of(user.target)
        if "writes" in user.meta or facts.writes or facts.statistics or "out" in user.kwargs or not facts.is_of_torch:
            return False
        todo += user.users.keys() - users
        users.add(user)
    return True


def _is_as_made(recorder: FxRecorder, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor of this dtype has not been written to since it was made, or since entry. To look at one of a GPU is to wait
    for it."""
    return (type(tensor) in PLAIN_TENSORS and tensor.is_cpu and tensor.dtype == dtype
            and not recorder.refs.written_since(0, storage_id(tensor)))


def _holder(recorder: FxRecorder, index: torch.Tensor) -> RefNode | None:
    """The tensor from outside in whose memory the indices lie, as they were at entry."""
    if not _is_as_made(recorder, index, torch.int64):
        return None
    for node in recorder.inputs.tensors:
        real = node.real
        if (type(node.state) is TensorState and type(real) in PLAIN_TENSORS and real.dtype == index.dtype
                and storage_id(real) == storage_id(index) and real.is_contiguous() and is_within(reach(index), reach(real))):
            return node
    own = recorder.refs.find(index)
    return own if own is not None and index.is_contiguous() else None
