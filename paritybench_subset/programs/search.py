"""Capsules, architecture search, quantisers, pruning, experts, early exits, conditional computation."""
from __future__ import annotations

import copy
import math
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function, Variable

from paritybench_subset.cases import inputs, program


def squash(inputs, axis=-1):
    norm = torch.norm(inputs, p=2, dim=axis, keepdim=True)
    scale = norm ** 2 / (1 + norm ** 2) / (norm + 1e-8)
    return scale * inputs


class DenseCapsule(nn.Module):
    def __init__(self, in_num_caps, in_dim_caps, out_num_caps, out_dim_caps, routings=3):
        super(DenseCapsule, self).__init__()
        self.in_num_caps, self.in_dim_caps = in_num_caps, in_dim_caps
        self.out_num_caps, self.out_dim_caps = out_num_caps, out_dim_caps
        self.routings = routings
        self.weight = nn.Parameter(0.01 * torch.randn(out_num_caps, in_num_caps, out_dim_caps, in_dim_caps))

    def forward(self, x):
        x_hat = torch.squeeze(torch.matmul(self.weight, x[:, None, :, :, None]), dim=-1)
        x_hat_detached = x_hat.detach()
        b = Variable(torch.zeros(x.size(0), self.out_num_caps, self.in_num_caps))
        assert self.routings > 0, 'The \'routings\' should be > 0.'
        for i in range(self.routings):
            c = F.softmax(b, dim=1)
            if i == self.routings - 1:
                outputs = squash(torch.sum(c[:, :, :, None] * x_hat, dim=-2, keepdim=True))
            else:
                outputs = squash(torch.sum(c[:, :, :, None] * x_hat_detached, dim=-2, keepdim=True))
                b = b + torch.sum(outputs * x_hat_detached, dim=-1)
        return torch.squeeze(outputs, dim=-2)


class CapsuleNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.primary = nn.Conv2d(4, 8, 3, stride=2)
        self.digitcaps = DenseCapsule(8, 4, classes, 5)
        self.decoder = nn.Sequential(nn.Linear(5 * classes, 8), nn.ReLU(inplace=True), nn.Linear(8, 64), nn.Sigmoid())

    def forward(self, x, y=None):
        x = F.relu(self.conv1(x))
        x = self.primary(x)
        x = squash(x.view(x.size(0), -1, 4))
        x = self.digitcaps(x)
        length = x.norm(dim=-1)
        if y is None:
            index = length.max(dim=1)[1]
            y = Variable(torch.zeros(length.size()).scatter_(1, index.view(-1, 1).cpu().data, 1.))
        reconstruction = self.decoder((x * y[:, :, None]).view(x.size(0), -1))
        return length, reconstruction.view(-1, *[1, 8, 8])


@program(lambda: inputs(torch.rand(2, 1, 7, 7)))
def capsule_network():
    return CapsuleNet()


OPS = {
    'none': lambda C, stride, affine: Zero(stride),
    'avg_pool_3x3': lambda C, stride, affine: nn.AvgPool2d(3, stride=stride, padding=1, count_include_pad=False),
    'max_pool_3x3': lambda C, stride, affine: nn.MaxPool2d(3, stride=stride, padding=1),
    'skip_connect': lambda C, stride, affine: Identity() if stride == 1 else FactorizedReduce(C, C, affine=affine),
    'sep_conv_3x3': lambda C, stride, affine: nn.Sequential(
        nn.ReLU(inplace=False), nn.Conv2d(C, C, 3, stride=stride, padding=1, groups=C, bias=False), nn.Conv2d(C, C, 1, bias=False),
        nn.BatchNorm2d(C, affine=affine)),
}
PRIMITIVES = list(OPS)


class Identity(nn.Module):
    def forward(self, x):
        return x


class Zero(nn.Module):
    def __init__(self, stride):
        super(Zero, self).__init__()
        self.stride = stride

    def forward(self, x):
        if self.stride == 1:
            return x.mul(0.)
        return x[:, :, ::self.stride, ::self.stride].mul(0.)


