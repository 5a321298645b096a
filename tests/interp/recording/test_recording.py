"""What is recorded as tensor operations, one expression or statement at a time."""
from __future__ import annotations

import math

import pytest
import torch

from tests.helpers import call, check
from tests.programs import NATIVE, function, run

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
Y = torch.rand(2, 3, generator=torch.Generator().manual_seed(2)) + 0.5
INDEX = torch.tensor([[0, 1, 1], [1, 0, 1]])
MASK = torch.tensor([[True, False, True], [False, True, True]])
INPUTS = X, Y, INDEX, MASK          # of every program here, as x, y, i and m


def table(text: str) -> list[str]:
    """One program per line."""
    return [line.strip() for line in text.strip().splitlines()]


OPERATORS = table("""
    x + y
    x - y
    x * y
    x / y
    i // (i + 1)
    i % (i + 1)
    y ** x
    x @ y.T
    i & (i + 1)
    i | 2
    m ^ True
    i << 1
    i >> i
    x == y
    x != 0
    x < y
    x <= 0.5
    i > 0
    i >= i.T.reshape(2, 3)
    -x
    +x
    ~m
    abs(x)
    pow(x, 2)
    x + 2
    2 + x
    2.5 - x
    x - 2.5
    x * 3
    True * x
    1j * x
    7 / y
    -7 // (i + 1)
    7 % (i + 1)
    2 ** x
    x ** 0.5
    x ** -1
    4 & i
    4 | i
    4 ^ i
    2 << i
    9 >> i
    1 < x
    0.5 == x
    not x.shape
    x is y
    x is not None
    x if x is not None else y
    (x, y) == (x, y)
    x + float('inf')
    x * float('nan')
    i / 2
    i + 0.5
    m + 1
    m & m.logical_not()
    x.add(y, alpha=2)
    x + torch.tensor(2.0, dtype=torch.float64)
""")

IN_PLACE = table("""
    x += y; return x
    x -= 2; return x
    x *= y; return x
    x /= 2; return x
    i //= 2; return i
    i %= 2; return i
    x **= 2; return x
    i &= 1; return i
    i |= 4; return i
    m ^= True; return m
    i <<= 1; return i
    i >>= 1; return i
    z = x + 0; z += 1; return z
    z = x; z += 1; return z is x
    z = x[0]; z += 1; return x, z
    x[0] += 1; return x
    x[:, 1] *= y[:, 0]; return None
    x.add_(y).mul_(2); return x
    x.zero_(); return x + y
    z = x.t(); z.mul_(2); return z
    z = x * 1; v = z.view(-1); v[0] = 7; return z
    y.copy_(x); return y
    x.fill_(3.0); return None
    x.clamp_(min=0); return x.sum()
    x.masked_fill_(m, 0.0); return x
    x.scatter_(1, i, 9.0); return x
    x.index_add_(0, i[0], torch.ones(3, 3)); return x
    x.transpose_(0, 1); return x
    x.unsqueeze_(0); return x.shape
    torch.add(x, 1, out=y); return y
    z = torch.empty(2, 3); r = torch.mul(x, y, out=z); return r is z, z
    v, j = torch.empty(2), torch.empty(2, dtype=torch.long); torch.max(x, 1, out=(v, j)); return v, j
    torch.relu_(x); return x
    F.relu(x, inplace=True); return x
    F.dropout(x, 0.5, inplace=True); return x
    x.data.mul_(2); return x
    x.normal_(); return x
    x.bernoulli_(0.5); return x
""")

INDEXING = table("""
    x[0]
    x[-1, 2]
    x[:, 1:]
    x[..., 0]
    x[None]
    x[:, None, ::2]
    x[i[0]]
    x[:, i[0]]
    x[i, [2, 1, 0]]
    x[[0, 1]]
    x[m]
    x[True]
    x[0][1]
    x[slice(0, 1)]
    x[tuple([0, slice(None)])]
    x[()]
    x[torch.tensor(1)]
    x[i[0, 0]]
    x[0] = 1.0; return x
    x[:, 0] = y[:, 1]; return x
    x[m] = 0.0; return x
    x[i[0]] = y[0]; return x
    x[..., None][0] = 5.0; return x
    x[0, 1] = y[0, 0]; return x
    x[...] = y; return x
    x[None] = 2; return x
    a, b = x; return a * b
    a, *rest = x.T; return a, rest
    [row.sum() for row in x]
    list(x)
    tuple(x.unbind(1))
    list(zip(x, y))
    list(reversed(x))
    list(enumerate(x))
    len(x)
    x.T
    x.mT
    x.H
    x.real
    (x + 1j * y).imag
    x.narrow(1, 0, 2)
    x.index_select(0, i[0])
    x.gather(1, i)
    x.take_along_dim(i, 1)
    torch.take(x, i)
    x.select(1, 0)
    x.diagonal()
    x.unfold(1, 2, 1)
""")

