"""Recommenders and tabular models: embeddings by field, factorisation machines, cross layers, sessions, feature columns."""
from __future__ import annotations

from collections import OrderedDict, namedtuple
from itertools import combinations

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from paritybench_subset.cases import inputs, program


class FeaturesLinear(torch.nn.Module):
    def __init__(self, field_dims, output_dim=1):
        super().__init__()
        self.fc = torch.nn.Embedding(sum(field_dims), output_dim)
        self.bias = torch.nn.Parameter(torch.zeros((output_dim,)))
        self.offsets = np.array((0, *np.cumsum(field_dims)[:-1]), dtype=np.int64)

    def forward(self, x):
        x = x + x.new_tensor(self.offsets).unsqueeze(0)
        return torch.sum(self.fc(x), dim=1) + self.bias


class FactorizationMachine(torch.nn.Module):
    def __init__(self, reduce_sum=True):
        super().__init__()
        self.reduce_sum = reduce_sum

    def forward(self, x):
        square_of_sum = torch.sum(x, dim=1) ** 2
        sum_of_square = torch.sum(x ** 2, dim=1)
        ix = square_of_sum - sum_of_square
        if self.reduce_sum:
            ix = torch.sum(ix, dim=1, keepdim=True)
        return 0.5 * ix


class MultiLayerPerceptron(torch.nn.Module):
    def __init__(self, input_dim, embed_dims, dropout, output_layer=True):
        super().__init__()
        layers = list()
        for embed_dim in embed_dims:
            layers.append(torch.nn.Linear(input_dim, embed_dim))
            layers.append(torch.nn.BatchNorm1d(embed_dim))
            layers.append(torch.nn.ReLU())
            layers.append(torch.nn.Dropout(p=dropout))
            input_dim = embed_dim
        if output_layer:
            layers.append(torch.nn.Linear(input_dim, 1))
        self.mlp = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.mlp(x)


class DeepFM(torch.nn.Module):
    def __init__(self, field_dims, embed_dim=4, mlp_dims=(8, 8), dropout=0.2):
        super().__init__()
        self.linear = FeaturesLinear(field_dims)
        self.fm = FactorizationMachine(reduce_sum=True)
        self.embedding = torch.nn.Embedding(sum(field_dims), embed_dim)
        self.offsets = np.array((0, *np.cumsum(field_dims)[:-1]), dtype=np.int64)
        torch.nn.init.xavier_uniform_(self.embedding.weight.data)
        self.embed_output_dim = len(field_dims) * embed_dim
        self.mlp = MultiLayerPerceptron(self.embed_output_dim, mlp_dims, dropout)

    def forward(self, x):
        embed_x = self.embedding(x + torch.tensor(self.offsets).unsqueeze(0))
        x = self.linear(x) + self.fm(embed_x) + self.mlp(embed_x.view(-1, self.embed_output_dim))
        return torch.sigmoid(x.squeeze(1))


@program(lambda: inputs(torch.stack([torch.randint(0, n, (3,)) for n in (4, 6, 3)], 1)))
def deep_fm():
    return DeepFM([4, 6, 3])


SparseFeat = namedtuple('SparseFeat', ['name', 'vocabulary_size', 'embedding_dim'])
DenseFeat = namedtuple('DenseFeat', ['name', 'dimension'])


def build_input_features(feature_columns):
    features = OrderedDict()
    start = 0
    for feat in feature_columns:
        feat_name = feat.name
        if feat_name in features:
            continue
        if isinstance(feat, SparseFeat):
            features[feat_name] = (start, start + 1)
            start += 1
        elif isinstance(feat, DenseFeat):
            features[feat_name] = (start, start + feat.dimension)
            start += feat.dimension
        else:
            raise TypeError("Invalid feature column type,got", type(feat))
    return features


class CrossNet(nn.Module):
    def __init__(self, in_features, layer_num=2, parameterization='vector', seed=1024):
        super(CrossNet, self).__init__()
        self.layer_num = layer_num
        self.parameterization = parameterization
        if self.parameterization == 'vector':
            self.kernels = nn.Parameter(torch.Tensor(self.layer_num, in_features, 1))
        elif self.parameterization == 'matrix':
            self.kernels = nn.Parameter(torch.Tensor(self.layer_num, in_features, in_features))
        self.bias = nn.Parameter(torch.zeros(self.layer_num, in_features, 1))
        for i in range(self.kernels.shape[0]):
            nn.init.xavier_normal_(self.kernels[i])

    def forward(self, inputs):
        x_0 = inputs.unsqueeze(2)
        x_l = x_0
        for i in range(self.layer_num):
            if self.parameterization == 'vector':
                xl_w = torch.tensordot(x_l, self.kernels[i], dims=([1], [0]))
                dot_ = torch.matmul(x_0, xl_w)
                x_l = dot_ + self.bias[i] + x_l
            elif self.parameterization == 'matrix':
                xl_w = torch.matmul(self.kernels[i], x_l)
                dot_ = xl_w + self.bias[i]
                x_l = x_0 * dot_ + x_l
            else:
                raise ValueError("parameterization should be 'vector' or 'matrix'")
        return torch.squeeze(x_l, dim=2)


