"""Memory at the peak of a steady call of compiled code is at most eager's, with all that is kept from call to call counted."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capture import _C
from tests.backends.native.end_to_end.engine import compile, no_trial, runs_compiled  # noqa: F401
from tests.models.programs import DLRM, UnrolledLSTM
from tests.peak import peak


class Block(nn.Module):
    """A layer of a transformer; returns the keys and values as well, as one that keeps them for the next token does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        n, length, width = x.shape
        q, k, v = (part.view(n, length, 4, -1).transpose(1, 2) for part in self.project(self.norm1(x)).split(width, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class Transformer(nn.Module):
    """What it returns, scores of a thousand words, is larger than all that comes before."""

    def __init__(self, width: int = 64, words: int = 1000) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(words, width), nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        x, kept = self.embed(tokens), []
        for block in self.blocks:
            x, pair = block(x)
            kept.append(pair)
        return self.head(self.norm(x)), kept


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(16), nn.MaxPool2d(2), Residual(16), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(16, 10))


def recommender() -> nn.Module:
    return DLRM({f"table{n}": 100 + n for n in range(4)}, dense=13, width=16)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "transformer": (Transformer, lambda: (torch.randint(0, 1000, (2, 32)),)),
    "convolutional": (convolutional, lambda: (torch.randn(2, 3, 32, 32),)),
    "LSTM": (lambda: UnrolledLSTM(32, 64), lambda: (torch.randn(8, 12, 32),)),
    "recommender": (recommender, lambda: (torch.randn(64, 13), {f"table{n}": torch.randint(0, 100, (64, 4)) for n in range(4)})),
}


def tensors(results: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(results)


def step(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    if not torch.is_grad_enabled():
        model(*inputs)
        return
    differentiable = [result for result in tensors(model(*inputs)) if result.requires_grad]
    torch.autograd.backward([result.square().sum() for result in differentiable])


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_at_most_that_of_eager(name: str, training: bool) -> None:
    build, draw = MODELS[name]
    model, inputs = build().train(training), draw()
    compiled = compile(model)
    with torch.set_grad_enabled(training):
        for program in (model, compiled, compiled, compiled):
            step(program, inputs)
        assert runs_compiled(compiled)
        # gradients of filters that lie channels last are copied at the end, and so all of them wait for it
        for accumulates in (False, True)[:1 + (training and name != "convolutional")]:
            peaks = []
            for program in (compiled, model):
                if not accumulates:
                    model.zero_grad()
                _C.release_workspaces()
                peaks.append(peak(step, program, inputs))
            assert 0 < peaks[0] <= peaks[1]
