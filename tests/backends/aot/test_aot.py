"""AOTAutograd's graphs: what is decomposed, random numbers, autocast, checkpoints, what is saved; against eager mode."""
from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from capture.backends.aot import trace
from capture.backends.aot.aten import is_random
from capture.backends.aot.fakes import fake_inputs
from capture.backends.decompositions import decompositions, rounded
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.signature import Input, Unsupported
from capture.interp.function_models.autograd_functions import named_apply
from tests.backends.native.traced import check, gradients_agree, specs, worlds


def inputs(*shapes, grad=True, dtype=torch.float32):
    """A function that makes tensors of these shapes, the same ones each time."""
    def make():
        torch.manual_seed(7)
        return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes]
    return make


def targets(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


# --- random numbers

RANDOM = {
    "dropout": lambda x: (F.dropout(x, 0.1),),
    "dropout twice": lambda x: (F.dropout(F.dropout(x, 0.3) + 1, 0.7),),
    "all dropped": lambda x: (F.dropout(x, 1.0),),
    "nothing dropped": lambda x: (F.dropout(x, 0.0) * 2,),
    "evaluation": lambda x: (F.dropout(x, 0.5, False) * 2,),
    "channels": lambda x: (F.dropout2d(x[None], 0.5),),
    "alpha": lambda x: (F.alpha_dropout(x, 0.5, True),),
    "transposed": lambda x: (F.dropout(x.mT, 0.5),),
    "expanded": lambda x: (F.dropout(x[:, :1].expand(2, 5, 40), 0.5),),
    "attention": lambda x: (F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),),
    "rand_like": lambda x: (x * torch.rand_like(x) + torch.rand_like(x),),
    "randn_like": lambda x: (x * torch.randn_like(x), torch.randn_like(x)),
    "shapes": lambda x: (x * torch.rand(x.shape, device="cpu"), torch.randint(0, 9, (5,), device=x.device),
                         torch.randperm(7, device=x.device)),
    "multinomial": lambda x: (torch.multinomial(x.detach().abs().flatten(1), 2),
                              torch.multinomial(x.detach().abs().flatten(1), 9, True)),
    "gumbel": lambda x: (F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True)),
    "exponential": lambda x: (torch.empty_like(x).exponential_() - torch.empty_like(x).exponential_() * x,),
    "uniform": lambda x: (torch.empty_like(x).uniform_(2, 3) + torch.empty_like(x).uniform_(2, 3) * x,),
    "normal": lambda x: (torch.normal(x.detach(), 2.0) * x, torch.empty_like(x).normal_(1, 2)),
    "bernoulli": lambda x: (torch.bernoulli(x.detach().sigmoid()) * x, torch.empty_like(x).bernoulli_(0.3)),
    "rrelu": lambda x: (F.rrelu(x, training=True),),
    "poisson": lambda x: (torch.poisson(x.detach().exp()) * x,),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_random_numbers_are_those_of_eager_mode(name, grad):
    both = check(RANDOM[name], inputs((2, 5, 40), grad=grad), 1e-6)
    graphs = [gm.graph for gm in (both.traced.forward, both.traced.backward) if gm]
    random = [node for graph in graphs for node in graph.nodes if is_random(node)]
    assert bool(random) == both.traced.signature.random == (name not in ("all dropped", "nothing dropped", "evaluation"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dropout_in_other_precisions(dtype):
    check(RANDOM["dropout"], inputs((8, 40), dtype=dtype), 1e-2 if dtype.itemsize == 2 else 0)


def test_dropout_is_exact():
    check(lambda x: (F.dropout(x, 0.1),), inputs((100, 7)))


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_random_numbers_that_nothing_uses(grad):
    def program(x):
        torch.rand_like(x)
        return (x * 2,)
    with pytest.raises(Unsupported, match="random numbers"):
        trace(fx.symbolic_trace(program), inputs((3,), grad=grad)())


def test_equal_random_operators_are_not_merged():
    both = worlds(lambda x: (x * torch.empty_like(x).exponential_() + torch.empty_like(x).exponential_(),), inputs((5,))())
    assert sum(map(is_random, both.traced.forward.graph.nodes)) == 2


def test_random_operators_are_not_recomputed():
    both = check(lambda x: (torch.exp(F.dropout(x, 0.5).sin()) * torch.rand_like(x),), inputs((50,)), 1e-6)
    assert not any(map(is_random, both.traced.backward.graph.nodes))


@pytest.mark.parametrize("program", [
    lambda x: (x * torch.empty_like(x.mT).bernoulli_(0.5).mT,),
    lambda x: (x * torch.empty_like(x.mT).normal_().mT,),
], ids=["bernoulli", "normal"])
def test_random_numbers_whose_order_is_that_of_memory(program):
    """What functionalisation makes of these draws in another order."""
    with pytest.raises(Unsupported, match="not contiguous"):
        trace(fx.symbolic_trace(program), inputs((5, 40))())


@pytest.mark.parametrize(("value", "dtype", "expected"), [(0.1, torch.float64, 0.1), (0.1, torch.float32, 0.10000000149011612),
                                                          (0.5, torch.bfloat16, 0.5)])
def test_rounded(value, dtype, expected):
    assert rounded(value, dtype) == expected


# --- decompositions

KEPT = {"mm", "addmm", "bmm", "convolution", "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
        "topk", "embedding", "embedding_dense_backward", "sort", "upsample_bilinear2d", "upsample_bilinear2d_backward"}

DECOMPOSED = {
    "layer_norm": (lambda x, w, b: (F.layer_norm(x, (6,), w, b),), (4, 5, 6), (6,), (6,)),
    "layer_norm without affine": (lambda x: (F.layer_norm(x, (5, 6)),), (4, 5, 6)),
    "group_norm": (lambda x, w, b: (F.group_norm(x, 2, w, b),), (3, 4, 5, 6), (4,), (4,)),
    "group_norm without affine": (lambda x: (F.group_norm(x, 2),), (3, 4, 5)),
    "instance_norm": (lambda x: (F.instance_norm(x),), (3, 4, 5, 6)),
    "rms_norm": (lambda x, w: (F.rms_norm(x, (6,), w),), (4, 5, 6), (6,)),
    "batch_norm": (lambda x, w, b: (F.batch_norm(x, None, None, w, b, True),), (3, 4, 5, 6), (4,), (4,)),
    "softmax": (lambda x: (F.softmax(x, -1), F.softmax(x, 0), F.log_softmax(x, 1)), (4, 5, 6)),
    "masked softmax": (lambda x: (F.softmax(x.masked_fill(x > 0, float("-inf")), -1).nan_to_num(),), (4, 6)),
    "cross_entropy": (lambda x: (F.cross_entropy(x, torch.arange(8, device=x.device) % 5, label_smoothing=0.1),), (8, 5)),
    "losses": (lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y),
                             F.kl_div(x, y.detach().exp(), reduction="sum"),
                             F.binary_cross_entropy_with_logits(x, y.detach())), (4, 5), (4, 5)),
    "activations": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.leaky_relu(x), F.hardswish(x),
                               F.mish(x), F.softplus(x), F.relu6(x), F.glu(x), F.logsigmoid(x)), (4, 6)),
    "statistics": (lambda x: (x.var(1), x.std(), x.mean(0), x.norm(dim=1), x.logsumexp(1), x.amax(0), x.prod(1)), (4, 6)),
    "indexing": (lambda x: (x[:, torch.arange(3, device=x.device)], x.gather(1, (x > 0).long()), x.roll(1, 0), x.tril(),
                            x.index_select(0, torch.arange(2, device=x.device))), (4, 6)),
    "convolution": (lambda x, w: (F.max_pool2d(F.conv2d(x, w), 2), F.interpolate(x, scale_factor=2, mode="bilinear")),
                    (2, 3, 9, 9), (4, 3, 3, 3)),
    "attention": (lambda x: (F.scaled_dot_product_attention(x, x, x, is_causal=True),), (2, 3, 8, 16)),
    "sorted": (lambda x: (x.sort(1)[0], x.topk(2)[0], x.argsort(0)), (4, 6)),
}


