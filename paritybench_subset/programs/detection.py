"""Detection: configuration objects, registries, builders, necks, heads over levels, anchors and boxes."""
from __future__ import annotations

import copy
import inspect
import math
from argparse import Namespace
from collections import OrderedDict, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from paritybench_subset.cases import inputs, program


class Registry(object):
    def __init__(self, name):
        self._name = name
        self._module_dict = dict()

    def __repr__(self):
        return self.__class__.__name__ + '(name={}, items={})'.format(self._name, list(self._module_dict.keys()))

    def get(self, key):
        return self._module_dict.get(key, None)

    def _register_module(self, module_class):
        if not inspect.isclass(module_class):
            raise TypeError('module must be a class, but got {}'.format(type(module_class)))
        module_name = module_class.__name__
        if module_name in self._module_dict:
            raise KeyError('{} is already registered in {}'.format(module_name, self._name))
        self._module_dict[module_name] = module_class

    def register_module(self, cls):
        self._register_module(cls)
        return cls


def build_from_cfg(cfg, registry, default_args=None):
    assert isinstance(cfg, dict) and 'type' in cfg
    args = cfg.copy()
    obj_type = args.pop('type')
    obj_cls = registry.get(obj_type) if isinstance(obj_type, str) else obj_type
    if obj_cls is None:
        raise KeyError('{} is not in the {} registry'.format(obj_type, registry._name))
    if default_args is not None:
        for name, value in default_args.items():
            args.setdefault(name, value)
    return obj_cls(**args)


BACKBONES, NECKS, HEADS = Registry('backbone'), Registry('neck'), Registry('head')

norm_cfg = {'BN': ('bn', nn.BatchNorm2d), 'GN': ('gn', nn.GroupNorm)}


def build_norm_layer(cfg, num_features, postfix=''):
    cfg_ = cfg.copy()
    layer_type = cfg_.pop('type')
    abbr, norm_layer = norm_cfg[layer_type]
    name = abbr + str(postfix)
    requires_grad = cfg_.pop('requires_grad', True)
    cfg_.setdefault('eps', 1e-5)
    if layer_type != 'GN':
        layer = norm_layer(num_features, **cfg_)
    else:
        layer = norm_layer(num_channels=num_features, **cfg_)
    for param in layer.parameters():
        param.requires_grad = requires_grad
    return name, layer


class ConvModule(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, norm_cfg=None, act_cfg=dict(type='ReLU'),
                 inplace=True, order=('conv', 'norm', 'act')):
        super(ConvModule, self).__init__()
        self.order = order
        self.with_norm = norm_cfg is not None
        self.with_activation = act_cfg is not None
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=not self.with_norm)
        if self.with_norm:
            self.norm_name, norm = build_norm_layer(norm_cfg, out_channels)
            self.add_module(self.norm_name, norm)
        if self.with_activation:
            self.activate = getattr(nn, act_cfg['type'])(inplace=inplace)

    @property
    def norm(self):
        return getattr(self, self.norm_name)

    def forward(self, x, activate=True, norm=True):
        for layer in self.order:
            if layer == 'conv':
                x = self.conv(x)
            elif layer == 'norm' and norm and self.with_norm:
                x = self.norm(x)
            elif layer == 'act' and activate and self.with_activation:
                x = self.activate(x)
        return x


@BACKBONES.register_module
class TinyResNet(nn.Module):
    def __init__(self, depth, out_indices=(0, 1, 2), frozen_stages=-1, norm_eval=True, base=4):
        super(TinyResNet, self).__init__()
        self.out_indices = out_indices
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.stem = ConvModule(3, base, 3, 2, 1, norm_cfg=dict(type='BN', requires_grad=False))
        self.res_layers = []
        for i in range(depth):
            layer_name = 'layer{}'.format(i + 1)
            self.add_module(layer_name, ConvModule(base * 2 ** i, base * 2 ** (i + 1), 3, 2, 1, norm_cfg=dict(type='BN')))
            self.res_layers.append(layer_name)
        self._freeze_stages()

    def _freeze_stages(self):
        for i in range(1, self.frozen_stages + 1):
            m = getattr(self, 'layer{}'.format(i))
            m.eval()
            for param in m.parameters():
                param.requires_grad = False

    def forward(self, x):
        x = self.stem(x)
        outs = []
        for i, layer_name in enumerate(self.res_layers):
            res_layer = getattr(self, layer_name)
            x = res_layer(x)
            if i in self.out_indices:
                outs.append(x)
        return tuple(outs)

    def train(self, mode=True):
        super(TinyResNet, self).train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self


