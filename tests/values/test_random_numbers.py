"""Random numbers and clock readings that enter tensor operations are inputs of the graph: drawn before it runs, from the same
streams and in the same order as in eager mode."""
from __future__ import annotations

import contextlib
import logging
import os
import random
import textwrap
import time
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CALLS = call(X), call(X + 1), call(-X), call(X * 3)
LOGGER = logging.getLogger("tests.random_numbers")
GENERATOR = numpy.random.default_rng(0)
STREAM = random.Random(5)
str(X)                                              # torch imports, and warns, at the first use only


def one_graph(make, *steps, **options):
    """The program is one graph without a break, captured once, and the same as in eager mode."""
    return check(make, *(steps or CALLS), graphs=1, breaks=0, **options)


# --- what becomes an input

def scales(x):
    return x * random.random()


def scales_by_numpy(x):
    return x * numpy.random.uniform() + numpy.random.normal(0.0, 2.0) - numpy.random.randint(1, 5)


def fills(x):
    return torch.full((), random.gauss(0, 1)) + x, torch.tensor(random.random()), torch.full_like(x, random.uniform(1, 2))


def mixes_up(x):
    lam = numpy.random.beta(0.4, 0.4)
    perm = torch.randperm(x.size(0))
    return lam * x + (1 - lam) * x[perm], lam


def weighs_losses(x):
    lam = max(0.5, random.betavariate(1.0, 1.0))
    loss = lam * F.mse_loss(x, x * 2) + (1 - lam) * F.l1_loss(x, x * 2)
    print(f"loss {loss:.3f} with {lam:.2f}")
    return loss


def picks_a_row(x):
    row = x[random.randint(0, 1)]
    return row * 2, x[:, random.randrange(2)], x[[random.randrange(2), 0]]


def adds_noise(x):
    sigma = abs(random.gauss(0, 1)) / 10
    return x + torch.randn_like(x) * sigma, x.clone().uniform_(0.0, sigma + 1.0)


def writes(x):
    x[0] = random.random()
    x.mul_(random.uniform(1, 2)).clamp_(max=random.randint(1, 3))
    return x


def a_list_of_draws(x):
    return torch.tensor([random.random() for _ in range(2)]) * x


def draws_with_draws(x):
    low = random.random()
    return x * random.uniform(low, low + 1), random.choice([0.5, 1.0, 2.0]) * x, x * random.choice((1, 2, 3))


def calculates(x):
    r = random.random()
    return x * (2 * r - 1), x * -r, x * (r + 1) ** 2, x * round(r, 2), x * int(10 * r), x * (r / 2 if x.dim() else r)


def many_streams(x):
    a, b = STREAM.random(), GENERATOR.random()
    return x * a, x * b, x * GENERATOR.uniform(1, 2), x + random.random()


def with_items_of_tensors(x):
    r = random.random()
    return x * (r * x.sum().item()), x - (1 - r) * x.max().item()


def draws_that_are_shown_and_used(x):
    r = random.random()
    print("before", r, x.sum())
    LOGGER.info("drawn %s", r)
    s = random.random()
    print("after", s)
    return x * s + r, r, s


def draws_after_a_seed(x):
    random.seed(3)
    numpy.random.seed(4)
    return x * random.random() + numpy.random.rand()


def seconds(x):
    return x * (time.time() > 0), torch.tensor(time.perf_counter()) > 0


def samples(x):
    rows = random.sample(range(2), 2)
    order = [0, 1]
    random.shuffle(order)
    return x[rows], x[order], rows, order, x * random.choices([0.5, 2.0], weights=[1, 3], k=2)[0]


def crops(x):
    i = random.randint(0, 1)
    return x[i:i + 1] * 2, i


@pytest.mark.parametrize("program", [
    scales, scales_by_numpy, fills, mixes_up, weighs_losses, picks_a_row, adds_noise, writes, a_list_of_draws, draws_with_draws,
    calculates, many_streams, with_items_of_tensors, draws_that_are_shown_and_used, draws_after_a_seed, samples, crops],
    ids=lambda program: program.__name__)
def test_numbers_that_are_drawn(program) -> None:
    def make():
        STREAM.seed(5)
        GENERATOR.bit_generator.state = numpy.random.default_rng(0).bit_generator.state
        return program
    one_graph(make)


def test_gradients_flow_past_them() -> None:
    def make():
        model = nn.Linear(2, 2)

        def program(x):
            lam = random.random()
            return (model(x * lam) * (1 - lam)).sum()
        return program, model
    one_graph(make, *CALLS, backward=True)


def test_a_stream_that_the_state_holds() -> None:
    def make():
        state = SimpleNamespace(stream=random.Random(1), numpy=numpy.random.RandomState(2), calls=0, log=[])

        def program(x):
            state.calls += 1
            r = state.stream.random()
            state.log.append(r)
            return x * r * state.numpy.uniform(0, state.calls)
        return program, SimpleNamespace(log=state.log, at=lambda: state.stream.getstate())
    one_graph(make)


