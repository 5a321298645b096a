"""Random numbers with state of their own: generators, seeds, forked streams; distributions."""
from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import distributions as D

import capture
from tests.helpers import call, call_with, check
from tests.programs import Programs

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
LEAF = X.clone().requires_grad_()
plain, trained = Programs(), Programs()


# --- generators

@plain.make(X)
def a_generator_from_outside():
    state = SimpleNamespace(generator=torch.Generator().manual_seed(5))
    return lambda x: (x + torch.randn(2, 3, generator=state.generator)), state


@plain.make(X)
def methods_that_draw_from_a_generator():
    state = SimpleNamespace(generator=torch.Generator().manual_seed(5))

    def program(x):
        y = x.clone().normal_(generator=state.generator)
        y.uniform_(0, 1, generator=state.generator)
        return y.bernoulli_(0.5, generator=state.generator), torch.randperm(4, generator=state.generator)
    return program, state


@plain.add(X)
def a_generator_made_inside(x):
    generator = torch.Generator()
    generator.manual_seed(3)
    return x + torch.randn(2, 3, generator=generator), torch.rand(1, generator=generator), torch.rand(1)


@plain.add(X)
def a_generator_made_and_seeded_at_once(x):
    g = torch.Generator("cpu").manual_seed(7)
    return x * torch.rand(3, generator=g), torch.multinomial(torch.ones(4), 2, generator=g)


@plain.add(X)
def a_generator_is_returned(x):
    g = torch.Generator().manual_seed(7)
    return x * torch.rand(3, generator=g), torch.rand(2, generator=g), isinstance(g, torch.Generator), g.device


@plain.make(X)
def a_generator_is_seeded_again():
    state = SimpleNamespace(generator=torch.Generator())

    def program(x, seed=11):
        state.generator.manual_seed(seed)
        return torch.randn(3, generator=state.generator) + x
    return program, state


@plain.make(X)
def the_state_of_a_generator():
    state = SimpleNamespace(generator=torch.Generator().manual_seed(2))

    def program(x):
        before = state.generator.get_state()
        a = torch.rand(3, generator=state.generator)
        state.generator.set_state(before)
        return x + a, torch.rand(3, generator=state.generator)
    return program, state


@plain.make(X, change=lambda state: (state.generator.manual_seed(9), torch.manual_seed(12)))
def seeds_that_are_read():
    state = SimpleNamespace(generator=torch.Generator().manual_seed(2), seeds=[])

    def program(x):
        state.seeds.append(state.generator.initial_seed())
        return x * 2, torch.initial_seed(), state.generator.initial_seed() + 1
    return program, state


@plain.make(X, change=lambda state: state.generator.manual_seed(9), captures=2)
def a_seed_that_decides():
    state = SimpleNamespace(generator=torch.Generator().manual_seed(2))
    return lambda x: (x * 2 if state.generator.initial_seed() == 2 else x * 3), state


# --- the global stream

@plain.add(X)
def a_seed(x):
    torch.manual_seed(3)
    return x + torch.randn(2, 3), torch.rand(2)


@plain.add(X)
def a_seed_in_the_middle(x):
    a = torch.randn(3)
    torch.random.manual_seed(1)
    b = torch.randn(3)
    return x + a, b


