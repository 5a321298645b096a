"""Segmentation, super-resolution, flow, pose, backbones: pyramids, skip lists, hooks, warping, multi-scale outputs."""
from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Dict, List, Optional

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parameter import Parameter

from paritybench_subset.cases import inputs, program


def conv3x3(in_planes, out_planes, stride=1):
    return nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride=1, downsample=None):
        super(BasicBlock, self).__init__()
        self.conv1, self.bn1 = conv3x3(inplanes, planes, stride), nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = conv3x3(planes, planes), nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x):
        residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            residual = self.downsample(x)
        out += residual
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, block, layers, num_classes=5):
        self.inplanes = 4
        super(ResNet, self).__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 4, layers[0])
        self.layer2 = self._make_layer(block, 8, layers[1], stride=2)
        self.fc = nn.Linear(8 * block.expansion, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                n = m.kernel_size[0] * m.kernel_size[1] * m.out_channels
                m.weight.data.normal_(0, math.sqrt(2. / n))
            elif isinstance(m, nn.BatchNorm2d):
                m.weight.data.fill_(1)
                m.bias.data.zero_()

    def _make_layer(self, block, planes, blocks, stride=1):
        downsample = None
        if stride != 1 or self.inplanes != planes * block.expansion:
            downsample = nn.Sequential(nn.Conv2d(self.inplanes, planes * block.expansion, 1, stride, bias=False),
                                       nn.BatchNorm2d(planes * block.expansion))
        layers = [block(self.inplanes, planes, stride, downsample)]
        self.inplanes = planes * block.expansion
        for _ in range(1, blocks):
            layers.append(block(self.inplanes, planes))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        x = F.avg_pool2d(x, x.size()[3])
        return self.fc(x.view(x.size(0), -1))


@program(lambda: inputs(torch.randn(2, 3, 16, 16)))
def resnet():
    return ResNet(BasicBlock, [1, 2])


class IntermediateLayerGetter(nn.ModuleDict):
    def __init__(self, model, return_layers: Dict[str, str]):
        if not set(return_layers).issubset([name for name, _ in model.named_children()]):
            raise ValueError("return_layers are not present in model")
        orig_return_layers = return_layers
        return_layers = {str(k): str(v) for k, v in return_layers.items()}
        layers = OrderedDict()
        for name, module in model.named_children():
            layers[name] = module
            if name in return_layers:
                del return_layers[name]
            if not return_layers:
                break
        super().__init__(layers)
        self.return_layers = orig_return_layers

    def forward(self, x):
        out = OrderedDict()
        for name, module in self.items():
            x = module(x)
            if name in self.return_layers:
                out_name = self.return_layers[name]
                out[out_name] = x
        return out


class ASPPPooling(nn.Sequential):
    def __init__(self, in_channels, out_channels):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.ReLU(inplace=True))

    def forward(self, x):
        size = x.shape[-2:]
        for mod in self:
            x = mod(x)
        return F.interpolate(x, size=size, mode='bilinear', align_corners=False)


class DeepLab(nn.Module):
    def __init__(self, backbone, in_channels, num_classes, aux_classifier=None, rates=(1, 2)):
        super().__init__()
        self.backbone = backbone
        modules = [nn.Sequential(nn.Conv2d(in_channels, 4, 1, bias=False), nn.ReLU())]
        modules += [nn.Conv2d(in_channels, 4, 3, padding=rate, dilation=rate, bias=False) for rate in tuple(rates)]
        modules.append(ASPPPooling(in_channels, 4))
        self.convs = nn.ModuleList(modules)
        self.project = nn.Conv2d(len(self.convs) * 4, num_classes, 1)
        self.aux_classifier = aux_classifier

    def forward(self, x):
        input_shape = x.shape[-2:]
        features = self.backbone(x)
        result = OrderedDict()
        x = features["out"]
        res = []
        for conv in self.convs:
            res.append(conv(x))
        x = self.project(torch.cat(res, dim=1))
        result["out"] = F.interpolate(x, size=input_shape, mode="bilinear", align_corners=False)
        if self.aux_classifier is not None:
            result["aux"] = F.interpolate(self.aux_classifier(features["aux"]), size=input_shape, mode="bilinear", align_corners=False)
        return result


