"""Language models and recurrent decoders, and the wrappers that train them: teacher forcing, beams, caches, averages of weights."""
from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import random
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, Optional, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn import Parameter

from paritybench_subset.cases import inputs, program

logger = logging.getLogger(__name__)


class BertConfig(object):
    def __init__(self, vocab_size=12, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, hidden_act="gelu",
                 hidden_dropout_prob=0.1, max_position_embeddings=10, initializer_range=0.02, **kwargs):
        self.__dict__.update({k: v for k, v in locals().items() if k not in ('self', 'kwargs', '__class__')}, **kwargs)

    @classmethod
    def from_dict(cls, json_object):
        config = BertConfig()
        for (key, value) in json_object.items():
            config.__dict__[key] = value
        return config

    def __repr__(self):
        return str(self.to_json_string())

    def to_json_string(self):
        return json.dumps(copy.deepcopy(self.__dict__), indent=2, sort_keys=True) + "\n"


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def swish(x):
    return x * torch.sigmoid(x)


ACT2FN = {"gelu": gelu, "relu": torch.nn.functional.relu, "swish": swish}


@dataclass
class ModelOutput:
    """An output that is a tuple, a dict and an object at once."""

    last_hidden_state: torch.Tensor
    pooler_output: Optional[torch.Tensor] = None
    attentions: Optional[Tuple[torch.Tensor, ...]] = None

    def to_tuple(self) -> Tuple[Any, ...]:
        return tuple(v for v in (self.last_hidden_state, self.pooler_output, self.attentions) if v is not None)

    def __getitem__(self, k):
        return getattr(self, k) if isinstance(k, str) else self.to_tuple()[k]


class BertSelfAttention(nn.Module):
    def __init__(self, config):
        super(BertSelfAttention, self).__init__()
        if config.hidden_size % config.num_attention_heads != 0:
            raise ValueError("The hidden size (%d) is not a multiple of the number of attention heads (%d)" % (
                config.hidden_size, config.num_attention_heads))
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = int(config.hidden_size / config.num_attention_heads)
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, self.all_head_size) for _ in range(3))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def transpose_for_scores(self, x):
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        x = x.view(*new_x_shape)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask, head_mask=None):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        attention_scores = attention_scores + attention_mask
        attention_probs = self.dropout(nn.Softmax(dim=-1)(attention_scores))
        if head_mask is not None:
            attention_probs = attention_probs * head_mask
        context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()
        return context_layer.view(*(context_layer.size()[:-2] + (self.all_head_size,))), attention_probs


class BertLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = BertSelfAttention(config)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        if isinstance(config.hidden_act, str):
            self.intermediate_act_fn = ACT2FN[config.hidden_act]
        else:
            self.intermediate_act_fn = config.hidden_act
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-12)

    def forward(self, hidden_states, attention_mask, head_mask=None):
        context, probs = self.attention(hidden_states, attention_mask, head_mask)
        hidden_states = self.LayerNorm(context + hidden_states)
        return self.LayerNorm(self.output(self.intermediate_act_fn(self.intermediate(hidden_states))) + hidden_states), probs


class BertModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        layer = BertLayer(config)
        self.layer = nn.ModuleList([copy.deepcopy(layer) for _ in range(config.num_hidden_layers)])
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.apply(self.init_bert_weights)

    def init_bert_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.zero_()

    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def forward(self, input_ids, attention_mask=None, head_mask=None, return_dict=True):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        extended = attention_mask.unsqueeze(1).unsqueeze(2)
        extended = extended.to(dtype=next(self.parameters()).dtype)
        extended = (1.0 - extended) * torch.finfo(self.dtype).min
        if head_mask is not None:
            if head_mask.dim() == 1:
                head_mask = head_mask.unsqueeze(0).unsqueeze(0).unsqueeze(-1).unsqueeze(-1)
                head_mask = head_mask.expand(self.config.num_hidden_layers, -1, -1, -1, -1)
        else:
            head_mask = [None] * self.config.num_hidden_layers
        position_ids = torch.arange(input_ids.size(1), dtype=torch.long, device=input_ids.device).unsqueeze(0).expand_as(input_ids)
        hidden = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        all_attentions = ()
        for i, layer_module in enumerate(self.layer):
            hidden, attentions = layer_module(hidden, extended, head_mask[i])
            all_attentions = all_attentions + (attentions,)
        logger.debug("encoded %d layers", len(all_attentions))
        output = ModelOutput(last_hidden_state=hidden, pooler_output=torch.tanh(self.pooler(hidden[:, 0])), attentions=all_attentions)
        return output if return_dict else output.to_tuple()


@program(lambda: inputs(torch.randint(1, 12, (2, 5)), torch.ones(2, 5, dtype=torch.long), head_mask=torch.tensor([1., 0.])))
def bert_with_masks():
    return BertModel(BertConfig.from_dict({"hidden_act": "gelu", "output_attentions": True}))