def test_clocks_are_read_before_the_graph() -> None:
    compiled = capture.compile(lambda x: (x * time.time(), x), fullgraph=True, backend="eager")
    for _ in range(3):
        before = time.time()
        product, _ = compiled(torch.ones(1, dtype=torch.float64))
        assert before <= product.item() <= time.time()
    assert capture.stats(compiled).hits == 2


def test_the_native_backend_takes_them() -> None:
    def program(x):
        r = random.random()
        return (x * r).sin() + (1 - r)
    check(lambda: program, *CALLS, *CALLS, backend="native", options={"background": False}, tolerance=1e-6)


# --- what stays a decision

def drops_a_path(x):
    if random.random() < 0.5:
        return x
    return x * 2


def forces_a_teacher(x):
    outputs = []
    state = x[0]
    for step in range(3):
        state = (state * 1.5).tanh()
        if random.random() < 0.5:
            state = x[1]
        outputs.append(state)
    return torch.stack(outputs)


def makes_sizes(x):
    return torch.zeros(random.randint(1, 3)), x * 2


def drops_out(x):
    return F.dropout(x, random.random()) * 2


@pytest.mark.parametrize("program", [drops_a_path, forces_a_teacher, makes_sizes, drops_out],
                         ids=lambda program: program.__name__)
def test_numbers_that_decide_cut_and_are_not_guarded(program) -> None:
    steps = [call(X * n) for n in range(12)]
    stats = check(lambda: program, *steps, captures=None, fullgraph=False)
    assert stats.breaks and stats.hits and not stats.bailouts and not stats.native_calls and stats.captures <= 9, stats


# --- order

def test_a_draw_after_something_that_may_draw_is_not_moved() -> None:
    class Chatty:
        def __str__(self):
            return f"drew {random.random()}"

    def make():
        chatty = Chatty()

        def program(x):
            print(chatty)
            return x * random.random()
        return program
    check(make, *CALLS, captures=None, fullgraph=False)


def test_a_choice_from_a_list_that_was_changed_before() -> None:
    def make():
        state = SimpleNamespace(scales=[1.0, 2.0])

        def program(x):
            state.scales.append(3.0)
            return x * random.choice(state.scales)
        return program, state
    check(make, *CALLS, captures=None, fullgraph=False)


def test_a_choice_from_a_list_that_grows_between_calls() -> None:
    def make():
        state = SimpleNamespace(scales=[1.0, 2.0])

        def program(x):
            return x * random.choice(state.scales)
        return program, state
    steps = []
    for n in range(12):
        steps += [lambda state: state.scales.append(len(state.scales) * 1.0), call(X)]
    stats = check(make, *steps, captures=None, fullgraph=False)
    assert stats.captures <= 4, stats


def test_a_number_of_another_type() -> None:
    def make():
        state = SimpleNamespace(low=1, high=2)

        def program(x):
            return x.to(torch.int64) * random.choice([state.low, state.high])
        return program, state
    check(make, call(X), call(X), lambda state: setattr(state, "low", 1.0), call(X),
          lambda state: setattr(state, "high", 2.5), call(X), call(X), captures=None, fullgraph=False)


def test_a_graph_that_raises_on_a_hit_has_drawn_before() -> None:
    def program(x, index):
        scale = random.random()
        return x[index] * scale
    states = []
    for engine in (lambda function: function, lambda function: capture.compile(function, backend="eager")):
        function = engine(program)
        random.seed(1)
        for index in (0, 1, 1, 7):
            with pytest.raises(IndexError) if index == 7 else contextlib.nullcontext():
                function(X, torch.tensor([index]))
        states.append(random.getstate())
    assert states[0] == states[1]


class Noisy(torch.autograd.Function):
    """Multiplies by a random number of Python's."""

    @staticmethod
    def forward(ctx, x):
        return x * random.random() * numpy.random.rand()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_handler_of_torch_puts_the_state_back() -> None:
    """A function in a file of torch's sets the state for a while: the operation that raises there on a hit does not end that."""
    made = {"torch": torch, "contextlib": contextlib}
    exec(compile(textwrap.dedent("""
        @contextlib.contextmanager
        def state_kept():
            state = torch.get_rng_state()
            try:
                yield
            finally:
                torch.set_rng_state(state)

        def drawn(x):
            with state_kept():
                torch.manual_seed(3)
                result = x.multinomial(2)
            return result
        """), os.path.join(os.path.dirname(torch.__file__), "made_by_a_test.py"), "exec"), made)
    good, bad = (call(torch.tensor(values)) for values in ([1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]))
    check(lambda: made["drawn"], good, good, bad, good, captures=None, fullgraph=False)


def test_an_autograd_function_that_draws_keeps_its_place() -> None:
    def program(x):
        first = random.random()
        y = Noisy.apply(x)
        return y, first, x * random.random(), x * numpy.random.rand()
    stats = check(lambda: program, *CALLS, *CALLS, captures=None, fullgraph=False)
    assert stats.breaks and stats.hits and not stats.bailouts, stats
