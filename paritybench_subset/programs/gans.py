"""Generators, discriminators and style transfer: noise inside, spectral norm, lists of features, adaptive normalisation."""
from __future__ import annotations

import functools
import math
import random
from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import spectral_norm

from paritybench_subset.cases import inputs, program


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find('Conv') != -1:
        m.weight.data.normal_(0.0, 0.02)
    elif classname.find('BatchNorm') != -1:
        m.weight.data.normal_(1.0, 0.02)
        m.bias.data.fill_(0)


class DCGAN(nn.Module):
    def __init__(self, ngpu, nz=8, ngf=4, nc=3):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh())
        self.apply(weights_init)

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            output = nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        else:
            output = self.main(input)
        return output


@program(lambda: inputs(torch.randn(2, 8, 1, 1)))
def dcgan():
    return DCGAN(ngpu=1)


def get_norm_layer(norm_type='instance'):
    if norm_type == 'batch':
        norm_layer = functools.partial(nn.BatchNorm2d, affine=True, track_running_stats=True)
    elif norm_type == 'instance':
        norm_layer = functools.partial(nn.InstanceNorm2d, affine=False, track_running_stats=False)
    elif norm_type == 'none':
        def norm_layer(x): return nn.Identity()
    else:
        raise NotImplementedError('normalization layer [%s] is not found' % norm_type)
    return norm_layer


class UnetSkipConnectionBlock(nn.Module):
    def __init__(self, outer_nc, inner_nc, input_nc=None, submodule=None, outermost=False, innermost=False,
                 norm_layer=nn.BatchNorm2d, use_dropout=False):
        super(UnetSkipConnectionBlock, self).__init__()
        self.outermost = outermost
        if type(norm_layer) == functools.partial:
            use_bias = norm_layer.func == nn.InstanceNorm2d
        else:
            use_bias = norm_layer == nn.InstanceNorm2d
        if input_nc is None:
            input_nc = outer_nc
        downconv = nn.Conv2d(input_nc, inner_nc, kernel_size=4, stride=2, padding=1, bias=use_bias)
        downrelu, uprelu = nn.LeakyReLU(0.2, True), nn.ReLU(True)
        downnorm, upnorm = norm_layer(inner_nc), norm_layer(outer_nc)
        if outermost:
            upconv = nn.ConvTranspose2d(inner_nc * 2, outer_nc, kernel_size=4, stride=2, padding=1)
            model = [downconv, submodule, uprelu, upconv, nn.Tanh()]
        elif innermost:
            upconv = nn.ConvTranspose2d(inner_nc, outer_nc, kernel_size=4, stride=2, padding=1, bias=use_bias)
            model = [downrelu, downconv, uprelu, upconv, upnorm]
        else:
            upconv = nn.ConvTranspose2d(inner_nc * 2, outer_nc, kernel_size=4, stride=2, padding=1, bias=use_bias)
            model = [downrelu, downconv, downnorm, submodule, uprelu, upconv, upnorm] + ([nn.Dropout(0.5)] if use_dropout else [])
        self.model = nn.Sequential(*model)

    def forward(self, x):
        if self.outermost:
            return self.model(x)
        else:   # add skip connections
            return torch.cat([x, self.model(x)], 1)


@program(lambda: inputs(torch.randn(1, 3, 16, 16)))
def pix2pix_unet():
    norm = get_norm_layer('batch')
    block = UnetSkipConnectionBlock(8, 8, innermost=True, norm_layer=norm)
    block = UnetSkipConnectionBlock(4, 8, submodule=block, norm_layer=norm, use_dropout=True)
    return UnetSkipConnectionBlock(3, 4, input_nc=3, submodule=block, outermost=True, norm_layer=norm)