class FactorizedReduce(nn.Module):
    def __init__(self, C_in, C_out, affine=True):
        super(FactorizedReduce, self).__init__()
        assert C_out % 2 == 0
        self.relu = nn.ReLU(inplace=False)
        self.conv_1 = nn.Conv2d(C_in, C_out // 2, 1, stride=2, padding=0, bias=False)
        self.conv_2 = nn.Conv2d(C_in, C_out // 2, 1, stride=2, padding=0, bias=False)
        self.bn = nn.BatchNorm2d(C_out, affine=affine)

    def forward(self, x):
        x = self.relu(x)
        out = torch.cat([self.conv_1(x), self.conv_2(x[:, :, 1:, 1:])], dim=1)
        return self.bn(out)


class MixedOp(nn.Module):
    def __init__(self, C, stride):
        super(MixedOp, self).__init__()
        self._ops = nn.ModuleList()
        for primitive in PRIMITIVES:
            op = OPS[primitive](C, stride, False)
            if 'pool' in primitive:
                op = nn.Sequential(op, nn.BatchNorm2d(C, affine=False))
            self._ops.append(op)

    def forward(self, x, weights):
        return sum(w * op(x) for w, op in zip(weights, self._ops))


class DartsCell(nn.Module):
    def __init__(self, steps, multiplier, C, reduction):
        super().__init__()
        self._steps, self._multiplier, self.reduction = steps, multiplier, reduction
        self._ops = nn.ModuleList()
        for i in range(self._steps):
            for j in range(2 + i):
                self._ops.append(MixedOp(C, 2 if reduction and j < 2 else 1))
        k = sum(1 for i in range(steps) for n in range(2 + i))
        self.alphas = nn.Parameter(1e-3 * torch.randn(k, len(PRIMITIVES)))

    def forward(self, s0, s1):
        weights = F.softmax(self.alphas, dim=-1)
        states = [s0, s1]
        offset = 0
        for i in range(self._steps):
            s = sum(self._ops[offset + j](h, weights[offset + j]) for j, h in enumerate(states))
            offset += len(states)
            states.append(s)
        return torch.cat(states[-self._multiplier:], dim=1)


@program(lambda: inputs(torch.randn(2, 4, 4, 4), torch.randn(2, 4, 4, 4)))
def darts_search_cell():
    return DartsCell(2, 2, 4, reduction=True)


Genotype = namedtuple('Genotype', 'normal normal_concat')


def drop_path(x, drop_prob):
    if drop_prob > 0.:
        keep_prob = 1. - drop_prob
        mask = Variable(torch.FloatTensor(x.size(0), 1, 1, 1).bernoulli_(keep_prob))
        x.div_(keep_prob)
        x.mul_(mask)
    return x


class FixedCell(nn.Module):
    def __init__(self, genotype, C):
        super(FixedCell, self).__init__()
        op_names, indices = zip(*genotype.normal)
        self._concat, self._steps, self._indices = genotype.normal_concat, len(op_names) // 2, indices
        self._ops = nn.ModuleList()
        for name, index in zip(op_names, indices):
            self._ops += [OPS[name](C, 1, True)]

    def forward(self, s0, s1, drop_prob=0.2):
        states = [s0, s1]
        for i in range(self._steps):
            h1, h2 = states[self._indices[2 * i]], states[self._indices[2 * i + 1]]
            op1, op2 = self._ops[2 * i], self._ops[2 * i + 1]
            h1, h2 = op1(h1), op2(h2)
            if self.training and drop_prob > 0.:
                if not isinstance(op1, Identity):
                    h1 = drop_path(h1, drop_prob)
                if not isinstance(op2, Identity):
                    h2 = drop_path(h2, drop_prob)
            s = h1 + h2
            states += [s]
        return torch.cat([states[i] for i in self._concat], dim=1)


@program(lambda: inputs(torch.randn(2, 4, 4, 4), torch.randn(2, 4, 4, 4)))
def genotype_cell():
    return FixedCell(Genotype([('sep_conv_3x3', 0), ('skip_connect', 1), ('max_pool_3x3', 0), ('sep_conv_3x3', 2)], [2, 3]), 4)


class GumbelChannels(nn.Module):
    """Samples a path in training, takes the best one else."""

    def __init__(self, dim, choices=3):
        super().__init__()
        self.paths = nn.ModuleList(nn.Conv1d(dim, dim, 2 * i + 1, padding=i) for i in range(choices))
        self.arch = nn.Parameter(torch.zeros(choices))
        self.tau = 5.0

    def forward(self, x):
        if self.training:
            weights = F.gumbel_softmax(self.arch, tau=self.tau, hard=True)
        else:
            weights = torch.zeros_like(self.arch).scatter_(0, self.arch.argmax(keepdim=True), 1.0)
        return torch.stack([path(x) for path in self.paths], dim=-1) @ weights


@program(lambda: inputs(torch.randn(2, 3, 6)))
def gumbel_choice():
    return GumbelChannels(3)


class DoReFaRound(Function):
    @staticmethod
    def forward(ctx, input, k):
        n = float(2 ** k - 1)
        out = torch.round(input * n) / n
        return out

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clone(), None


class QuantConv2d(nn.Conv2d):
    def __init__(self, *args, w_bits=2, a_bits=4, **kwargs):
        super(QuantConv2d, self).__init__(*args, **kwargs)
        self.w_bits, self.a_bits = w_bits, a_bits
        self.quantize = DoReFaRound.apply

    def quant_weight(self, x):
        if self.w_bits == 1:
            E = torch.mean(torch.abs(x)).detach()
            return (torch.sign(x / E) + x - x.detach()) * E
        weight = torch.tanh(x)
        max_w = torch.max(torch.abs(weight)).detach()
        weight = weight / 2 / max_w + 0.5
        return 2 * self.quantize(weight, self.w_bits) - 1

    def forward(self, input, order=None):
        activation = self.quantize(torch.clamp(input, 0, 1), self.a_bits)
        return F.conv2d(activation, self.quant_weight(self.weight), self.bias, self.stride, self.padding, self.dilation, self.groups)


@program(lambda: inputs(torch.randn(2, 3, 5, 5)))
def dorefa_quantiser():
    return nn.Sequential(QuantConv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), QuantConv2d(4, 4, 3, w_bits=1))


class BinarizeSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input.sign()

    @staticmethod
    def backward(ctx, grad_output):
        input, = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.ge(1)] = 0
        grad_input[input.le(-1)] = 0
        return grad_input


