"""Speech and audio: convolutional front ends, gated dilated stacks, Tacotron-like decoders, CTC, quantised codes, streaming buffers."""
from __future__ import annotations

import math
from typing import List, Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from paritybench_subset.cases import inputs, program


class HParams(object):
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)

    def get(self, key, default=None):
        return self.__dict__.get(key, default)


class MaskConv(nn.Module):
    """DeepSpeech: what lies behind the end of a sequence is masked after every layer."""

    def __init__(self, seq_module):
        super(MaskConv, self).__init__()
        self.seq_module = seq_module

    def forward(self, x, lengths):
        for module in self.seq_module:
            x = module(x)
            mask = torch.zeros_like(x, dtype=torch.bool)
            for i, length in enumerate(lengths):
                if (mask[i].size(2) - length) > 0:
                    mask[i].narrow(2, length, mask[i].size(2) - length).fill_(1)
            x = x.masked_fill(mask, 0)
        return x, lengths


@program(lambda: inputs(torch.randn(2, 1, 6, 12), [8, 5]))
def masked_convolutions():
    return MaskConv(nn.Sequential(nn.Conv2d(1, 4, (3, 3), padding=1), nn.BatchNorm2d(4), nn.Hardtanh(0, 20, inplace=True)))


class SequenceWise(nn.Module):
    def __init__(self, module):
        super(SequenceWise, self).__init__()
        self.module = module

    def forward(self, x):
        t, n = x.size(0), x.size(1)
        x = x.view(t * n, -1)
        x = self.module(x)
        return x.view(t, n, -1)

    def __repr__(self):
        tmpstr = self.__class__.__name__ + ' (\n'
        tmpstr += self.module.__repr__()
        return tmpstr + ')'


class InferenceBatchSoftmax(nn.Module):
    def forward(self, input_):
        if not self.training:
            return F.softmax(input_, dim=-1)
        else:
            return input_


class BatchRNN(nn.Module):
    def __init__(self, input_size, hidden_size, rnn_type=nn.LSTM, bidirectional=False, batch_norm=True):
        super(BatchRNN, self).__init__()
        self.bidirectional = bidirectional
        self.batch_norm = SequenceWise(nn.BatchNorm1d(input_size)) if batch_norm else None
        self.rnn = rnn_type(input_size=input_size, hidden_size=hidden_size, bidirectional=bidirectional, bias=True)
        self.head = SequenceWise(nn.Linear(hidden_size, 5))
        self.softmax = InferenceBatchSoftmax()

    def flatten_parameters(self):
        self.rnn.flatten_parameters()

    def forward(self, x):
        if self.batch_norm is not None:
            x = self.batch_norm(x)
        x, h = self.rnn(x)
        if self.bidirectional:
            x = x.view(x.size(0), x.size(1), 2, -1).sum(2).view(x.size(0), x.size(1), -1)
        return self.softmax(self.head(x))


@program(lambda: inputs(torch.randn(5, 2, 4)))
def batch_rnn():
    return BatchRNN(4, 6, nn.GRU, bidirectional=True)