@pytest.mark.parametrize("name", DECOMPOSED)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_decompositions(name, grad):
    program, *shapes = DECOMPOSED[name]
    both = check(program, inputs(*shapes, grad=grad), 2e-5)
    left = {t._schema.name.removeprefix("aten::") for gm in (both.traced.forward, both.traced.backward) if gm
            for t in targets(gm) if isinstance(t, torch._ops.OpOverload)}
    assert not {n for n in left if "norm" in n or "softmax" in n or "loss" in n or "prims" in n} - {"linalg_vector_norm"}, left


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_margin_losses(grad):
    """What stands behind the end of a list of targets is none."""
    def program(x):
        lists = torch.tensor([[0, 1, -1, 2], [3, -1, 0, 0], [1, 2, 3, 0], [-1, 2, 2, 2]], device=x.device)
        return (F.multilabel_margin_loss(x, lists), F.multilabel_margin_loss(x, lists, reduction="none"),
                F.multi_margin_loss(x, lists[:, 0] % 4, p=2, weight=x.detach()[0].abs()))
    check(program, inputs((4, 4), grad=grad), 2e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (4, 3, 5), (4, 3)], ids=str)
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm(training, shape, affine):
    def program(x, mean, var, *affine):
        return (F.batch_norm(x, mean, var, *affine, training=training),)
    def make():
        torch.manual_seed(1)
        return [torch.randn(shape).requires_grad_(), torch.randn(3), torch.rand(3) + 0.5,
                *([torch.randn(3).requires_grad_(), torch.randn(3).requires_grad_()] if affine else [])]
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(make()))]
    graph.output((graph.call_function(F.batch_norm, tuple(nodes), {"training": training}),))
    both = check(fx.GraphModule({}, graph), make, 2e-5)
    assert not any("norm" in str(target) or "prims" in str(target) for target in targets(both.traced.forward))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("program", [
    lambda x: (F.group_norm(x, 2),),
    lambda x: (F.batch_norm(x, None, None, training=True),),
    lambda x: (F.batch_norm(x, x[0, :, 0].detach(), x[0, :, 1].detach().abs() + 1),),
    lambda x: (F.layer_norm(x, (6,)),),
    lambda x: (F.softmax(x, 1), F.log_softmax(x, -1)),
], ids=["group", "batch", "evaluated batch", "layer", "softmax"])
def test_normalisations_in_other_precisions(program, dtype):
    check(program, inputs((3, 4, 6), dtype=dtype), 4e-2 if dtype == torch.bfloat16 else 1e-12)