@NECKS.register_module
class FPN(nn.Module):
    def __init__(self, in_channels, out_channels, num_outs, add_extra_convs=False, upsample_cfg=dict(mode='nearest')):
        super(FPN, self).__init__()
        assert isinstance(in_channels, list)
        self.num_ins, self.num_outs = len(in_channels), num_outs
        self.add_extra_convs = add_extra_convs
        self.upsample_cfg = upsample_cfg.copy()
        self.lateral_convs = nn.ModuleList()
        self.fpn_convs = nn.ModuleList()
        for c in in_channels:
            self.lateral_convs.append(ConvModule(c, out_channels, 1, act_cfg=None))
            self.fpn_convs.append(ConvModule(out_channels, out_channels, 3, padding=1, act_cfg=None))

    def forward(self, inputs):
        assert len(inputs) == self.num_ins
        laterals = [lateral_conv(inputs[i]) for i, lateral_conv in enumerate(self.lateral_convs)]
        for i in range(len(laterals) - 1, 0, -1):
            prev_shape = laterals[i - 1].shape[2:]
            laterals[i - 1] += F.interpolate(laterals[i], size=prev_shape, **self.upsample_cfg)
        outs = [self.fpn_convs[i](laterals[i]) for i in range(len(laterals))]
        if self.num_outs > len(outs):
            for _ in range(self.num_outs - len(outs)):
                outs.append(F.max_pool2d(outs[-1], 1, stride=2))
        return tuple(outs)


def multi_apply(func, *args, **kwargs):
    from functools import partial
    pfunc = partial(func, **kwargs) if kwargs else func
    map_results = map(pfunc, *args)
    return tuple(map(list, zip(*map_results)))


class Scale(nn.Module):
    def __init__(self, init_value=1.0):
        super(Scale, self).__init__()
        self.scale = nn.Parameter(torch.FloatTensor([init_value]))

    def forward(self, input):
        return input * self.scale


@HEADS.register_module
class FCOSHead(nn.Module):
    def __init__(self, num_classes, in_channels, stacked_convs=1, strides=(4, 8, 16, 32), centerness_on_reg=False, prior=0.01):
        super().__init__()
        self.cls_out_channels = num_classes - 1
        self.strides = strides
        self.centerness_on_reg = centerness_on_reg
        self.cls_convs, self.reg_convs = nn.ModuleList(), nn.ModuleList()
        for _ in range(stacked_convs):
            self.cls_convs.append(ConvModule(in_channels, in_channels, 3, 1, 1, norm_cfg=dict(type='GN', num_groups=2)))
            self.reg_convs.append(ConvModule(in_channels, in_channels, 3, 1, 1, norm_cfg=dict(type='GN', num_groups=2)))
        self.fcos_cls = nn.Conv2d(in_channels, self.cls_out_channels, 3, padding=1)
        self.fcos_reg = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.fcos_centerness = nn.Conv2d(in_channels, 1, 3, padding=1)
        self.scales = nn.ModuleList([Scale(1.0) for _ in self.strides])
        bias_init = float(-np.log((1 - prior) / prior))
        nn.init.constant_(self.fcos_cls.bias, bias_init)

    def forward(self, feats):
        return multi_apply(self.forward_single, feats, self.scales, self.strides)

    def forward_single(self, x, scale, stride):
        cls_feat = x
        reg_feat = x
        for cls_layer in self.cls_convs:
            cls_feat = cls_layer(cls_feat)
        cls_score = self.fcos_cls(cls_feat)
        for reg_layer in self.reg_convs:
            reg_feat = reg_layer(reg_feat)
        bbox_pred = scale(self.fcos_reg(reg_feat)).float()
        centerness = self.fcos_centerness(reg_feat if self.centerness_on_reg else cls_feat)
        if self.training:
            bbox_pred = F.relu(bbox_pred)
        else:
            bbox_pred = bbox_pred.exp() * stride
        return cls_score, bbox_pred, centerness