ALIASES = table("""
    x
    (x, x)
    [x, y, x]
    {'a': x, 'b': x[0]}
    x.view(3, 2)
    x.view(-1), x
    x.reshape(3, 2)
    x.expand(4, 2, 3)
    x.detach()
    x.data
    x.contiguous()
    x.T.contiguous()
    x.to(torch.float32)
    x.to(torch.float64)
    x.clone()
    x.squeeze(), x.unsqueeze(0)
    z = x + 1; return z, z
    z = x + 1; return z, z[0], z.view(-1)
    z = x + 1; return (z[0], z[1])
    z = torch.zeros(3); v = z[1:]; v += 1; return v
    z = (x + 1).T; return z.stride(), z
    z = x.chunk(3, dim=1); return z
    z = x; return z is x, z
    torch.broadcast_tensors(x, y[0])
    x.as_strided((2,), (1,))
    x.split([1, 2], dim=1)
    x.swapaxes(0, 1).permute(1, 0)
    torch.atleast_3d(x)
    torch.view_as_real(torch.complex(x, y))
    x.view(torch.int32)
    F.dropout(x, 0.5, training=False)
    torch.ravel(x)
""")

METADATA = table("""
    x.shape
    x.shape[0] * x.shape[1]
    x.size(), x.size(-1)
    x.reshape(x.shape[1], -1) + x.numel()
    x.ndim, x.dim(), x.nelement()
    x.dtype, i.dtype, m.dtype
    x.device, x.device.type, x.device.index
    x.stride(), x.stride(0), x.T.stride()
    x.is_contiguous(), x.T.is_contiguous()
    x.is_contiguous(memory_format=torch.contiguous_format)
    x.requires_grad, x.is_leaf, x.grad_fn
    x.layout, x.element_size(), x.nbytes, x.itemsize
    x.is_floating_point(), x.is_complex(), i.is_signed()
    x.storage_offset(), x[1].storage_offset()
    x.is_cuda, x.is_cpu, x.is_sparse, x.is_meta
    x.get_device()
    x.type(), x.type(torch.float64)
    torch.is_tensor(x), torch.is_floating_point(x)
    isinstance(x, torch.Tensor), isinstance(x, torch.nn.Parameter), isinstance(x, torch.FloatTensor)
    x.shape == y.shape, x.shape == (2, 3), x.shape > (1,)
    tuple(x.shape), list(x.shape), str(x.shape), x.shape[1:]
    *x.shape, 1
    x.shape.numel()
    torch.Size([2]) + x.shape
    x.new_zeros(x.shape).add(x.ndim)
    x.grad, x.grad is None
    torch.result_type(x, i), torch.promote_types(x.dtype, torch.float64), torch.can_cast(torch.float, torch.int)
    torch.finfo(x.dtype).max, torch.finfo(torch.float16).eps, torch.iinfo(i.dtype).max
    x * torch.finfo(x.dtype).eps
    x.masked_fill(m, torch.finfo(x.dtype).min)
    type(x), x.__class__, type(x).__name__
    f'{x.shape} {x.dtype} {x.device}'
    x.shape[0] ** -0.5 * x
    int(x.shape[0] / 2), round(x.shape[1] / 2), max(x.shape)
    hash(x.shape) == hash(y.shape)
    hasattr(x, 'shape'), hasattr(x, 'nothing'), getattr(x, 'ndim'), getattr(x, 'nothing', 4)
    x.is_inference(), torch.is_inference(x)
    x.sum().ndim, x.sum().shape, x.sum().numel()
    bool(x.shape), bool(x.numel()), len(x.shape)
    callable(x.sum), x.sum()
""")

