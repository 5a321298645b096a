"""Results that are computed from other results, or from inputs of their own: hooks, `retain_grad` and gradients of inner results
are eager mode's, and hooks of leaves that a pass does not come to are not called."""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from capture.backends.aot import trace
from capture.backends.native.signature import Input, Unsupported
from tests.backends.native.traced import Worlds, relations, specs, worlds


def make() -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(4, 4, dtype=torch.float64).requires_grad_() for _ in range(2)]      # exponentials grow large


def loss_of_a_product(x, w):
    a = x @ w
    return a, a.sin().sum()


def input_in_both(x, w):
    a = x @ w
    return a, (a * x).sigmoid().mean() + w.square().mean()


def logits_and_loss(x, w):
    logits = F.linear(x.view(2, 2, 4), w, w[0])
    return logits, F.cross_entropy(logits[:, 1:].reshape(-1, 4), torch.arange(2, device=x.device))


def chain(x, w):
    a = (x @ w).tanh()
    b = (a @ w).tanh()
    c = (b @ w).tanh()
    return c, a, (c * a).sum(), b


def autoencoder(x, w):
    hidden = (x @ w).relu()
    mean, deviation = hidden @ w, hidden.exp()
    code = mean + 0.1 * deviation
    output = (code @ w.t()).sigmoid()
    return output, mean, deviation, (output - x).square().mean() + mean.square().mean()


def features_in_both(x, w):
    features = (x @ w).tanh().exp()
    logits = features @ w
    return logits, logits.softmax(-1).square().sum() + features.mean(), (features + x).sum()


def view_of_an_input(x, w):
    rows = x[1:]
    return rows, (rows @ w).sum() + x.sum(), rows.exp()


def written_in_place(x, w):
    a = x @ w
    a.mul_(2)
    a.relu_()
    return a, (a @ w).sum()


def parts_of_one(x, w):
    q, k = (x @ w).chunk(2)
    scores = q @ k.t()
    return q, k, scores, scores.softmax(-1).sum(0)


def several_of_one_operation(x, w):
    values, places = (x @ w).sort(0)
    std, mean = torch.std_mean(values, 0)
    return values, places, std, mean, ((values - mean) / std).square().sum() + std.sum()


def with_a_view_of_it(x, w):
    a = (x @ w).sigmoid()
    rows = a.view(-1)[4:]
    return rows, rows.sum() + a.square().sum(), a


def counts_and_detached(x, w):
    a = x @ w
    return (a > 0).sum(), a.detach(), a, a.mean(), x.argmax(), w + 1


def inputs_of_their_own(x, w):
    return x @ w, x.sin() + x.sum(), w.exp().sum(), (w * w).sigmoid()


def heads(x, w):
    hidden = x.sin()
    return (hidden @ w).softmax(-1), hidden.mean(), x.exp()


def weights_and_what_they_weigh(x, w):
    out, weights = F.multi_head_attention_forward(
        x[None], x[None], x[None], 4, 2, w.repeat(3, 1), None, None, None, False, 0.0, w, None, average_attn_weights=False)
    return out, weights


def sums_in_each_row(x, w):
    a = x * w
    sums = a.sum(0).expand(4, 4)
    return a, x.exp(), x.sum(0, keepdim=True).expand(4, 4), sums, sums.t() * 2


def states_of_a_cell(x, w):
    wide = w.repeat(4, 1)
    h, c = torch.lstm_cell(x, (w, x), wide, wide, None, None)
    return c, (h @ w).sum(), h


PROGRAMS = [inputs_of_their_own, heads, weights_and_what_they_weigh, states_of_a_cell, loss_of_a_product,
            sums_in_each_row, input_in_both, logits_and_loss, chain, autoencoder, features_in_both, view_of_an_input,
            written_in_place, parts_of_one, several_of_one_operation, with_a_view_of_it, counts_and_detached]

# --- what is done with the results `r` that have gradients, and the inputs `a`; `see` notes a gradient

Use = Callable[[Sequence[Tensor], Sequence[Tensor], Callable[[str], Callable[[Tensor | None], None]]], Any]


def watched_all(r, a, see):
    for place, tensor in enumerate(r):
        tensor.register_hook(see(f"hook {place}"))
        tensor.retain_grad()
    for place, leaf in enumerate(a):
        leaf.register_hook(see(f"leaf {place}"))