def test_layouts_of_results_are_those_of_eager_mode():
    def make():
        torch.manual_seed(2)
        return [torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_(), torch.randn(4).requires_grad_()]
    def program(x, w):
        swapped = x[:1, ..., 0].transpose(0, -1).contiguous().transpose(0, -1)
        return (F.batch_norm(x, None, None, w, w, True), F.group_norm(x, 2, w), F.group_norm(x.mT, 2), F.group_norm(swapped, 2),
                F.softmax(x, 1), F.relu(x), F.dropout(x))
    check(program, make, 2e-5)


def test_the_table_has_no_operator_that_is_kept():
    names = {op._schema.name.removeprefix("aten::") for op in decompositions()}
    assert not names & KEPT


# --- modes


@pytest.mark.parametrize("program", [
    lambda x, w: (x @ w, F.softmax(x @ w, -1)),
    lambda x, w: (F.layer_norm(F.gelu(F.linear(x, w)), (8,)),),
    lambda x, w: (F.cross_entropy(F.linear(x, w), torch.arange(4, device=x.device)),),
    lambda x, w: (F.scaled_dot_product_attention(x[None], (x @ w)[None], x[None]),),
], ids=range(4))
def test_autocast_outside(program):
    with torch.autocast("cpu", torch.bfloat16):
        both = check_backward_outside(program, inputs((4, 8), (8, 8)))
    values = [node.meta.get("val") for node in both.traced.forward.graph.nodes]
    assert torch.bfloat16 in {value.dtype for value in values if isinstance(value, torch.Tensor)}


def check_backward_outside(program, make):
    """As `check`, but autocast ends before the backward pass, as it should in programs."""
    both = worlds(program, make())
    ours, theirs = make(), make()
    actual, expected = both.compiled(*ours), both.gm(*theirs)
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", enabled=False):
        gradients_agree(actual, expected, ours, theirs, 5e-2)
    return both


def test_autocast_inside():
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    graph.call_function(torch.set_autocast_enabled, ("cpu", True))
    graph.call_function(torch.set_autocast_dtype, ("cpu", torch.bfloat16))
    y = graph.call_function(operator.matmul, (x, w))
    graph.call_function(torch.clear_autocast_cache)
    graph.call_function(torch.set_autocast_enabled, ("cpu", False))
    z = graph.call_function(operator.matmul, (x, w))
    graph.output((y, z))
    both = check(fx.GraphModule({}, graph), inputs((4, 8), (8, 8)), 2e-2)
    values = both.gm(*inputs((4, 8), (8, 8))())
    assert [v.dtype for v in values] == [torch.bfloat16, torch.float32]


def test_default_dtype():
    program = lambda x: (x + torch.ones(3, device=x.device),)
    modes = Modes.current()
    torch.set_default_dtype(torch.float64)
    try:
        both = check(program, inputs((3,)))
        other = Modes.current()
    finally:
        torch.set_default_dtype(torch.float32)
    assert both.traced.forward.graph.output_node().args[0][0].meta["val"].dtype == torch.float64
    gm = fx.symbolic_trace(program)
    for mode, dtype in ((other, torch.float64), (modes, torch.float32)):
        traced = trace(gm, inputs((3,))(), mode)
        assert traced.forward.graph.output_node().args[0][0].meta["val"].dtype == dtype
    assert torch.get_default_dtype() == torch.float32


def test_no_grad_outside():
    with torch.no_grad():
        both = check(lambda x: (x * 2, x.view(-1)), inputs((4,)))
    assert both.traced.backward is None