class BinarizeLinear(nn.Linear):
    """The real weights are kept as an attribute of the parameter."""

    def forward(self, input):
        input = BinarizeSTE.apply(input)
        if not hasattr(self.weight, 'org'):
            self.weight.org = self.weight.data.clone()
        self.weight.data = self.weight.org.sign()
        out = F.linear(input, self.weight)
        if self.bias is not None:
            out += self.bias.view(1, -1).expand_as(out)
        return out


@program(lambda: inputs(torch.randn(3, 4)))
def binarised_linear():
    return BinarizeLinear(4, 2)


class LsqQuantizer(nn.Module):
    """The step size is initialised from the first batch that comes by."""

    def __init__(self, bit=4):
        super().__init__()
        self.thd_neg, self.thd_pos = -2 ** (bit - 1), 2 ** (bit - 1) - 1
        self.s = nn.Parameter(torch.ones(1))
        self.register_buffer('initialised', torch.zeros(1, dtype=torch.uint8))
        self.ready = False

    def grad_scale(self, x, scale):
        y_grad = x * scale
        return x.detach() - y_grad.detach() + y_grad

    def round_pass(self, x):
        return x.round().detach() - x.detach() + x

    def forward(self, x):
        if not self.ready:
            self.s.data.copy_(x.detach().abs().mean() * 2 / (self.thd_pos ** 0.5))
            self.initialised.fill_(1)
            self.ready = True
        s_scale = self.grad_scale(self.s, 1.0 / ((self.thd_pos * x.numel()) ** 0.5))
        x = x / s_scale
        x = torch.clamp(x, self.thd_neg, self.thd_pos)
        return self.round_pass(x) * s_scale