def each_alone(r, a, see):
    watched_all(r, a, see)
    for tensor in r:
        tensor.exp().sum().backward(retain_graph=True)


def all_together(r, a, see):
    watched_all(r, a, see)
    sum((t * (t + place)).sum() for place, t in enumerate(r)).backward()


def changed_by_hooks(r, a, see):
    for place, tensor in enumerate(r):
        tensor.register_hook(see(f"before {place}"))
        tensor.register_hook(lambda g, place=place: g * (place + 2))
        tensor.register_hook(see(f"behind {place}"))
    for tensor in r:
        tensor.sum().backward(retain_graph=True)


def gradients_between(r, a, see):
    return [torch.autograd.grad(t.exp().sum(), others, retain_graph=True, allow_unused=True)
            for t in r for others in ([*r, *a], [*r], [r[0]], [a[1]])]


def into_inner_ones(r, a, see):
    watched_all(r, a, see)
    for tensor in r:
        for other in r:
            tensor.sin().sum().backward(inputs=[other], retain_graph=True)
    return [tensor.grad for tensor in r]


def twice(r, a, see):
    watched_all(r, a, see)
    r[-1].exp().sum().backward()
    r[0].sum().backward()


def gradients_of_gradients(r, a, see):
    handles = [tensor.register_hook(see(f"hook {place}")) for place, tensor in enumerate(r)]
    first = torch.autograd.grad(sum(t.sin().sum() for t in r), [*r, *a], create_graph=True)
    for handle in handles:
        handle.remove()
    return first, torch.autograd.grad(sum(g.sin().sum() for g in first if g.requires_grad), a, allow_unused=True)


def each_with_a_graph(r, a, see):
    found = []
    for tensor in r:
        first = torch.autograd.grad(tensor.sin().sum(), [*r, *a], create_graph=True, allow_unused=True)
        rest = [g.sin().sum() for g in first if g is not None and g.requires_grad]
        found += [first, torch.autograd.grad(sum(rest), a, retain_graph=True, allow_unused=True) if rest else None]
    return found


def with_regard_to_results(r, a, see):
    """Formulas of tanh, exp and others save their results, to which gradients of gradients flow then."""
    watched_all(r, a, see)
    first = torch.autograd.grad(sum(t.sin().sum() for t in r), [*r, *a], create_graph=True)
    return first, torch.autograd.grad(sum(g.sin().sum() for g in first if g.requires_grad), [*r, *a], allow_unused=True)


def of_third_order(r, a, see):
    def again(found, others, **options):
        total = sum(g.sin().sum() for g in found if g is not None and g.requires_grad)
        return torch.autograd.grad(total, others, allow_unused=True, **options)
    first = torch.autograd.grad(r[-1].sin().sum(), a, create_graph=True, allow_unused=True)
    return again(again(first, [*r, *a], create_graph=True), [*r, *a])


def batched(r, a, see):
    return [torch.autograd.grad(t, [*r, *a], torch.eye(t.numel(), dtype=t.dtype).view(-1, *t.shape), retain_graph=True,
                                allow_unused=True, is_grads_batched=True) for t in r]


def hooks_of_leaves(r, a, see):
    for place, leaf in enumerate(a):
        leaf.register_hook(see(f"leaf {place}"))
        leaf.register_post_accumulate_grad_hook(lambda leaf, place=place: see(f"leaf {place}, accumulated")(leaf.grad))
    for tensor in r:
        tensor.sum().backward(retain_graph=True)


def hooks_of_nodes(r, a, see):
    for place, tensor in enumerate(r):
        tensor.grad_fn.register_prehook(lambda grads, place=place: see(f"node {place}")(grads[tensor.output_nr]))
    r[-1].sum().backward()


def changed_between(r, a, see):
    watched_all(r, a, see)
    last = r[-1].sum()
    r[0].mul_(3)
    r[0].register_hook(see("after the write"))
    try:
        last.backward(retain_graph=True)
    finally:
        r[0].sum().backward()


def changed_unseen(r, a, see):
    r[0].detach().data.zero_()
    r[-1].sum().backward()


def removed_hooks(r, a, see):
    handles = [tensor.register_hook(see("never")) for tensor in r]
    for handle in handles:
        handle.remove()
    sum(t.sum() for t in r).backward()