@plain.add(X)
def a_forked_stream(x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(2, 3)
    return x + noise, torch.randn(2)


@plain.add(X)
def a_forked_stream_without_devices(x):
    with torch.random.fork_rng(devices=[]):
        a = torch.randn(3)
    return x + a, torch.randn(3)


@plain.add(X)
def states_of_the_stream(x):
    before = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(before)
    return x + a, torch.rand(3)


# --- distributions

@trained.add(LEAF)
def a_normal_distribution(x):
    d = D.Normal(x, x.exp())
    return d.rsample(), d.log_prob(torch.zeros(3)), d.entropy()


@trained.add(LEAF, D.kl_divergence, captures=None)     # its function is kept under a pair of classes, a key that no guard looks up
def a_divergence(x, kl):
    return kl(D.Normal(x, x.exp()), D.Normal(0.0, 1.0))


@trained.add(LEAF)
def a_distribution_without_checks(x):
    d = D.Normal(x, x.exp(), validate_args=False)
    return d.rsample(), d.mean, d.variance


@trained.add(LEAF)
def a_categorical_distribution(x):
    d = D.Categorical(logits=x)
    action = d.sample()
    return d.log_prob(action), action, d.entropy(), d.probs


@plain.add(X)
def a_bernoulli_distribution(x):
    d = D.Bernoulli(torch.sigmoid(x))
    return d.sample(), d.log_prob(torch.ones(2, 3))


@trained.add(LEAF)
def an_independent_distribution(x):
    d = D.Independent(D.Normal(x, torch.ones(2, 3)), 1)
    return d.log_prob(torch.zeros(2, 3)), d.event_shape, d.batch_shape


@trained.add(LEAF)
def other_distributions(x):
    p = x.exp()
    return (D.Beta(p, p + 1).log_prob(torch.full((3,), 0.5)), D.Gamma(p, p).log_prob(torch.ones(3)), D.Uniform(x, x + 2).mean,
            D.Laplace(x, p).log_prob(torch.zeros(3)), D.Exponential(p).entropy())


@trained.add(LEAF)
def a_multivariate_normal(x):
    d = D.MultivariateNormal(x, torch.eye(3), validate_args=False)
    return d.log_prob(torch.zeros(3))


@trained.add(LEAF)
def a_transformed_distribution(x):
    d = D.TransformedDistribution(D.Normal(x, 1.0), [D.transforms.TanhTransform(cache_size=1)])
    y = d.rsample()
    return y, d.log_prob(y)


test_values = plain.test()
test_gradients = trained.test(backward=True)


def test_a_generator_is_an_input_of_the_graph() -> None:
    """Another generator, or one in another state, is no reason for another trace."""
    def program(x, generator):
        return x + torch.rand(2, 3, generator=generator)

    def arguments(seed):
        return call_with(lambda state: (X.clone(), torch.Generator().manual_seed(seed)))
    check(lambda: program, arguments(1), arguments(1), arguments(2))


def test_a_generator_or_none() -> None:
    def program(x, generator=None):
        return x + torch.rand(2, 3, generator=generator)
    check(lambda: program, call(X), call(X), call_with(lambda state: (X.clone(), torch.Generator().manual_seed(1))), call(X),
          captures=2)


def test_parameters_that_are_not_valid_are_refused_on_hits() -> None:
    """A check that all of a tensor's values pass stays a check."""
    def program(scale):
        return D.Normal(torch.zeros(3), scale).log_prob(torch.ones(3))
    good, bad = torch.ones(3), torch.tensor([1.0, -1.0, 1.0])
    check(lambda: program, call(good), call(good), call(bad), call(good * 2), captures=None, hits=None)


def test_values_that_are_not_valid_are_refused_on_hits() -> None:
    def program(x):
        return D.Bernoulli(torch.full((3,), 0.5)).log_prob(x)
    check(lambda: program, call(torch.ones(3)), call(torch.zeros(3)), call(torch.full((3,), 2.0)), call(torch.ones(3)),
          captures=None)


def test_a_seed_that_is_given_in_the_call() -> None:
    def program(x):
        torch.manual_seed(5)
        return x * 2, torch.initial_seed(), torch.rand(2)
    check(lambda: program, call(X), call(X), fullgraph=False, captures=None)


def test_a_new_seed() -> None:
    """`torch.seed()` gives another number each time, and all that is drawn after it differs."""
    def program(x):
        seed = torch.seed()
        drawn = torch.rand(2)
        return torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(seed))), seed == torch.initial_seed(), x * 2
    before = torch.get_rng_state()
    try:
        compiled = capture.compile(program, backend="eager")
        for _ in range(3):
            assert compiled(X)[:2] == (True, True)
    finally:
        torch.set_rng_state(before)
