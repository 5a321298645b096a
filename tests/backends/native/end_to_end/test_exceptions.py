"""What a compiled graph raises is what eager raises, and it stays compiled."""
from __future__ import annotations

import traceback
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.backends.native.end_to_end.engine import check, compile, no_trial, runs_compiled  # noqa: F401
from tests.helpers import call

GOOD, BAD = torch.tensor([0, 1]), torch.tensor([0, 9])
PROGRAMS = {
    "embedding": lambda index, x: F.embedding(index, x).relu() * 2,
    "indexing": lambda index, x: (x[index] * 2).exp(),
    "gather": lambda index, x: x.relu().gather(0, index.unsqueeze(1)).exp(),
    "scatter": lambda index, x: (x * 2).scatter(0, index.unsqueeze(1), 1.0).exp(),
    "index_add": lambda index, x: (x * 2).index_add(0, index, torch.ones(2, 4)).exp(),
    "one_hot": lambda index, x: F.one_hot(index, 4) * x[:2],
    "choice": lambda index, x: torch.zeros(2, 4).scatter(1, index.unsqueeze(1), 1.0) * x[:2],
    "division": lambda index, x: ((index + 5) // (9 - index)).unsqueeze(1) * x[:2],
    "loss": lambda index, x: F.cross_entropy(x[:2] * 2, index),
    "margins": lambda index, x: F.multi_margin_loss(x[:2] * 2, index),
    "margins of lists": lambda index, x: F.multilabel_margin_loss(x[:2] * 2, index.repeat(2, 2)),
}


WRITING = {
    "index_copy": lambda index, x: (x * 2).index_copy(0, index, torch.ones(2, 4)).exp(),
    "scatter_add": lambda index, x: (x * 2).scatter_add(0, index.unsqueeze(1), x).exp(),
    "index_put": lambda index, x: (x * 2).index_put((index,), x[0]).exp(),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_changes_nothing_raises_as_eager_does(name: str, training: bool) -> None:
    """Type, text and lines; afterwards it runs compiled again."""
    x = torch.randn(3, 4, requires_grad=training)
    calls = call(GOOD, x), call(GOOD, x), call(BAD, x), call(GOOD, x), call(BAD, x), call(GOOD, x)
    check(lambda: PROGRAMS[name], *calls, captures=1, hits=5)


def test_the_first_compiled_call_may_be_the_one_that_raises() -> None:
    check(lambda: PROGRAMS["embedding"], call(GOOD, torch.randn(3, 4)), call(BAD, torch.randn(3, 4)), call(BAD, torch.randn(3, 4)),
          call(GOOD, torch.randn(3, 4)), captures=1, hits=3)


def test_handlers_of_the_program_run() -> None:
    def program(index, x):
        try:
            return F.embedding(index, x).exp()
        except IndexError:
            return x.sum()
    x = torch.randn(3, 4)
    check(lambda: program, call(GOOD, x), call(GOOD, x), call(BAD, x), call(GOOD, x), captures=1)


@pytest.mark.parametrize("change", [lambda x: x.mul_(2), lambda x: F.dropout(x, 0.1)], ids=["write", "random numbers"])
@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_changes_something_raises_as_eager_does(change, training: bool) -> None:
    """What it has changed is taken back, and the call runs again natively."""
    def program(index, x, weight):
        y = change(x)
        return F.embedding(index, weight) * y

    x, weight = torch.ones(4), torch.randn(3, 4, requires_grad=training)
    calls = call(GOOD, x, weight), call(GOOD, x, weight), call(BAD, x, weight), call(GOOD, x, weight)
    check(lambda: program, *calls, captures=1, hits=3)


def test_effects_handlers_and_checks_of_a_compiled_graph_that_writes() -> None:
    def make():
        state = SimpleNamespace(total=torch.zeros(2, 4), log=[], norm=torch.nn.BatchNorm1d(4))

        def program(index, x):
            state.total.add_(x[:2])
            state.log.append(state.total * 2)
            y = state.norm(x)
            if (x > 100).any():
                raise ValueError("too large")
            try:
                y = F.embedding(index, y).exp()
            except IndexError:
                state.log.append("out of range")
            return y * state.total.sum()
        return program, state
    x = torch.arange(12.0).view(3, 4) / 8
    calls = [call(GOOD, x), call(GOOD, x), call(BAD, x), call(GOOD, x), call(GOOD, x + 100), call(BAD, x + 1), call(GOOD, x)]
    check(make, *calls, captures=1, hits=6)


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_that_writes_to_something_large_raises_its_type(training: bool) -> None:
    """It cannot run again. The traceback names the program's function, and nothing of ours."""
    def program(index, x, weight):
        x.mul_(2)
        return F.embedding(index, weight) * x[:4]

    x, weight = torch.ones(1 << 19), torch.randn(3, 4, requires_grad=training)
    compiled = compile(program)
    with torch.set_grad_enabled(training):
        for _ in range(2):
            compiled(GOOD, x, weight)
        before = x.clone()
        with pytest.raises(IndexError, match="index out of range in self") as caught:
            compiled(BAD, x, weight)
        assert torch.equal(x, before) or torch.equal(x, before * 2)            # not half of it
        assert [frame.name for frame in traceback.extract_tb(caught.tb)][-1] == "program"
        expected = program(GOOD, x.clone(), weight)
        torch.testing.assert_close(compiled(GOOD, x, weight), expected)
    assert runs_compiled(compiled)


@pytest.mark.parametrize("name", ["embedding", "indexing", "gather", "scatter", "index_add", "loss", *WRITING])
def test_a_graph_that_writes_raises_the_operators_type(name: str) -> None:
    def program(index, x, y):
        x.mul_(2)
        return (PROGRAMS | WRITING)[name](index, y)
    compiled = compile(program)
    x, y = torch.ones(3), torch.randn(3, 4)
    for _ in range(2):
        compiled(GOOD, x, y)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        program(BAD, x, y)
    with pytest.raises(eager.type) as ours:
        compiled(BAD, x, y)
    assert ours.type is eager.type and runs_compiled(compiled)


def test_an_exception_in_the_backward_pass_is_autograds() -> None:
    compiled = compile(lambda x: (x.exp() * 2).sum())
    x = torch.randn(4, requires_grad=True)
    for _ in range(2):
        loss = compiled(x)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    loss = compiled(x)
    with pytest.raises(RuntimeError, match="shape"):
        loss.backward(torch.ones(3))


def test_a_saved_tensor_that_was_written_to_is_noticed() -> None:
    compiled = compile(lambda x, y: (x * y).sum())
    for _ in range(2):
        x, y = torch.randn(4, requires_grad=True), torch.randn(4)
        loss = compiled(x, y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_what_is_written_after_an_operation_that_raises_is_as_before() -> None:
    """Also where the kernel that looks at indices could have written at once, and where too much is written to take it back."""
    total, count = torch.zeros(1 << 19), torch.zeros(1 << 19)

    def program(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(index, table) * 2
        total.add_(rows.flatten())
        count.add_(1)
        return rows.sum(-1)
    compiled = compile(program)
    table, index = torch.ones(10, 1), torch.randint(0, 10, (1 << 19,))
    for _ in range(3):
        compiled(table, index)
    assert runs_compiled(compiled)
    before = total.clone(), count.clone()
    with pytest.raises(IndexError):
        compiled(table, torch.cat([index[:-1], torch.tensor([12])]))
    assert torch.equal(total, before[0]) and torch.equal(count, before[1])


def test_a_training_step_raises_the_type_of_its_loss() -> None:
    weight = torch.nn.Parameter(torch.randn(2, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(index):
        optimizer.zero_grad()
        F.cross_entropy(weight * 2, index).backward()
        optimizer.step()
    compiled = compile(step)
    for _ in range(2):
        compiled(GOOD)
    before = weight.detach().clone()
    with pytest.raises(IndexError):
        compiled(BAD)
    assert torch.equal(weight, before)
