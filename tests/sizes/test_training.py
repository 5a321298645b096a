"""Training as users do it, with other sizes in each batch: lengths of text with labels, packed sequences, graphs; the last batch is
smaller. One capture of the first sizes, one for each of the dimensions that come to vary later."""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import capture
from capture.config import TRIAL_CALLS

NATIVE: dict[str, Any] = {"backend": "native", "options": {"background": False}}
Batch = tuple[torch.Tensor, ...]


class Tagger(nn.Module):
    """A transformer of torch's own, told by a mask what is padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.tokens, self.out = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 5)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.tokens(ids), src_key_padding_mask=ids == 0)
        return F.cross_entropy(self.out(hidden).reshape(-1, 5), labels.reshape(-1))


class Packed(nn.Module):
    """A recurrent network on packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.gru, self.out = nn.Embedding(20, 6), nn.GRU(6, 8, batch_first=True, bidirectional=True), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.tokens(ids), lengths, batch_first=True, enforce_sorted=False)
        hidden, found = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return F.cross_entropy(self.out(hidden.sum(1) / found[:, None]), labels)


class Graphs(nn.Module):
    """Rounds of messages on several graphs at once."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for layer in (self.one, self.two):
            messages = layer(nodes)[source]
            degree = torch.zeros(nodes.size(0)).index_add(0, target, torch.ones(target.size(0)))
            nodes = F.relu(torch.zeros(nodes.size(0), 8).index_add_(0, target, messages) / degree.clamp(min=1)[:, None])
        pooled = torch.zeros(labels.size(0), 8).scatter_add_(0, graph[:, None].expand(-1, 8), nodes)
        return F.cross_entropy(self.out(pooled), labels)


def texts(chance: random.Random) -> Iterator[Batch]:
    lengths = chance.sample(range(3, 40), 8)
    for number, length in enumerate(lengths * 2):
        batch = 2 if number % 8 == 7 else 4
        ids = torch.randint(1, 20, (batch, length))
        ids[0, -1] = 0
        yield ids, torch.randint(5, (batch, length))


def packed(chance: random.Random) -> Iterator[Batch]:
    for number in range(20):
        lengths = [chance.randint(2, 12) for _ in range(2 if number == 19 else 4)]
        ids = pad_sequence([torch.randint(1, 20, (length,)) for length in lengths], batch_first=True)
        yield ids, torch.tensor(lengths), torch.randint(5, (len(lengths),))


def graphs(chance: random.Random) -> Iterator[Batch]:
    for _ in range(20):
        nodes, edges, graph, count, first = [], [], [], chance.randint(2, 5), 0
        for number in range(count):
            size = chance.randint(3, 9)
            nodes.append(torch.randn(size, 6))
            edges.append(torch.randint(size, (2, chance.randint(4, 20))) + first)
            graph.append(torch.full((size,), number))
            first += size
        yield torch.cat(nodes), torch.cat(edges, 1), torch.cat(graph), torch.randint(3, (count,))


# The model, its batches, and how many captures there may be.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[random.Random], Iterator[Batch]], int]] = {
    "texts": (Tagger, texts, 3), "packed": (Packed, packed, 3), "graphs": (Graphs, graphs, 2)}


def losses(model: nn.Module, called: Callable[..., Any], batches: list[Batch]) -> list[float]:
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for batch in batches:
        loss = called(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("name", "options"), [*((name, {"backend": "eager"}) for name in PROGRAMS), ("graphs", NATIVE)])
def test_training(name: str, options: dict[str, Any]) -> None:
    make, sizes, most = PROGRAMS[name]
    batches = list(sizes(random.Random(3)))
    torch.manual_seed(0)
    eager = make()
    model = make()
    model.load_state_dict(eager.state_dict())
    with TRIAL_CALLS.set(0):
        compiled = capture.compile(model, fullgraph=True, **options)
        assert losses(model, compiled, batches) == pytest.approx(losses(eager, eager, batches), 1e-3, 1e-4)
    stats = capture.stats(compiled)
    assert stats.captures <= most and stats.hits == len(batches) - stats.captures, stats.misses
    assert options is not NATIVE or stats.compiled and not stats.compile_errors