class Seq2Seq(nn.Module):
    """Teacher forcing is drawn by Python's random numbers for each step."""

    def __init__(self, vocab, hidden=6, max_len=4, sos=1):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.encoder = nn.GRU(hidden, hidden, bidirectional=True)
        self.decoder = nn.GRUCell(hidden, hidden)
        self.attn = nn.Linear(hidden * 2, 1)
        self.out = nn.Linear(hidden, vocab)
        self.max_len, self.sos = max_len, sos

    def forward(self, src, trg, teacher_forcing_ratio=0.5):
        enc, hidden = self.encoder(self.embedding(src))
        enc = enc[:, :, :self.decoder.hidden_size] + enc[:, :, self.decoder.hidden_size:]
        hidden = hidden.sum(0)
        outputs = torch.zeros(self.max_len, trg.size(1), self.out.out_features)
        output = trg.data[0, :]
        for t in range(1, self.max_len):
            hidden = self.decoder(self.embedding(output), hidden)
            scores = self.attn(torch.cat([enc, hidden.expand_as(enc)], -1)).softmax(0)
            output = self.out(hidden + (scores * enc).sum(0))
            outputs[t] = output
            is_teacher = random.random() < teacher_forcing_ratio
            top1 = output.data.max(1)[1]
            output = trg.data[t] if is_teacher else top1
        return outputs


@program(lambda: inputs(torch.randint(0, 7, (5, 2)), torch.randint(0, 7, (4, 2)), teacher_forcing_ratio=0.7))
def seq2seq_with_teacher_forcing():
    return Seq2Seq(7)


class GreedyDecoder(nn.Module):
    """A loop that ends when all sentences have: a decision on a value after each word."""

    def __init__(self, vocab=6, hidden=6, eos=2):
        super().__init__()
        self.embedding, self.cell, self.out = nn.Embedding(vocab, hidden), nn.LSTMCell(hidden, hidden), nn.Linear(hidden, vocab)
        self.eos = eos

    @torch.no_grad()
    def forward(self, context, max_len=5):
        h, c = context, torch.zeros_like(context)
        word = torch.full((context.size(0),), 1, dtype=torch.long)
        done = torch.zeros_like(word, dtype=torch.bool)
        words = []
        for _ in range(max_len):
            h, c = self.cell(self.embedding(word), (h, c))
            word = self.out(h).argmax(-1).masked_fill(done, 0)
            words.append(word)
            done |= word == self.eos
            if done.all():
                break
        return torch.stack(words, 1)


@program(lambda: inputs(torch.randn(2, 6)))
def greedy_decoder():
    return GreedyDecoder()


class LayerNormLSTM(nn.Module):
    def __init__(self, input_size, hidden_size, use_bias=True):
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.FloatTensor(input_size, 4 * hidden_size))
        self.weight_hh = nn.Parameter(torch.FloatTensor(hidden_size, 4 * hidden_size))
        if use_bias:
            self.bias = nn.Parameter(torch.FloatTensor(4 * hidden_size))
        else:
            self.register_parameter('bias', None)
        self.ln = nn.ModuleDict({k: nn.LayerNorm(hidden_size * n) for k, n in (('ih', 4), ('hh', 4), ('c', 1))})
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.orthogonal_(self.weight_ih.data)
        self.weight_hh.data.copy_(torch.eye(self.hidden_size).repeat(1, 4))
        nn.init.constant_(self.bias.data, val=0)

    def forward(self, input_, hx=None):
        if hx is None:
            hx = (input_.new_zeros(input_.size(1), self.hidden_size, requires_grad=False),) * 2
        outputs = []
        for x in torch.unbind(input_, dim=0):
            h_0, c_0 = hx
            bias_batch = self.bias.unsqueeze(0).expand(h_0.size(0), *self.bias.size())
            wh_b = torch.addmm(bias_batch, h_0, self.weight_hh)
            wi = torch.mm(x, self.weight_ih)
            f, i, o, g = torch.split(self.ln['ih'](wi) + self.ln['hh'](wh_b), self.hidden_size, dim=1)
            c_1 = torch.sigmoid(f) * c_0 + torch.sigmoid(i) * torch.tanh(g)
            hx = (torch.sigmoid(o) * torch.tanh(self.ln['c'](c_1)), c_1)
            outputs.append(hx[0])
        return torch.stack(outputs), hx


@program(lambda: inputs(torch.randn(4, 2, 3)))
def layer_norm_lstm():
    return LayerNormLSTM(3, 4)