class NLayerDiscriminator(nn.Module):
    def __init__(self, input_nc, ndf=4, n_layers=2, getIntermFeat=False):
        super(NLayerDiscriminator, self).__init__()
        self.getIntermFeat = getIntermFeat
        self.n_layers = n_layers
        kw = 4
        padw = int(np.ceil((kw - 1.0) / 2))
        sequence = [[nn.Conv2d(input_nc, ndf, kernel_size=kw, stride=2, padding=padw), nn.LeakyReLU(0.2, True)]]
        nf = ndf
        for _ in range(1, n_layers):
            nf_prev, nf = nf, min(nf * 2, 16)
            sequence += [[nn.Conv2d(nf_prev, nf, kernel_size=kw, stride=2, padding=padw), nn.InstanceNorm2d(nf), nn.LeakyReLU(0.2, True)]]
        sequence += [[nn.Conv2d(nf, 1, kernel_size=kw, stride=1, padding=padw)]]
        if getIntermFeat:
            for n in range(len(sequence)):
                setattr(self, 'model' + str(n), nn.Sequential(*sequence[n]))
        else:
            sequence_stream = []
            for n in range(len(sequence)):
                sequence_stream += sequence[n]
            self.model = nn.Sequential(*sequence_stream)

    def forward(self, input):
        if self.getIntermFeat:
            res = [input]
            for n in range(self.n_layers + 1):
                model = getattr(self, 'model' + str(n))
                res.append(model(res[-1]))
            return res[1:]
        else:
            return self.model(input)


class MultiscaleDiscriminator(nn.Module):
    def __init__(self, input_nc, num_D=2):
        super().__init__()
        self.num_D = num_D
        for i in range(num_D):
            netD = NLayerDiscriminator(input_nc, getIntermFeat=True)
            for j in range(netD.n_layers + 1):
                setattr(self, 'scale' + str(i) + '_layer' + str(j), getattr(netD, 'model' + str(j)))
        self.n_layers = netD.n_layers
        self.downsample = nn.AvgPool2d(3, stride=2, padding=[1, 1], count_include_pad=False)

    def singleD_forward(self, model, input):
        result = [input]
        for i in range(len(model)):
            result.append(model[i](result[-1]))
        return result[1:]

    def forward(self, input):
        result = []
        input_downsampled = input
        for i in range(self.num_D):
            model = [getattr(self, 'scale' + str(self.num_D - 1 - i) + '_layer' + str(j)) for j in range(self.n_layers + 1)]
            result.append(self.singleD_forward(model, input_downsampled))
            if i != (self.num_D - 1):
                input_downsampled = self.downsample(input_downsampled)
        return result


@program(lambda: inputs(torch.randn(1, 3, 24, 24)))
def multiscale_discriminator():
    return MultiscaleDiscriminator(3)


class SPADE(nn.Module):
    def __init__(self, config_text, norm_nc, label_nc):
        super().__init__()
        assert config_text.startswith('spade')
        import re
        parsed = re.search(r'spade(\D+)(\d)x\d', config_text)
        param_free_norm_type = str(parsed.group(1))
        ks = int(parsed.group(2))
        if param_free_norm_type == 'instance':
            self.param_free_norm = nn.InstanceNorm2d(norm_nc, affine=False)
        elif param_free_norm_type == 'batch':
            self.param_free_norm = nn.BatchNorm2d(norm_nc, affine=False)
        else:
            raise ValueError('%s is not a recognized param-free norm type in SPADE' % param_free_norm_type)
        nhidden, pw = 8, ks // 2
        self.mlp_shared = nn.Sequential(nn.Conv2d(label_nc, nhidden, kernel_size=ks, padding=pw), nn.ReLU())
        self.mlp_gamma = nn.Conv2d(nhidden, norm_nc, kernel_size=ks, padding=pw)
        self.mlp_beta = nn.Conv2d(nhidden, norm_nc, kernel_size=ks, padding=pw)

    def forward(self, x, segmap):
        normalized = self.param_free_norm(x)
        segmap = F.interpolate(segmap, size=x.size()[2:], mode='nearest')
        actv = self.mlp_shared(segmap)
        return normalized * (1 + self.mlp_gamma(actv)) + self.mlp_beta(actv)