class DCN(nn.Module):
    """Feature columns that are sliced out of one matrix by name."""

    def __init__(self, columns, parameterization='matrix', l2_reg=1e-5):
        super().__init__()
        self.columns = columns
        self.feature_index = build_input_features(columns)
        self.embedding_dict = nn.ModuleDict({
            feat.name: nn.Embedding(feat.vocabulary_size, feat.embedding_dim) for feat in columns if isinstance(feat, SparseFeat)})
        size = sum(feat.embedding_dim if isinstance(feat, SparseFeat) else feat.dimension for feat in columns)
        self.cross, self.dnn = CrossNet(size, parameterization=parameterization), MultiLayerPerceptron(size, [8], 0.1, output_layer=False)
        self.out = nn.Linear(size + 8, 1, bias=False)
        self.regularization_weight = []
        self.add_regularization_weight(self.embedding_dict.parameters(), l2=l2_reg)
        self.add_regularization_weight(filter(lambda x: 'weight' in x[0] and 'bn' not in x[0], self.dnn.named_parameters()), l2=l2_reg)

    def add_regularization_weight(self, weight_list, l1=0.0, l2=0.0):
        weight_list = list(weight_list)
        self.regularization_weight.append((weight_list, l1, l2))

    def get_regularization_loss(self):
        total_reg_loss = torch.zeros((1,))
        for weight_list, l1, l2 in self.regularization_weight:
            for w in weight_list:
                parameter = w[1] if isinstance(w, tuple) else w
                if l1 > 0:
                    total_reg_loss += torch.sum(l1 * torch.abs(parameter))
                if l2 > 0:
                    try:
                        total_reg_loss += torch.sum(l2 * torch.square(parameter))
                    except AttributeError:
                        total_reg_loss += torch.sum(l2 * parameter * parameter)
        return total_reg_loss

    def forward(self, X):
        sparse_feature_columns = list(filter(lambda x: isinstance(x, SparseFeat), self.columns)) if len(self.columns) else []
        dense_feature_columns = list(filter(lambda x: isinstance(x, DenseFeat), self.columns)) if len(self.columns) else []
        sparse = [self.embedding_dict[f.name](X[:, self.feature_index[f.name][0]:self.feature_index[f.name][1]].long())
                  for f in sparse_feature_columns]
        dense = [X[:, self.feature_index[f.name][0]:self.feature_index[f.name][1]] for f in dense_feature_columns]
        x = torch.cat([torch.flatten(torch.cat(sparse, dim=-1), start_dim=1)] + dense, dim=-1)
        return torch.sigmoid(self.out(torch.cat((self.cross(x), self.dnn(x)), dim=-1))), self.get_regularization_loss()


@program(lambda: inputs(torch.cat([torch.randint(0, 4, (3, 2)).float(), torch.randn(3, 2)], 1)))
def deep_and_cross():
    return DCN([SparseFeat('user', 4, 3), SparseFeat('item', 4, 3), DenseFeat('price', 2)])


class InteractionPNN(nn.Module):
    def __init__(self, num_fields):
        super().__init__()
        self.row, self.col = list(), list()
        for i, j in combinations(range(num_fields), 2):
            self.row.append(i), self.col.append(j)
        self.attention = nn.Linear(4, 2)
        self.projection = nn.Linear(2, 1)

    def forward(self, x):
        p, q = x[:, self.row], x[:, self.col]
        inner_product = p * q
        attn_scores = F.relu(self.attention(inner_product))
        attn_scores = F.softmax(self.projection(attn_scores), dim=1)
        attn_scores = F.dropout(attn_scores, p=0.3, training=self.training)
        return torch.sum(attn_scores * inner_product, dim=1)


@program(lambda: inputs(torch.randn(2, 3, 4)))
def attentional_factorisation():
    return InteractionPNN(3)