class WeightDrop(torch.nn.Module):
    """AWD-LSTM: raw weights are dropped into the wrapped module before each call."""

    def __init__(self, module, weights, dropout=0.5, variational=False):
        super(WeightDrop, self).__init__()
        self.module, self.weights, self.dropout, self.variational = module, weights, dropout, variational
        for name_w in self.weights:
            w = getattr(self.module, name_w)
            del self.module._parameters[name_w]
            self.module.register_parameter(name_w + '_raw', Parameter(w.data))

    def _setweights(self):
        for name_w in self.weights:
            raw_w = getattr(self.module, name_w + '_raw')
            if self.variational:
                mask = torch.ones(raw_w.size(0), 1)
                mask = F.dropout(mask, p=self.dropout, training=True)
                w = mask.expand_as(raw_w) * raw_w
            else:
                w = F.dropout(raw_w, p=self.dropout, training=self.training)
            setattr(self.module, name_w, w)

    def forward(self, *args):
        self._setweights()
        return self.module.forward(*args)


@program(lambda: inputs(torch.randn(2, 4)))
def weight_drop():
    return WeightDrop(nn.Linear(4, 3), ['weight'], variational=True)


class EMA(nn.Module):
    """Averages of a model's weights, in buffers whose names are made from the parameters'."""

    def __init__(self, model, decay=0.9, use_num_updates=True):
        super().__init__()
        self.model = model
        self.m_name2s_name = {}
        self.register_buffer('decay', torch.tensor(decay, dtype=torch.float32))
        self.register_buffer('num_updates', torch.tensor(0 if use_num_updates else -1, dtype=torch.int))
        for name, p in model.named_parameters():
            if p.requires_grad:
                s_name = name.replace('.', '')
                self.m_name2s_name.update({name: s_name})
                self.register_buffer(s_name, p.clone().detach().data)
        self.collected_params = []

    def update(self):
        decay = self.decay
        with torch.no_grad():
            m_param = dict(self.model.named_parameters())
            shadow_params = dict(self.named_buffers())
            for key in m_param:
                if m_param[key].requires_grad:
                    sname = self.m_name2s_name[key]
                    shadow_params[sname] = shadow_params[sname].type_as(m_param[key])
                    shadow_params[sname].sub_((1.0 - decay) * (shadow_params[sname] - m_param[key]))
                else:
                    assert key not in self.m_name2s_name

    @contextlib.contextmanager
    def ema_scope(self, context=None):
        self.collected_params = [p.clone() for p in self.model.parameters()]
        shadow = dict(self.named_buffers())
        for name, p in self.model.named_parameters():
            p.data.copy_(shadow[self.m_name2s_name[name]].data)
        try:
            yield None
        finally:
            for c_param, param in zip(self.collected_params, self.model.parameters()):
                param.data.copy_(c_param.data)
            self.collected_params = []

    def forward(self, x):
        if self.training:
            out = self.model(x)
            self.update()
            return out
        with self.ema_scope():
            with torch.no_grad():
                return self.model(x)


