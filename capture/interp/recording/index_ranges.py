"""Indices by which an operation looks up rows or classes: a guard can promise that they are in range, so that it does not raise on
a hit."""
from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.interp.recording import found_places, recomputable_tensors, tensors
from capture.interp.recording.fx_recorder import FxRecorder
from capture.interp.recording.shape_rules.shaper import parts_of_subscript
from capture.interp.recording.undo_log import is_within, reach
from capture.operators.facts import facts_of
from capture.operators.schemas import name_of
from capture.refgraph.identical import is_one_of
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.node import Const, External, RefNode, TensorState
from capture.refgraph.sizes import Size, as_size
from capture.refgraph.source import Computed, Literal, Source
from capture.refgraph.state_queries import are_indices

EMBEDDING, PAD = inspect.signature(torch.nn.functional.embedding), inspect.signature(torch.nn.functional.pad)
LOSSES = {loss: inspect.signature(loss) for loss in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)}
CONVERSIONS = frozenset({"to", "long"})     # which may be to the dtype of indices, or to another device alone


class Lookup(NamedTuple):
    """What an operation looks up: by which indices, in how many rows. spare: an index that it passes over."""

    indices: torch.Tensor
    rows: Size
    spare: int | None = None


def lookups(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Lookup] | None:
    """What the operation looks up, if it does nothing else that may fail, and a guard knows the number of rows."""
    if function is torch.nn.functional.one_hot:
        return _classes(recorder, args, kwargs)
    found = _places(recorder, function, args, kwargs)
    if found is None:
        return None
    table, places, spare = found
    if type(table) not in PLAIN_TENSORS or table.is_nested or not table.dim() or recorder.is_dynamic(table) or any(
            type(index) not in PLAIN_TENSORS or index.dtype is not torch.int64 for index in places.values()):
        return None
    sizes = recorder.sizes.of(table) or table.shape
    return [Lookup(index, recorder.refs.sizes.resolved(as_size(sizes[dim])), spare) for dim, index in places.items()]


def _classes(recorder: FxRecorder, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Lookup] | None:
    """What `one_hot` looks up: classes, if it is told how many."""
    index, count = (args[at] if len(args) > at else kwargs.get(name) for at, name in enumerate(("tensor", "num_classes")))
    if index is None or type(index.real) not in PLAIN_TENSORS or index.real.dtype is not torch.int64:
        return None
    if count is None or type(count.real) is not int or count.real <= 0 or not _is_constant(recorder, count):
        return None
    return [Lookup(index.real, as_size(count.real))]


def _places(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]
            ) -> tuple[torch.Tensor, dict[int, torch.Tensor], int | None] | None:
    """The table, the indices along each of its dimensions, and an index that is passed over."""
    if function is torch.nn.functional.embedding:
        given = EMBEDDING.bind(*args, **kwargs).arguments
        if "max_norm" in given and given["max_norm"].real is not None:
            return None
        return given["weight"].real, {0: given["input"].real}, None
    if function in LOSSES:
        given = LOSSES[function].bind(*args, **kwargs).arguments
        default = LOSSES[function].parameters["ignore_index"].default
        ignored = given.get("ignore_index", Value(default, Const(default)))
        if type(ignored.real) is not int or not _is_constant(recorder, ignored):
            return None
        table = given["input"].real
        return table, {min(1, table.dim() - 1): given["target"].real}, ignored.real
    if is_one_of(function, operator.getitem, torch.Tensor.__getitem__):
        table, key = args
        found = _in_key(table.real.dim(), key)
        return None if found is None else (table.real, found, None)
    if not facts_of(function).indexes_dimension:
        return None
    dim, index = (args[at] if len(args) > at else kwargs.get(name) for at, name in ((1, "dim"), (2, "index")))
    if dim is None or index is None or not isinstance(dim.shadow, Const) or any(
            tensors.is_dynamic_shape(value.shadow) for value in (*args, *kwargs.values())):
        return None
    return args[0].real, {dim.real: index.real}, None


def _in_key(rank: int, key: Value) -> dict[int, torch.Tensor] | None:
    """The tensors in a subscript, by the dimension that each is for. None where there is anything else that may be out of range.
    (Slices never are. That numbers are not, guards know.)"""
    parts = parts_of_subscript(key)
    taken = sum(part is not None and part is not Ellipsis for _, part in parts)
    found: dict[int, torch.Tensor] = {}
    dim = 0
    for shadow, part in parts:
        if is_a(part, torch.Tensor):
            found[dim] = part
        elif not (part is None or part is Ellipsis or type(part) is slice or type(part) is int and isinstance(shadow, Const)):
            return None
        dim += rank - taken if part is Ellipsis else part is not None
    return found