@program(lambda: inputs(torch.randn(2, 3, 16, 16)))
def deeplab_with_auxiliary_head():
    backbone = IntermediateLayerGetter(ResNet(BasicBlock, [1, 1]), {'layer1': 'aux', 'layer2': 'out'})
    return DeepLab(backbone, 8, 3, aux_classifier=nn.Conv2d(4, 3, 1))


class PSPModule(nn.Module):
    def __init__(self, features, sizes=(1, 2, 3)):
        super().__init__()
        self.stages = nn.ModuleList([self._make_stage(features, size) for size in sizes])
        self.bottleneck = nn.Conv2d(features * (len(sizes) + 1), 4, kernel_size=1)

    def _make_stage(self, features, size):
        prior = nn.AdaptiveAvgPool2d(output_size=(size, size))
        return nn.Sequential(prior, nn.Conv2d(features, features, kernel_size=1, bias=False))

    def forward(self, feats):
        h, w = feats.size(2), feats.size(3)
        priors = [F.interpolate(input=stage(feats), size=(h, w), mode='bilinear', align_corners=True) for stage in self.stages] + [feats]
        return F.relu(self.bottleneck(torch.cat(priors, 1)))


@program(lambda: inputs(torch.randn(2, 4, 7, 6)))
def pyramid_pooling():
    return PSPModule(4)


class HookedUNet(nn.Module):
    """Skip connections are collected by forward hooks on an encoder that knows nothing of them."""

    def __init__(self, encoder, n_classes):
        super().__init__()
        self.encoder = encoder
        self.sfs = []
        for name, m in encoder.named_children():
            if name.startswith('stage'):
                m.register_forward_hook(self.hook_fn)
        self.ups = nn.ModuleList([nn.ConvTranspose2d(8, 4, 2, 2), nn.ConvTranspose2d(8, n_classes, 2, 2)])

    def hook_fn(self, module, input, output):
        self.sfs.append(output)

    def forward(self, x):
        self.sfs.clear()
        x = self.encoder(x)
        skips = self.sfs[::-1]
        for i, up in enumerate(self.ups):
            x = up(torch.cat([x, skips[i]], 1) if i else skips[i])
            if i == 0 and x.shape[-2:] != skips[1].shape[-2:]:
                x = F.pad(x, [0, skips[1].size(3) - x.size(3), 0, skips[1].size(2) - x.size(2)])
        return x


@program(lambda: inputs(torch.randn(1, 3, 10, 10)))
def unet_with_hooks():
    encoder = nn.Sequential(OrderedDict(stage1=nn.Conv2d(3, 4, 3, 2, 1), act=nn.ReLU(), stage2=nn.Conv2d(4, 8, 3, 2, 1)))
    return HookedUNet(encoder, 2)


class MeanShift(nn.Conv2d):
    def __init__(self, rgb_range, rgb_mean=(0.4488, 0.4371, 0.4040), rgb_std=(1.0, 1.0, 1.0), sign=-1):
        super(MeanShift, self).__init__(3, 3, kernel_size=1)
        std = torch.Tensor(rgb_std)
        self.weight.data = torch.eye(3).view(3, 3, 1, 1) / std.view(3, 1, 1, 1)
        self.bias.data = sign * rgb_range * torch.Tensor(rgb_mean) / std
        for p in self.parameters():
            p.requires_grad = False


class EDSR(nn.Module):
    def __init__(self, args, conv=conv3x3):
        super(EDSR, self).__init__()
        n_resblocks, n_feats, scale = args.n_resblocks, args.n_feats, args.scale[0]
        self.url = {'r16f64x2': 'nowhere'}.get('r{}f{}x{}'.format(n_resblocks, n_feats, scale), None)
        self.sub_mean, self.add_mean = MeanShift(args.rgb_range), MeanShift(args.rgb_range, sign=1)
        m_body = [BasicBlock(n_feats, n_feats) for _ in range(n_resblocks)] + [conv(n_feats, n_feats)]
        m_tail = []
        if (scale & (scale - 1)) == 0:
            for _ in range(int(math.log(scale, 2))):
                m_tail += [conv(n_feats, 4 * n_feats), nn.PixelShuffle(2)]
        self.head, self.body = conv(3, n_feats), nn.Sequential(*m_body)
        self.tail = nn.Sequential(*m_tail, conv(n_feats, 3))
        self.res_scale = args.res_scale

    def forward(self, x):
        x = self.sub_mean(x)
        x = self.head(x)
        res = self.body(x).mul(self.res_scale)
        res += x
        x = self.tail(res)
        return self.add_mean(x)


