"""Gradients of traced graphs behind the runtime's callable, against eager mode: what is saved, what the program does between the
passes, gradients of gradients."""
from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.backends.native.test_runtime import PLAIN, SQUARE, WITH_GRAD, grad, inputs
from tests.backends.native.traced import check, worlds

# --- gradients


@pytest.mark.parametrize("program", [
    lambda x, w: (x @ w,),
    lambda x, w: (F.gelu(x @ w), x.exp() * w[0]),
    lambda x, w: (F.layer_norm(x, (3,), w[0], w[1]),),
    lambda x, w: (F.softmax(x @ w, -1), F.log_softmax(x, 0)),
    lambda x, w: (F.scaled_dot_product_attention(x[None], x[None], (x @ w)[None]),),
    lambda x, w: (F.cross_entropy(x @ w, torch.arange(4, device=x.device) % 3),),
    lambda x, w: (F.embedding(torch.arange(3, device=x.device) % 2, w) * x[:3],),
    lambda x, w: (F.conv1d(x[None].transpose(1, 2), w[:, :, None]),),
    lambda x, w: (F.max_pool1d(x[None], 2) * w[0, 0],),
], ids=range(9))
def test_gradients(program):
    check(program, inputs(WITH_GRAD, SQUARE), 1e-5)


def test_no_gradients_for_what_is_frozen():
    both = check(lambda x, w, b: (F.linear(x, w, b).relu(),), inputs(PLAIN, SQUARE, lambda: torch.randn(3)))
    assert [index for index, _ in both.traced.signature.gradients] == [1]


def test_inputs_without_gradient_are_not_connected():
    both = check(lambda x, y: (x * y.detach(),), inputs(WITH_GRAD, WITH_GRAD))
    assert len(both.traced.signature.gradients) == 1
    x, y = grad(4, 3), grad(4, 3)
    y.register_hook(lambda g: pytest.fail("no gradient flows there"))
    both.compiled(x, y)[0].sum().backward()
    assert y.grad is None


@pytest.mark.parametrize("used", [[0], [1], [2], [0, 2]], ids=str)
def test_some_outputs_used(used):
    both = worlds(lambda x, w: (x @ w, x * 2, w.exp()), [grad(3, 3), grad(3, 3)])
    x, w = grad(3, 3), grad(3, 3)
    ours, theirs = ([call(x, w)[i] for i in used] for call in (both.compiled, both.gm))
    gradients = [torch.autograd.grad([t.sum() for t in outputs], [x, w], allow_unused=True) for outputs in (ours, theirs)]
    for a, b in zip(*gradients):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b)


def test_tangents_of_any_layout():
    both = worlds(lambda x: (x.sin(),), [grad(4, 3)])
    x = grad(4, 3)
    for tangent in (torch.ones(3, 4).t(), torch.ones(1).expand(4, 3), torch._efficientzerotensor((4, 3)),
                    torch.eye(4, 3).to_sparse()):
        found = [torch.autograd.grad(call(x)[0], x, tangent)[0] for call in (both.compiled, both.gm)]
        torch.testing.assert_close(*found)


def test_accumulated_gradients_are_separate():
    both = worlds(lambda x, y: (x + y,), [grad(3), grad(3)])
    x, y = grad(3), grad(3)
    both.compiled(x, y)[0].sum().backward()
    x.grad.add_(1)
    assert torch.equal(y.grad, torch.ones(3))
    both.compiled(x, y)[0].sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0)) and torch.equal(y.grad, torch.full((3,), 2.0))


