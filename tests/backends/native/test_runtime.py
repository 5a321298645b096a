"""Traced graphs behind the runtime's callable, against eager mode."""
from __future__ import annotations

import gc
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from capture.backends.aot import trace
from capture.backends.native.runtime import make_callable, picker
from capture.backends.native.signature import Signature, Unsupported
from tests.backends.native.traced import agree, check, fx_backward, fx_forward, specs, worlds


def grad(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def inputs(*makers):
    """A function that makes the same inputs each time: `Tensor`s as they are made by the makers under a fixed seed."""
    def make():
        torch.manual_seed(11)
        return [maker() for maker in makers]
    return make


PLAIN, WITH_GRAD = lambda: torch.randn(4, 3), lambda: grad(4, 3)
SQUARE = lambda: grad(3, 3)

# --- outputs: new, several, unused, of other dtypes


@pytest.mark.parametrize("make", [PLAIN, WITH_GRAD], ids=["inference", "training"])
@pytest.mark.parametrize("program", [
    lambda x: (torch.sin(x) * 2,),
    lambda x: (x * 2, x.sum(), x > 0, x.argmax(1)),
    lambda x: (x.argmax(1), (x * 3).sum(0)),
    lambda x: (x.new_zeros(3), x + 1, torch.arange(5, device=x.device)),
    lambda x: (x.t() * 2, x[:, 1:] + 1),
    lambda x: (x.to(torch.float64) * 2, x.to(torch.int32)),
    lambda x: (x.clone(),),
    lambda x: (x.detach() * 2, x * 2),
    lambda x: (x.expand(2, 4, 3) * 1, x.contiguous() + 1),
], ids=range(9))
def test_outputs(program, make):
    check(program, inputs(make), 1e-6)


# --- aliases


@pytest.mark.parametrize("make", [PLAIN, WITH_GRAD], ids=["inference", "training"])
@pytest.mark.parametrize("program", [
    lambda x: (x,),
    lambda x: (x, x * 2),
    lambda x: (x.view(-1), x * 2),
    lambda x: (x.t(), x[1:], x[:, 1], x.unsqueeze(0), x * 3),
    lambda x: (x.detach(), x * 2),
    lambda x: (x.detach().view(-1), x.view(2, 6).t()[1:], x * 2),
    lambda x: (x.expand(2, 4, 3), x * 2),
    lambda x: (lambda y: (y, y.view(-1)))(x * 2),
    lambda x: (lambda y: (y[0], y[1], y.t()))(x * 2),
    lambda x: (lambda y: (y, y.detach()))(x * 2),
    lambda x: (lambda y: (y.detach().view(-1), y))(x * 2),
    lambda x: (lambda y: (y, y[1:], y[1:].mT))(F.linear(x.view(2, 2, 3), x[:2])),
    lambda x: (lambda y: (y, y))(x + 1),
    lambda x: (x.reshape(4, 3), x.contiguous(), x.float(), x + 1),
    lambda x: (torch.view_as_complex(x.view(6, 2)), x + 1),
    lambda x: (x.detach().view(torch.int32), x + 1),
    lambda x: (x.data, x + 1),
    lambda x: (lambda y: (y.data, y * 2))(x.exp()),
    lambda x: (lambda y: (y.detach(), y * 2))(x.exp()),
    lambda x: (torch.cat([x, x])[-3:],),
    lambda x: (x[None].transpose(0, 1).expand_as(x[None].expand(4, 4, 3)), F.linear(x[None], x, x.sum(1))),
    lambda x: (lambda y: (y.mul_(2), y[1:].add_(1)))(x + 1),
    lambda x: (lambda y: (y.data.mul_(2), y))(x + 1),
    lambda x: (F.linear(x[None], x, x.sum(1))[:, 1:].transpose(0, 1), x + 1),
], ids=range(24))
def test_aliases(program, make):
    check(program, inputs(make), 1e-6)


@pytest.mark.parametrize("make", [PLAIN, WITH_GRAD], ids=["inference", "training"])
@pytest.mark.parametrize("program", [
    lambda x: (lambda y: (y[0], y[2]))((x * 2).unbind(0)),
    lambda x: (lambda y: (y[0], y[1], x * 2))((x * 2).chunk(2, 1)),
], ids=["unbind", "chunk"])
def test_several_views_of_one_operation(program, make):
    """Where they need gradients, eager mode forbids to write to them."""
    check(program, inputs(make))
    both = worlds(program, inputs(make)())
    texts = []
    for call in (both.compiled, both.gm):
        outputs = call(*inputs(make)())
        try:
            outputs[0].add_(1)
        except RuntimeError as error:
            texts.append(str(error))
    assert len(texts) == (2 if make is WITH_GRAD else 0) and len(set(texts)) <= 1


@pytest.mark.parametrize("program", [
    lambda x: (x.view(-1), x, x * 2, x.detach()),
    lambda x: (lambda y: (y, y[1:], y.detach()))(x + 1),
    lambda x: (lambda y: (y[0], y[1:]))(x + 1),
    lambda x: (x.add_(1), x[0]),
], ids=range(4))
@pytest.mark.parametrize("outside", [False, True])
def test_inference_mode(program, outside):
    def make():
        with torch.inference_mode(not outside):
            torch.manual_seed(1)
            return [torch.randn(4, 3)]
    with torch.inference_mode():
        check(program, make)


def test_views_are_relative_to_the_offset_of_the_input():
    both = worlds(lambda x: (x[1:], x * 2), [torch.randn(4, 3)])
    x = torch.randn(9, 3)[3:7]
    agree([x, *both.compiled(x)], [x, *both.gm(x)])


def test_views_made_without_gradients():
    gm = in_no_grad(lambda graph, x: graph.call_method("view", (x, -1)), lambda graph, x: graph.call_function(torch.mul, (x, 2)))
    check(gm, inputs(WITH_GRAD))


def in_no_grad(*operations) -> fx.GraphModule:
    """A graph of one input; the first operation runs without gradients."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    results = [operations[0](graph, x)]
    graph.call_function(torch._C._set_grad_enabled, (True,))
    results += [operation(graph, x) for operation in operations[1:]]
    graph.output(tuple(results))
    return fx.GraphModule({}, graph)


def test_part_without_gradients():
    gm = in_no_grad(lambda graph, x: graph.call_function(torch.sin, (x,)), lambda graph, x: graph.call_function(torch.cos, (x,)))
    check(gm, inputs(WITH_GRAD), 1e-6)


def test_grad_mode_left_behind():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.sin, (x,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((y,))
    both = worlds(fx.GraphModule({}, graph), [grad(3)])
    assert torch.is_grad_enabled()
    try:
        (result,) = both.compiled(grad(3))
        assert not torch.is_grad_enabled() and result.requires_grad
    finally:
        torch.set_grad_enabled(True)


# --- mutation


def add_in_place(x, y):
    x.add_(1)
    return x * y, x


def add_to_view(x, y):
    x[1:].mul_(2)
    return x[1:], x * y


def mutate_after_use(x, y):
    z = x * y
    x.zero_()
    return (z,)


def mutate_only(x, y):
    x.copy_(y.detach())
    return ()


def mutate_detached(x, y):
    x.detach().add_(1)
    return (x * y,)


def mutate_data(x, y):
    x.data.add_(1)
    return (x * y,)


def mutate_two(x, y):
    x.add_(1)
    z = x.view(-1)
    z.mul_(2)
    return z, x, y * 2


def mutate_intermediate(x, y):
    z = y * 2
    v = z[1:]
    v.add_(1)
    return z, v, x


@pytest.mark.parametrize("make", [PLAIN, WITH_GRAD], ids=["inference", "training"])
@pytest.mark.parametrize("program", [add_in_place, add_to_view, mutate_after_use, mutate_only, mutate_detached, mutate_data,
                                     mutate_two, mutate_intermediate], ids=lambda f: f.__name__)
def test_mutation(program, make):
    if program is mutate_after_use and make is WITH_GRAD:
        pytest.skip("the backward pass fails in eager mode")
    check(program, inputs(PLAIN, make), 1e-6)


def test_batch_norm_in_training():
    def program(x, mean, var, weight, bias):
        return (F.batch_norm(x, mean, var, weight, bias, training=True),)
    make = inputs(lambda: grad(4, 3, 5, 5), lambda: torch.zeros(3), lambda: torch.ones(3), lambda: grad(3), lambda: grad(3))
    both = check(program, make, 1e-5)
    assert both.traced.signature.written == (1, 2)
    assert both.traced.signature.advanced == ()
    assert both.traced.signature.snapshots == ()


def test_a_parameter_is_written_to_without_gradients():
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    y = graph.call_function(torch.mul, (x, w))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_method("mul_", (w, 0.5))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_method("sum", (y,)),))
    gm = fx.GraphModule({}, graph)
    both = worlds(gm, [torch.randn(3), grad(3)])
    ours, theirs = [[torch.ones(3), torch.full((3,), 2.0).requires_grad_()] for _ in range(2)]
    agree([*ours, *both.compiled(*ours)], [*theirs, *gm(*theirs)])


def test_versions_of_inputs_in_inference_mode():
    with torch.inference_mode():
        both = worlds(add_in_place, [torch.ones(3), torch.ones(3)])
        x, y = torch.ones(3), torch.ones(3)
        z, same = both.compiled(x, y)
        assert same is x and z.is_inference() and torch.equal(x, torch.full((3,), 2.0))


@pytest.mark.parametrize("program", [
    lambda x, y: (y.mul_(2), x),
    lambda x, y: (x.t_() * 2, y),
    lambda x, y: (x.resize_(2, 1) * 1, y),
], ids=["differentiable", "transposed", "resized"])
def test_unsupported(program):
    with pytest.raises(Unsupported):
        trace(fx.symbolic_trace(program), specs([torch.randn(3, 2), grad(3, 2)]))


def test_unsupported_when_written_memory_is_shared():
    x = torch.randn(6)
    with pytest.raises(Unsupported, match="shares its memory"):
        trace(fx.symbolic_trace(add_in_place), specs([x[:3], x[2:5]]))
    trace(fx.symbolic_trace(add_in_place), specs([x[:3], x[3:]]))
    trace(fx.symbolic_trace(lambda x, y: (x * y,)), specs([x[:3], x[2:5]]))


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


# --- the callable itself


def test_signatures_are_plain_data():
    both = worlds(lambda x, w: (lambda y: (y[0], y, x.view(-1)))(x @ w), [torch.randn(3, 3), grad(3, 3)])
    signature = pickle.loads(pickle.dumps(both.traced.signature))
    assert isinstance(signature, Signature) and signature == both.traced.signature
    graphs = fx_forward(both.traced.forward), fx_backward(both.traced.backward)
    again = make_callable(both.gm, signature, *graphs, tail=both.traced.tail)
    x, w = torch.randn(3, 3), grad(3, 3)
    agree(again(x, w), both.gm(x, w))


def test_inputs_of_a_call_are_not_kept():
    both = worlds(lambda x: (x * 2, x.view(-1)), [torch.randn(3)])
    x = torch.randn(3)
    alive = weakref.ref(x)
    y, _ = both.compiled(x)
    del x, _
    gc.collect()
    assert alive() is None


def test_errors_of_the_forward_callable_reach_the_caller():
    both = worlds(lambda x: (x * 2,), [grad(3)])
    def fail(*arguments):
        raise MemoryError("no room")
    call = make_callable(both.gm, both.traced.signature, fail, fx_backward(both.traced.backward))
    with pytest.raises(MemoryError, match="no room"):
        call(grad(3))


@pytest.mark.parametrize("indices", [(), (1,), (2, 0), (0, 0, 1)])
def test_picker(indices):
    assert picker(indices)("abc") == tuple("abc"[i] for i in indices)


def test_hooks_of_the_node_see_the_gradients():
    both = worlds(lambda x: (x.exp(),), [grad(3)])
    seen = []
    for call in (both.compiled, both.gm):
        (y,) = call(torch.ones(3, requires_grad=True))
        y.grad_fn.register_prehook(lambda grads: seen.append([g.tolist() for g in grads]))
        y.sum().backward()
    assert seen[0] == seen[1] == [[1.0, 1.0, 1.0]]