class NCF(nn.Module):
    def __init__(self, user_num, item_num, factor_num, num_layers, dropout, model, GMF_model=None):
        super(NCF, self).__init__()
        self.dropout, self.model, self.GMF_model = dropout, model, GMF_model
        self.embed_user_GMF = nn.Embedding(user_num, factor_num)
        self.embed_item_GMF = nn.Embedding(item_num, factor_num)
        self.embed_user_MLP = nn.Embedding(user_num, factor_num * (2 ** (num_layers - 1)))
        self.embed_item_MLP = nn.Embedding(item_num, factor_num * (2 ** (num_layers - 1)))
        MLP_modules = []
        for i in range(num_layers):
            input_size = factor_num * (2 ** (num_layers - i))
            MLP_modules.append(nn.Dropout(p=self.dropout))
            MLP_modules.append(nn.Linear(input_size, input_size // 2))
            MLP_modules.append(nn.ReLU())
        self.MLP_layers = nn.Sequential(*MLP_modules)
        predict_size = factor_num if self.model in ['MLP', 'GMF'] else factor_num * 2
        self.predict_layer = nn.Linear(predict_size, 1)
        self._init_weight_()

    def _init_weight_(self):
        for m in self.MLP_layers:
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
        nn.init.kaiming_uniform_(self.predict_layer.weight, a=1, nonlinearity='sigmoid')

    def forward(self, user, item):
        if not self.model == 'MLP':
            output_GMF = self.embed_user_GMF(user) * self.embed_item_GMF(item)
        if not self.model == 'GMF':
            interaction = torch.cat((self.embed_user_MLP(user), self.embed_item_MLP(item)), -1)
            output_MLP = self.MLP_layers(interaction)
        if self.model == 'GMF':
            concat = output_GMF
        elif self.model == 'MLP':
            concat = output_MLP
        else:
            concat = torch.cat((output_GMF, output_MLP), -1)
        return self.predict_layer(concat).view(-1)


@program(lambda: inputs(torch.randint(0, 5, (4,)), torch.randint(0, 7, (4,))))
def neural_collaborative_filtering():
    return NCF(5, 7, 2, 2, 0.1, 'NeuMF-end')


class SASRec(nn.Module):
    """Sequential recommendation: numpy makes positions and masks out of what is passed as an array or a tensor."""

    def __init__(self, user_num, item_num, args):
        super().__init__()
        self.dev = args['device']
        self.item_emb = nn.Embedding(item_num + 1, args['hidden'], padding_idx=0)
        self.pos_emb = nn.Embedding(args['maxlen'], args['hidden'])
        self.attention_layernorms, self.attention_layers = nn.ModuleList(), nn.ModuleList()
        self.last_layernorm = nn.LayerNorm(args['hidden'], eps=1e-8)
        for _ in range(args['blocks']):
            self.attention_layernorms.append(nn.LayerNorm(args['hidden'], eps=1e-8))
            self.attention_layers.append(nn.MultiheadAttention(args['hidden'], 2, 0.1))

    def log2feats(self, log_seqs):
        seqs = self.item_emb(log_seqs)
        seqs *= self.item_emb.embedding_dim ** 0.5
        positions = np.tile(np.array(range(log_seqs.shape[1])), [log_seqs.shape[0], 1])
        seqs += self.pos_emb(torch.LongTensor(positions).to(self.dev))
        timeline_mask = (log_seqs == 0)
        seqs *= ~timeline_mask.unsqueeze(-1)
        tl = seqs.shape[1]
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=self.dev))
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            seqs = torch.transpose(Q + mha_outputs, 0, 1)
        return self.last_layernorm(seqs)

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        log_feats = self.log2feats(log_seqs)
        pos_logits = (log_feats * self.item_emb(pos_seqs)).sum(dim=-1)
        neg_logits = (log_feats * self.item_emb(neg_seqs)).sum(dim=-1)
        return pos_logits, neg_logits


@program(lambda: inputs(*(torch.randint(0, 6, (2, 4)) for _ in range(3))))
def self_attentive_sequences():
    return SASRec(3, 6, dict(device='cpu', hidden=4, maxlen=4, blocks=2))


class SessionGNN(nn.Module):
    def __init__(self, hidden_size=4, step=1):
        super().__init__()
        self.step, self.hidden_size = step, hidden_size
        self.w_ih = nn.Parameter(torch.randn(3 * hidden_size, 2 * hidden_size) * 0.1)
        self.w_hh = nn.Parameter(torch.randn(3 * hidden_size, hidden_size) * 0.1)
        self.b_ih, self.b_hh = nn.Parameter(torch.zeros(3 * hidden_size)), nn.Parameter(torch.zeros(3 * hidden_size))
        self.linear_in = nn.Linear(hidden_size, hidden_size)
        self.linear_out = nn.Linear(hidden_size, hidden_size)

    def cell(self, A, hidden):
        input_in = torch.matmul(A[:, :, :A.shape[1]], self.linear_in(hidden))
        input_out = torch.matmul(A[:, :, A.shape[1]: 2 * A.shape[1]], self.linear_out(hidden))
        gi = F.linear(torch.cat([input_in, input_out], 2), self.w_ih, self.b_ih)
        gh = F.linear(hidden, self.w_hh, self.b_hh)
        i_r, i_i, i_n = gi.chunk(3, 2)
        h_r, h_i, h_n = gh.chunk(3, 2)
        resetgate, inputgate = torch.sigmoid(i_r + h_r), torch.sigmoid(i_i + h_i)
        newgate = torch.tanh(i_n + resetgate * h_n)
        return newgate + inputgate * (hidden - newgate)

    def forward(self, A, hidden, alias_inputs, mask):
        for i in range(self.step):
            hidden = self.cell(A, hidden)
        get = lambda i: hidden[i][alias_inputs[i]]
        seq_hidden = torch.stack([get(i) for i in torch.arange(len(alias_inputs)).long()])
        return seq_hidden[torch.arange(mask.shape[0]).long(), torch.sum(mask, 1) - 1]


