"""Recurrent networks as AOTAutograd shall see them: one layer at a time.

Where they are traced, torch takes them apart in Python, and forgets dropout between their layers; and it takes oneDNN's layer for
inference wherever the input requires no gradient, though the weights may.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from capture.backends.native.signature import Unsupported


def _in_layers(function: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for a function of torch's: the same, called for each layer on its own, and dropout between them."""
    several = function is torch.lstm                # it has a hidden state and a cell's

    @functools.wraps(function)
    def in_layers(input: Tensor, state: Any, weights: Any, *settings: Any, **named: Any) -> Any:
        if named:
            raise Unsupported("the arguments of a recurrent network are named")
        if len(settings) != 6 or isinstance(weights, Tensor) or isinstance(state, Tensor) is several:
            raise Unsupported("a recurrent network takes packed sequences")
        has_biases, layers, dropout, train, bidirectional, batch_first = settings
        states = tuple(state) if several else (state,)
        directions = 1 + bidirectional
        each, ends = len(weights) // layers, []
        output = input.transpose(0, 1) if batch_first else input
        for layer in range(layers):
            if layer and train:
                output = torch.dropout(output, dropout, train)
            begin = [part[layer * directions:(layer + 1) * directions] for part in states]
            own = weights[layer * each:(layer + 1) * each]
            with _for_training((output, *begin, *own)):
                output, *end = function(output, begin if several else begin[0], own, has_biases, 1, 0.0, train, bidirectional,
                                        False)
            ends.append(end)
        return output.transpose(0, 1) if batch_first else output, *(torch.cat(parts) for parts in zip(*ends, strict=True))
    return in_layers


@contextlib.contextmanager
def _for_training(operands: Sequence[Tensor]) -> Iterator[None]:
    """Without oneDNN where gradients are asked for: its layer keeps for them what a plan cannot hold."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)))
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


LAYERED: dict[Any, Callable[..., Any]] = {
    function: _in_layers(function) for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)}