@program(lambda: inputs(torch.randn(3, 4)))
def learned_step_size():
    return LsqQuantizer()


class SparseDispatcher(object):
    def __init__(self, num_experts, gates):
        self._gates, self._num_experts = gates, num_experts

    def combine(self, expert_out):
        return torch.einsum('be,ebd->bd', self._gates, torch.stack(expert_out))


class MoE(nn.Module):
    def __init__(self, input_size, output_size, num_experts, noisy_gating=True, k=2):
        super().__init__()
        self.noisy_gating, self.num_experts, self.k = noisy_gating, num_experts, k
        self.experts = nn.ModuleList([nn.Linear(input_size, output_size) for _ in range(self.num_experts)])
        self.w_gate = nn.Parameter(torch.randn(input_size, num_experts), requires_grad=True)
        self.w_noise = nn.Parameter(torch.zeros(input_size, num_experts), requires_grad=True)
        self.softplus, self.softmax = nn.Softplus(), nn.Softmax(1)
        assert self.k <= self.num_experts

    def cv_squared(self, x):
        eps = 1e-10
        if x.shape[0] == 1:
            return torch.tensor([0], device=x.device, dtype=x.dtype)
        return x.float().var() / (x.float().mean() ** 2 + eps)

    def noisy_top_k_gating(self, x, train, noise_epsilon=1e-2):
        clean_logits = x @ self.w_gate
        if self.noisy_gating and train:
            noise_stddev = self.softplus(x @ self.w_noise) + noise_epsilon
            logits = clean_logits + (torch.randn_like(clean_logits) * noise_stddev)
        else:
            logits = clean_logits
        logits = self.softmax(logits)
        top_logits, top_indices = logits.topk(min(self.k + 1, self.num_experts), dim=1)
        top_k_logits, top_k_indices = top_logits[:, :self.k], top_indices[:, :self.k]
        top_k_gates = top_k_logits / (top_k_logits.sum(1, keepdim=True) + 1e-6)
        zeros = torch.zeros_like(logits, requires_grad=True)
        return zeros.scatter(1, top_k_indices, top_k_gates)

    def forward(self, x, loss_coef=1e-2):
        gates = self.noisy_top_k_gating(x, self.training)
        importance = gates.sum(0)
        loss = self.cv_squared(importance) + self.cv_squared((gates > 0).sum(0))
        dispatcher = SparseDispatcher(self.num_experts, gates)
        expert_outputs = [self.experts[i](x) for i in range(self.num_experts)]
        return dispatcher.combine(expert_outputs), loss * loss_coef


@program(lambda: inputs(torch.randn(4, 3)))
def mixture_of_experts():
    return MoE(3, 5, 4)


class SparselyRoutedExperts(nn.Module):
    """Tokens of each expert are found by `nonzero`: shapes depend on values."""

    def __init__(self, dim, num_experts=3):
        super().__init__()
        self.gate = nn.Linear(dim, num_experts)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_experts))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            tokens = torch.where(chosen == i)[0]
            out[tokens] = expert(x[tokens]) * weights[tokens, None]
        return out


@program(lambda: inputs(torch.randn(6, 4)))
def sparsely_routed_experts():
    return SparselyRoutedExperts(4)


class EarlyExit(nn.Module):
    """Leaves at the first head that is sure enough: a decision on a value."""

    def __init__(self, dim=4, depth=3, threshold=0.9):
        super().__init__()
        block = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.blocks = nn.ModuleList([copy.deepcopy(block) for _ in range(depth)])
        self.exits = nn.ModuleList([nn.Linear(dim, 3) for _ in range(depth)])
        self.threshold = threshold

    def forward(self, x):
        logits = []
        for block, head in zip(self.blocks, self.exits):
            x = block(x)
            logits.append(head(x))
            if not self.training and logits[-1].softmax(-1).max(-1)[0].min().item() > self.threshold:
                break
        return logits


@program(lambda: inputs(torch.randn(2, 4)))
def early_exit():
    return EarlyExit()