@program(lambda: inputs(torch.randn(2, 3)))
def averaged_weights():
    return EMA(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


class MoCo(nn.Module):
    """A momentum encoder and a queue of keys that is written around its end, with a pointer in a buffer."""

    def __init__(self, base_encoder, dim=4, K=6, m=0.9, T=0.07):
        super(MoCo, self).__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q, self.encoder_k = base_encoder(dim), base_encoder(dim)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1. - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.K % batch_size == 0
        self.queue[:, ptr:ptr + batch_size] = keys.T
        ptr = (ptr + batch_size) % self.K
        self.queue_ptr[0] = ptr

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum('nc,nc->n', [q, k]).unsqueeze(-1)
        l_neg = torch.einsum('nc,ck->nk', [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1)
        logits /= self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


@program(lambda: inputs(torch.randn(2, 3), torch.randn(2, 3)))
def momentum_contrast():
    return MoCo(lambda dim: nn.Linear(3, dim))


class Pooling(Enum):
    MEAN = 'mean'
    MAX = 'max'
    LAST = 'last'


class TextCNN(nn.Module):
    def __init__(self, args, pooling: Union[str, Pooling] = 'max'):
        super().__init__()
        for key, value in args.items():
            setattr(self, key, value)
        self.embed = nn.Embedding(self.embed_num, self.embed_dim)
        self.convs = nn.ModuleList([nn.Conv2d(1, self.kernel_num, (K, self.embed_dim)) for K in self.kernel_sizes])
        self.fc1 = nn.Linear(len(self.kernel_sizes) * self.kernel_num, self.class_num)
        self.pooling = Pooling(pooling)
        if self.static:
            self.embed.weight = nn.Parameter(self.embed.weight, requires_grad=False)

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        if self.pooling is Pooling.MAX:
            x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        elif self.pooling == Pooling.MEAN:
            x = [i.mean(-1) for i in x]
        else:
            raise NotImplementedError(f"{self.pooling.name} is not supported")
        x = torch.cat(x, 1)
        return self.fc1(F.dropout(x, 0.3, self.training))


@program(lambda: inputs(torch.randint(0, 9, (2, 6))))
def text_cnn():
    return TextCNN(dict(embed_num=9, embed_dim=4, kernel_num=3, kernel_sizes=[2, 3], class_num=2, static=True))


class CRF(nn.Module):
    def __init__(self, num_tags, batch_first=True):
        if num_tags <= 0:
            raise ValueError(f'invalid number of tags: {num_tags}')
        super().__init__()
        self.num_tags, self.batch_first = num_tags, batch_first
        self.start_transitions, self.end_transitions = nn.Parameter(torch.empty(num_tags)), nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)

    def _compute_score(self, emissions, tags, mask):
        seq_length, batch_size = tags.shape
        mask = mask.float()
        score = self.start_transitions[tags[0]]
        score += emissions[0, torch.arange(batch_size), tags[0]]
        for i in range(1, seq_length):
            score += self.transitions[tags[i - 1], tags[i]] * mask[i]
            score += emissions[i, torch.arange(batch_size), tags[i]] * mask[i]
        seq_ends = mask.long().sum(dim=0) - 1
        last_tags = tags[seq_ends, torch.arange(batch_size)]
        score += self.end_transitions[last_tags]
        return score

    def _compute_normalizer(self, emissions, mask):
        score = self.start_transitions + emissions[0]
        for i in range(1, emissions.size(0)):
            next_score = torch.logsumexp(score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1), dim=1)
            score = torch.where(mask[i].unsqueeze(1), next_score, score)
        return torch.logsumexp(score + self.end_transitions, dim=1)

    def forward(self, emissions, tags, mask=None, reduction='token_mean'):
        if reduction not in ('none', 'sum', 'mean', 'token_mean'):
            raise ValueError(f'invalid reduction: {reduction}')
        if mask is None:
            mask = torch.ones_like(tags, dtype=torch.uint8).bool()
        if self.batch_first:
            emissions, tags, mask = emissions.transpose(0, 1), tags.transpose(0, 1), mask.transpose(0, 1)
        llh = self._compute_score(emissions, tags, mask) - self._compute_normalizer(emissions, mask)
        if reduction == 'none':
            return llh
        return llh.sum() / mask.float().sum() if reduction == 'token_mean' else getattr(llh, reduction)()


@program(lambda: inputs(torch.randn(2, 4, 3), torch.randint(0, 3, (2, 4))))
def conditional_random_field():
    return CRF(3)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class LlamaBlock(nn.Module):
    """Complex rotary embeddings and a cache of keys and values that is written in place at a position."""

    def __init__(self, dim=8, n_heads=2, max_len=8):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.norm = RMSNorm(dim)
        self.cache_k = torch.zeros((2, max_len, n_heads, self.head_dim))
        self.cache_v = torch.zeros((2, max_len, n_heads, self.head_dim))
        freqs = 1.0 / (10000.0 ** (torch.arange(0, self.head_dim, 2)[: (self.head_dim // 2)].float() / self.head_dim))
        self.freqs_cis = torch.polar(torch.ones(max_len, self.head_dim // 2), torch.outer(torch.arange(max_len), freqs).float())

    def apply_rotary_emb(self, xq, xk, freqs_cis):
        xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
        xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
        shape = [d if i == 1 or i == xq_.ndim - 1 else 1 for i, d in enumerate(xq_.shape)]
        freqs_cis = freqs_cis.view(*shape)
        return torch.view_as_real(xq_ * freqs_cis).flatten(3).type_as(xq), torch.view_as_real(xk_ * freqs_cis).flatten(3).type_as(xk)

    @torch.inference_mode()
    def forward(self, x, start_pos: int = 0):
        bsz, seqlen, _ = x.shape
        h = self.norm(x)
        xq, xk, xv = (w(h).view(bsz, seqlen, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv))
        xq, xk = self.apply_rotary_emb(xq, xk, self.freqs_cis[start_pos: start_pos + seqlen])
        self.cache_k[:bsz, start_pos: start_pos + seqlen] = xk
        self.cache_v[:bsz, start_pos: start_pos + seqlen] = xv
        keys, values = self.cache_k[:bsz, : start_pos + seqlen], self.cache_v[:bsz, : start_pos + seqlen]
        mask = None
        if seqlen > 1:
            mask = torch.full((1, 1, seqlen, seqlen), float("-inf"), device=x.device)
            mask = torch.triu(mask, diagonal=start_pos + 1).type_as(h)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        output = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(xq), values)
        return x + self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


@program(lambda: inputs(torch.randn(2, 4, 8)))
def llama_block_with_cache():
    return LlamaBlock()