class SPADEResnetBlock(nn.Module):
    def __init__(self, fin, fout, opt):
        super().__init__()
        self.learned_shortcut = (fin != fout)
        fmiddle = min(fin, fout)
        self.conv_0 = nn.Conv2d(fin, fmiddle, kernel_size=3, padding=1)
        self.conv_1 = nn.Conv2d(fmiddle, fout, kernel_size=3, padding=1)
        if self.learned_shortcut:
            self.conv_s = nn.Conv2d(fin, fout, kernel_size=1, bias=False)
        if 'spectral' in opt['norm_G']:
            self.conv_0 = spectral_norm(self.conv_0)
            self.conv_1 = spectral_norm(self.conv_1)
            if self.learned_shortcut:
                self.conv_s = spectral_norm(self.conv_s)
        spade_config_str = opt['norm_G'].replace('spectral', '')
        self.norm_0 = SPADE(spade_config_str, fin, opt['semantic_nc'])
        self.norm_1 = SPADE(spade_config_str, fmiddle, opt['semantic_nc'])
        if self.learned_shortcut:
            self.norm_s = SPADE(spade_config_str, fin, opt['semantic_nc'])

    def forward(self, x, seg):
        x_s = self.shortcut(x, seg)
        dx = self.conv_0(self.actvn(self.norm_0(x, seg)))
        dx = self.conv_1(self.actvn(self.norm_1(dx, seg)))
        return x_s + dx

    def shortcut(self, x, seg):
        return self.conv_s(self.norm_s(x, seg)) if self.learned_shortcut else x

    def actvn(self, x):
        return F.leaky_relu(x, 2e-1)


@program(lambda: inputs(torch.randn(2, 4, 6, 6), torch.rand(2, 3, 12, 12)))
def spade_block():
    return SPADEResnetBlock(4, 6, {'norm_G': 'spectralspadebatch3x3', 'semantic_nc': 3})


class EqualLR:
    """Weights are computed before each call by a pre-hook, from ones that are scaled at run time."""

    def __init__(self, name):
        self.name = name

    def compute_weight(self, module):
        weight = getattr(module, self.name + '_orig')
        fan_in = weight.data.size(1) * weight.data[0][0].numel()
        return weight * math.sqrt(2 / fan_in)

    @staticmethod
    def apply(module, name):
        fn = EqualLR(name)
        weight = getattr(module, name)
        del module._parameters[name]
        module.register_parameter(name + '_orig', nn.Parameter(weight.data))
        module.register_forward_pre_hook(fn)
        return fn

    def __call__(self, module, input):
        setattr(module, self.name, self.compute_weight(module))


def equal_lr(module, name='weight'):
    EqualLR.apply(module, name)
    return module


class PixelNorm(nn.Module):
    def forward(self, input):
        return input / torch.sqrt(torch.mean(input ** 2, dim=1, keepdim=True) + 1e-8)


class NoiseInjection(nn.Module):
    def __init__(self, channel):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, channel, 1, 1))

    def forward(self, image, noise=None):
        if noise is None:
            batch, _, height, width = image.shape
            noise = image.new_empty(batch, 1, height, width).normal_()
        return image + self.weight * noise