USES: list[Use] = [each_alone, all_together, changed_by_hooks, gradients_between, into_inner_ones, twice, gradients_of_gradients,
                   each_with_a_graph, batched, hooks_of_leaves, hooks_of_nodes, changed_between, changed_unseen, removed_hooks,
                   with_regard_to_results, of_third_order]


def outcome(call: Callable[..., Any], use: Use) -> list[Any]:
    """What is seen of a call and of a use of its results."""
    inputs, log = make(), []

    def see(name: str) -> Callable[[Tensor | None], None]:
        return lambda grad: log.append((name, None if grad is None else grad.detach().clone()))
    results = call(*inputs)
    differentiable = [tensor for tensor in results if tensor.requires_grad]
    try:
        log.append(("returned", use(differentiable, inputs, see)))
    except (RuntimeError, TypeError) as error:
        log.append(("raised", str(error)))
    log.append(("gradients", [t.grad for t in (*inputs, *(t for t in results if t.requires_grad and t.retains_grad))]))
    log.append(("results", [t.detach() for t in results]))
    known = [(t.requires_grad, t.is_leaf, t._version, t._is_view(), t.retains_grad) for t in results]
    log.append(("known", known, relations(results)))
    leaves = [[seen for seen in log if seen[0].startswith(f"leaf {place}")] for place in range(len(inputs))]
    return [seen for seen in log if not seen[0].startswith("leaf")] + leaves       # those are called in some order


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


traced: dict[Any, Worlds] = {}


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_of_results(program, use):
    if program not in traced:
        traced[program] = worlds(program, make())
    both = traced[program]
    ours, theirs = outcome(both.compiled, use), outcome(both.gm, use)
    for a, b in zip(ours, theirs, strict=False):
        assert same(a, b), f"\ncompiled {a}\neager    {b}"
    assert len(ours) == len(theirs)


def one_result(x, w):
    return ((x @ w).tanh(),)


def of_the_same_inputs(x, w):
    a = x @ w
    return a.exp(), (a + x + w).softmax(-1), a.sum(0)


def std_beside_mean(x, w):
    std, mean = torch.std_mean(x @ w, 0)
    return std, mean


@pytest.mark.parametrize("use", [with_regard_to_results, of_third_order, each_with_a_graph, gradients_between, batched],
                         ids=lambda use: use.__name__)
@pytest.mark.parametrize("program", [one_result, of_the_same_inputs, std_beside_mean], ids=lambda program: program.__name__)
def test_gradients_of_gradients_of_one_node(program, use):
    both = worlds(program, make())
    assert not both.traced.signature.parts
    assert same(outcome(both.compiled, use), outcome(both.gm, use))


def test_gradients_of_gradients_come_to_a_result_far_above():
    """Autograd passes by what it has numbered as if it were below."""
    def program(x, w):
        a = x
        for _ in range(4):
            a = (a @ w).sin()
            x = x + a.sum()
        return (a + x).exp(), x
    both = worlds(program, make())
    for call in (both.gm, both.compiled):
        x, w = make()
        for _ in range(30):
            x = x * 1
        result = call(x, w)[0]
        (first,) = torch.autograd.grad(result.sin().sum(), w, create_graph=True)
        (found,) = torch.autograd.grad(first.sum(), result)
        assert found.shape == result.shape


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_node_for_each_segment(program):
    assert worlds(program, make()).traced.signature.parts


@pytest.mark.parametrize("program", [
    lambda x, w: (x @ w, (x + w).sum()),
    lambda x, w: (x.sin(), x.cos()),
    lambda x, w: ((x @ w).exp().sum(),),
    lambda x, w: (lambda a: (a, a[1:], a.detach()))(x @ w),
    lambda x, w: (lambda a: (a.detach(), a.sum()))(x @ w),
    lambda x, w: (x, (x @ w).sum()),
], ids=range(6))
def test_one_node_where_results_are_computed_from_the_same_inputs(program):
    found = worlds(program, make()).traced
    assert not found.signature.parts and found.backward is not None


def test_results_that_are_written_to_after_others_were_computed_from_them_are_refused():
    def program(x, w):
        a = (x @ w).sin()
        total = a.sum()
        with torch.no_grad():
            a.add_(1)
        return a, total
    gm = make_fx(program, pre_dispatch=True)(*make())
    with pytest.raises(Unsupported, match="after others were computed from it"):
        trace(gm, specs(make()))


