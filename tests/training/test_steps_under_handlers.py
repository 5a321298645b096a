"""Training steps whose forward pass runs under a handler, as that of the models of transformers does: one graph, if a guard can
promise that what may raise there does not."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

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
    "of a padded copy": lambda self, index: self.table(functional.pad(index, (0, 1), value=5)[1:].contiguous().view(-1)),
    "named": lambda self, index: self.table(torch.flip(input=index.view(-1), dims=[0])),
    "found": lambda self, index: self.table(self.table(index).argmax(-1)),
    "bounded": lambda self, index: self.table(index) + self.table((index * 7).clamp(0, ROWS - 1)),
    "constant": lambda self, index: self.table(torch.arange(4)) + self.table(index),
    "differences": lambda self, index: self.table(index) * torch.diff(torch.arange(5), prepend=torch.tensor([-1]))[:1],
    "of a constant": lambda self, index: self.table(index) * torch.arange(4).gather(0, torch.tensor([3])),
    "of a row": lambda self, index: self.table(index) * torch.arange(4).index_select(0, torch.tensor([1])).pow(2),
}


def training(look_up: Callable[[Any, Tensor], Tensor]) -> tuple[Model, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = Model(look_up)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(index: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(index).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return model, step


class Beside:
    """A training step that is compiled, and the same one in eager mode: after each call models, gradients and logs are equal."""

    def __init__(self, make: Callable[[], tuple[Model, Callable[..., Tensor]]], backend: str) -> None:
        (self.model, step), (self.other, self.expected) = make(), make()
        self.compiled = capture.compile(step, backend=backend, options={"background": False} if backend == "native" else None)

    def __call__(self, *args: Tensor) -> None:
        torch.testing.assert_close(self.compiled(*args), self.expected(*args))
        assert self.model.log == self.other.log
        for ours, theirs in zip(self.model.parameters(), self.other.parameters()):
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(ours.grad, theirs.grad)

    @property
    def stats(self) -> Any:
        return capture.stats(self.compiled)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", LOOKUPS)
def test_the_handler_finds_the_same_state(name: str, backend: str) -> None:
    run = Beside(lambda: training(LOOKUPS[name]), backend)
    good, bad = torch.tensor([1, 5, 7, 1999]), torch.tensor([1, 2000, 3, 4])
    for index in (good, good, good, good + 0, bad, good, bad, torch.tensor([0, 0, 0, 0]), torch.tensor([-1, 0, 1, 2]), good):
        run(index)
    assert run.stats.hits >= 3


@pytest.mark.parametrize("convert", [
    Tensor.char, Tensor.half, lambda index: index.type("torch.CharTensor"), lambda index: index.to(torch.int8)], ids=range(4))
def test_other_types_have_other_values(convert: Callable[[Tensor], Tensor]) -> None:
    """128 is not in range as a byte."""
    run = Beside(lambda: training(lambda self, index: self.table(convert(index).long())), "eager")
    for index in ([1, 5, 7, 9], [1, 5, 7, 9], [0, 5, 7, 9], [1, 5, 128, 9], [1, 5, 7, 9], [128, 1, 2, 3]):
        run(torch.tensor(index))


@pytest.mark.parametrize("name", LOOKUPS)
def test_one_graph(name: str) -> None:
    model, step = training(LOOKUPS[name])
    compiled = capture.compile(step, backend="eager")
    for _ in range(3):
        compiled(torch.tensor([1, 5, 7, 1999]))
    stats = capture.stats(compiled)
    assert (stats.breaks, stats.hits) == (0, 1)


def test_indices_that_the_step_changes_first() -> None:
    """A guard computes them again."""
    model, step = training(LOOKUPS["embedding"])
    index = torch.tensor([1, 5, 7, 9])

    def shifted() -> Tensor:
        index.add_(1)
        return step(index)
    compiled = capture.compile(shifted, backend="eager")
    for _ in range(4):
        compiled()
    assert (capture.stats(compiled).breaks, capture.stats(compiled).hits) == (0, 2)
    index.fill_(ROWS - 2)
    compiled()
    compiled()
    assert model.log[-2:] == ["out of range", "left"]


def test_looking_up_costs_nothing_where_nothing_is_written() -> None:
    """Inference has no guard of the indices' range."""
    model, _ = training(LOOKUPS["embedding"])
    compiled = capture.compile(model.eval(), backend="eager")
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.tensor([1, 2]))
    assert "are_indices" not in str(capture.explain(compiled))


