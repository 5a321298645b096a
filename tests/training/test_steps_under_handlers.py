"""Training steps whose forward pass runs under a handler, as that of the models of transformers does: one graph, if a guard can
promise that what may raise there does not."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capture

ROWS, WIDTH = 2000, 256         # two megabytes: more than a hit copies to undo what it does


class Model(nn.Module):
    def __init__(self, look_up: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 3)
        self.look_up, self.log = look_up, list[str]()

    def forward(self, index: Tensor) -> Tensor:
        try:
            return self.head(self.look_up(self, index).tanh())
        except IndexError:
            self.log.append("out of range")
            return self.head(torch.zeros(*index.shape, WIDTH))
        finally:
            self.log.append("left")


LOOKUPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "embedding": lambda self, index: self.table(index),
    "of a view": lambda self, index: self.table(index.view(-1)[:3]),
    "subscript": lambda self, index: self.table.weight[index.view(-1)],
    "constant": lambda self, index: self.table(torch.arange(4)) + self.table(index),
}


def training(name: str) -> tuple[Model, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = Model(LOOKUPS[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(index: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(index).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return model, step


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_the_handler_finds_the_same_state(name: str, backend: str) -> None:
    model, step = training(name)
    other, expected = training(name)
    compiled = capture.compile(step, backend=backend, options={"background": False} if backend == "native" else None)
    good, bad = torch.tensor([1, 5, 7, 1999]), torch.tensor([1, 2000, 3, 4])
    for index in (good, good, good, good + 0, bad, good, bad, torch.tensor([0, 0, 0, 0]), torch.tensor([-1, 0, 1, 2]), good):
        torch.testing.assert_close(compiled(index), expected(index))
        assert model.log == other.log
        for ours, theirs in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert capture.stats(compiled).hits >= 3


@pytest.mark.parametrize("name", LOOKUPS)
def test_one_graph(name: str) -> None:
    model, step = training(name)
    compiled = capture.compile(step, backend="eager")
    for _ in range(3):
        compiled(torch.tensor([1, 5, 7, 1999]))
    stats = capture.stats(compiled)
    assert (stats.breaks, stats.hits) == (0, 1)


def test_indices_that_the_step_changes_first() -> None:
    """No guard knows them: the graph ends before the pass."""
    model, step = training("embedding")
    index = torch.tensor([1, 5, 7, 9])

    def shifted() -> Tensor:
        index.add_(1)
        return step(index)
    compiled = capture.compile(shifted, backend="eager")
    for _ in range(4):
        compiled()
    assert capture.stats(compiled).breaks
    index.fill_(ROWS - 2)
    compiled()
    compiled()
    assert model.log[-2:] == ["out of range", "left"]


def test_looking_up_costs_nothing_where_nothing_is_written() -> None:
    """Inference has no guard of the indices' range."""
    model, _ = training("embedding")
    compiled = capture.compile(model.eval(), backend="eager")
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.tensor([1, 2]))
    assert "are_indices" not in str(capture.explain(compiled))