@dataclass
class SRArgs:
    n_resblocks: int = 1
    n_feats: int = 4
    scale: List[int] = field(default_factory=lambda: [4])
    rgb_range: int = 255
    res_scale: float = 0.1


@program(lambda: inputs(torch.rand(1, 3, 5, 5) * 255))
def super_resolution():
    return EDSR(SRArgs())


class FlowWarp(nn.Module):
    """Coarse-to-fine flow: warping by a grid that is kept for each size."""

    def __init__(self, levels=2):
        super().__init__()
        self.levels = levels
        self.estimators = nn.ModuleList([nn.Conv2d(8, 2, 3, padding=1) for _ in range(levels)])
        self.features = nn.Conv2d(1, 3, 3, padding=1)
        self.backwarp_tenGrid = {}

    def backwarp(self, tenInput, tenFlow):
        if str(tenFlow.shape) not in self.backwarp_tenGrid:
            tenHor = torch.linspace(-1.0, 1.0, tenFlow.shape[3]).view(1, 1, 1, -1).repeat(1, 1, tenFlow.shape[2], 1)
            tenVer = torch.linspace(-1.0, 1.0, tenFlow.shape[2]).view(1, 1, -1, 1).repeat(1, 1, 1, tenFlow.shape[3])
            self.backwarp_tenGrid[str(tenFlow.shape)] = torch.cat([tenHor, tenVer], 1)
        tenFlow = torch.cat([tenFlow[:, 0:1, :, :] * (2.0 / (tenInput.shape[3] - 1.0)), tenFlow[:, 1:2, :, :] * (2.0 / (tenInput.shape[2] - 1.0))], 1)
        grid = (self.backwarp_tenGrid[str(tenFlow.shape)] + tenFlow).permute(0, 2, 3, 1)
        return F.grid_sample(input=tenInput, grid=grid, mode='bilinear', padding_mode='zeros', align_corners=True)

    def forward(self, one, two):
        ones, twos = [self.features(one)], [self.features(two)]
        for _ in range(self.levels - 1):
            ones.insert(0, F.avg_pool2d(ones[0], 2, count_include_pad=False))
            twos.insert(0, F.avg_pool2d(twos[0], 2, count_include_pad=False))
        flow = ones[0].new_zeros([one.shape[0], 2, int(math.floor(ones[0].shape[2] / 2.0)), int(math.floor(ones[0].shape[3] / 2.0))])
        flows = []
        for level, net in enumerate(self.estimators):
            up = F.interpolate(flow, scale_factor=2, mode='bilinear', align_corners=True) * 2.0
            if up.shape[2] != ones[level].shape[2]:
                up = F.pad(up, [0, 0, 0, 1], mode='replicate')
            if up.shape[3] != ones[level].shape[3]:
                up = F.pad(up, [0, 1, 0, 0], mode='replicate')
            flow = net(torch.cat([ones[level], self.backwarp(twos[level], up), up], 1)) + up
            flows.append(flow)
        return flows if self.training else flows[-1]


@program(lambda: inputs(torch.rand(1, 1, 10, 8), torch.rand(1, 1, 10, 8)))
def pyramid_flow():
    return FlowWarp()