class MaskedLinear(nn.Module):
    """Magnitude pruning by a mask that follows from a quantile of the weights."""

    def __init__(self, in_features, out_features, sparsity=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.Tensor(out_features, in_features))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.register_buffer('mask', torch.ones_like(self.weight))
        self.sparsity = sparsity
        self.steps = 0

    def update_mask(self):
        with torch.no_grad():
            k = 1 + round(self.sparsity * (self.weight.numel() - 1))
            threshold = self.weight.abs().view(-1).kthvalue(k).values
            self.mask.copy_((self.weight.abs() > threshold).float())

    def forward(self, x):
        if self.training and self.steps % 2 == 0:
            self.update_mask()
        self.steps += 1
        return F.linear(x, self.weight * self.mask)


@program(lambda: inputs(torch.randn(3, 6)))
def pruned_linear():
    return MaskedLinear(6, 4)


class SlimmableConv2d(nn.Conv2d):
    def __init__(self, in_channels_list, out_channels_list, kernel_size):
        super().__init__(max(in_channels_list), max(out_channels_list), kernel_size, padding=kernel_size // 2)
        self.in_channels_list, self.out_channels_list = in_channels_list, out_channels_list
        self.width_mult = max(WIDTHS)

    def forward(self, input):
        idx = WIDTHS.index(self.width_mult)
        self.in_channels, self.out_channels = self.in_channels_list[idx], self.out_channels_list[idx]
        weight = self.weight[:self.out_channels, :self.in_channels, :, :]
        bias = self.bias[:self.out_channels] if self.bias is not None else self.bias
        return F.conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


WIDTHS = [0.5, 1.0]


class Slimmable(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SlimmableConv2d([3, 3], [2, 4], 3)
        self.bns = nn.ModuleList([nn.BatchNorm2d(c, affine=False) for c in (2, 4)])

    def forward(self, x):
        results = {}
        for width_mult in sorted(WIDTHS, reverse=True):
            self.apply(lambda m: setattr(m, 'width_mult', width_mult))
            results[width_mult] = self.bns[WIDTHS.index(width_mult)](self.conv(x)).mean([2, 3])
        return results


@program(lambda: inputs(torch.randn(2, 3, 4, 4)))
def slimmable_network():
    return Slimmable()


class SinusoidalRouting(nn.Module):
    """EM-like routing with numpy constants and a temperature that is annealed by a counter in a buffer."""

    def __init__(self, B=3, C=2, iters=2):
        super().__init__()
        self.iters = iters
        self.votes = nn.Parameter(torch.randn(B, C, 4, 4) * 0.1)
        self.beta_u = nn.Parameter(torch.zeros(C))
        self._lambda = 1e-03
        self.ln_2pi = torch.FloatTensor([np.log(2 * np.pi)])
        self.register_buffer('steps', torch.zeros((), dtype=torch.long))

    def forward(self, pose):
        if self.training:
            self.steps += 1
        v = torch.einsum('bnij,ncjk->bncik', pose, self.votes).flatten(3)
        r = torch.full(v.shape[:3], 1. / v.shape[2])
        for _ in range(self.iters):
            r_sum = r.sum(1, keepdim=True).unsqueeze(-1)
            mu = (r.unsqueeze(-1) * v).sum(1, keepdim=True) / (r_sum + 1e-6)
            sigma_sq = (r.unsqueeze(-1) * (v - mu) ** 2).sum(1, keepdim=True) / (r_sum + 1e-6) + 1e-6
            ln_p = -1. * (v - mu) ** 2 / (2 * sigma_sq) - torch.log(sigma_sq.sqrt()) - 0.5 * self.ln_2pi
            a = torch.sigmoid(self._lambda * (self.beta_u - sigma_sq.sqrt().log().sum(-1)))
            r = F.softmax(ln_p.sum(-1) + torch.log(a + 1e-6), dim=2)
        return mu.squeeze(1), a.squeeze(1)


@program(lambda: inputs(torch.randn(2, 3, 4, 4)))
def em_routing():
    return SinusoidalRouting()