FACTORIES = table("""
    torch.zeros(2, 3), torch.ones((2,)), torch.empty(0)
    torch.full((2, 2), 1.5), torch.full_like(x, 2)
    torch.arange(5), torch.arange(0, 1, 0.25), torch.arange(3, dtype=torch.float64)
    torch.linspace(0, 1, 5), torch.logspace(0, 1, 3)
    torch.eye(3), torch.tril(torch.ones(3, 3)), torch.triu_indices(3, 3)
    torch.zeros_like(x), torch.ones_like(i), torch.empty_like(x).fill_(0)
    x.new_zeros(2), x.new_ones(1, 2), x.new_full((2,), 3.0), x.new_tensor([1, 2])
    torch.tensor(3), torch.tensor(3.5), torch.tensor(True), torch.tensor([])
    torch.tensor([1, 2, 3]), torch.tensor([[1.0], [2.0]]), torch.tensor((1, 2), dtype=torch.float16)
    torch.tensor([x.shape[0], x.numel()])
    torch.as_tensor([1.0, 2.0, 3.0]) + torch.as_tensor(x)
    torch.tensor([1.0, 2.0], requires_grad=True) * 2
    torch.scalar_tensor(2.0), torch.asarray([1, 2])
    torch.zeros(x.shape[0], device=x.device, dtype=x.dtype)
    torch.complex(x, y), torch.polar(y, x)
    torch.meshgrid(x[0], y[0], indexing='ij')
    torch.cartesian_prod(x[0], y[0])
    torch.hann_window(4), torch.empty(2, 3).uniform_(0, 1)
    torch.nn.Parameter(torch.zeros(2))
""")

RANDOM = table("""
    torch.rand(3)
    torch.randn(2, 3)
    torch.randint(0, 10, (4,))
    torch.randperm(6)
    torch.rand_like(x) + torch.randn_like(x)
    torch.normal(x, y)
    torch.normal(0.0, 1.0, (2,))
    torch.bernoulli(y.clamp(0, 1))
    y.clamp(0, 1).bernoulli()
    torch.multinomial(y, 2)
    torch.empty(4).exponential_()
    torch.empty(4).random_(5)
    F.dropout(x)
    F.dropout(x, 0.3, True)
    F.dropout2d(x[None, :, :, None], 0.5)
    F.alpha_dropout(x, 0.5, training=True)
    F.gumbel_softmax(x, hard=True)
    F.rrelu(x, training=True)
    torch.nn.init.xavier_uniform_(x)
    torch.poisson(y)
    torch.rand(2) + torch.rand(2)
""")

CONVERSIONS = table("""
    x.to(torch.float64), x.to('cpu'), x.to(device='cpu', dtype=torch.float16)
    x.to(y), x.to(i), i.to(x.dtype)
    x.float(), x.double(), x.half(), x.bfloat16()
    x.int(), x.long(), x.bool(), m.float()
    x.type_as(i), x.type(torch.float64), x.cpu()
    x.type(torch.DoubleTensor), x.long().type(torch.LongTensor), x.type('torch.HalfTensor')
    x.to(float), x.to(dtype=int), torch.zeros(2, dtype=bool), torch.ones(2, dtype=complex)
    x.to(torch.float64, copy=True), x.to(torch.float32, non_blocking=True)
    x.to(memory_format=torch.contiguous_format)
    x.requires_grad_(), x.requires_grad
    x.requires_grad_(False)
    x.detach().requires_grad_()
    x.requires_grad = True; return x * 2
    x.clone().detach_()
    x.grad = y; return x
    x.grad = y; x.grad = None; return x
    x.retain_grad() if x.requires_grad else None
    torch.utils._pytree.tree_map(lambda t: t + 1, [x, {'a': y}])
""")

