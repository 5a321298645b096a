"""Traced graphs behind the runtime's callable, against eager mode."""
from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from capture.backends.aot import trace
from capture.backends.native.runtime import make_callable, picker
from capture.backends.native.serialization import decode, encode
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


# --- the callable itself


def test_signatures_are_plain_data():
    both = worlds(lambda x, w: (lambda y: (y[0], y, x.view(-1)))(x @ w), [torch.randn(3, 3), grad(3, 3)])
    signature = decode(Signature, encode(both.traced.signature))
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