class Hourglass(nn.Module):
    """Recursion over modules in nested lists; intermediate supervision."""

    def __init__(self, depth, ch, stacks=2, joints=3):
        super().__init__()
        self.depth = depth
        self.hg = nn.ModuleList(nn.ModuleList(nn.ModuleList(BasicBlock(ch, ch) for _ in range(4 if i == 0 else 3)) for i in range(depth))
                                for _ in range(stacks))
        self.score = nn.ModuleList(nn.Conv2d(ch, joints, 1) for _ in range(stacks))
        self.remap = nn.ModuleList(nn.Conv2d(joints, ch, 1) for _ in range(stacks - 1))

    def _hour_glass_forward(self, hg, n, x):
        up1 = hg[n - 1][0](x)
        low1 = F.max_pool2d(x, 2, stride=2)
        low1 = hg[n - 1][1](low1)
        if n > 1:
            low2 = self._hour_glass_forward(hg, n - 1, low1)
        else:
            low2 = hg[n - 1][3](low1)
        return up1 + F.interpolate(hg[n - 1][2](low2), scale_factor=2)

    def soft_argmax(self, heatmaps):
        n, j, h, w = heatmaps.shape
        p = F.softmax(heatmaps.reshape(n, j, -1), -1).view(n, j, h, w)
        xs, ys = torch.arange(w).type_as(p), torch.arange(h).type_as(p)
        return torch.stack([(p.sum(2) * xs).sum(-1), (p.sum(3) * ys).sum(-1)], -1)

    def forward(self, x):
        outs = []
        for i, (hg, score) in enumerate(zip(self.hg, self.score)):
            y = score(self._hour_glass_forward(hg, self.depth, x))
            outs.append(y)
            if i < len(self.remap):
                x = x + self.remap[i](y)
        return outs, self.soft_argmax(outs[-1])


@program(lambda: inputs(torch.randn(1, 4, 8, 8)))
def stacked_hourglass():
    return Hourglass(2, 4)


class HRFuse(nn.Module):
    """Branches of several resolutions that are fused pairwise, `None` where there is nothing to do."""

    def __init__(self, channels):
        super().__init__()
        self.num_branches = len(channels)
        self.fuse_layers = nn.ModuleList()
        for i in range(self.num_branches):
            fuse_layer = []
            for j in range(self.num_branches):
                if j > i:
                    fuse_layer.append(nn.Sequential(nn.Conv2d(channels[j], channels[i], 1, bias=False), nn.Upsample(scale_factor=2 ** (j - i), mode='nearest')))
                elif j == i:
                    fuse_layer.append(None)
                else:
                    fuse_layer.append(nn.Sequential(*[nn.Conv2d(channels[j] if k == 0 else channels[i], channels[i], 3, 2, 1) for k in range(i - j)]))
            self.fuse_layers.append(nn.ModuleList(fuse_layer))
        self.relu = nn.ReLU(True)

    def forward(self, x):
        x_fuse = []
        for i in range(len(self.fuse_layers)):
            y = x[0] if i == 0 else self.fuse_layers[i][0](x[0])
            for j in range(1, self.num_branches):
                y = y + x[j] if i == j else y + self.fuse_layers[i][j](x[j])
            x_fuse.append(self.relu(y))
        return x_fuse