FUNCTIONS = table("""
    torch.where(m, x, y)
    torch.where(m, 1.0, 0.0) * x
    torch.where(x > 0, x, torch.zeros_like(x))
    torch.cat([x, y]), torch.stack((x, y), dim=-1), torch.hstack([x, y])
    torch.cat([x for _ in range(3)], dim=1)
    torch.einsum('ij,kj->ik', x, y)
    torch.einsum('ij,ij->', [x, y])
    torch.split(x, 1), torch.chunk(x, 2), x.split(2, dim=1)
    torch.tensor_split(x, 2), x.unbind(), x.unbind(dim=1)
    torch.topk(x, 2), x.topk(2).indices, torch.topk(x, 1)[0]
    torch.max(x), torch.max(x, 1), x.max(dim=0).values, torch.max(x, y)
    values, indices = x.max(1); return values * indices
    x.min(1).indices, torch.median(x), x.mode(), torch.kthvalue(x, 1)
    torch.sort(x, descending=True), x.argsort(), x.sort(dim=0).values
    r = x.sort(); return isinstance(r, tuple), len(r), r[0], r.indices, type(r).__name__
    x.argmax(), x.argmax(dim=1), x.any(), x.all(dim=1)
    x.sum(), x.sum(1), x.mean(dim=(0, 1)), x.std(), x.var(0, keepdim=True), torch.var_mean(x)
    x.norm(), torch.linalg.norm(x, dim=1), torch.linalg.vector_norm(x)
    x.cumsum(0), x.prod(), x.logsumexp(1), torch.cummax(x, 1)
    x.softmax(-1), F.log_softmax(x, dim=1), torch.softmax(x, 0, dtype=torch.float64)
    F.relu(x), F.gelu(x, approximate='tanh'), F.silu(x), F.leaky_relu(x, 0.1), F.elu(x), F.glu(x[:, :2])
    F.linear(x, y), F.linear(x, y, x[:, 0]), F.bilinear(x, y, torch.ones(2, 3, 3))
    F.layer_norm(x, (3,)), F.layer_norm(x, x.shape[1:], y[0], y[1]), F.normalize(x, dim=1)
    F.batch_norm(x, y[0].clone(), y[1].clone(), training=True), F.rms_norm(x, (3,))
    F.batch_norm(x, y[0], y[1], training=True), y
    F.conv1d(x[None], torch.ones(4, 2, 2), padding=1), F.conv2d(x[None, None], y[None, None])
    F.max_pool1d(x[None], 2), F.avg_pool1d(x[None], 2), F.adaptive_avg_pool1d(x[None], 1)
    F.max_pool1d(x[None], 2, return_indices=True)
    F.pad(x, (1, 1)), F.pad(x[None], (1, 0), mode='reflect'), F.pad(x, [0, 1, 1, 0], value=2.0)
    F.interpolate(x[None], scale_factor=2), F.interpolate(x[None, None], size=(4, 6), mode='bilinear')
    F.embedding(i, y), F.one_hot(i, 3), F.embedding_bag(i, y, mode='sum')
    F.cross_entropy(x, i[:, 0]), F.nll_loss(x, i[:, 0]), F.mse_loss(x, y, reduction='none')
    F.binary_cross_entropy_with_logits(x, y.clamp(0, 1)), F.kl_div(x, y), F.smooth_l1_loss(x, y)
    F.scaled_dot_product_attention(x[None], y[None], y[None], is_causal=True)
    F.cosine_similarity(x, y), F.pairwise_distance(x, y), torch.cdist(x, y), F.huber_loss(x, y)
    F.unfold(x[None, None], 2), F.pixel_shuffle(x.repeat(4, 1)[None, :, :, None], 2)
    torch.tril(x), torch.triu(x, 1), torch.flip(x, [0]), torch.roll(x, 1, 0), torch.rot90(x)
    torch.clamp(x, -1, 1), x.clamp(min=y), torch.lerp(x, y, 0.5), torch.addcmul(x, y, y, value=2)
    torch.matmul(x, y.mT), torch.mm(x, y.T), torch.bmm(x[None], y.T[None])
    torch.addmm(x[:, :2], x, y.T), x[0].dot(y[0])
    torch.outer(x[0], y[0]), torch.kron(x, y), torch.tensordot(x, y, dims=([1], [1]))
    torch.fft.fft(x), torch.fft.irfft(torch.fft.rfft(x), n=3)
    torch.linalg.qr(x), torch.linalg.svd(x).S, torch.linalg.inv(x @ x.T + torch.eye(2)), torch.det(x @ x.T)
    torch.special.expit(x), torch.sigmoid(x), x.tanh(), x.erf(), x.exp().log1p(), torch.rsqrt(y)
    torch.isnan(x), torch.isfinite(x), torch.nan_to_num(x), x.sign(), torch.logical_and(m, x > 0)
    torch.bucketize(x, y[0].sort().values), torch.searchsorted(y[0].sort().values, x), torch.histc(x, 4)
    x.masked_fill(m, -1e9), x.masked_select(m), torch.masked_select(x, m)
    x.scatter(1, i, y), x.scatter_add(1, i, y), x.scatter_reduce(1, i, y, 'amax'), x.index_copy(0, i[0, :2], y)
    x.repeat(2, 1), x.repeat_interleave(2, dim=0), torch.tile(x, (2,)), x.expand_as(torch.ones(4, 2, 3))
    torch.nonzero(m), m.nonzero(as_tuple=True), torch.argwhere(m), torch.unique(i), torch.bincount(i[0])
    torch.floor_divide(x, 2), torch.true_divide(i, 2), torch.div(x, 2, rounding_mode='floor'), torch.fmod(x, 1)
    torch.flatten(x[None], 1), x.flatten(), x.unflatten(1, (3, 1)), x.movedim(0, 1)
    torch.nn.utils.rnn.pad_sequence([x, y[:1]], batch_first=True)
    torch.nn.functional.softmax(input=x, dim=-1)
    torch.ops.aten.add(x, y), torch.ops.aten.sin.default(x)
    x.sin().cos().tan(), torch.Tensor.add(x, y), torch.Tensor.sum(x, dim=1)
    (lambda f: f(x))(torch.sin), [f(x) for f in (torch.sin, torch.Tensor.cos)]
    getattr(torch, 'sin')(x), getattr(x, 'cos')(), getattr(F, 'relu')(x)
    torch.corrcoef(x), torch.cov(x), torch.vander(x[0]), torch.diff(x), torch.trapezoid(x)
    torch.stack([torch.stack([a * b for a in x[0]]) for b in y[0]])
    x.__add__(y), x.__getitem__(0), x.__len__(), x.__radd__(1), x.__matmul__(y.T), x.__neg__()
    sum([x, y]), sum(x), math.prod([x, y])
    torch.addmv(x[:, 0], x, y[0]), torch.ger(x[0], y[0]), torch.trace(x), torch.cross(x, y, dim=1)
""")