class SingleStageDetector(nn.Module):
    def __init__(self, backbone, neck=None, bbox_head=None, train_cfg=None, test_cfg=None):
        super().__init__()
        self.backbone = build_from_cfg(backbone, BACKBONES)
        if neck is not None:
            self.neck = build_from_cfg(neck, NECKS)
        self.bbox_head = build_from_cfg(bbox_head, HEADS, dict(prior=0.02))
        self.train_cfg, self.test_cfg = train_cfg, test_cfg

    @property
    def with_neck(self):
        return hasattr(self, 'neck') and self.neck is not None

    def extract_feat(self, img):
        x = self.backbone(img)
        if self.with_neck:
            x = self.neck(x)
        return x

    def forward(self, img, img_metas=None, return_loss=False, **kwargs):
        x = self.extract_feat(img)
        outs = self.bbox_head(x)
        return outs


@program(lambda: inputs(torch.randn(1, 3, 32, 32), img_metas=[dict(img_shape=(32, 32, 3), flip=False)]))
def fcos_from_config():
    return SingleStageDetector(
        backbone=dict(type='TinyResNet', depth=3, frozen_stages=1),
        neck=dict(type='FPN', in_channels=[8, 16, 32], out_channels=8, num_outs=4),
        bbox_head=dict(type='FCOSHead', num_classes=4, in_channels=8))


