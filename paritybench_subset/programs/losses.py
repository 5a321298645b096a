"""Losses: dict outputs, class weights, focal and triplet terms, running centres, Laplacian pyramids, meters."""
from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from functools import reduce

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable

from paritybench_subset.cases import inputs, program


class FocalLoss(nn.Module):
    def __init__(self, gamma=0, alpha=None, size_average=True):
        super(FocalLoss, self).__init__()
        self.gamma = gamma
        self.alpha = alpha
        if isinstance(alpha, (float, int)):
            self.alpha = torch.Tensor([alpha, 1 - alpha])
        if isinstance(alpha, list):
            self.alpha = torch.Tensor(alpha)
        self.size_average = size_average

    def forward(self, input, target):
        if input.dim() > 2:
            input = input.view(input.size(0), input.size(1), -1)
            input = input.transpose(1, 2)
            input = input.contiguous().view(-1, input.size(2))
        target = target.view(-1, 1)
        logpt = F.log_softmax(input, dim=-1)
        logpt = logpt.gather(1, target)
        logpt = logpt.view(-1)
        pt = Variable(logpt.data.exp())
        if self.alpha is not None:
            if self.alpha.type() != input.data.type():
                self.alpha = self.alpha.type_as(input.data)
            at = self.alpha.gather(0, target.data.view(-1))
            logpt = logpt * Variable(at)
        loss = -1 * (1 - pt) ** self.gamma * logpt
        if self.size_average:
            return loss.mean()
        else:
            return loss.sum()


@program(lambda: inputs(torch.randn(2, 3, 4, 4, requires_grad=True), torch.randint(0, 3, (2, 4, 4))))
def focal_loss():
    return FocalLoss(gamma=2, alpha=[0.2, 0.3, 0.5])


def make_one_hot(input, num_classes):
    shape = np.array(input.shape)
    shape[1] = num_classes
    shape = tuple(shape)
    result = torch.zeros(shape)
    result = result.scatter_(1, input.cpu(), 1)
    return result


class BinaryDiceLoss(nn.Module):
    def __init__(self, smooth=1, p=2, reduction='mean'):
        super(BinaryDiceLoss, self).__init__()
        self.smooth, self.p, self.reduction = smooth, p, reduction

    def forward(self, predict, target):
        assert predict.shape[0] == target.shape[0], "predict & target batch size don't match"
        predict = predict.contiguous().view(predict.shape[0], -1)
        target = target.contiguous().view(target.shape[0], -1)
        num = torch.sum(torch.mul(predict, target), dim=1) + self.smooth
        den = torch.sum(predict.pow(self.p) + target.pow(self.p), dim=1) + self.smooth
        loss = 1 - num / den
        if self.reduction == 'mean':
            return loss.mean()
        elif self.reduction == 'sum':
            return loss.sum()
        elif self.reduction == 'none':
            return loss
        else:
            raise Exception('Unexpected reduction {}'.format(self.reduction))


class DiceLoss(nn.Module):
    def __init__(self, weight=None, ignore_index=None, **kwargs):
        super(DiceLoss, self).__init__()
        self.kwargs = kwargs
        self.weight = weight
        self.ignore_index = ignore_index

    def forward(self, predict, target):
        target = make_one_hot(target, predict.shape[1])
        assert predict.shape == target.shape, 'predict & target shape do not match'
        dice = BinaryDiceLoss(**self.kwargs)
        total_loss = 0
        predict = F.softmax(predict, dim=1)
        for i in range(target.shape[1]):
            if i != self.ignore_index:
                dice_loss = dice(predict[:, i], target[:, i])
                if self.weight is not None:
                    assert self.weight.shape[0] == target.shape[1]
                    dice_loss *= self.weight[i]
                total_loss += dice_loss
        return total_loss / target.shape[1]


@program(lambda: inputs(torch.randn(2, 3, 4, 4, requires_grad=True), torch.randint(0, 3, (2, 1, 4, 4))))
def dice_loss_with_module_made_inside():
    return DiceLoss(weight=torch.tensor([1., 2., 0.5]), ignore_index=0, p=1)