class PackedEncoder(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.lstm = nn.LSTM(hp.n_mel, hp.hidden, 2, batch_first=True, bidirectional=True)
        self.lstm.flatten_parameters()

    def forward(self, x, input_lengths):
        packed = pack_padded_sequence(x, input_lengths, batch_first=True, enforce_sorted=False)
        outputs, (h, c) = self.lstm(packed)
        outputs, lengths = pad_packed_sequence(outputs, batch_first=True, total_length=x.size(1))
        return outputs, h[-1], lengths


@program(lambda: inputs(torch.randn(3, 6, 4), torch.tensor([6, 3, 5])))
def packed_encoder():
    return PackedEncoder(HParams(n_mel=4, hidden=3))


@torch.jit.script
def fused_add_tanh_sigmoid_multiply(input_a, input_b, n_channels: int):
    in_act = input_a + input_b
    t_act = torch.tanh(in_act[:, :n_channels, :])
    s_act = torch.sigmoid(in_act[:, n_channels:, :])
    return t_act * s_act


class WN(nn.Module):
    """WaveGlow's dilated stack, with weight norm and a scripted function."""

    def __init__(self, n_in_channels, n_mel_channels, n_layers, n_channels, kernel_size):
        super(WN, self).__init__()
        assert kernel_size % 2 == 1
        assert n_channels % 2 == 0
        self.n_layers, self.n_channels = n_layers, n_channels
        self.in_layers, self.res_skip_layers = nn.ModuleList(), nn.ModuleList()
        self.start = weight_norm(nn.Conv1d(n_in_channels, n_channels, 1), name='weight')
        end = nn.Conv1d(n_channels, 2 * n_in_channels, 1)
        end.weight.data.zero_()
        end.bias.data.zero_()
        self.end = end
        self.cond_layer = weight_norm(nn.Conv1d(n_mel_channels, 2 * n_channels * n_layers, 1), name='weight')
        for i in range(n_layers):
            dilation = 2 ** i
            padding = int((kernel_size * dilation - dilation) / 2)
            self.in_layers.append(weight_norm(nn.Conv1d(n_channels, 2 * n_channels, kernel_size, dilation=dilation, padding=padding)))
            res_skip_channels = 2 * n_channels if i < n_layers - 1 else n_channels
            self.res_skip_layers.append(weight_norm(nn.Conv1d(n_channels, res_skip_channels, 1), name='weight'))

    def forward(self, forward_input):
        audio, spect = forward_input
        audio = self.start(audio)
        output = torch.zeros_like(audio)
        n_channels_tensor = self.n_channels
        spect = self.cond_layer(spect)
        for i in range(self.n_layers):
            spect_offset = i * 2 * self.n_channels
            acts = fused_add_tanh_sigmoid_multiply(
                self.in_layers[i](audio), spect[:, spect_offset:spect_offset + 2 * self.n_channels, :], n_channels_tensor)
            res_skip_acts = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                audio = audio + res_skip_acts[:, :self.n_channels, :]
                output = output + res_skip_acts[:, self.n_channels:, :]
            else:
                output = output + res_skip_acts
        return self.end(output)


@program(lambda: inputs((torch.randn(2, 4, 9), torch.randn(2, 3, 9))))
def waveglow_stack():
    return WN(4, 3, n_layers=2, n_channels=6, kernel_size=3)


class LocationSensitiveAttention(nn.Module):
    def __init__(self, rnn_dim, embedding_dim, attention_dim):
        super().__init__()
        self.query_layer = nn.Linear(rnn_dim, attention_dim, bias=False)
        self.memory_layer = nn.Linear(embedding_dim, attention_dim, bias=False)
        self.v = nn.Linear(attention_dim, 1, bias=False)
        self.location_conv = nn.Conv1d(2, 3, 3, padding=1, bias=False)
        self.location_dense = nn.Linear(3, attention_dim, bias=False)
        self.score_mask_value = -float("inf")

    def forward(self, hidden, memory, processed_memory, weights_cat, mask):
        processed_query = self.query_layer(hidden.unsqueeze(1))
        location = self.location_dense(self.location_conv(weights_cat).transpose(1, 2))
        energies = self.v(torch.tanh(processed_query + location + processed_memory)).squeeze(-1)
        if mask is not None:
            energies.data.masked_fill_(mask, self.score_mask_value)
        weights = F.softmax(energies, dim=1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


def get_mask_from_lengths(lengths, max_len):
    ids = torch.arange(0, max_len, out=torch.LongTensor(max_len))
    return (ids < lengths.unsqueeze(1)).bool()


class TacotronDecoder(nn.Module):
    """State lives in attributes that each call sets anew."""

    def __init__(self, hparams):
        super().__init__()
        self.n_mel_channels, self.dim = hparams.n_mel_channels, hparams.dim
        self.prenet = nn.Linear(self.n_mel_channels, self.dim)
        self.attention_rnn = nn.LSTMCell(self.dim * 2, self.dim)
        self.attention_layer = LocationSensitiveAttention(self.dim, self.dim, 5)
        self.projection = nn.Linear(2 * self.dim, self.n_mel_channels)
        self.gate_layer = nn.Linear(2 * self.dim, 1)
        self.p_attention_dropout = hparams.get('p_attention_dropout', 0.1)

    def get_go_frame(self, memory):
        return memory.new_zeros(memory.size(0), self.n_mel_channels)

    def initialize_decoder_states(self, memory, mask):
        B, MAX_TIME = memory.size(0), memory.size(1)
        self.attention_hidden = memory.data.new(B, self.dim).zero_()
        self.attention_cell = memory.data.new(B, self.dim).zero_()
        self.attention_weights = memory.data.new(B, MAX_TIME).zero_()
        self.attention_weights_cum = memory.data.new(B, MAX_TIME).zero_()
        self.attention_context = memory.data.new(B, self.dim).zero_()
        self.memory = memory
        self.processed_memory = self.attention_layer.memory_layer(memory)
        self.mask = mask

    def decode(self, decoder_input):
        cell_input = torch.cat((decoder_input, self.attention_context), -1)
        self.attention_hidden, self.attention_cell = self.attention_rnn(cell_input, (self.attention_hidden, self.attention_cell))
        self.attention_hidden = F.dropout(self.attention_hidden, self.p_attention_dropout, self.training)
        weights_cat = torch.cat((self.attention_weights.unsqueeze(1), self.attention_weights_cum.unsqueeze(1)), dim=1)
        self.attention_context, self.attention_weights = self.attention_layer(
            self.attention_hidden, self.memory, self.processed_memory, weights_cat, self.mask)
        self.attention_weights_cum += self.attention_weights
        hidden = torch.cat((self.attention_hidden, self.attention_context), dim=1)
        return self.projection(hidden), self.gate_layer(hidden), self.attention_weights

    def forward(self, memory, decoder_inputs, memory_lengths):
        decoder_input = self.get_go_frame(memory).unsqueeze(0)
        decoder_inputs = decoder_inputs.permute(2, 0, 1)
        decoder_inputs = torch.cat((decoder_input, decoder_inputs), dim=0)
        decoder_inputs = F.dropout(F.relu(self.prenet(decoder_inputs)), p=0.5, training=True)
        self.initialize_decoder_states(memory, mask=~get_mask_from_lengths(memory_lengths, memory.size(1)))
        mel_outputs, gate_outputs, alignments = [], [], []
        while len(mel_outputs) < decoder_inputs.size(0) - 1:
            mel_output, gate_output, attention_weights = self.decode(decoder_inputs[len(mel_outputs)])
            mel_outputs += [mel_output.squeeze(1)]
            gate_outputs += [gate_output.squeeze()]
            alignments += [attention_weights]
        return torch.stack(mel_outputs).permute(1, 2, 0), torch.stack(gate_outputs).transpose(0, 1), torch.stack(alignments).transpose(0, 1)


@program(lambda: inputs(torch.randn(2, 5, 6), torch.randn(2, 4, 3), torch.tensor([5, 3])))
def tacotron_decoder():
    return TacotronDecoder(HParams(n_mel_channels=4, dim=6))


class STFT(nn.Module):
    """A Fourier transform as a convolution with a basis that numpy computed."""

    def __init__(self, filter_length=8, hop_length=4):
        super().__init__()
        self.filter_length, self.hop_length = filter_length, hop_length
        self.forward_transform = None
        scale = self.filter_length / self.hop_length
        fourier_basis = np.fft.fft(np.eye(self.filter_length))
        cutoff = int((self.filter_length / 2 + 1))
        fourier_basis = np.vstack([np.real(fourier_basis[:cutoff, :]), np.imag(fourier_basis[:cutoff, :])])
        forward_basis = torch.FloatTensor(fourier_basis[:, None, :])
        inverse_basis = torch.FloatTensor(np.linalg.pinv(scale * fourier_basis).T[:, None, :].astype(np.float32))
        self.register_buffer('forward_basis', forward_basis.float())
        self.register_buffer('inverse_basis', inverse_basis.float())

    def transform(self, input_data):
        num_batches, num_samples = input_data.size(0), input_data.size(1)
        self.num_samples = num_samples
        input_data = input_data.view(num_batches, 1, num_samples)
        pad = int(self.filter_length / 2)
        input_data = F.pad(input_data.unsqueeze(1), (pad, pad, 0, 0), mode='reflect').squeeze(1)
        forward_transform = F.conv1d(input_data, self.forward_basis, stride=self.hop_length, padding=0)
        cutoff = int((self.filter_length / 2) + 1)
        real_part, imag_part = forward_transform[:, :cutoff, :], forward_transform[:, cutoff:, :]
        magnitude = torch.sqrt(real_part ** 2 + imag_part ** 2)
        phase = torch.autograd.Variable(torch.atan2(imag_part.data, real_part.data))
        return magnitude, phase

    def inverse(self, magnitude, phase):
        recombine = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        out = F.conv_transpose1d(recombine, self.inverse_basis, stride=self.hop_length, padding=0)
        out = out[:, :, int(self.filter_length / 2):]
        return out[:, :, :-int(self.filter_length / 2):]

    def forward(self, input_data):
        self.magnitude, self.phase = self.transform(input_data)
        return self.inverse(self.magnitude, self.phase)


@program(lambda: inputs(torch.randn(2, 24)))
def short_time_fourier():
    return STFT()


class LogMel(nn.Module):
    def __init__(self, n_fft=16, n_mels=5, power=2.0, amin=1e-10):
        super().__init__()
        self.n_fft, self.hop, self.power, self.amin = n_fft, n_fft // 2, power, amin
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.register_buffer("fb", torch.rand(n_fft // 2 + 1, n_mels))

    @torch.no_grad()
    def forward(self, wav: torch.Tensor, normalize: bool = True) -> torch.Tensor:
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True).abs().pow(self.power)
        mel = torch.matmul(spec.transpose(-1, -2), self.fb).transpose(-1, -2)
        log_spec = 10.0 * torch.log10(torch.clamp(mel, min=self.amin))
        log_spec -= 10.0 * math.log10(max(self.amin, 1.0))
        if normalize:
            log_spec = (log_spec - log_spec.mean(dim=-1, keepdim=True)) / (log_spec.std(dim=-1, keepdim=True) + 1e-5)
        return log_spec


@program(lambda: inputs(torch.randn(2, 40)))
def log_mel():
    return LogMel()


class ConvTasNet(nn.Module):
    def __init__(self, n_src=2, N=4, L=4, bn=6):
        super().__init__()
        self.n_src, self.N = n_src, N
        self.encoder = nn.Conv1d(1, N, L, stride=L // 2, bias=False)
        self.norm = nn.GroupNorm(1, N, eps=1e-8)
        self.tcn = nn.ModuleList(nn.Sequential(
            nn.Conv1d(N, bn, 1), nn.PReLU(), nn.Conv1d(bn, bn, 3, padding=2 ** i, dilation=2 ** i, groups=bn), nn.PReLU(), nn.Conv1d(bn, N, 1))
            for i in range(2))
        self.mask = nn.Conv1d(N, N * n_src, 1)
        self.decoder = nn.ConvTranspose1d(N, 1, L, stride=L // 2, bias=False)

    def forward(self, mixture):
        length = mixture.size(-1)
        w = F.relu(self.encoder(mixture.unsqueeze(1)))
        y = self.norm(w)
        for block in self.tcn:
            y = y + block(y)
        masks = torch.sigmoid(self.mask(y)).view(w.size(0), self.n_src, self.N, -1)
        est = (w.unsqueeze(1) * masks).view(w.size(0) * self.n_src, self.N, -1)
        est = self.decoder(est).view(w.size(0), self.n_src, -1)
        pad = length - est.size(-1)
        return F.pad(est, (0, pad)) if pad else est


@program(lambda: inputs(torch.randn(2, 17)))
def conv_tasnet():
    return ConvTasNet()


class VectorQuantizerEMA(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, commitment_cost=0.25, decay=0.99, epsilon=1e-5):
        super(VectorQuantizerEMA, self).__init__()
        self._embedding_dim, self._num_embeddings = embedding_dim, num_embeddings
        self._embedding = nn.Embedding(num_embeddings, embedding_dim)
        self._embedding.weight.data.normal_()
        self._commitment_cost, self._decay, self._epsilon = commitment_cost, decay, epsilon
        self.register_buffer('_ema_cluster_size', torch.zeros(num_embeddings))
        self._ema_w = nn.Parameter(torch.Tensor(num_embeddings, embedding_dim))
        self._ema_w.data.normal_()

    def forward(self, inputs):
        inputs = inputs.permute(0, 2, 1).contiguous()
        input_shape = inputs.shape
        flat_input = inputs.view(-1, self._embedding_dim)
        distances = (torch.sum(flat_input ** 2, dim=1, keepdim=True) + torch.sum(self._embedding.weight ** 2, dim=1)
                     - 2 * torch.matmul(flat_input, self._embedding.weight.t()))
        encoding_indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(encoding_indices.shape[0], self._num_embeddings, device=inputs.device)
        encodings.scatter_(1, encoding_indices, 1)
        quantized = torch.matmul(encodings, self._embedding.weight).view(input_shape)
        if self.training:
            self._ema_cluster_size = self._ema_cluster_size * self._decay + (1 - self._decay) * torch.sum(encodings, 0)
            n = torch.sum(self._ema_cluster_size.data)
            self._ema_cluster_size = ((self._ema_cluster_size + self._epsilon) / (n + self._num_embeddings * self._epsilon) * n)
            dw = torch.matmul(encodings.t(), flat_input)
            self._ema_w = nn.Parameter(self._ema_w * self._decay + (1 - self._decay) * dw)
            self._embedding.weight = nn.Parameter(self._ema_w / self._ema_cluster_size.unsqueeze(1))
        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        loss = self._commitment_cost * e_latent_loss
        quantized = inputs + (quantized - inputs).detach()
        avg_probs = torch.mean(encodings, dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        return loss, quantized.permute(0, 2, 1).contiguous(), perplexity, encodings


@program(lambda: inputs(torch.randn(2, 3, 4)))
def vector_quantizer():
    return VectorQuantizerEMA(5, 3)


class CausalConv1d(nn.Conv1d):
    """Streams: what the next call needs of this one is kept in a buffer, or a list of the caller."""

    def __init__(self, in_channels, out_channels, kernel_size, dilation=1):
        super().__init__(in_channels, out_channels, kernel_size, dilation=dilation)
        self.left = (kernel_size - 1) * dilation

    def forward(self, x: torch.Tensor, cache: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        x = F.pad(x, (self.left, 0)) if cache is None else torch.cat((cache, x), dim=-1)
        return super().forward(x), x[..., -self.left:]


class StreamingEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.ModuleList([CausalConv1d(dim, dim, 3, dilation=2 ** i) for i in range(2)])

    def forward(self, x: torch.Tensor, caches: Optional[List[torch.Tensor]] = None):
        new_caches: List[torch.Tensor] = []
        for i, layer in enumerate(self.layers):
            y, cache = layer(x, None if caches is None else caches[i])
            x = x + F.silu(y)
            new_caches.append(cache)
        if torch.jit.is_scripting():
            return x, new_caches
        if caches is not None:
            caches[:] = new_caches
        return x, caches


@program(lambda: inputs(torch.randn(1, 4, 6), [torch.zeros(1, 4, 2), torch.zeros(1, 4, 4)]))
def streaming_encoder():
    return StreamingEncoder(4)


class CTCModel(nn.Module):
    def __init__(self, vocab=6, dim=8):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(4, dim, 3, 2, 1), nn.GELU())
        self.out = nn.Linear(dim, vocab)
        self.ctc = nn.CTCLoss(blank=0, reduction='mean', zero_infinity=True)

    def forward(self, feats, feat_lengths, targets, target_lengths):
        x = self.subsample(feats.transpose(1, 2)).transpose(1, 2)
        lengths = torch.div(feat_lengths + 1, 2, rounding_mode='floor')
        log_probs = self.out(x).log_softmax(-1)
        loss = self.ctc(log_probs.transpose(0, 1), targets, lengths, target_lengths)
        return {'loss': loss, 'best': log_probs.argmax(-1), 'lengths': lengths}


@program(lambda: inputs(torch.randn(2, 12, 4), torch.tensor([12, 10]), torch.randint(1, 6, (2, 3)), torch.tensor([3, 2])))
def ctc_recogniser():
    return CTCModel()
