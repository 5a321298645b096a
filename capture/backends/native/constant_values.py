"""Values of the nodes of a torch-level graph: fake tensors for all, real values for those that depend on no input."""
from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from capture.backends.native.nodes import expected
from capture.backends.native.signature import Unsupported
from capture.operators.facts import facts_of

MOST_ELEMENTS = 1 << 22     # of a value that is computed while compiling


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """fakes: of each node whose result is a tensor; sizes: of each whose result is a number. versions: how often each tensor that a
    node reads had been written to by then; None for tensors that do not count this."""

    fakes: dict[fx.Node, torch.Tensor]
    sizes: dict[fx.Node, int | torch.SymInt]
    versions: dict[tuple[fx.Node, fx.Node], int | None]
    known: dict[fx.Node, torch.Tensor | None] = dataclasses.field(default_factory=dict)

    def final(self, node: fx.Node, reader: fx.Node) -> bool:
        """Whether nothing writes to the tensor `node`, or to another view of its memory, once `reader` has read it."""
        version = self.versions.get((node, reader))
        return version is not None and version == _version(self.fakes[node])

    def constant(self, node: fx.Node, reader: fx.Node) -> torch.Tensor | None:
        """The value of `node` as `reader` finds it, on the processor, if it follows from the graph alone (no input, no random
        number, no write); else None."""
        if self.versions.get((node, reader)) != 0:
            return None
        if node not in self.known:
            self.known[node] = self._computed(node)
        return self.known[node]

    def _computed(self, node: fx.Node) -> torch.Tensor | None:
        if node not in self.fakes or _in_memory(self.fakes[node]) > MOST_ELEMENTS:
            return None
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(node.graph.owning_module)
        if node.op not in ("call_function", "call_method"):
            return None
        inputs = {argument: self.constant(argument, node) for argument in node.all_input_nodes}
        if any(value is None for value in inputs.values()):
            return None
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), inputs.__getitem__)
        try:
            with torch.no_grad(), _Determined():
                result = getattr(args[0], node.target)(*args[1:], **kwargs) if isinstance(node.target, str) else \
                    node.target(*args, **kwargs)
        except _Undetermined:
            return None
        return result if isinstance(result, torch.Tensor) else None


def propagate(gm: fx.GraphModule, inputs: Sequence[Any]) -> Values:
    """The values of the nodes of `gm` for fake inputs. Raises Unsupported where the graph cannot be run on tensors without data."""
    mode = next((tensor.fake_mode for tensor in inputs if isinstance(tensor, FakeTensor)), None) or FakeTensorMode()
    run = _Propagation(gm, mode)
    try:
        with mode:
            run.run(*inputs)
    except Exception as error:      # whatever an operator of the program does on tensors without data
        raise Unsupported(f"the graph cannot be run on tensors without data: {type(error).__name__}: {error}") from error
    return Values(run.fakes, run.sizes, run.versions)


class _Propagation(fx.Interpreter):
    def __init__(self, gm: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.mode = mode
        self.fakes: dict[fx.Node, torch.Tensor] = {}
        self.sizes: dict[fx.Node, int | torch.SymInt] = {}
        self.versions: dict[tuple[fx.Node, fx.Node], int | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        for argument in n.all_input_nodes:
            if argument in self.fakes:
                self.versions[argument, n] = _version(self.fakes[argument])
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.fakes[n] = value
        elif isinstance(value, (int, torch.SymInt)):
            self.sizes[n] = value
        return value

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        return self.mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _in_memory(tensor: torch.Tensor) -> int:
    """How many elements a tensor has, those that are repeated counted once."""
    return math.prod(expected(size) for size, stride in zip(tensor.shape, tensor.stride()) if expected(stride))


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


class _Undetermined(Exception):
    """A result that does not follow from the arguments, or that is written into one of them."""


class _Determined(TorchDispatchMode):
    """Lets only such operators run as always give the same for the same arguments, and on the processor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        facts = facts_of(func)
        if facts.is_random or facts.is_unwritten or func._schema.is_mutable or not facts.is_of_torch:
            raise _Undetermined
        on_processor = {**(kwargs or {}), **({"device": torch.device("cpu")} if kwargs and "device" in kwargs else {})}
        return func(*args, **on_processor)
