"""Backward passes that start at some of the results of a traced graph, or at one after the other."""
from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch

from tests.backends.native.traced import worlds


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def divided(x, w):
    return x @ w, (x - x).sqrt().sum(), w.exp()


def test_results_that_nobody_asks_a_gradient_of_make_no_nan():
    both = worlds(divided, [grad(3, 3), grad(3, 3)])
    x, w = grad(3, 3), grad(3, 3)
    ours, theirs = (torch.autograd.grad(call(x, w)[0].sum(), [x, w]) for call in (both.compiled, both.gm))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def apart(x, v, w):
    fake = (x @ v).tanh()
    return fake, (fake.detach() @ w).tanh().sum(), (x + x).sum()


def of_the_same_inputs(x, v, w):
    fake = (x @ v).tanh() + w
    return fake, (fake.detach() @ w).tanh().sum() + x.sum() + v.sum(), x + v + w


@pytest.mark.parametrize("program", [apart, of_the_same_inputs], ids=["nodes", "one node"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_results_that_have_nothing_in_common_have_passes_of_their_own(program, order):
    """As in a step of a GAN: weights are changed in between."""
    both = worlds(program, [grad(3, 3), grad(3, 3), grad(3, 3)])
    found = []
    for call in (both.compiled, both.gm):
        torch.manual_seed(0)
        given = [grad(3, 3) for _ in range(3)]
        results = call(*given)
        log = []
        for place in order:
            results[place].sum().backward()
            log += [tensor.grad if tensor.grad is None else tensor.grad.clone() for tensor in given]
            if place < 2:
                with torch.no_grad():
                    given[1 + place].add_(1.0)      # what this pass alone has needed
        with pytest.raises(RuntimeError, match="second time"):
            results[1].sum().backward()
        results[2].sum().backward()         # which has nothing to free
        found.append(log)
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b)


def test_what_has_been_changed_is_noticed_by_the_pass_that_needs_it():
    both = worlds(apart, [grad(3, 3), grad(3, 3), grad(3, 3)])
    for call in (both.compiled, both.gm):
        x, v, w = grad(3, 3), grad(3, 3), grad(3, 3)
        fake, loss, _ = call(x, v, w)
        with torch.no_grad():
            v.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fake.sum().backward()
        loss.backward()
        assert x.grad is None and v.grad is None and w.grad is not None


def test_gradients_of_gradients_of_one_result():
    both = worlds(apart, [grad(3, 3), grad(3, 3), grad(3, 3)])
    found = []
    for call in (both.compiled, both.gm):
        torch.manual_seed(0)
        x, v, w = grad(3, 3), grad(3, 3), grad(3, 3)
        fake, loss, _ = call(x, v, w)
        (first,) = torch.autograd.grad(fake.square().sum(), [v], create_graph=True)
        (first.square().sum() + loss).backward()
        found.append((x.grad, v.grad, w.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("program", [apart, of_the_same_inputs], ids=["nodes", "one node"])
def test_a_pass_lets_go_of_what_no_other_needs(program):
    both = worlds(program, [grad(3, 3), grad(3, 3), grad(3, 3)])
    x, v, w = grad(3, 3), grad(3, 3), grad(3, 3)
    fake, loss, _ = both.compiled(x, v, w)
    found = (fake.grad_fn, fake.grad_fn.next_functions[0][0])        # of one node each result has one of its own
    node = weakref.ref(next(one for one in found if hasattr(one, "saved_tensors")))
    del found
    (fake.sum() + loss).backward()
    del fake, loss, _
    gc.collect()
    assert node() is None


@pytest.mark.parametrize("program", [
    lambda x, w: (lambda a, b: (a, b))((x @ w).sin(), (x + w).cos()),
    lambda x, w: (lambda a, b: (b, a))((x @ w).sin(), (x + w).cos()),
    lambda x, w: (lambda pair: (pair[0], pair[1]))(torch.std_mean(x @ w, 0)),
], ids=["as made", "the other way", "of one operation"])
def test_hooks_are_called_in_eager_mode_s_order(program):
    both = worlds(program, [grad(4, 4), grad(4, 4)])
    found = []
    for call in (both.compiled, both.gm):
        results, log = call(grad(4, 4), grad(4, 4)), []
        for place, result in enumerate(results):
            result.register_hook(lambda _, place=place, log=log: log.append(place))
        sum(result.sum() for result in results).backward()
        found.append(log)
    assert found[0] == found[1]