@program(lambda: inputs([torch.randn(1, 2 * 2 ** i, 8 // 2 ** i, 8 // 2 ** i) for i in range(3)]))
def high_resolution_fusion():
    return HRFuse([2, 4, 8])


class NeRF(nn.Module):
    def __init__(self, D=3, W=8, input_ch=3, skips=[1], multires=2):
        super(NeRF, self).__init__()
        self.skips = skips
        self.embed_fns = []
        for freq in 2. ** torch.linspace(0., multires - 1, steps=multires):
            for p_fn in [torch.sin, torch.cos]:
                self.embed_fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
        ch = input_ch * (1 + len(self.embed_fns))
        self.pts_linears = nn.ModuleList([nn.Linear(ch, W)] + [nn.Linear(W, W) if i not in skips else nn.Linear(W + ch, W) for i in range(D - 1)])
        self.output_linear = nn.Linear(W, 4)

    def raw2outputs(self, raw, z_vals, raw_noise_std=0.):
        dists = z_vals[..., 1:] - z_vals[..., :-1]
        dists = torch.cat([dists, torch.Tensor([1e10]).expand(dists[..., :1].shape)], -1)
        rgb = torch.sigmoid(raw[..., :3])
        noise = 0. if raw_noise_std <= 0. else torch.randn(raw[..., 3].shape) * raw_noise_std
        alpha = 1. - torch.exp(-F.relu(raw[..., 3] + noise) * dists)
        weights = alpha * torch.cumprod(torch.cat([torch.ones((alpha.shape[0], 1)), 1. - alpha + 1e-10], -1), -1)[:, :-1]
        return torch.sum(weights[..., None] * rgb, -2), torch.sum(weights * z_vals, -1)

    def forward(self, rays_o, rays_d, near=0.1, far=1.0, N_samples=4):
        t_vals = torch.linspace(0., 1., steps=N_samples)
        z_vals = (near * (1. - t_vals) + far * t_vals).expand([rays_o.shape[0], N_samples])
        if self.training:
            mids = .5 * (z_vals[..., 1:] + z_vals[..., :-1])
            upper, lower = torch.cat([mids, z_vals[..., -1:]], -1), torch.cat([z_vals[..., :1], mids], -1)
            z_vals = lower + (upper - lower) * torch.rand(z_vals.shape)
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
        flat = torch.reshape(pts, [-1, pts.shape[-1]])
        embedded = torch.cat([flat] + [fn(flat) for fn in self.embed_fns], -1)
        h = embedded
        for i, l in enumerate(self.pts_linears):
            h = F.relu(l(h))
            if i in self.skips:
                h = torch.cat([embedded, h], -1)
        raw = self.output_linear(h).view(*pts.shape[:-1], 4)
        return dict(zip(('rgb', 'depth'), self.raw2outputs(raw, z_vals, 1. if self.training else 0.)))


@program(lambda: inputs(torch.randn(3, 3), torch.randn(3, 3)))
def radiance_field():
    return NeRF()


class BlurPool(nn.Module):
    def __init__(self, channels, pad_type='reflect', filt_size=3, stride=2, pad_off=0):
        super(BlurPool, self).__init__()
        self.filt_size, self.pad_off, self.stride, self.channels = filt_size, pad_off, stride, channels
        self.pad_sizes = [int(1. * (filt_size - 1) / 2), int(np.ceil(1. * (filt_size - 1) / 2))] * 2
        self.pad_sizes = [pad_size + pad_off for pad_size in self.pad_sizes]
        self.off = int((self.stride - 1) / 2.)
        a = np.array({1: [1.], 2: [1., 1.], 3: [1., 2., 1.]}[filt_size])
        filt = torch.Tensor(a[:, None] * a[None, :])
        filt = filt / torch.sum(filt)
        self.register_buffer('filt', filt[None, None, :, :].repeat((self.channels, 1, 1, 1)))
        self.pad = {'reflect': nn.ReflectionPad2d, 'zero': nn.ZeroPad2d}[pad_type](self.pad_sizes)

    def forward(self, inp):
        if (self.filt_size == 1):
            if (self.pad_off == 0):
                return inp[:, :, ::self.stride, ::self.stride]
            else:
                return self.pad(inp)[:, :, ::self.stride, ::self.stride]
        else:
            return F.conv2d(self.pad(inp), self.filt, stride=self.stride, groups=inp.shape[1])


@program(lambda: inputs(torch.randn(2, 3, 6, 6)))
def antialiased_pooling():
    return nn.Sequential(BlurPool(3), nn.Hardswish(), BlurPool(3, filt_size=1, stride=2))


class sa_layer(nn.Module):
    """Shuffle attention, with its parameters made by hand."""

    def __init__(self, channel, groups=4):
        super(sa_layer, self).__init__()
        self.groups = groups
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.cweight = Parameter(torch.zeros(1, channel // (2 * groups), 1, 1))
        self.cbias = Parameter(torch.ones(1, channel // (2 * groups), 1, 1))
        self.sweight = Parameter(torch.zeros(1, channel // (2 * groups), 1, 1))
        self.sbias = Parameter(torch.ones(1, channel // (2 * groups), 1, 1))
        self.sigmoid = nn.Sigmoid()
        self.gn = nn.GroupNorm(channel // (2 * groups), channel // (2 * groups))

    @staticmethod
    def channel_shuffle(x, groups):
        b, c, h, w = x.shape
        x = x.reshape(b, groups, -1, h, w)
        x = x.permute(0, 2, 1, 3, 4)
        return x.reshape(b, -1, h, w)

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b * self.groups, -1, h, w)
        x_0, x_1 = x.chunk(2, dim=1)
        xn = self.avg_pool(x_0)
        xn = self.cweight * xn + self.cbias
        xn = x_0 * self.sigmoid(xn)
        xs = self.gn(x_1)
        xs = self.sweight * xs + self.sbias
        xs = x_1 * self.sigmoid(xs)
        out = torch.cat([xn, xs], dim=1)
        out = out.reshape(b, -1, h, w)
        return self.channel_shuffle(out, 2)


@program(lambda: inputs(torch.randn(2, 16, 4, 4)))
def shuffle_attention():
    return sa_layer(16, groups=2)