def test_tracing_leaves_the_process_as_it_was():
    before = Modes.current(), torch.get_rng_state()
    make = inputs((4, 8), (8, 8))
    arguments = make()
    copies = [t.detach().clone() for t in arguments]
    trace(fx.symbolic_trace(lambda x, w: (F.dropout(x @ w),)), arguments, Modes.current())
    assert before[0] == Modes.current()
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    trace(fx.symbolic_trace(lambda x, w: (F.dropout(x @ w),)), arguments)
    assert torch.equal(state, torch.get_rng_state())


def test_graphs_without_inputs():
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ones, (3,)), graph.call_function(torch.rand, (2, 2))))
    check(fx.GraphModule({}, graph), list)


# --- checkpoints


def checkpointed(body, *, preserve=True):
    """A graph of two inputs, of which a part is checkpointed, as the recorder makes it."""
    inner = fx.symbolic_trace(body)
    root = nn.Module()
    root.checkpoint_0 = inner
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    options = {"use_reentrant": False, "preserve_rng_state": preserve}
    call = graph.call_function(checkpoint, (graph.get_attr("checkpoint_0"), x, w), options)
    y = graph.call_function(operator.getitem, (call, 0))
    graph.output((graph.call_method("sin", (y,)),))
    return fx.GraphModule(root, graph)


def test_checkpoints_are_recomputed():
    body = lambda x, w: ((x @ w).exp().tanh() @ w,)
    both = check(checkpointed(body), inputs((4, 8), (8, 8)), 1e-5)
    plain = worlds(lambda x, w: (body(x, w)[0].sin(),), inputs((4, 8), (8, 8))())
    def saved(traced):
        return [name for name in traced.signature.saved if not isinstance(name, Input)]
    assert len(saved(both.traced)) < len(saved(plain.traced))
    products = [targets(each.traced.backward).count(torch.ops.aten.mm.default) for each in (both, plain)]
    assert products[0] > products[1]


def test_random_numbers_in_checkpoints():
    both = check(checkpointed(lambda x, w: (F.dropout((x @ w).exp(), 0.5) @ w,)), inputs((4, 8), (8, 8)), 1e-5)
    assert not any(map(is_random, both.traced.backward.graph.nodes))


def test_checkpoints_that_do_not_preserve_random_numbers():
    with pytest.raises(Unsupported, match="checkpoint"):
        trace(checkpointed(lambda x, w: (F.dropout(x @ w),), preserve=False), inputs((4, 8), (8, 8))())


# --- what is saved, what is not supported


def test_views_of_inputs_are_saved_as_inputs():
    both = check(lambda x, w: (F.linear(x.view(2, 6), w.t()).view(-1),), inputs((3, 4), (6, 6)), 1e-6)
    assert all(isinstance(name, Input) for name in both.traced.signature.saved)


def test_nothing_is_saved_twice():
    both = check(lambda x: ((x.exp().t() @ x.exp()).sin(),), inputs((4, 4)), 1e-5)
    assert len(set(both.traced.signature.saved)) == len(both.traced.signature.saved)


def test_unused_tangents_are_not_asked_for():
    both = check(lambda x, y: (x * 2, (y * 3).sum() * 0 + 1), inputs((4,), (4,)), 1e-6)
    assert len(both.traced.signature.tangents) == 2
    both = check(lambda x, y: (x + 2, y * 3), inputs((4,), (4,)))
    assert [tangent.index for tangent in both.traced.signature.tangents] == [1]


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_autograd_functions_are_not_traced():
    graph = fx.Graph()
    graph.output((graph.call_function(named_apply(Custom), (graph.placeholder("x"),)),))
    with pytest.raises(Unsupported, match="autograd function Custom"):
        trace(fx.GraphModule({}, graph), inputs((3,))())


@pytest.mark.parametrize("program", [
    lambda x: (x.nonzero(),),
    lambda x: (x * x.sum().item(),),
    lambda x: (x.to_sparse(),),
    lambda x: (x.no_such_method(),),
], ids=["shape", "value", "layout", "error"])
def test_what_cannot_be_traced(program):
    with pytest.raises(Unsupported):
        trace(fx.symbolic_trace(program), inputs((3, 3), grad=False)())


def test_fake_inputs():
    tensors = [torch.randn(4, 6).t(), torch.ones(2, dtype=torch.int32), torch.randn(2, 3)[:, 1:].requires_grad_(),
               torch.randn(3).expand(2, 3)]
    for fake, real, spec in zip(fake_inputs(specs(tensors)), tensors, specs(tensors)):
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (real.shape, real.stride(), real.dtype, real.device)
        assert fake.requires_grad == real.requires_grad
        assert isinstance(spec, TensorSpec)
    with pytest.raises(Unsupported, match="an input is sparse"):
        fake_inputs([TensorSpec.of(torch.eye(3).to_sparse())])