class CenterLoss(nn.Module):
    def __init__(self, num_classes=4, feat_dim=2, use_gpu=False):
        super(CenterLoss, self).__init__()
        self.num_classes, self.feat_dim, self.use_gpu = num_classes, feat_dim, use_gpu
        if self.use_gpu:
            self.centers = nn.Parameter(torch.randn(self.num_classes, self.feat_dim).cuda())
        else:
            self.centers = nn.Parameter(torch.randn(self.num_classes, self.feat_dim))

    def forward(self, x, labels):
        batch_size = x.size(0)
        distmat = torch.pow(x, 2).sum(dim=1, keepdim=True).expand(batch_size, self.num_classes) + \
            torch.pow(self.centers, 2).sum(dim=1, keepdim=True).expand(self.num_classes, batch_size).t()
        distmat.addmm_(x, self.centers.t(), beta=1, alpha=-2)
        classes = torch.arange(self.num_classes).long()
        if self.use_gpu:
            classes = classes.cuda()
        labels = labels.unsqueeze(1).expand(batch_size, self.num_classes)
        mask = labels.eq(classes.expand(batch_size, self.num_classes))
        dist = distmat * mask.float()
        loss = dist.clamp(min=1e-12, max=1e+12).sum() / batch_size
        return loss


@program(lambda: inputs(torch.randn(3, 2, requires_grad=True), torch.randint(0, 4, (3,))))
def center_loss():
    return CenterLoss()


class TripletLoss(nn.Module):
    """The hardest pairs of a batch, found in a Python loop."""

    def __init__(self, margin=0.3):
        super(TripletLoss, self).__init__()
        self.margin = margin
        self.ranking_loss = nn.MarginRankingLoss(margin=margin)

    def forward(self, inputs, targets):
        n = inputs.size(0)
        dist = torch.pow(inputs, 2).sum(dim=1, keepdim=True).expand(n, n)
        dist = dist + dist.t()
        dist = torch.addmm(dist, inputs, inputs.t(), beta=1, alpha=-2)
        dist = dist.clamp(min=1e-12).sqrt()
        mask = targets.expand(n, n).eq(targets.expand(n, n).t())
        dist_ap, dist_an = [], []
        for i in range(n):
            dist_ap.append(dist[i].masked_fill(~mask[i], float('-inf')).max().unsqueeze(0))
            dist_an.append(dist[i].masked_fill(mask[i], float('inf')).min().unsqueeze(0))
        dist_ap = torch.cat(dist_ap)
        dist_an = torch.cat(dist_an)
        y = torch.ones_like(dist_an)
        loss = self.ranking_loss(dist_an, dist_ap, y)
        correct = torch.ge(dist_an, dist_ap).sum()
        return loss, correct


@program(lambda: inputs(torch.randn(4, 3, requires_grad=True), torch.tensor([0, 0, 1, 1])))
def hardest_triplets():
    return TripletLoss()


@program(lambda: inputs(torch.randn(2, 4, 3, requires_grad=True), torch.tensor([0, 1])))
def supervised_contrastive():
    return SupConLoss()


class SupConLoss(nn.Module):
    def __init__(self, temperature=0.07, contrast_mode='all', base_temperature=0.07):
        super(SupConLoss, self).__init__()
        self.temperature, self.contrast_mode, self.base_temperature = temperature, contrast_mode, base_temperature

    def forward(self, features, labels=None, mask=None):
        device = (torch.device('cuda') if features.is_cuda else torch.device('cpu'))
        if len(features.shape) < 3:
            raise ValueError('`features` needs to be [bsz, n_views, ...], at least 3 dimensions are required')
        features = F.normalize(features, dim=-1)
        batch_size = features.shape[0]
        if labels is not None and mask is not None:
            raise ValueError('Cannot define both `labels` and `mask`')
        elif labels is None and mask is None:
            mask = torch.eye(batch_size, dtype=torch.float32).to(device)
        elif labels is not None:
            labels = labels.contiguous().view(-1, 1)
            if labels.shape[0] != batch_size:
                raise ValueError('Num of labels does not match num of features')
            mask = torch.eq(labels, labels.T).float().to(device)
        else:
            mask = mask.float().to(device)
        contrast_count = features.shape[1]
        contrast_feature = torch.cat(torch.unbind(features, dim=1), dim=0)
        anchor_feature, anchor_count = contrast_feature, contrast_count
        anchor_dot_contrast = torch.div(torch.matmul(anchor_feature, contrast_feature.T), self.temperature)
        logits_max, _ = torch.max(anchor_dot_contrast, dim=1, keepdim=True)
        logits = anchor_dot_contrast - logits_max.detach()
        mask = mask.repeat(anchor_count, contrast_count)
        logits_mask = torch.scatter(torch.ones_like(mask), 1, torch.arange(batch_size * anchor_count).view(-1, 1).to(device), 0)
        mask = mask * logits_mask
        exp_logits = torch.exp(logits) * logits_mask
        log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))
        mean_log_prob_pos = (mask * log_prob).sum(1) / mask.sum(1)
        loss = - (self.temperature / self.base_temperature) * mean_log_prob_pos
        return loss.view(anchor_count, batch_size).mean()


