"""What operations write to. Version counters tell, except for inference tensors, running statistics, and arguments other than the
first that ATen operators write to."""
from __future__ import annotations

import ctypes
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from capture._C import is_a
from capture.interp.core.frame import Value
from capture.operators.facts import OpFacts
from capture.operators.memory_order import memory_order
from capture.refgraph.memory import PLAIN_TENSORS, storage_id, storage_of, version_of


def versions_of(tensors: Iterable[torch.Tensor]) -> dict[int, int | None]:
    """Version counters by identity, read without calling a `__torch_function__` of the program. A tensor of inference mode has
    none: `noting_writes` finds out what writes to it."""
    with torch._C.DisableTorchFunction():
        return {id(t): None if torch.Tensor.is_inference(t) else version_of(t) for t in tensors}


def checksums_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Of the memory on the processor that tensors lie in, by their identity: they tell also of writes that count no version, by
    `.data` and numpy. A gigabyte takes some tenths of a second."""
    found = {}
    for tensor in tensors:
        if storage_of(tensor) is not None:
            with torch._C.DisableTorchFunction():
                storage, device = tensor.untyped_storage(), tensor.device.type
            if device == "cpu" and (size := storage.nbytes()):
                found[id(tensor)] = zlib.crc32((ctypes.c_char * size).from_address(storage.data_ptr()))
    return found


def note_writes(node: fx.Node, made: Any, operands: Sequence[torch.Tensor], before: dict[int, int | None],
                now: dict[int, int | None], find: Callable[[Any], Any]) -> None:
    """Notes in `meta["writes"]` how often an operation has written to each of its operands (by their places among those input nodes
    that are tensors: in the places of numbers backends put constants) and to the new tensors that it returns, as -1, -2 … (`linear`
    adds a bias to its product). On fake tensors operators count versions otherwise, or compute another tensor, so backends could
    not find this out. before, now: `versions_of` the operands.

    Notes in `meta["orders"]` the memory order of new tensors, by their places among the results, and in `meta["dtypes"]` the dtypes
    of all: on fake tensors these differ, too.
    """
    counts: dict[int, int] = {}
    written = {id(tensor): current - then for tensor in operands
               if (then := before.get(id(tensor))) is not None and (current := now[id(tensor)]) is not None and current != then}
    if written:
        nodes = {known.state.node: id(tensor) for tensor in operands if (known := find(tensor))}
        inputs = [nodes[one] for one in node.all_input_nodes if one in nodes]
        counts = {place: written[one] for place, one in enumerate(inputs) if one in written}
    results = made if is_a(made, (tuple, list)) else [made]
    storages = {None, *map(_memory, operands)}
    for place, tensor in enumerate(results, 1):
        if is_a(tensor, torch.Tensor) and (count := versions_of([tensor])[id(tensor)]) and _memory(tensor) not in storages:
            counts[-place] = count
    if counts:
        node.meta["writes"] = tuple(counts.items())
    with torch._C.DisableTorchFunction():
        orders = tuple((place, order) for place, tensor in enumerate(results) if is_a(tensor, torch.Tensor)
                       and (order := memory_order(tensor)) and _memory(tensor) not in storages)
        dtypes = tuple((place, str(tensor.dtype).removeprefix("torch.")) for place, tensor in enumerate(results)
                       if type(tensor) in PLAIN_TENSORS)
    if orders:
        node.meta["orders"] = orders
    if dtypes:
        node.meta["dtypes"] = dtypes


def _memory(tensor: torch.Tensor) -> int | None:
    """The storage of a tensor, wherever it lies in that."""
    storage = storage_of(tensor)
    return None if storage is None else storage[0]


def uncounted(facts: OpFacts, args: Sequence[Value], kwargs: dict[str, Value]) -> list[torch.Tensor]:
    """The tensors that an operation may write to without counting a version: running statistics, and what its schema says that it
    writes to besides the first argument."""
    def given(place: int, name: str, default: Any = None) -> list[Any]:
        value = kwargs[name].real if name in kwargs else args[place].real if place < len(args) else default
        return list(value) if is_a(value, (list, tuple)) else [value]
    statistics = [x for found in facts.statistics if any(given(*found.flag)) for place in found.places for x in given(*place)]
    return [x for x in (*statistics, *(x for place in facts.writes for x in given(*place))) if is_a(x, torch.Tensor)]


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call of an ATen operator writes to, as its schema says."""
    if func._schema.is_mutable:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = kwargs[argument.name] if argument.name in kwargs else args[place] if place < len(args) else ()
                yield from [given] if is_a(given, torch.Tensor) else given or ()


class Watching(TorchDispatchMode):
    """A mode that is entered while a program runs. Torch lets Dynamo skip what its modes do, and imports it for that, which takes
    seconds; it skips whatever runs in a capture (`pipeline.FRAME_SKIP`)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Any:
        self.outer_keys = None
        if torch.is_inference_mode_enabled() and torch._C._functorch.peek_interpreter_stack() is None:
            self.outer_keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        return super().__enter__()

    def perform(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator that the mode was asked about. In inference mode one such as `linear`, made of others, comes here
        as a whole, and is called as without the mode: below a mode, views of parameters require no gradient, by which `matmul`
        decides how to compute. Elsewhere autograd, and in any case levels of torch.func, have done their part by now."""
        if self.outer_keys is None or func.is_view or func._schema.is_mutable:     # these have been counted by now
            return func(*args, **kwargs)
        with torch._C._ForceDispatchKeyGuard(*self.outer_keys):
            return func(*args, **kwargs)


class _Writes(Watching):
    """Collects the storages that operations write to."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.storages.update(storage[0] for t in written_by(func, args, kwargs) if (storage := storage_of(t)) is not None)
        return self.perform(func, args, kwargs)


def counting_writes(versions: dict[int, int | None], tensors: Iterable[torch.Tensor],
                    function: Callable[..., Any]) -> Callable[..., Any]:
    """How an operation on tensors of inference mode is made. Outside of that mode, nothing can write to them."""
    return functools.partial(noting_writes, versions, tensors, function) if torch.is_inference_mode_enabled() else function


def noting_writes(versions: dict[int, int | None], tensors: Iterable[torch.Tensor], function: Callable[..., Any], /,
                  *args: Any, **kwargs: Any) -> Any:
    """Calls a tensor operation. Those of `tensors` that are of inference mode, and that it writes to, get another version in
    `versions` than `versions_of` gives them."""
    with _Writes() as writes:
        result = function(*args, **kwargs)
    for tensor in tensors:
        if versions[id(tensor)] is None and storage_id(tensor) in {None, *writes.storages}:
            versions[id(tensor)] = -1
    return result