# --- labels

def shifted(logits: Tensor, labels: Tensor, ignored: int = -100) -> Tensor:
    """As transformers has it: which label is passed over is a default of a function from outside."""
    labels = functional.pad(labels, (0, 1), value=ignored)[..., 1:].contiguous()
    return functional.cross_entropy(logits, labels.view(-1), ignore_index=ignored)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "smoothed": lambda logits, labels: functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum"),
    "nll_loss": lambda logits, labels: functional.nll_loss(logits.log_softmax(-1), labels, ignore_index=1),
    "shifted": lambda logits, labels: functional.cross_entropy(
        logits, functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1).to(logits.device), ignore_index=-100),
    "by default": lambda logits, labels: shifted(logits, labels),
    "images": lambda logits, labels: functional.cross_entropy(logits.t()[None, :, None], labels[None, None]),
}


def labelled(loss_of: Callable[..., Tensor]) -> tuple[Model, Callable[..., Tensor]]:
    torch.manual_seed(0)
    model = Model(LOOKUPS["embedding"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(index: Tensor, *labels: Any) -> Tensor:
        optimizer.zero_grad()
        logits = model(index)
        try:
            loss = loss_of(logits, *labels)
        except (IndexError, RuntimeError) as error:
            model.log.append(type(error).__name__)
            loss = logits.square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return model, step


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", LOSSES)
def test_labels_that_are_no_classes(name: str, backend: str) -> None:
    run, index = Beside(lambda: labelled(LOSSES[name]), backend), torch.tensor([1, 5, 7, 1999])
    for labels in ([0, 1, 2, 0], [2, 2, 1, 0], [1, 0, 0, 0], [0, 3, 1, 1], [0, 1, 2, 2], [0, -100, 1, -100], [-1, 0, 0, 1],
                   [-100, 3, 0, 0], [2, 1, 0, 2]):
        run(index, torch.tensor(labels))
        if labels == [1, 0, 0, 0]:          # so far all were classes
            assert (run.stats.breaks, run.stats.hits) == (0, 1)
    assert run.stats.hits >= 3


def test_labels_that_were_written_to() -> None:
    """No guard knows them."""
    def make() -> tuple[Model, Callable[..., Tensor]]:
        model, step = labelled(functional.cross_entropy)

        def written(index: Tensor, labels: Tensor, by: Tensor) -> Tensor:
            padded = functional.pad(labels, (0, 1))
            padded.view(-1)[1:].add_(by)
            return step(index, padded[:-1])
        return model, written
    run = Beside(make, "eager")
    for by in (0, 1, 0, 1, 2, 1, 5, 0):
        run(torch.tensor([1, 5, 7, 1999]), torch.tensor([0, 1, 0, 1]), torch.tensor(by))


def test_another_label_is_passed_over() -> None:
    """Then the guard, which knows one, does not promise anything: the handler finds the same state."""
    def loss_of(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
        return functional.cross_entropy(logits, labels, ignore_index=ignored)
    run = Beside(lambda: labelled(loss_of), "eager")
    for labels, ignored in (([0, -5, 1, 0], -5), ([0, -5, 1, 0], -5), ([0, -5, 1, 1], -5), ([0, -5, 1, 0], -7), ([0, -7, 1, 0], -7),
                            ([0, -7, 1, 0], -7), ([0, -5, 1, 0], -7), ([0, -5, 1, 0], -9), ([0, -9, 1, 0], -9), ([0, 1, 1, 0], -5)):
        run(torch.tensor([1, 5, 7, 1999]), torch.tensor(labels), ignored)  # type: ignore[arg-type]
    assert run.stats.hits