MODES = table("""
    with torch.no_grad(): z = x * 2 ;; return z, z.requires_grad, torch.is_grad_enabled()
    with torch.enable_grad(): z = x * 2 ;; return z
    with torch.set_grad_enabled(False): z = x * 2 ;; return z
    with torch.set_grad_enabled(x.ndim == 2): z = x * 2 ;; return z
    with torch.inference_mode(): z = x * 2 ;; return z, z.is_inference()
    with torch.no_grad(): ;;     with torch.enable_grad(): z = x * 2 ;; return z
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16): z = x @ y.T ;; return z
    with torch.autocast('cpu', dtype=torch.bfloat16): z = x @ y.T; w = z + x @ y.T ;; return z, w
    with torch.autocast('cpu', torch.float16, enabled=False): z = x @ y.T ;; return z
    with torch.autocast(device_type=x.device.type, enabled=False): z = x.float() @ y.T ;; return z
    with torch.amp.autocast('cpu', dtype=torch.bfloat16): return F.linear(x, y)
    with torch.no_grad(): return x * 2
    guard = torch.no_grad(); guard.__enter__(); z = x * 2; guard.__exit__(None, None, None); return z * 2
    torch.set_grad_enabled(False); z = x * 2; torch.set_grad_enabled(True); return z
    torch.set_grad_enabled(False); return x * 2
    torch.is_grad_enabled(), torch.is_autocast_enabled('cpu')
    torch.get_default_dtype(), torch.is_inference_mode_enabled()
    f = torch.no_grad()(lambda t: t * 2); return f(x)
    f = torch.inference_mode()(lambda t: t * 2); return f(x)
    f = torch.autocast('cpu', dtype=torch.bfloat16)(lambda t: t @ t.T); return f(x)
    f = torch.no_grad(lambda t: t * 2); return f(x)
    with torch.device('cpu'): return torch.zeros(2) + x[0, 0]
""")