class BaseLoss(ABC, nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    @abstractmethod
    def compute(self, outputs, targets):
        raise NotImplementedError

    def forward(self, outputs, targets):
        return self.weight * self.compute(outputs, targets)


class LabelLoss(BaseLoss):
    def compute(self, outputs, targets):
        return F.cross_entropy(outputs['logits'], targets['labels'])


class BoxLoss(BaseLoss):
    def compute(self, outputs, targets):
        l1 = F.l1_loss(outputs['boxes'], targets['boxes'], reduction='none')
        return l1.sum() / max(len(targets['boxes']), 1)


class Criterion(nn.Module):
    """A dict of losses and of their weights, with what is logged beside them."""

    def __init__(self, losses, aux=True):
        super().__init__()
        self.losses = nn.ModuleDict(losses)
        self.aux = aux

    @torch.no_grad()
    def accuracy(self, output, target, topk=(1,)):
        if target.numel() == 0:
            return [torch.zeros([], device=output.device)]
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0).mul_(100.0 / target.size(0)) for k in topk]

    def forward(self, outputs, targets):
        outputs_without_aux = {k: v for k, v in outputs.items() if k != 'aux_outputs'}
        losses = {}
        for name, loss in self.losses.items():
            losses.update({f'loss_{name}': loss(outputs_without_aux, targets)})
        if 'aux_outputs' in outputs and self.aux:
            for i, aux_outputs in enumerate(outputs['aux_outputs']):
                losses.update({f'loss_{name}_{i}': loss(aux_outputs, targets) for name, loss in self.losses.items()})
        losses['class_error'] = 100 - self.accuracy(outputs['logits'], targets['labels'], (1, 2))[0]
        losses['loss'] = sum(v for k, v in losses.items() if 'loss' in k)
        return losses


@program(lambda: inputs(
    {'logits': torch.randn(3, 4, requires_grad=True), 'boxes': torch.rand(3, 4, requires_grad=True),
     'aux_outputs': [{'logits': torch.randn(3, 4), 'boxes': torch.rand(3, 4)}]},
    {'labels': torch.randint(0, 4, (3,)), 'boxes': torch.rand(3, 4)}))
def set_criterion():
    return Criterion({'labels': LabelLoss(1.0), 'boxes': BoxLoss(5.0)})