class PriorBox(nn.Module):
    """SSD: priors are computed in Python, by loops over the configuration."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        for v in cfg['variance']:
            if v <= 0:
                raise ValueError('Variances must be greater than 0')

    def forward(self, features):
        mean = []
        for k, f in enumerate(self.cfg['feature_maps']):
            for i in range(f):
                for j in range(f):
                    f_k = self.cfg['min_dim'] / self.cfg['steps'][k]
                    cx, cy = (j + 0.5) / f_k, (i + 0.5) / f_k
                    s_k = self.cfg['min_sizes'][k] / self.cfg['min_dim']
                    mean += [cx, cy, s_k, s_k]
                    s_k_prime = math.sqrt(s_k * (self.cfg['max_sizes'][k] / self.cfg['min_dim']))
                    mean += [cx, cy, s_k_prime, s_k_prime]
                    for ar in self.cfg['aspect_ratios'][k]:
                        mean += [cx, cy, s_k * math.sqrt(ar), s_k / math.sqrt(ar)]
        output = torch.Tensor(mean).view(-1, 4)
        if self.cfg['clip']:
            output.clamp_(max=1, min=0)
        return output, [f * 2 for f in features]


@program(lambda: inputs([torch.randn(1, 2, 3, 3)]))
def ssd_priors():
    return PriorBox(dict(feature_maps=[3, 2], min_dim=32, steps=[11, 16], min_sizes=[8, 16], max_sizes=[16, 24], variance=[0.1, 0.2],
                         aspect_ratios=[[2], [2, 3]], clip=True))


class L2Norm(nn.Module):
    def __init__(self, n_channels, scale):
        super(L2Norm, self).__init__()
        self.n_channels = n_channels
        self.gamma = scale or None
        self.eps = 1e-10
        self.weight = nn.Parameter(torch.Tensor(self.n_channels))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.weight, self.gamma)

    def forward(self, x):
        norm = x.pow(2).sum(dim=1, keepdim=True).sqrt() + self.eps
        x = torch.div(x, norm)
        out = self.weight.unsqueeze(0).unsqueeze(2).unsqueeze(3).expand_as(x) * x
        return out


class SSD(nn.Module):
    def __init__(self, phase, base, extras, head, num_classes):
        super(SSD, self).__init__()
        self.phase = phase
        self.num_classes = num_classes
        self.vgg = nn.ModuleList(base)
        self.L2Norm = L2Norm(8, 20)
        self.extras = nn.ModuleList(extras)
        self.loc = nn.ModuleList(head[0])
        self.conf = nn.ModuleList(head[1])
        if phase == 'test':
            self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        sources = list()
        loc = list()
        conf = list()
        for k in range(3):
            x = self.vgg[k](x)
        s = self.L2Norm(x)
        sources.append(s)
        for k in range(3, len(self.vgg)):
            x = self.vgg[k](x)
        sources.append(x)
        for k, v in enumerate(self.extras):
            x = F.relu(v(x), inplace=True)
            if k % 2 == 1:
                sources.append(x)
        for (x, l, c) in zip(sources, self.loc, self.conf):
            loc.append(l(x).permute(0, 2, 3, 1).contiguous())
            conf.append(c(x).permute(0, 2, 3, 1).contiguous())
        loc = torch.cat([o.view(o.size(0), -1) for o in loc], 1)
        conf = torch.cat([o.view(o.size(0), -1) for o in conf], 1)
        if self.phase == "test":
            return loc.view(loc.size(0), -1, 4), self.softmax(conf.view(conf.size(0), -1, self.num_classes))
        return loc.view(loc.size(0), -1, 4), conf.view(conf.size(0), -1, self.num_classes)


@program(lambda: inputs(torch.randn(1, 3, 16, 16)))
def ssd():
    base = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2, ceil_mode=True), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(True)]
    extras = [nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3, 2, 1)]
    loc, conf = ([nn.Conv2d(8, 2 * n, 3, padding=1) for _ in range(3)] for n in (4, 3))
    return SSD('test', base, extras, (loc, conf), 3)


class YOLOLayer(nn.Module):
    def __init__(self, anchors, nc, img_size, yolo_index, stride):
        super(YOLOLayer, self).__init__()
        self.anchors = torch.Tensor(anchors)
        self.index, self.stride = yolo_index, stride
        self.na, self.nc, self.no = len(anchors), nc, nc + 5
        self.nx, self.ny, self.ng = 0, 0, (0, 0)
        self.anchor_vec = self.anchors / self.stride
        self.anchor_wh = self.anchor_vec.view(1, self.na, 1, 1, 2)

    def create_grids(self, ng=(13, 13), device='cpu'):
        self.nx, self.ny = ng
        self.ng = torch.tensor(ng, dtype=torch.float, device=device)
        if not self.training:
            yv, xv = torch.meshgrid([torch.arange(self.ny, device=device), torch.arange(self.nx, device=device)], indexing='ij')
            self.grid = torch.stack((xv, yv), 2).view((1, 1, self.ny, self.nx, 2)).float()
        if self.anchor_vec.device != device:
            self.anchor_vec = self.anchor_vec.to(device)
            self.anchor_wh = self.anchor_wh.to(device)

    def forward(self, p):
        bs, _, ny, nx = p.shape
        if (self.nx, self.ny) != (nx, ny):
            self.create_grids((nx, ny), p.device)
        p = p.view(bs, self.na, self.no, self.ny, self.nx).permute(0, 1, 3, 4, 2).contiguous()
        if self.training:
            return p
        io = p.clone()
        io[..., :2] = torch.sigmoid(io[..., :2]) + self.grid
        io[..., 2:4] = torch.exp(io[..., 2:4]) * self.anchor_wh
        io[..., :4] *= self.stride
        torch.sigmoid_(io[..., 4:])
        return io.view(bs, -1, self.no), p


class Darknet(nn.Module):
    """Modules made from parsed definitions, run by an index over their kinds."""

    def __init__(self, module_defs):
        super().__init__()
        self.module_defs = [dict(d) for d in module_defs]
        self.module_list, self.routs = nn.ModuleList(), []
        filters, output_filters = 3, []
        for i, mdef in enumerate(self.module_defs):
            modules = nn.Sequential()
            if mdef['type'] == 'convolutional':
                modules.add_module('Conv2d', nn.Conv2d(filters, mdef['filters'], mdef['size'], mdef['stride'], mdef['size'] // 2))
                if mdef.get('batch_normalize'):
                    modules.add_module('BatchNorm2d', nn.BatchNorm2d(mdef['filters'], momentum=0.03, eps=1E-4))
                if mdef.get('activation') == 'leaky':
                    modules.add_module('activation', nn.LeakyReLU(0.1, inplace=True))
                filters = mdef['filters']
            elif mdef['type'] == 'upsample':
                modules = nn.Upsample(scale_factor=mdef['stride'])
            elif mdef['type'] == 'route':
                filters = sum(output_filters[l] for l in mdef['layers'])
                self.routs += [l if l >= 0 else i + l for l in mdef['layers']]
            elif mdef['type'] == 'shortcut':
                self.routs.append(i + mdef['from'])
            elif mdef['type'] == 'yolo':
                modules = YOLOLayer(mdef['anchors'], 2, 32, 0, mdef['stride'])
            self.module_list.append(modules)
            output_filters.append(filters)

    def forward(self, x, augment=False, verbose=False):
        yolo_out, out = [], []
        for i, module in enumerate(self.module_list):
            name = self.module_defs[i]['type']
            if name == 'shortcut':
                x = x + out[i + self.module_defs[i]['from']]
            elif name == 'route':
                x = torch.cat([out[l] for l in self.module_defs[i]['layers']], 1)
            elif name == 'yolo':
                yolo_out.append(module(x))
            else:
                x = module(x)
            out.append(x if i in self.routs else [])
            if verbose:
                print('%g/%g %s -' % (i, len(self.module_list), name), list(x.shape))
        if self.training:
            return yolo_out
        x, p = zip(*yolo_out)
        x = torch.cat(x, 1)
        return x, p


@program(lambda: inputs(torch.randn(1, 3, 16, 16)))
def darknet_from_definitions():
    conv = dict(type='convolutional', size=3, stride=2, batch_normalize=1, activation='leaky')
    return Darknet([
        dict(conv, filters=4), dict(conv, filters=8), dict(conv, filters=8, stride=1), dict(type='shortcut', **{'from': -2}),
        dict(type='convolutional', size=1, stride=1, filters=14), dict(type='yolo', anchors=[(4, 5), (8, 6)], stride=4),
        dict(type='route', layers=[3]), dict(type='upsample', stride=2), dict(type='route', layers=[-1, 0]),
        dict(type='convolutional', size=1, stride=1, filters=14), dict(type='yolo', anchors=[(2, 3), (3, 3)], stride=2)])


Detections = namedtuple('Detections', ['boxes', 'scores', 'labels'])


class RetinaDecoder(nn.Module):
    """Top-k boxes of each image, as a named tuple."""

    def __init__(self, mean=None, std=None, top_k=4):
        super().__init__()
        self.mean = nn.Parameter(torch.from_numpy(np.array([0, 0, 0, 0]).astype(np.float32)), requires_grad=False) if mean is None else mean
        self.std = nn.Parameter(torch.from_numpy(np.array([0.1, 0.1, 0.2, 0.2]).astype(np.float32)), requires_grad=False) if std is None else std
        self.top_k = top_k

    def forward(self, boxes, deltas, scores, shape=(32, 32)):
        widths = boxes[:, :, 2] - boxes[:, :, 0]
        heights = boxes[:, :, 3] - boxes[:, :, 1]
        ctr_x = boxes[:, :, 0] + 0.5 * widths
        ctr_y = boxes[:, :, 1] + 0.5 * heights
        dx, dy, dw, dh = (deltas[:, :, i] * self.std[i] + self.mean[i] for i in range(4))
        pred_ctr_x, pred_ctr_y = ctr_x + dx * widths, ctr_y + dy * heights
        pred_w, pred_h = torch.exp(dw) * widths, torch.exp(dh) * heights
        pred = torch.stack([pred_ctr_x - 0.5 * pred_w, pred_ctr_y - 0.5 * pred_h, pred_ctr_x + 0.5 * pred_w, pred_ctr_y + 0.5 * pred_h], dim=2)
        height, width = shape
        pred[:, :, 0::2] = torch.clamp(pred[:, :, 0::2], min=0, max=width)
        pred[:, :, 1::2] = torch.clamp(pred[:, :, 1::2], min=0, max=height)
        best, labels = scores.max(dim=2)
        results = []
        for image_boxes, image_scores, image_labels in zip(pred, best, labels):
            values, order = image_scores.topk(min(self.top_k, image_scores.numel()))
            results.append(Detections(boxes=image_boxes[order], scores=values, labels=image_labels[order])._asdict())
        return results


@program(lambda: inputs(torch.rand(2, 6, 4) * 32, torch.randn(2, 6, 4), torch.rand(2, 6, 3)))
def retina_decoder():
    return RetinaDecoder()


class DETRHead(nn.Module):
    def __init__(self, args, hidden_dim=8, num_queries=5):
        super().__init__()
        self.query_embed = nn.Embedding(num_queries, hidden_dim)
        self.class_embed = nn.Linear(hidden_dim, args.num_classes + 1)
        self.bbox_embed = nn.Sequential(OrderedDict([('fc', nn.Linear(hidden_dim, hidden_dim)), ('relu', nn.ReLU()), ('out', nn.Linear(hidden_dim, 4))]))
        decoder_layer = nn.TransformerDecoderLayer(hidden_dim, 2, 16, 0.0)
        self.layers = nn.ModuleList([copy.deepcopy(decoder_layer) for _ in range(args.dec_layers)])
        self.aux_loss = args.aux_loss

    def forward(self, memory):
        bs = memory.shape[1]
        query_embed = self.query_embed.weight.unsqueeze(1).repeat(1, bs, 1)
        tgt = torch.zeros_like(query_embed)
        intermediate = []
        for layer in self.layers:
            tgt = layer(tgt + query_embed, memory)
            if self.aux_loss:
                intermediate.append(tgt)
        hs = torch.stack(intermediate).transpose(1, 2) if self.aux_loss else tgt.transpose(0, 1).unsqueeze(0)
        outputs_class = self.class_embed(hs)
        outputs_coord = self.bbox_embed(hs).sigmoid()
        out = {'pred_logits': outputs_class[-1], 'pred_boxes': outputs_coord[-1]}
        if self.aux_loss:
            out['aux_outputs'] = self._set_aux_loss(outputs_class, outputs_coord)
        return out

    @torch.jit.unused
    def _set_aux_loss(self, outputs_class, outputs_coord):
        return [{'pred_logits': a, 'pred_boxes': b} for a, b in zip(outputs_class[:-1], outputs_coord[:-1])]


@program(lambda: inputs(torch.randn(6, 2, 8)))
def detr_with_auxiliary_outputs():
    return DETRHead(Namespace(num_classes=3, dec_layers=2, aux_loss=True))


class AnchorGenerator(nn.Module):
    """Base anchors are cached by configuration in a dict."""

    def __init__(self, scales=(1, 2), ratios=(0.5, 1, 2)):
        super().__init__()
        self.scales, self.ratios = scales, ratios
        self._cache = {}

    def grid_anchors(self, shape, stride, device):
        key = (tuple(shape), stride)
        if key in self._cache:
            return self._cache[key]
        base = []
        for s in self.scales:
            for r in self.ratios:
                h, w = stride * s * math.sqrt(r), stride * s / math.sqrt(r)
                base.append([-w / 2, -h / 2, w / 2, h / 2])
        base = torch.tensor(base, device=device).round()
        ys, xs = torch.meshgrid(torch.arange(shape[0]) * stride, torch.arange(shape[1]) * stride, indexing='ij')
        shifts = torch.stack((xs.reshape(-1), ys.reshape(-1)) * 2, dim=1)
        self._cache[key] = (shifts[:, None] + base[None]).reshape(-1, 4)
        return self._cache[key]

    def forward(self, feature_maps, image_size=(32, 32)):
        strides = [image_size[0] // f.shape[-2] for f in feature_maps]
        anchors = [self.grid_anchors(f.shape[-2:], s, f.device) for f, s in zip(feature_maps, strides)]
        return torch.cat(anchors), [f.mean() for f in feature_maps]


@program(lambda: inputs([torch.randn(1, 2, 4, 4), torch.randn(1, 2, 2, 2)]))
def cached_anchors():
    return AnchorGenerator()
