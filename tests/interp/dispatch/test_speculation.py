"""What a trace takes for granted of tensors: checks, and branches in torch's own code.

PYTEST_DONT_REWRITE: assertions are what is tested here.
"""
from __future__ import annotations

import os
import sysconfig
from types import SimpleNamespace

import pytest
import torch
import torch.distributions as D
import torch.nn as nn

import capture
from capture.errors import GraphBreakError
from tests.helpers import call, check

X = torch.tensor([1.0, 2.0, 3.0])
BAD = torch.tensor([1.0, -2.0, 3.0])


def an_assertion(x):
    y = x * 2
    assert (y > 0).all(), "not positive"
    return y + 1


def an_exception(x):
    if (x < 0).any():
        raise ValueError(f"{(x < 0).sum().item()} are negative")
    return x.sqrt() + 1


def after_random_numbers(x):
    y = x + torch.rand(3)
    if not torch.all(y > 0):
        raise RuntimeError("not positive")
    return y * torch.rand(3)


def caught(x):
    try:
        if x.min() < 0:
            raise ValueError("negative")
    except ValueError:
        return x.abs(), "caught"
    return x * 2, "fine"


def several(x):
    assert x.sum() > 0
    y = x.relu()
    assert not torch.isnan(y).any()
    return y + 1


def in_no_grad(x):
    with torch.no_grad():
        assert (x > 0).all()
        return x * 2


def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x > 0).all()
        return torch.outer(x, x) @ x


def printed_before(x):
    print("values come")
    assert (x > 0).all()
    return x * 2


def under_an_operation_that_fails(x):
    assert (x > 0).all()
    return torch.ones(2)[x.argmin()] + x        # of bad values this raises, too, if nobody looked


PROGRAMS = [an_assertion, an_exception, after_random_numbers, several, in_no_grad, in_autocast, printed_before]


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "default"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_check_is_part_of_the_graph(program, fullgraph) -> None:
    stats = check(lambda: program, call(X), call(X), call(BAD), call(X * 2), captures=1, hits=3, fullgraph=fullgraph)
    assert stats.breaks == 0


@pytest.mark.parametrize("program", [caught, under_an_operation_that_fails], ids=lambda f: f.__name__)
def test_what_comes_of_a_check_is_the_programs_own(program) -> None:
    check(lambda: program, call(X), call(X), call(BAD), call(X * 2), captures=None, fullgraph=False)


@pytest.mark.parametrize("expected", [{"captures": None, "fullgraph": False}, {"captures": 1, "hits": 3}], ids=["", "in one graph"])
def test_a_check_before_a_write(expected) -> None:
    """The write is not done on a hit that does not pass the check."""
    def make():
        state = SimpleNamespace(total=torch.zeros(3))

        def program(x):
            assert (x > 0).all()
            state.total += x
            return state.total * 2
        return program, state
    check(make, call(X), call(X), call(BAD), call(X), **expected)


def test_a_check_in_training() -> None:
    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

        def program(x):
            assert torch.isfinite(x).all()
            return model(x)
        return program, model
    x = torch.arange(6.0).view(2, 3)
    check(make, call(x), call(x), call(x / 0), call(x + 1), captures=None, fullgraph=False, backward=False)


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "default"])
def test_a_check_before_running_statistics_are_written(fullgraph) -> None:
    """Which count no version."""
    def make():
        state = SimpleNamespace(mean=torch.zeros(3), var=torch.ones(3))

        def program(x):
            if (x < 0).any():
                raise ValueError("negative")
            return torch.nn.functional.batch_norm(x, state.mean, state.var, training=True)
        return program, state
    x = torch.arange(6.0).view(2, 3)
    check(make, call(x), call(x), call(-x), call(x + 1), captures=None, hits=None, fullgraph=fullgraph)


def test_after_a_large_write_the_trace_ends() -> None:
    def make():
        state = SimpleNamespace(total=torch.zeros(1 << 18, 3))

        def program(x):
            state.total += x
            assert (state.total > 0).all()
            return state.total.sum(0)
        return program, state
    stats = check(make, call(X), call(X), call(BAD * 10), call(X), captures=None, fullgraph=False)
    assert stats.breaks > 0


