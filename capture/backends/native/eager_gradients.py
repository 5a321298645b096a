"""Gradients by eager mode, where compiled backward code cannot be used (gradients of gradients)."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from capture import _C
from capture.backends.native.recomputation import Kept, Recomputation
from capture.backends.native.saved_tensors import picker, saved_in_views
from capture.backends.native.signature import Input, Signature

# What one call leaves for a replay: inputs besides the saved ones, their versions, and the states of the generators. Where hooks
# for saved tensors were in force, the inputs are among the saved ones and nothing watches their versions.
Memory = tuple[tuple[Tensor, ...] | None, list[int] | None, list[Tensor]]


class Replay:
    """Runs the graph itself in eager mode during the backward pass, where the compiled backward callable cannot be used: when
    gradients are to have gradients, and under transforms such as vmap."""

    def __init__(self, gm: fx.GraphModule, signature: Signature, recomputation: Recomputation) -> None:
        self.gm, self.signature, self.recomputation = gm, signature, recomputation
        in_views = saved_in_views(signature)
        self.saved = {name.index: place for place, name in enumerate(signature.saved) if isinstance(name, Input)
                      and name.index < signature.inputs and name.index not in signature.written and name not in in_views}
        self.others = [index for index in range(signature.inputs) if index not in self.saved]
        self.pick = picker(self.others)
        self.watched = picker([place for place, index in enumerate(self.others) if index not in signature.written])
        self.cuda = sorted({tangent.device.index or 0 for tangent in signature.tangents if tangent.device.type == "cuda"})

    def remember(self, inputs: tuple[Tensor, ...]) -> Memory:
        """What a replay of a call that is about to run will need."""
        tensors = self.pick(inputs)
        if self.signature.snapshots:
            with torch.enable_grad():       # gradients of gradients flow through the copies
                tensors = tuple(inputs[i].clone() if i in self.signature.snapshots else inputs[i] for i in self.others)
        try:
            versions = [tensor._version for tensor in self.watched(tensors)]
        except RuntimeError:        # a tensor of inference mode has no version
            versions = None
        return tensors, versions, self._random_states() if self.signature.random else []

    def gradients(self, memory: Memory, saved: Sequence[Tensor], grads: Sequence[Tensor | None],
                  edges: Any, kept: Kept) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs that have one, given those of the differentiable results. edges: of these results
        (`_C.edges_of`): where a formula saves a result, second derivatives go to that result, and not to the one that is computed
        here. kept: what the compiled backward callable would take. Raises RuntimeError if an input has been changed since."""
        tensors, versions, random = memory
        others = saved[len(self.signature.saved):] if tensors is None else tensors
        by_index = dict(zip(self.others, others, strict=True)) | {index: saved[place] for index, place in self.saved.items()}
        inputs = [tensor for _, tensor in sorted(by_index.items())]
        with self._drawing(random):
            changed = versions not in (None, [tensor._version for tensor in self.watched(others)]) or (
                not self.recomputation.agrees(inputs, kept))
        if changed:
            raise RuntimeError("one of the inputs of a compiled graph, needed to compute gradients of gradients, has been modified "
                               "by an inplace operation since")
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # gradients shall be those through the graph alone, also where one input was computed from another
            inputs = [t.clone() if i in self.signature.written else t.view_as(t) for i, t in enumerate(inputs)]
            _C.count_from(edges, inputs)
            outputs = self._run(random, inputs)
            results = [outputs[place]._base if base else outputs[place] for place, base in self.signature.roots]
        chosen = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
        found = torch.autograd.grad([result for result, _ in chosen], [inputs[index] for index, _ in self.signature.gradients],
                                    [grad for _, grad in chosen], create_graph=create_graph, allow_unused=True)
        if create_graph:
            _C.divert(edges, tuple(results))
        return found

    def _run(self, random: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The graph's outputs, under the modes and with the random numbers of the call."""
        inputs = [tensor.item() if i in self.signature.numbers else tensor for i, tensor in enumerate(inputs)]
        with self.signature.modes.active(), self._drawing(random):
            return self.gm.forward(*inputs)

    @contextlib.contextmanager
    def _drawing(self, random: Sequence[Tensor]) -> Iterator[None]:
        """Has the random numbers of the call, if there were any, be drawn once more."""
        if not random:
            yield
            return
        before = self._random_states()
        self._set_random_states(random)
        try:
            yield
        finally:
            self._set_random_states(before)

    def _random_states(self) -> list[Tensor]:
        silent = self.cuda and torch.cuda.is_current_stream_capturing()     # a stream that is recorded does not tell
        return [_C.get_random_state(), *(torch.cuda.get_rng_state(index) for index in (() if silent else self.cuda))]

    def _set_random_states(self, states: Sequence[Tensor]) -> None:
        _C.set_random_state(states[0])
        for index, state in zip(self.cuda, states[1:], strict=False):
            torch.cuda.set_rng_state(state, index)