def _is_constant(recorder: FxRecorder, number: Value) -> bool:
    """Whether a number that is no more than an option of an operation is the same on each hit: as one from outside it is guarded,
    unless it is a size that changes."""
    return isinstance(number.shadow, Const) or isinstance(number.shadow, External) and not recorder.sizes.are_free([number])


def are_known(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether the operation looks up the same rows on each hit."""
    found = lookups(recorder, function, args, kwargs)
    return all(one.rows.constant is not None and recorder.numbers_behind(one.indices) == [] for one in found) if found else False


def are_in_range(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether the graph itself tells that what the operation looks up is there, whatever the tensors hold."""
    found = lookups(recorder, function, args, kwargs)
    each = [(one, _origins(recorder, one.indices)) for one in found or ()]
    return bool(each) and all(origins is not None and not origins.tensors and _fit(recorder, one, origins) for one, origins in each)


def _fit(recorder: FxRecorder, found: Lookup, origins: Origins) -> bool:
    """Whether constants, and places below bounds, are in range."""
    if origins.constants and found.rows.constant is None:
        return False
    return all(0 <= number < found.rows.real or number == found.spare for number in origins.constants) and all(
        found_places.is_less(recorder.refs.sizes.resolved(bound), found.rows) for bound in origins.bounds)


def promises(recorder: FxRecorder, function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Computed] | None:
    """What must be true at entry for the operation not to raise, and is true; None if there are no such guards."""
    found = lookups(recorder, function, args, kwargs)
    each = [_promises(recorder, one) for one in found or ()]
    return None if not each or None in each else [promise for some in each for promise in some or ()]


def _promises(recorder: FxRecorder, found: Lookup) -> list[Computed] | None:
    origins = _origins(recorder, found.indices) or _computed_again(recorder, found.indices)
    if origins is None:
        return None
    holds = _fit(recorder, found, origins) and all(
        are_indices(tensor, found.rows.real, found.spare) for _, tensor in origins.tensors)
    rows = recorder.refs.sizes.path(found.rows)
    return [Computed(are_indices, (path, rows, Literal(found.spare))) for path, _ in origins.tensors] if holds else None


class Origins(NamedTuple):
    """Of whose elements those of a tensor are: of tensors that a guard can find at their paths, constants, and numbers from 0 up to
    bounds."""

    tensors: list[tuple[Source, torch.Tensor]]
    constants: Sequence[int] = ()
    bounds: Sequence[Size] = ()


def _computed_again(recorder: FxRecorder, index: torch.Tensor) -> Origins | None:
    """The tensor itself where a guard can compute it, such as the places in a cache that follow from a counter."""
    path = recomputable_tensors.path_of_tensor(recorder, recorder.refs.find(index))
    return None if path is None else Origins([(path, index)])


def _origins(recorder: FxRecorder, index: torch.Tensor) -> Origins | None:
    """Tensors from outside as they were at entry, or a tensor with bounds, and what these were padded with. None if there may be
    other elements."""
    holder = _holder(recorder, index)
    if holder is not None and holder.source is not None:
        return Origins([(holder.source, holder.real)])
    known, constants = recorder.refs.find(index), list[int]()
    made: fx.Node | None = known.state.node if known is not None and type(known.state) is TensorState else None
    if made is None or recorder.refs.written_since(0, None):
        return None
    while made.op != "placeholder":
        if made in recorder.disturbed:
            return None
        if made in recorder.bounds:
            return Origins([], constants, [recorder.bounds[made]])
        if len(made.all_input_nodes) != 1:
            return None
        if made.target is torch.nn.functional.pad:
            given = PAD.bind(*made.args, **made.kwargs).arguments
            constant = given.get("value") or 0
            if given.get("mode", "constant") != "constant" or type(constant) is not int:
                return None
            constants.append(constant)
        elif not _keeps_elements(made, index.dtype):
            return None
        made, = made.all_input_nodes
    source = next((node for node in recorder.inputs.tensors if node.state.node is made), None)
    return None if source is None or source.source is None or not _is_as_made(recorder, source.real, index.dtype) else (
        Origins([(source.source, source.real)], constants))


def _keeps_elements(made: fx.Node, dtype: torch.dtype) -> bool:
    """Whether an operation makes nothing but elements of its operand: in another shape, or as numbers of this dtype. (`view` with a
    dtype reads other numbers from the same memory.)"""
    dtypes = [given for given in (*made.args, *made.kwargs.values()) if isinstance(given, torch.dtype)]
    if name_of(made.target) in CONVERSIONS:
        return all(given is dtype for given in dtypes)
    return facts_of(made.target).rearranges and not dtypes


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