def test_retain_graph():
    both = worlds(lambda x: (x.exp(),), [grad(3)])
    x = torch.zeros(3, requires_grad=True)
    (y,) = both.compiled(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_saved_tensors_are_freed():
    both = worlds(lambda x, w: ((x @ w).exp(), x + 1), [torch.randn(3, 3), grad(3, 3)])
    x, w = torch.randn(3, 3), grad(3, 3)
    y, _ = both.compiled(x, w)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is not None
    y.sum().backward()
    gc.collect()
    assert alive() is None


def test_no_reference_cycles():
    both = worlds(lambda x, w: ((x @ w).exp(),), [torch.randn(3, 3), grad(3, 3)])
    gc.collect()
    gc.disable()
    try:
        (y,) = both.compiled(torch.randn(3, 3), grad(3, 3))
        alive = weakref.ref(y)
        del y
        assert alive() is None
    finally:
        gc.enable()


# --- what the program does between the passes


@pytest.mark.parametrize("program", [lambda x, w: (x @ w,), lambda x, w: (x @ w.t(),), lambda x, w: (F.linear(x, w).exp(),)],
                         ids=range(3))
@pytest.mark.parametrize("which", [0, 1])
def test_changed_inputs_are_noticed(program, which):
    both = worlds(program, [grad(3, 3), grad(3, 3)])
    arguments = [grad(3, 3), grad(3, 3)]
    (y,) = both.compiled(*arguments)
    with torch.no_grad():
        arguments[which].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_changed_output_is_noticed():
    both = worlds(lambda x: (x.exp(),), [grad(3)])
    (y,) = both.compiled(grad(3))
    z = y * 1
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_changes_of_outputs_are_differentiable():
    def use(call, x):
        y, z = call(x)
        y.mul_(3)
        z[0] = 0
        return (y * z).sum()
    both = worlds(lambda x: (x + 1, x * 2), [grad(3)])
    x = grad(3)
    assert torch.equal(*(torch.autograd.grad(use(call, x), x)[0] for call in (both.compiled, both.gm)))


def test_changes_through_views_are_differentiable():
    def use(call, x):
        y, z = call(x)
        z.mul_(3)
        return (y * y).sum()
    both = worlds(lambda x: (lambda y: (y, y[1:]))(x * 2), [grad(3)])
    x = grad(3)
    assert torch.equal(*(torch.autograd.grad(use(call, x), x)[0] for call in (both.compiled, both.gm)))


def test_saved_tensor_hooks():
    both = worlds(lambda x, w: ((x @ w).exp(), x + w), [grad(3, 3), grad(3, 3)])
    x, w = grad(3, 3), grad(3, 3)
    packed = []
    with saved_tensors_hooks(lambda t: packed.append(t) or len(packed) - 1, lambda index: packed[index].clone()):
        y, z = both.compiled(x, w)
    assert packed
    ours = torch.autograd.grad([y.sum(), z.sum()], [x, w])
    theirs = torch.autograd.grad([t.sum() for t in both.gm(x, w)], [x, w])
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def test_checkpoint_around_a_compiled_graph():
    both = worlds(lambda x, w: ((x @ w).exp(),), [grad(3, 3), grad(3, 3)])
    x, w = grad(3, 3), grad(3, 3)
    y = checkpoint(lambda *inputs: both.compiled(*inputs)[0], x, w, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(y.sum(), [x, w]), torch.autograd.grad(both.gm(x, w)[0].sum(), [x, w])):
        torch.testing.assert_close(a, b)


def test_hooks_on_inputs_and_outputs():
    both = worlds(lambda x: (x * 2,), [grad(3)])
    x = grad(3)
    x.register_hook(lambda g: g * 5)
    (y,) = both.compiled(x)
    y.register_hook(lambda g: g * 7)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 70.0))


# --- gradients of gradients


@pytest.mark.parametrize("program", [
    lambda x, w: ((x @ w).tanh(), x * w),
    lambda x, w: (lambda y: (y[0] * 2, y.t(), y))(x * w),
    lambda x, w: (lambda y: (y[0], y[1]))(x.sin() * w),
    lambda x, w: (w.view(-1), (x @ w).exp()),
    lambda x, w: (F.layer_norm(x @ w, (3,)),),
], ids=range(5))
def test_second_derivatives(program):
    both = worlds(program, [grad(3, 3, dtype=torch.float64), grad(3, 3, dtype=torch.float64)])
    arguments = [grad(3, 3, dtype=torch.float64), grad(3, 3, dtype=torch.float64)]
    assert torch.autograd.gradcheck(both.compiled, arguments)
    assert torch.autograd.gradgradcheck(both.compiled, arguments)


def test_second_derivatives_are_partial():
    """One input of the graph was computed from another one."""
    both = worlds(lambda x, y: (x * y,), [grad(3), grad(3)])
    def use(call):
        x = torch.arange(3.0).requires_grad_()
        z = call(x, x.exp())[0]
        (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        return first.detach(), torch.autograd.grad(first.sum(), x)[0]
    for a, b in zip(use(both.compiled), use(both.gm)):
        torch.testing.assert_close(a, b)


def test_second_derivatives_of_a_random_graph():
    both = worlds(lambda x: (F.dropout(x.exp(), 0.5) * torch.rand_like(x),), [grad(50)])
    x = grad(50)
    results = []
    for call in (both.compiled, both.gm):
        torch.manual_seed(1)
        (y,) = call(x)
        state = torch.get_rng_state()
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert torch.equal(state, torch.get_rng_state())
        results.append((first, *torch.autograd.grad((first ** 2).sum(), x)))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


def test_second_derivatives_use_the_values_before_a_mutation():
    def program(x, w):
        y = ((x + 0) * w).exp()
        x.zero_()
        return (y,)
    both = worlds(program, [torch.ones(3), grad(3)])
    assert both.traced.signature.snapshots == (0,)
    w = grad(3)
    (y,) = both.compiled(torch.full((3,), 2.0), w)
    (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    torch.testing.assert_close(second, 4 * (2 * w).exp().detach())


def test_second_derivatives_notice_changed_inputs():
    both = worlds(lambda x, b: (x.exp() + b * b.detach(),), [grad(3), grad(3)])
    x, b = grad(3), grad(3)
    (y,) = both.compiled(x, b)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_batched_gradients():
    both = worlds(lambda x, w: (x.sin() @ w,), [grad(4, 3), grad(3, 3)])
    x, w = grad(4, 3), grad(3, 3)
    tangents = torch.randn(5, 4, 3)
    ours, theirs = (torch.autograd.grad(call(x, w)[0], (x, w), tangents, is_grads_batched=True)
                    for call in (both.compiled, both.gm))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def test_gradients_of_gradients_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        both = worlds(lambda x, w: ((x @ w).float().exp(),), [grad(3, 3), grad(3, 3)])
        x, w = grad(3, 3), grad(3, 3)
        results = [both.compiled(x, w)[0], both.gm(x, w)[0]]
    seconds = []
    for y in results:
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.sum(), w)[0])
    torch.testing.assert_close(*seconds, rtol=2e-2, atol=2e-2)
