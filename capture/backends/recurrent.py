"""Recurrent networks: torch's decompositions of them, which forget dropout between layers, applied to one layer at a time."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., tuple[Tensor, ...]]


def with_dropout(kernel: Kernel) -> Kernel:
    """The kernel of `lstm`, `gru`, `rnn_tanh` or `rnn_relu` on sequences that are not packed, with dropout between layers as eager
    mode has it. (How packed ones are taken apart depends on values, so that they are not traced.)"""
    def run(input: Tensor, hx: Any, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
            bidirectional: bool, batch_first: bool) -> tuple[Tensor, ...]:
        def layer(x: Tensor, state: Any, weights: list[Tensor]) -> tuple[Tensor, ...]:
            return kernel(x, state, weights, has_biases, 1, 0.0, train, bidirectional, False)

        with _without_onednn([input, *(hx if isinstance(hx, (list, tuple)) else [hx]), *params]):
            out, *states = _stacked(layer, input.transpose(0, 1) if batch_first else input, hx, params, num_layers,
                                    dropout if train else 0.0)
        return (out.transpose(0, 1) if batch_first else out, *states)
    return run


def _stacked(layer: Kernel, x: Tensor, hx: Any, params: list[Tensor], layers: int, dropout: float) -> tuple[Tensor, ...]:
    """The layers, one after the other: the output of the last one, and the states that each ends in."""
    given: tuple[Tensor, ...] = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
    ends: list[tuple[Tensor, ...]] = []
    weights, rows = len(params) // layers, given[0].shape[0] // layers
    for i in range(layers):
        state = [tensor.narrow(0, i * rows, rows) for tensor in given]
        x, *end = layer(x, state if isinstance(hx, (list, tuple)) else state[0], list(params[i * weights:(i + 1) * weights]))
        ends.append(tuple(end))
        if dropout != 0 and i < layers - 1:
            x = torch.dropout(x, dropout, train=True)
    return (x, *(torch.cat(parts, 0) for parts in zip(*ends, strict=True)))


@contextlib.contextmanager
def _without_onednn(tensors: list[Tensor]) -> Iterator[None]:
    """Torch decomposes a layer to oneDNN's, which it calls as for inference: where gradients are asked for, nothing of it."""
    enabled: bool = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)))
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