# … and what may run natively, as long as it is right.
UNCAPTURED = table("""
    torch.manual_seed(3); return torch.rand(2)
    g = torch.Generator().manual_seed(1); return torch.rand(2, generator=g)
    torch.distributions.Normal(x, y).sample()
    torch.distributions.Normal(x, y).rsample()
    torch.distributions.Categorical(logits=x).log_prob(i[:, 0])
    torch.Tensor([1, 2]), torch.LongTensor([1, 2]), torch.FloatTensor(2).fill_(1)
    torch.broadcast_shapes(x.shape, (1, 3))
    torch.vmap(lambda a, b: a * b)(x, y)
    torch.func.grad(lambda a: (a * y).sum())(x)
    with torch.random.fork_rng(): z = torch.rand(2) ;; return z
    with torch.autograd.set_detect_anomaly(False): z = x * 2 ;; return z
    a = torch.nn.attention ;; with a.sdpa_kernel(a.SDPBackend.MATH): return F.scaled_dot_product_attention(x, y, y)
    with torch.autograd.profiler.record_function('region'): return x * 2
    with torch.profiler.record_function('region'): return x * 2
    x.sum.__name__, x.sum()
    x.data = y; return x
    (x * y).grad_fn is None
""")

GROUPS = {"operator": OPERATORS, "in-place": IN_PLACE, "index": INDEXING, "alias": ALIASES, "metadata": METADATA,
          "factory": FACTORIES, "random": RANDOM, "conversion": CONVERSIONS, "function": FUNCTIONS, "mode": MODES}
ALL = [pytest.param(text, id=f"{group}: {text}") for group, texts in GROUPS.items() for text in texts]


@pytest.mark.parametrize("body", ALL)
def test_inference(body: str) -> None:
    run(lambda: function(body, math=math), INPUTS, {})


@pytest.mark.parametrize("body", UNCAPTURED)
def test_what_may_run_natively(body: str) -> None:
    run(lambda: function(body, math=math), INPUTS, NATIVE)


DIFFERENTIABLE = table("""
    x * y + x / y - x ** 2
    x @ y.T
    x[0] * y[1], x[:, 1:].sum()
    x.clone().mul_(y).add_(1)
    z = x * 1; z[0] = y[0]; return z
    z = x * 1; z[:, 1] *= 2; return z, z[0]
    z = x * 1; v = z.view(-1); v.mul_(2); return z
    with torch.no_grad(): z = x * 2 ;; return z * x
    with torch.no_grad(): x.add_(1) ;; return x * 2
    x.detach() * y
    x.data * y
    x.view(3, 2), x.T, x
    x.softmax(-1), F.layer_norm(x, (3,), y[0]), F.gelu(y)
    F.dropout(x, 0.5) * y
    torch.where(m, x, y), x.masked_fill(m, 0), x.gather(1, i)
    torch.cat([x, y]).sort().values, x.max(1), x.topk(2)
    [a * b for a, b in zip(x, y)]
    (x * y).requires_grad, x.requires_grad, x.is_leaf, (x * y).is_leaf, x * y
    x, (x * 2).detach(), (x * y)
    (x * 2).detach().requires_grad_() * y
    torch.nn.utils.parameters_to_vector([x, y])
    with torch.autocast('cpu', dtype=torch.bfloat16): z = x @ y.T ;; return z.float().sum()
    F.embedding(i, y), F.cross_entropy(x, i[:, 0])
    torch.einsum('ij,ij->i', x, y), torch.linalg.norm(x)
    x.grad, x * 2
""")


@pytest.mark.parametrize("body", DIFFERENTIABLE)
def test_gradients(body: str) -> None:
    inputs = (X.clone().requires_grad_(), Y.clone().requires_grad_(), INDEX, MASK)
    run(lambda: function(body), inputs, {"backward": True})


STRIDES = {
    "transposed": torch.randn(3, 2).T, "sliced": torch.randn(2, 6)[:, ::2], "expanded": torch.randn(3).expand(2, 3),
    "offset": torch.randn(3, 3)[1:], "empty": torch.empty(0, 3), "flipped": torch.randn(2, 3).flip(0),
           "double": X.double(),
    "half": X.half(), "integer": INDEX.int(), "complex": torch.complex(X, Y), "conjugate": torch.complex(X, Y).conj(),
    "channels_last": torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last), "scalar": torch.tensor(2.5)}


@pytest.mark.parametrize("body", ["x * 2 + x", "x.reshape(-1), x.clone(), x.contiguous()",
                                  "x.stride(), x.is_contiguous(), x.abs()",
                                  "torch.empty_like(x).stride(), x.sum(), x.ndim"])
@pytest.mark.parametrize("x", [pytest.param(t, id=name) for name, t in STRIDES.items()])
def test_layouts_and_dtypes(x: torch.Tensor, body: str) -> None:
    check(lambda: function(body), call(x, Y, INDEX, MASK), call(x, Y, INDEX, MASK))