def a_normal_distribution(x):
    return D.Normal(x, x).log_prob(x + 1)


def of_several_dimensions(x):
    return D.MultivariateNormal(x, torch.diag(x)).log_prob(x + 1)


def a_sample(x):
    d = D.Gamma(x, x)
    return d.rsample(), d.entropy()


@pytest.mark.parametrize("program", [a_normal_distribution, of_several_dimensions, a_sample], ids=lambda f: f.__name__)
def test_distributions(program) -> None:
    stats = check(lambda: program, call(X), call(X), call(BAD), call(X * 2), captures=1, hits=None, fullgraph=False)
    assert stats.breaks == 0


def test_a_branch_of_torchs_own_goes_the_other_way() -> None:
    """torch.nn compares the mask with the causal one. It is supposed to be so again; once it is not, traces end there."""
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 1, enable_nested_tensor=False)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    open_ = torch.zeros(3, 3)
    x = torch.randn(2, 3, 4)
    program = capture.compile(lambda x, mask: layer(x, mask=mask), backend="eager")

    def same(mask):
        torch.testing.assert_close(program(x, mask), layer(x, mask=mask))
    for mask in (causal, causal):
        same(mask)
    assert capture.stats(program).breaks == 0 and capture.stats(program).hits == 1
    for mask in (open_, causal, open_, causal, open_):
        same(mask)
    assert capture.stats(program).breaks > 0


def test_a_branch_in_the_program_is_not_taken_for_granted() -> None:
    def program(x):
        if x.sum() > 0:
            return x + 1
        return x - 1
    stats = check(lambda: program, call(X), call(X), call(-X), call(-X), captures=None, fullgraph=False)
    assert stats.breaks > 0


def of_an_installed_package(source, name):
    """A function as if it had been imported from an installed package."""
    scope = {"torch": torch}
    exec(compile(source, os.path.join(sysconfig.get_path("purelib"), "some_package", "masks.py"), "exec"), scope)
    return scope[name]


MASKS = """
def masked(x, mask):
    if mask.all():
        return x
    return x.masked_fill(~mask, -1.0)

def length(x, mask):
    return x * int(mask.sum())
"""


def test_an_installed_package_is_taken_to_go_on_as_it_did() -> None:
    masked = of_an_installed_package(MASKS, "masked")
    full, partial = torch.tensor([True, True, True]), torch.tensor([True, False, True])
    def make():
        return lambda x, mask: masked(x * 2, mask) + 1
    check(make, call(X, full), call(BAD, full), call(X, partial), call(X, full), captures=None)
    check(make, call(X, full), call(X, partial), call(X, partial), call(X, full), fullgraph=False, captures=None)


def test_the_program_itself_is_not() -> None:
    def program(x):
        return x if x.sum() > 0 else -x
    with pytest.raises(GraphBreakError):
        capture.compile(program, fullgraph=True)(X)


def test_numbers_that_an_installed_package_reads_are_not() -> None:
    length = of_an_installed_package(MASKS, "length")
    full, partial = torch.tensor([True, True, True]), torch.tensor([True, False, True])
    check(lambda: lambda x, mask: length(x, mask), call(X, full), call(X, partial))


def attends(query, key, value):
    same = torch.equal(query, key) and torch.equal(key, value)
    if same:
        return query * 3
    return query + key if not key.equal(value) else query + value


Y, Z = X * 2, X * 3


def test_tensors_are_equal_as_a_whole_until_they_are_not() -> None:
    calls = [call(X, X, X), call(Y, Y, Y)]
    check(lambda: attends, *calls, *calls, captures=1)
    check(lambda: attends, call(X, Y, Y), call(Y, Z, Z), call(X, Y, Y), captures=1)
    others = [call(X, Y, Z), call(X, Y, Y), call(X, X, Y), call(BAD, BAD.clone(), BAD)]
    stats = check(lambda: attends, *calls, *others, *calls, *others, captures=None, fullgraph=False)
    assert stats.breaks and stats.hits


def test_what_is_not_a_number_is_not_equal() -> None:
    nan = torch.tensor([1.0, float("nan"), 2.0])
    check(lambda: attends, call(X, X, X), call(nan, nan, nan), call(X, X, X), call(nan, nan, nan), captures=None, fullgraph=False)
