"""Further words for random programs: dtypes and bits of views, inputs that share memory, modules with buffers, checkpoints,
operators of a library, `out=`, `torch._foreach_*`; hooks, gradients that are written to, second passes, second calls, other
threads."""
from __future__ import annotations

import random

import torch
from torch import Tensor

from tests.aliasing.programs import COMPUTED, EDITS, INPUTS, PASSES, VIEWS, WRITES, Case, Vocabulary, make


@torch.library.custom_op("aliasing::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, scale: float) -> Tensor:
    return torch.sin(x) * scale


@torch.library.custom_op("aliasing::double_", mutates_args={"x"})
def double_(x: Tensor) -> None:
    x.mul_(2)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


scaled_sine.register_fake(lambda x, scale: torch.empty_like(x))
scaled_sine.register_autograd(lambda ctx, grad: (grad * ctx.saved_tensors[0].cos() * ctx.scale, None), setup_context=_save)

GRAD = "torch.randn(4, 4, requires_grad=True)"
MORE_INPUTS = (
    "a[0]", "a[-1].detach()", "a[-1].view(-1)[:4]", "a[0][1:]", "a[-1].t()", "a[0].data", "(a[0] * 2)", "a[-1][0]",
    "torch.zeros(4)", "torch.ones(4)", "torch.tensor(0)", "torch.arange(4)", "torch.randn(4, 4, dtype=torch.float64)",
    "torch.randn(4, 2, dtype=torch.complex64)", "torch.randn(4, 4, dtype=torch.complex64, requires_grad=True) * 1",
    "torch.randn(2, 4, dtype=torch.complex64).conj()", "torch.inference_mode()(lambda: torch.randn(4, 4))()",
    "torch.randn(4, 4).bfloat16()", "torch.randn(1, 4).expand(4, 4)", "torch.randn(4, 1, requires_grad=True).expand(4, 4)",
    "torch.zeros(4, 4).bool()", "torch.empty(0, 4)")
MORE_COMPUTED = (
    "checkpoint(lambda u: (u * u).sin(), {a}, use_reentrant=False)",
    "checkpoint(lambda u, v: (u * v).exp() + v, {a}, {b}, use_reentrant=False)", "torch.ops.aliasing.scaled_sine({a}, 2.0)",
    "F.batch_norm({a}, {a}.mean(0).detach(), {a}.var(0).detach(), training=True)", "m({a})", "F.dropout({a}, 0.5)",
    "torch.complex({a}, {b})", "torch.polar({a}, {b})", "{a}.abs()", "{a} * {a}.conj()",
    "torch.add({a}, {b}, out=torch.empty(4, 4))", "torch.mul({a}.detach(), 2, out=torch.empty(0))",
    "torch._foreach_add([{a}, {b}], 1)[0]", "torch._foreach_mul([{a}, {a}], [{b}, {b}])[1]", "{a}.to(torch.float64)", "{a}.long()",
    "{a}.topk(2)[0]", "{a}.sort(0)[0]", "{a}.max(0)[0]", "{a}.index_select(0, torch.tensor([0, 0]))",
    "{a}.masked_fill({a} > 0, 0)", "{a}.gather(0, torch.zeros(1, 4).long())",
    "F.scaled_dot_product_attention({a}[None, None], {b}[None, None], {b}[None, None])", "torch.einsum('ij,ij->i', {a}, {b})",
    "F.cross_entropy({a}, {b}.detach().softmax(-1))", "{a}.norm()", "{a}.prod(0)", "F.pad({a}, (1, 1))", "{a}.roll(1)",
    "torch.zeros_like({a})", "{a}.new_zeros(4)", "torch.empty_like({a}).copy_({b})", "torch.full_like({a}, 2, requires_grad=True)",
    "{a}.std(0)", "F.embedding(torch.tensor([0, 1]), {a})", "F.mse_loss({a}, {b})", "torch.addmm({a}, {b}, {b})",
    "torch.func.grad(lambda u: u.sin().sum())({a})", "F.conv1d({a}[None], {b}[:, :, None])", "{a}.detach().requires_grad_() * 2",
    "F.hardtanh({a}, inplace=True)", "F.relu({a}, inplace=True)", "F.dropout({a}, 0.5, inplace=True)", "torch.lerp({a}, {b}, 0.5)",
    "torch.nan_to_num({a})", "{a}.logsumexp(-1)")
MORE_VIEWS = (
    "{a}.view(torch.int32)", "{a}.view(torch.float32)", "torch.view_as_complex({a}.unflatten(-1, (-1, 2)))",
    "torch.view_as_real({a})", "{a}.conj()", "{a}.conj().imag", "{a}.real", "{a}.imag", "torch._neg_view({a})", "{a}.mH",
    "{a}.adjoint()", "{a}.resolve_conj()", "{a}.resolve_neg()", "torch.unravel_index(({a} > 0).long() * 3, (2, 2))[1]",
    "torch.broadcast_tensors({a}, {b})[0]", "torch.meshgrid({a}.view(-1), {b}[0])[0]", "torch.hsplit({a}, 2)[1]",
    "torch.atleast_3d({a})", "{a}.split([1, 2, 1])[1]", "torch.ops.aten.alias({a})", "{a}.select(0, 0)", "{a}.view_as({b})",
    "{a}.expand(4, 4)", "{a}.ravel()", "{a}.unsafe_chunk(2)[1]", "{a}.unsafe_split(2)[0]", "torch.vstack([{a}])",
    "torch.cat([{a}])", "{a}.to(torch.float32)", "{a}.to({b})", "{a}.type_as({b})", "{a}.double().float()", "{a}.squeeze(0)",
    "{a}.requires_grad_()", "{a}[:]", "{a}[torch.tensor(0)]", "{a}[torch.arange(2)]", "{a}.T", "{a}.detach_()",
    "{a}.view({a}.shape)", "torch.ops.aten._unsafe_view({a}, [-1])", "F.dropout({a}, 0.0)", "F.dropout({a}, 0.5, training=False)",
    "torch.nn.Identity()({a})", "{a}.swapdims(0, 1)", "{a}.tile(1)", "{a}.repeat(1, 1)", "{a}.sum_to_size({a}.shape)", "{a}.cpu()",
    "torch.as_tensor({a})", "torch.asarray({a})", "torch.as_strided({a}, (2, 2), (4, 1), 1)", "{a}.diagonal().unsqueeze(1)",
    "{a}.unbind(1)[0][:1]", "{a}.storage_offset() + {a}")
MORE_WRITES = (
    "torch._foreach_mul_([{a}, {b}], 2)", "torch._foreach_add_([{a}], [{b}.detach()])", "torch.add({a}.detach(), 1, out={b})",
    "torch.mul({b}, 2, out={a})", "torch.sin({a}, out={a})", "{a}.resize_(2, 2)", "{a}.set_({b}.detach())", "{a}.detach_()",
    "{a}.data = {b}.detach()", "{a} *= 2", "{a} += {b}", "{a}[0] += 1", "{a}[{a} > 0] = 0",
    "{a}.index_fill_(0, torch.tensor([1]), 7)", "{a}.index_put_((torch.tensor([0]),), {b}[0])", "{a}.masked_fill_({a} > 0, 0)",
    "{a}.fill_diagonal_(3)", "{a}.scatter_(0, torch.zeros(1, 4).long(), {b})", "torch.ops.aliasing.double_({a})",
    "{a}.conj().mul_(2)", "{a}.real.mul_(2)", "{a}.imag.zero_()", "{a}.view(torch.int32).bitwise_and_(-2)",
    "torch._neg_view({a}).add_(1)", "{a}.expand(2, *{a}.shape)[0].add_(1)", "{a}.normal_()", "{a}.uniform_()", "{a}.t().mul_(2)",
    "F.batch_norm({b}, {a}, {a}, training=True)", "F.relu_({a})", "{a}.unbind(0)[0].zero_()", "{a}.split(2)[0].mul_(2)",
    "{a}.chunk(2)[1].add_(1)", "{a}.copy_({a}.t())", "{a}.transpose_(0, -1)", "{a}.squeeze_()", "{a}.as_strided_((2,), (1,))",
    "{a}.lerp_({b}, 0.5)", "{a}.clamp_(-1, 1).mul_(2)", "{a}.sort(0, out=({a}.clone(), torch.empty(0).long()))",
    "with torch.inference_mode(): t9 = {a} * 2", "with torch.no_grad(): {a}.add_({b}); {b}.mul_(2)",
    "with torch.enable_grad(): {a}.mul_(2)", "torch.manual_seed(3)", "{a}.grad = None", "{a}.grad = torch.ones(4, 4)",
    "{a}.retain_grad()", "{a}.requires_grad_(False)", "{a}.detach().view(-1)[0] = 9", "{a}.data[0] = 3", "{a}.data.copy_({b})")
MORE_EDITS = (
    "a[0].grad.zero_()", "a[0].grad = None", "a[0].grad = torch.ones(4, 4)", "a[0].sub_(a[0].grad)", "a[0].grad.add_(1)",
    "{t}.retain_grad()", "{t}.register_hook(lambda g: g * 2)",
    "{t}.register_hook(note('{t}'))", "{t}.register_hook(lambda g: g.add_(1) and None)",
    "{t}.requires_grad_()", "{t}.detach_()", "q = f(*a)", "q = f(*r)", "torch._foreach_add_([{t}], 1)", "{t}.conj().mul_(2)",
    "m.eval() if torch.is_grad_enabled() else m.train()", "{t}.resize_(1)", "torch.mul({u}.detach(), 2, out={t})", "{t}.add_({u})",
    "{t}.swap = 1", "r = f(*a)", "torch.autograd.graph.increment_version({t})", "m.zero_grad()")
MORE_PASSES = (
    "in_thread(lambda: {t}.sum().backward())", "in_thread(lambda: {t}.sum().backward(retain_graph=True))",
    "{t}.abs().sum().backward()", "{t}.abs().sum().backward(retain_graph=True)",
    "g = torch.autograd.grad({t}.abs().sum(), [v for v in a if v.requires_grad], create_graph=True, allow_unused=True)",
    "g = torch.autograd.grad({t}.sum(), [v for v in a if v.requires_grad], create_graph=True, allow_unused=True)",
    "sum(v.abs().pow(2).sum() for v in g if v is not None and v.requires_grad).backward()",
    "sum(v.abs().sum() for v in g if v is not None and v.requires_grad).backward(retain_graph=True)",
    "{t}.abs().sum().backward(create_graph=True)", "g = torch.autograd.grad({t}.sum(), {u})",
    "g = torch.autograd.grad({t}.sum(), {u}, retain_graph=True, allow_unused=True)", "{t}.backward(torch.ones_like({t}))",
    "{t}.backward({u}.detach())", "torch.autograd.backward([{t}.sum(), {u}.abs().sum()])", "({t} * {u}).abs().sum().backward()",
    "g = torch.autograd.grad({t}.sum(), a[0], retain_graph=True)",
    "{t}.sum().backward(inputs=[v for v in a if v.requires_grad and v.is_leaf][:1])", "sum(t.abs().sum() for t in r).backward()",
    "sum(t.abs().sum() for t in q).backward()",
    "g = torch.autograd.grad({t}, [v for v in a if v.requires_grad], torch.eye({t}.numel()).view(-1, *{t}.shape), "
    "is_grads_batched=True, allow_unused=True)",
    "g = torch.autograd.grad({t}.sum(), [v for v in a if v.requires_grad], allow_unused=True, materialize_grads=True)")
MODULES = (
    "torch.nn.BatchNorm1d(4)", "torch.nn.BatchNorm1d(4, momentum=None)", "torch.nn.Linear(4, 4)",
    "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))",
    "torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))",
    "torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4))", "torch.nn.BatchNorm1d(4, affine=False)",
    "torch.nn.LayerNorm(4)", "torch.nn.GroupNorm(2, 4)", "torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))",
    "torch.nn.RNN(4, 4)", "torch.nn.Embedding(4, 4, max_norm=1.0)", "torch.nn.InstanceNorm1d(4, track_running_stats=True)",
    "torch.nn.MultiheadAttention(4, 2)")


def make_wide(seed: int) -> Case:
    """The case with this number, of all words."""
    module = random.Random(seed).choice(MODULES)
    return make(seed, Vocabulary(
        inputs=(*INPUTS, *MORE_INPUTS), usual_inputs=len(INPUTS), computed=(*COMPUTED, *MORE_COMPUTED), views=(*VIEWS, *MORE_VIEWS),
        writes=(*WRITES, *MORE_WRITES), edits=(*EDITS[:7], *MORE_EDITS, *EDITS[7:]), usual_edits=7 + len(MORE_EDITS),
        passes=(*PASSES, *MORE_PASSES), module=module))