def test_shapes_that_are_changed_without_autograd_are_refused():
    def program(x, w):
        a = (x @ w).sin()
        with torch.no_grad():
            a.unsqueeze_(0)
        return a, x + 1
    gm = make_fx(program, pre_dispatch=True)(*make())
    with pytest.raises(Unsupported, match="shape of a result"):
        trace(gm, specs(make()))


def test_results_of_one_node_of_autograd_beside_others():
    """An LSTM of oneDNN makes its output and the last states at once."""
    net = torch.nn.LSTM(4, 4)
    names = [name for name, _ in net.named_parameters()]

    def program(x, w, *parameters):
        output, (h, c) = torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,))
        return output, h, c, (output @ w).sum()
    given = [tensor.float().detach().requires_grad_() for tensor in (*make(), *net.parameters())]
    both = worlds(make_fx(program, pre_dispatch=True)(*given), given)
    found = []
    for call in (both.compiled, both.gm):
        own = [tensor.detach().clone().requires_grad_() for tensor in given]
        results, seen = call(*own), []
        for place, leaf in enumerate(own):
            leaf.register_hook(lambda grad, place=place, seen=seen: seen.append((place, grad)))
        for result in results:
            result.sin().sum().backward(retain_graph=True)
            seen.sort(key=lambda item: item[0])
        found.append((seen, [tensor.grad for tensor in own]))
    assert same(*found)


def test_what_several_segments_take_is_computed_once():
    found = worlds(features_in_both, make()).traced
    products = [node for gm in found.segments for node in gm.graph.nodes if node.target is torch.ops.aten.mm.default]
    assert len(products) == 4


def test_an_input_without_a_path_from_each_result_may_have_a_graph_itself():
    x, w = make()
    gm = worlds(lambda x, w: (lambda a: (a, a.sum(), w.exp()))(x.exp()), [x, w]).gm
    inner = w * 1
    found = trace(gm, specs([x, inner]))
    assert found.signature.parts and isinstance(found.signature.outputs[0], Input)


def test_a_pass_to_a_result_alone_frees_what_makes_that():
    both = worlds(lambda x, w: (lambda a: (a, a.cumsum(0)))((x @ w).exp()), make())
    for call in (both.compiled, both.gm):
        for to_inner in (True, False):
            inner, result = call(*make())
            result.sum().backward(inputs=[inner] if to_inner else None)
            for again in ({"inputs": [inner]}, {}):
                with pytest.raises(RuntimeError, match="second time"):
                    result.sum().backward(**again)


def test_a_view_of_a_view_before_a_write_to_the_base_is_refused():
    def program(x, w):
        flat = x.reshape(-1)
        part = flat[2:]
        with torch.no_grad():
            x.mul_(2)
        return flat, part, (part * 2).sum()
    gm = make_fx(program, pre_dispatch=True)(*make())
    with pytest.raises(Unsupported, match="a view of a view"):
        trace(gm, specs(make()))


def test_a_pass_to_a_result_alone_leaves_the_rest_for_another():
    """Autograd calls the result's own node, and nothing below."""
    both = worlds(lambda x, w: (lambda a: (a, a.cumsum(0)))((x @ w).exp().clone()), make())
    for call in (both.compiled, both.gm):
        inputs = make()
        inner, result = call(*inputs)
        result.sum().backward(inputs=[inner])
        assert all(tensor.grad is None for tensor in inputs)
        result.sum().backward()
        assert all(tensor.grad is not None for tensor in inputs)


def test_an_operation_that_makes_tensors_of_numbers() -> None:
    """It is taken apart, since it computes one result of another, and some of what it consists of takes a number."""
    def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = y.abs().log1p() - x * 2
        return torch.where(x == y, x, 0), inner / 3, inner

    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    made = graph.call_function(several, (x, y))
    graph.output(tuple(graph.call_function(operator.getitem, (made, place)) for place in range(3)))
    traced = trace(torch.fx.GraphModule(torch.nn.Module(), graph),
                       [torch.tensor([3], dtype=torch.int32), torch.tensor([-1.0], requires_grad=True)])
    assert len(traced.signature.parts) > 1