def gaussian(window_size, sigma):
    from math import exp
    gauss = torch.Tensor([exp(-(x - window_size // 2) ** 2 / float(2 * sigma ** 2)) for x in range(window_size)])
    return gauss / gauss.sum()


def create_window(window_size, channel):
    _1D_window = gaussian(window_size, 1.5).unsqueeze(1)
    _2D_window = _1D_window.mm(_1D_window.t()).float().unsqueeze(0).unsqueeze(0)
    return Variable(_2D_window.expand(channel, 1, window_size, window_size).contiguous())


def _ssim(img1, img2, window, window_size, channel, size_average=True):
    mu1 = F.conv2d(img1, window, padding=window_size // 2, groups=channel)
    mu2 = F.conv2d(img2, window, padding=window_size // 2, groups=channel)
    mu1_sq, mu2_sq, mu1_mu2 = mu1.pow(2), mu2.pow(2), mu1 * mu2
    sigma1_sq = F.conv2d(img1 * img1, window, padding=window_size // 2, groups=channel) - mu1_sq
    sigma2_sq = F.conv2d(img2 * img2, window, padding=window_size // 2, groups=channel) - mu2_sq
    sigma12 = F.conv2d(img1 * img2, window, padding=window_size // 2, groups=channel) - mu1_mu2
    C1, C2 = 0.01 ** 2, 0.03 ** 2
    ssim_map = ((2 * mu1_mu2 + C1) * (2 * sigma12 + C2)) / ((mu1_sq + mu2_sq + C1) * (sigma1_sq + sigma2_sq + C2))
    return ssim_map.mean() if size_average else ssim_map.mean(1).mean(1).mean(1)


class SSIM(nn.Module):
    """The window is made anew when channels change, and kept."""

    def __init__(self, window_size=11, size_average=True):
        super(SSIM, self).__init__()
        self.window_size, self.size_average = window_size, size_average
        self.channel = 1
        self.window = create_window(window_size, self.channel)

    def forward(self, img1, img2):
        (_, channel, _, _) = img1.size()
        if channel == self.channel and self.window.data.type() == img1.data.type():
            window = self.window
        else:
            window = create_window(self.window_size, channel)
            if img1.is_cuda:
                window = window.cuda(img1.get_device())
            window = window.type_as(img1)
            self.window = window
            self.channel = channel
        return _ssim(img1, img2, window, self.window_size, channel, self.size_average)


@program(lambda: inputs(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)))
def ssim_with_cached_window():
    return SSIM(5)


class GANLoss(nn.Module):
    def __init__(self, gan_mode='lsgan', target_real_label=1.0, target_fake_label=0.0):
        super(GANLoss, self).__init__()
        self.register_buffer('real_label', torch.tensor(target_real_label))
        self.register_buffer('fake_label', torch.tensor(target_fake_label))
        self.real_label_tensor = None
        self.loss = {'lsgan': nn.MSELoss, 'vanilla': nn.BCEWithLogitsLoss}[gan_mode]()

    def get_target_tensor(self, prediction, target_is_real):
        target_tensor = self.real_label if target_is_real else self.fake_label
        return target_tensor.expand_as(prediction)

    def __call__(self, predictions, target_is_real):
        if isinstance(predictions, list):
            return reduce(lambda a, b: a + b, [self.loss(p[-1] if isinstance(p, list) else p, self.get_target_tensor(
                p[-1] if isinstance(p, list) else p, target_is_real)) for p in predictions])
        return self.loss(predictions, self.get_target_tensor(predictions, target_is_real))


@program(lambda: inputs([[torch.randn(1, 2, requires_grad=True), torch.randn(1, 1, requires_grad=True)], torch.randn(3, 1)], True))
def gan_loss_with_call_of_its_own():
    return GANLoss('vanilla')


class TVLoss(nn.Module):
    def __init__(self, TVLoss_weight=1):
        super(TVLoss, self).__init__()
        self.TVLoss_weight = TVLoss_weight

    def forward(self, x):
        batch_size = x.size()[0]
        h_x, w_x = x.size()[2], x.size()[3]
        count_h = self._tensor_size(x[:, :, 1:, :])
        count_w = self._tensor_size(x[:, :, :, 1:])
        h_tv = torch.pow((x[:, :, 1:, :] - x[:, :, :h_x - 1, :]), 2).sum()
        w_tv = torch.pow((x[:, :, :, 1:] - x[:, :, :, :w_x - 1]), 2).sum()
        return self.TVLoss_weight * 2 * (h_tv / count_h + w_tv / count_w) / batch_size

    def _tensor_size(self, t):
        return t.size()[1] * t.size()[2] * t.size()[3]


@program(lambda: inputs(torch.rand(2, 3, 5, 5, requires_grad=True)))
def total_variation():
    return TVLoss(2)


class OhemCELoss(nn.Module):
    """The hardest pixels: a number that is read out of a tensor decides how many."""

    def __init__(self, thresh, n_min, ignore_lb=255):
        super(OhemCELoss, self).__init__()
        self.thresh = -torch.log(torch.tensor(thresh, dtype=torch.float))
        self.n_min = n_min
        self.criteria = nn.CrossEntropyLoss(ignore_index=ignore_lb, reduction='none')

    def forward(self, logits, labels):
        loss = self.criteria(logits, labels).view(-1)
        loss, _ = torch.sort(loss, descending=True)
        if loss[self.n_min] > self.thresh:
            loss = loss[loss > self.thresh]
        else:
            loss = loss[:self.n_min]
        return torch.mean(loss)


@program(lambda: inputs(torch.randn(1, 3, 4, 4, requires_grad=True), torch.randint(0, 3, (1, 4, 4))))
def online_hard_examples():
    return OhemCELoss(0.7, 4)


class AverageMeter(object):
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class MeteredLoss(nn.Module):
    """Keeps running averages of what it returns, as tensors, and warns where its arguments are old ones."""

    def __init__(self, reduce=None, size_average=None):
        super().__init__()
        if reduce is not None or size_average is not None:
            warnings.warn('size_average and reduce are deprecated')
        self.meters = {name: AverageMeter() for name in ('loss', 'accuracy')}

    def forward(self, logits, target):
        loss = F.cross_entropy(logits, target, label_smoothing=0.1)
        accuracy = (logits.argmax(1) == target).float().mean()
        for (name, meter), value in zip(self.meters.items(), (loss, accuracy)):
            meter.update(value.detach(), n=len(target))
        return loss


@program(lambda: inputs(torch.randn(4, 3, requires_grad=True), torch.randint(0, 3, (4,))))
def metered_loss():
    return MeteredLoss()