class StyledGenerator(nn.Module):
    def __init__(self, code_dim=8, n_mlp=2, channels=6):
        super().__init__()
        layers = [PixelNorm()]
        for i in range(n_mlp):
            layers.append(nn.Linear(code_dim, code_dim))
            layers.append(nn.LeakyReLU(0.2))
        self.style = nn.Sequential(*layers)
        self.input = nn.Parameter(torch.randn(1, channels, 4, 4))
        self.convs = nn.ModuleList([equal_lr(nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(2)])
        self.noises = nn.ModuleList([NoiseInjection(channels) for _ in range(2)])
        self.affine = nn.ModuleList([nn.Linear(code_dim, channels * 2) for _ in range(2)])
        self.register_buffer('mean_style', torch.zeros(1, code_dim))

    def forward(self, input, step=1, alpha=-1, truncation=None):
        styles = []
        if type(input) not in (list, tuple):
            input = [input]
        for i in input:
            styles.append(self.style(i))
        if self.training:
            self.mean_style.mul_(0.99).add_(styles[0].detach().mean(0, keepdim=True), alpha=0.01)
        elif truncation is not None:
            styles = [self.mean_style + truncation * (style - self.mean_style) for style in styles]
        out = self.input.repeat(styles[0].shape[0], 1, 1, 1)
        for i, (conv, noise, affine) in enumerate(zip(self.convs, self.noises, self.affine)):
            style = styles[min(i, len(styles) - 1)]
            gamma, beta = affine(style).unsqueeze(2).unsqueeze(3).chunk(2, 1)
            if i > 0 and step > 0:
                upsample = F.interpolate(out, scale_factor=2)
                out = conv(upsample) if not 0 <= alpha < 1 else (1 - alpha) * upsample + alpha * conv(upsample)
            else:
                out = conv(out)
            out = F.instance_norm(noise(out)) * gamma + beta
        return out


@program(lambda: inputs([torch.randn(2, 8), torch.randn(2, 8)], truncation=0.7))
def style_generator():
    return StyledGenerator()


class ConditionalBatchNorm2d(nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.num_features = num_features
        self.bn = nn.BatchNorm2d(num_features, affine=False)
        self.embed = nn.Embedding(num_classes, num_features * 2)
        self.embed.weight.data[:, :num_features].normal_(1, 0.02)
        self.embed.weight.data[:, num_features:].zero_()

    def forward(self, x, y):
        out = self.bn(x)
        gamma, beta = self.embed(y).chunk(2, 1)
        return gamma.view(-1, self.num_features, 1, 1) * out + beta.view(-1, self.num_features, 1, 1)


class SAGANBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.cbn = ConditionalBatchNorm2d(ch, 5)
        self.theta = spectral_norm(nn.Conv2d(ch, ch // 2, 1, bias=False))
        self.phi = spectral_norm(nn.Conv2d(ch, ch // 2, 1, bias=False))
        self.o = spectral_norm(nn.Conv2d(ch, ch, 1, bias=False))
        self.gamma = nn.Parameter(torch.tensor(0.), requires_grad=True)

    def forward(self, x, y=None):
        if y is not None:
            x = F.relu(self.cbn(x, y))
        theta, phi = self.theta(x), F.max_pool2d(self.phi(x), [2, 2])
        theta = theta.view(-1, theta.shape[1], x.shape[2] * x.shape[3])
        phi = phi.view(-1, phi.shape[1], x.shape[2] * x.shape[3] // 4)
        beta = F.softmax(torch.bmm(theta.transpose(1, 2), phi), -1)
        g = F.max_pool2d(x, [2, 2]).flatten(2)
        o = self.o(torch.bmm(g, beta.transpose(1, 2)).view(x.shape))
        return self.gamma * o + x


@program(lambda: inputs(torch.randn(3, 4, 4, 4), torch.randint(0, 5, (3,))))
def self_attention_gan():
    return SAGANBlock(4)


def calc_mean_std(feat, eps=1e-5):
    size = feat.size()
    assert (len(size) == 4)
    N, C = size[:2]
    feat_var = feat.view(N, C, -1).var(dim=2) + eps
    feat_std = feat_var.sqrt().view(N, C, 1, 1)
    feat_mean = feat.view(N, C, -1).mean(dim=2).view(N, C, 1, 1)
    return feat_mean, feat_std


def adaptive_instance_normalization(content_feat, style_feat):
    assert (content_feat.size()[:2] == style_feat.size()[:2])
    size = content_feat.size()
    style_mean, style_std = calc_mean_std(style_feat)
    content_mean, content_std = calc_mean_std(content_feat)
    normalized_feat = (content_feat - content_mean.expand(size)) / content_std.expand(size)
    return normalized_feat * style_std.expand(size) + style_mean.expand(size)


class AdaINNet(nn.Module):
    def __init__(self, encoder, decoder):
        super(AdaINNet, self).__init__()
        enc_layers = list(encoder.children())
        self.enc_1 = nn.Sequential(*enc_layers[:2])
        self.enc_2 = nn.Sequential(*enc_layers[2:])
        self.decoder = decoder
        self.mse_loss = nn.MSELoss()
        for name in ['enc_1', 'enc_2']:
            for param in getattr(self, name).parameters():
                param.requires_grad = False

    def encode_with_intermediate(self, input):
        results = [input]
        for i in range(2):
            func = getattr(self, 'enc_{:d}'.format(i + 1))
            results.append(func(results[-1]))
        return results[1:]

    def encode(self, input):
        for i in range(2):
            input = getattr(self, 'enc_{:d}'.format(i + 1))(input)
        return input

    def calc_content_loss(self, input, target):
        assert (input.size() == target.size())
        assert (target.requires_grad is False)
        return self.mse_loss(input, target)

    def calc_style_loss(self, input, target):
        input_mean, input_std = calc_mean_std(input)
        target_mean, target_std = calc_mean_std(target)
        return self.mse_loss(input_mean, target_mean) + self.mse_loss(input_std, target_std)

    def forward(self, content, style, alpha=1.0):
        assert 0 <= alpha <= 1
        style_feats = self.encode_with_intermediate(style)
        content_feat = self.encode(content)
        t = adaptive_instance_normalization(content_feat, style_feats[-1])
        t = alpha * t + (1 - alpha) * content_feat
        g_t = self.decoder(t)
        g_t_feats = self.encode_with_intermediate(g_t)
        loss_c = self.calc_content_loss(g_t_feats[-1], t)
        loss_s = self.calc_style_loss(g_t_feats[0], style_feats[0])
        for i in range(1, 2):
            loss_s += self.calc_style_loss(g_t_feats[i], style_feats[i])
        return loss_c, loss_s


@program(lambda: inputs(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8), alpha=0.8))
def adain_style_transfer():
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU())
    return AdaINNet(encoder, nn.Sequential(nn.Upsample(scale_factor=2), nn.ReflectionPad2d((1, 1, 1, 1)), nn.Conv2d(6, 3, 3)))


class ImagePool(nn.Module):
    """A history of generated images: random numbers of Python decide what is returned."""

    def __init__(self, pool_size):
        super().__init__()
        self.pool_size = pool_size
        self.num_imgs, self.images = 0, []

    def forward(self, images):
        if self.pool_size == 0:
            return images
        return_images = []
        for image in images:
            image = torch.unsqueeze(image.data, 0)
            if self.num_imgs < self.pool_size:
                self.num_imgs = self.num_imgs + 1
                self.images.append(image)
                return_images.append(image)
            elif random.uniform(0, 1) > 0.5:
                random_id = random.randint(0, self.pool_size - 1)
                tmp = self.images[random_id].clone()
                self.images[random_id] = image
                return_images.append(tmp)
            else:
                return_images.append(image)
        return torch.cat(return_images, 0)


@program(lambda: inputs(torch.rand(2, 3, 4, 4)))
def image_pool():
    return ImagePool(50)


class VAE(nn.Module):
    def __init__(self, in_channels, latent_dim, hidden_dims=None):
        super().__init__()
        self.latent_dim = latent_dim
        modules = []
        if hidden_dims is None:
            hidden_dims = [4, 8]
        for h_dim in hidden_dims:
            modules.append(nn.Sequential(nn.Conv2d(in_channels, h_dim, 3, 2, 1), nn.BatchNorm2d(h_dim), nn.LeakyReLU()))
            in_channels = h_dim
        self.encoder = nn.Sequential(*modules)
        self.fc_mu = nn.Linear(hidden_dims[-1] * 4, latent_dim)
        self.fc_var = nn.Linear(hidden_dims[-1] * 4, latent_dim)
        self.decoder_input = nn.Linear(latent_dim, hidden_dims[-1] * 4)
        self.final = nn.Sequential(OrderedDict(up=nn.ConvTranspose2d(hidden_dims[-1], 3, 4, 4), act=nn.Tanh()))

    def reparameterize(self, mu, logvar):
        if self.training:
            std = torch.exp(0.5 * logvar)
            eps = torch.randn_like(std)
            return eps * std + mu
        return mu

    def loss_function(self, *args, **kwargs):
        recons, input, mu, log_var = args
        kld_weight = kwargs['M_N']
        recons_loss = F.mse_loss(recons, input)
        kld_loss = torch.mean(-0.5 * torch.sum(1 + log_var - mu ** 2 - log_var.exp(), dim=1), dim=0)
        return {'loss': recons_loss + kld_weight * kld_loss, 'Reconstruction_Loss': recons_loss.detach(), 'KLD': -kld_loss.detach()}

    def forward(self, input, **kwargs):
        result = torch.flatten(self.encoder(input), start_dim=1)
        mu, log_var = self.fc_mu(result), self.fc_var(result)
        z = self.reparameterize(mu, log_var)
        result = self.decoder_input(z).view(-1, self.fc_mu.in_features // 4, 2, 2)
        outputs = [self.final(result), input, mu, log_var]
        return outputs, self.loss_function(*outputs, M_N=0.005)


@program(lambda: inputs(torch.rand(2, 3, 8, 8)))
def variational_autoencoder():
    return VAE(3, 4)