@program(lambda: inputs(torch.rand(2, 3, 6), torch.randn(2, 3, 4), torch.randint(0, 3, (2, 4)), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])))
def session_graph():
    return SessionGNN()


class MMoE(nn.Module):
    """Several tasks; experts and gates in dicts, results by name."""

    def __init__(self, features, tasks, experts=3, dim=6):
        super().__init__()
        self.embeddings = nn.ModuleDict({k: nn.EmbeddingBag(n, 4, mode='mean') for k, n in features.items()})
        size = 4 * len(features)
        self.experts = nn.Parameter(torch.rand(size, dim, experts), requires_grad=True)
        self.experts.data.normal_(0, 1)
        self.gates = nn.ParameterList([nn.Parameter(torch.rand(size, experts)) for _ in tasks])
        self.towers = nn.ModuleDict(OrderedDict((task, nn.Sequential(nn.Linear(dim, 4), nn.Dropout(0.1), nn.Linear(4, 1))) for task in tasks))

    def forward(self, batch):
        x = torch.cat([self.embeddings[k](batch[k]) for k in sorted(self.embeddings)], -1)
        experts_out = F.relu(torch.einsum('ij, jkl -> ikl', x, self.experts))
        gates_out = [F.softmax(torch.einsum('ab, bc -> ac', x, gate), dim=-1) for gate in self.gates]
        outs = {}
        for gate, (task, tower) in zip(gates_out, self.towers.items()):
            weighted = (experts_out * gate.unsqueeze(1).expand(-1, experts_out.size(1), -1)).sum(2)
            outs[task] = tower(weighted).squeeze(-1).sigmoid()
        return outs


@program(lambda: inputs({'genre': torch.randint(0, 5, (3, 2)), 'tags': torch.randint(0, 7, (3, 4))}))
def multi_task_experts():
    return MMoE({'genre': 5, 'tags': 7}, ['click', 'like'])


class GhostBatchNorm(torch.nn.Module):
    def __init__(self, input_dim, virtual_batch_size=2, momentum=0.01):
        super().__init__()
        self.virtual_batch_size = virtual_batch_size
        self.bn = nn.BatchNorm1d(input_dim, momentum=momentum)

    def forward(self, x):
        chunks = x.chunk(int(np.ceil(x.shape[0] / self.virtual_batch_size)), 0)
        return torch.cat([self.bn(x_) for x_ in chunks], dim=0)


class TabNetEncoder(nn.Module):
    def __init__(self, dim, n_steps=2, gamma=1.3):
        super().__init__()
        self.gamma, self.epsilon = gamma, 1e-15
        self.initial_bn = nn.BatchNorm1d(dim, momentum=0.01)
        self.steps = nn.ModuleList(nn.Sequential(nn.Linear(dim, 2 * dim, bias=False), GhostBatchNorm(2 * dim), nn.GLU()) for _ in range(n_steps))
        self.att = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim, bias=False), GhostBatchNorm(dim)) for _ in range(n_steps))

    def forward(self, x, prior=None):
        x = self.initial_bn(x)
        if prior is None:
            prior = torch.ones(x.shape).to(x.device)
        M_loss = 0
        att, steps_output = x, []
        for step, attention in zip(self.steps, self.att):
            M = torch.softmax(attention(att) * prior, -1)
            M_loss += torch.mean(torch.sum(torch.mul(M, torch.log(M + self.epsilon)), dim=1))
            prior = torch.mul(self.gamma - M, prior)
            out = step(torch.mul(M, x))
            steps_output.append(nn.ReLU()(out))
            att = out
        M_loss /= len(self.steps)
        return torch.sum(torch.stack(steps_output, dim=0), dim=0), M_loss


@program(lambda: inputs(torch.randn(4, 3)))
def tabnet():
    return TabNetEncoder(3)
