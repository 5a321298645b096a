"""Graph networks and point clouds: adjacency matrices, scatter by index, neighbourhoods, message passing, set abstraction."""
from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules.module import Module
from torch.nn.parameter import Parameter

from paritybench_subset.cases import inputs, program


class GraphConvolution(Module):
    def __init__(self, in_features, out_features, bias=True):
        super(GraphConvolution, self).__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(torch.FloatTensor(in_features, out_features))
        if bias:
            self.bias = Parameter(torch.FloatTensor(out_features))
        else:
            self.register_parameter('bias', None)
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1. / math.sqrt(self.weight.size(1))
        self.weight.data.uniform_(-stdv, stdv)
        if self.bias is not None:
            self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.spmm(adj, support)
        if self.bias is not None:
            return output + self.bias
        else:
            return output

    def __repr__(self):
        return self.__class__.__name__ + ' (' + str(self.in_features) + ' -> ' + str(self.out_features) + ')'


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super(GCN, self).__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, adj)
        return F.log_softmax(x, dim=1)


@program(lambda: inputs(torch.randn(5, 4), torch.rand(5, 5)))
def gcn():
    return GCN(4, 8, 3, 0.5)


@program(lambda: inputs(torch.randn(5, 4), torch.eye(5).to_sparse()))
def gcn_with_sparse_adjacency():
    return GCN(4, 8, 3, 0.0)


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features, dropout, alpha, concat=True):
        super(GraphAttentionLayer, self).__init__()
        self.dropout, self.out_features, self.concat = dropout, out_features, concat
        self.W = nn.Parameter(torch.zeros(size=(in_features, out_features)))
        nn.init.xavier_uniform_(self.W.data, gain=1.414)
        self.a = nn.Parameter(torch.zeros(size=(2 * out_features, 1)))
        nn.init.xavier_uniform_(self.a.data, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, input, adj):
        h = torch.mm(input, self.W)
        N = h.size()[0]
        a_input = torch.cat([h.repeat(1, N).view(N * N, -1), h.repeat(N, 1)], dim=1).view(N, -1, 2 * self.out_features)
        e = self.leakyrelu(torch.matmul(a_input, self.a).squeeze(2))
        zero_vec = -9e15 * torch.ones_like(e)
        attention = torch.where(adj > 0, e, zero_vec)
        attention = F.softmax(attention, dim=1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = torch.matmul(attention, h)
        return F.elu(h_prime) if self.concat else h_prime


class GAT(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout=0.6, alpha=0.2, nheads=2):
        super(GAT, self).__init__()
        self.dropout = dropout
        self.attentions = [GraphAttentionLayer(nfeat, nhid, dropout=dropout, alpha=alpha, concat=True) for _ in range(nheads)]
        for i, attention in enumerate(self.attentions):
            self.add_module('attention_{}'.format(i), attention)
        self.out_att = GraphAttentionLayer(nhid * nheads, nclass, dropout=dropout, alpha=alpha, concat=False)

    def forward(self, x, adj):
        x = F.dropout(x, self.dropout, training=self.training)
        x = torch.cat([att(x, adj) for att in self.attentions], dim=1)
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.elu(self.out_att(x, adj))
        return F.log_softmax(x, dim=1)


@program(lambda: inputs(torch.randn(4, 3), torch.eye(4)))
def gat():
    return GAT(3, 4, 2)


class MessagePassing(nn.Module):
    """The base class of a library: `aggregate`, `message` and `update` are given by subclasses, arguments are looked up by name."""

    def __init__(self, aggr='add'):
        super().__init__()
        assert aggr in ['add', 'mean', 'max']
        self.aggr = aggr

    def propagate(self, edge_index, size=None, **kwargs):
        i, j = (1, 0)
        data = {'size': size}
        for key in self.message.__code__.co_varnames[1:self.message.__code__.co_argcount]:
            if key.endswith('_j'):
                data[key] = kwargs[key[:-2]].index_select(0, edge_index[j])
            elif key.endswith('_i'):
                data[key] = kwargs[key[:-2]].index_select(0, edge_index[i])
            else:
                data[key] = kwargs.get(key)
        data.pop('size')
        out = self.message(**data)
        return self.update(self.aggregate(out, edge_index[i], kwargs['x'].size(0)))

    def aggregate(self, out, index, dim_size):
        result = out.new_zeros((dim_size, out.size(-1)))
        index_ = index.unsqueeze(-1).expand_as(out)
        if self.aggr == 'max':
            return result.scatter_reduce(0, index_, out, 'amax', include_self=False)
        result = result.scatter_add_(0, index_, out)
        if self.aggr == 'mean':
            count = out.new_zeros(dim_size).scatter_add_(0, index, torch.ones_like(index, dtype=out.dtype))
            result = result / count.clamp(min=1).unsqueeze(-1)
        return result

    def message(self, x_j):
        return x_j

    def update(self, aggr_out):
        return aggr_out


class EdgeConv(MessagePassing):
    def __init__(self, in_channels, out_channels, aggr='max'):
        super().__init__(aggr)
        self.mlp = nn.Sequential(nn.Linear(2 * in_channels, out_channels), nn.ReLU(), nn.Linear(out_channels, out_channels))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.mlp(torch.cat([x_i, x_j - x_i], dim=1))


class GINLayer(MessagePassing):
    def __init__(self, dim):
        super().__init__('mean')
        self.eps = nn.Parameter(torch.Tensor([0]))
        self.nn = nn.Linear(dim, dim)

    def forward(self, x, edge_index, edge_weight=None):
        return self.nn((1 + self.eps) * x + self.propagate(edge_index, x=x, edge_weight=edge_weight))

    def message(self, x_j, edge_weight):
        return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j


class MessagePassingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([EdgeConv(3, 6), GINLayer(6)])

    def forward(self, x, edge_index, batch, num_graphs):
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index)
            xs.append(x)
        pooled = torch.cat(xs, -1)
        out = torch.zeros(num_graphs, pooled.size(1))
        return out.index_add_(0, batch, pooled)


@program(lambda: inputs(torch.randn(5, 3), torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 0, 4, 3, 2]]), torch.tensor([0, 0, 0, 1, 1]), 2))
def message_passing():
    return MessagePassingNet()


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x ** 2, dim=1, keepdim=True)
    pairwise_distance = -xx - inner - xx.transpose(2, 1)
    return pairwise_distance.topk(k=k, dim=-1)[1]


def get_graph_feature(x, k=3, idx=None):
    batch_size, num_points = x.size(0), x.size(2)
    x = x.view(batch_size, -1, num_points)
    if idx is None:
        idx = knn(x, k=k)
    device = torch.device('cuda' if x.is_cuda else 'cpu')
    idx_base = torch.arange(0, batch_size, device=device).view(-1, 1, 1) * num_points
    idx = idx + idx_base
    idx = idx.view(-1)
    _, num_dims, _ = x.size()
    x = x.transpose(2, 1).contiguous()
    feature = x.view(batch_size * num_points, -1)[idx, :]
    feature = feature.view(batch_size, num_points, k, num_dims)
    x = x.view(batch_size, num_points, 1, num_dims).repeat(1, 1, k, 1)
    return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()


class DGCNN(nn.Module):
    def __init__(self, args, output_channels=4):
        super(DGCNN, self).__init__()
        self.k = args['k']
        self.bn1 = nn.BatchNorm2d(6)
        self.conv1 = nn.Sequential(nn.Conv2d(6, 6, kernel_size=1, bias=False), self.bn1, nn.LeakyReLU(negative_slope=0.2))
        self.conv2 = nn.Sequential(nn.Conv1d(6, 8, 1, bias=False), nn.BatchNorm1d(8), nn.LeakyReLU(0.2))
        self.linear = nn.Linear(16, output_channels)

    def forward(self, x):
        batch_size = x.size(0)
        x = get_graph_feature(x, k=self.k)
        x = self.conv1(x)
        x1 = x.max(dim=-1, keepdim=False)[0]
        x = self.conv2(x1)
        x1 = F.adaptive_max_pool1d(x, 1).view(batch_size, -1)
        x2 = F.adaptive_avg_pool1d(x, 1).view(batch_size, -1)
        return self.linear(torch.cat((x1, x2), 1))


@program(lambda: inputs(torch.randn(2, 3, 7)))
def dgcnn():
    return DGCNN({'k': 3})


class STN3d(nn.Module):
    def __init__(self):
        super(STN3d, self).__init__()
        self.conv1 = torch.nn.Conv1d(3, 8, 1)
        self.fc1 = nn.Linear(8, 9)
        self.bn1 = nn.BatchNorm1d(8)

    def forward(self, x):
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 8)
        x = self.fc1(x)
        iden = torch.autograd.Variable(torch.from_numpy(np.array([1, 0, 0, 0, 1, 0, 0, 0, 1]).astype(np.float32))).view(1, 9).repeat(batchsize, 1)
        if x.is_cuda:
            iden = iden.cuda()
        x = x + iden
        return x.view(-1, 3, 3)


class PointNet(nn.Module):
    def __init__(self, k=4, feature_transform=False):
        super(PointNet, self).__init__()
        self.stn = STN3d()
        self.conv = nn.Conv1d(3, 6, 1)
        self.fc = nn.Linear(6, k)
        self.feature_transform = feature_transform

    def forward(self, x):
        trans = self.stn(x)
        x = x.transpose(2, 1)
        x = torch.bmm(x, trans)
        x = x.transpose(2, 1)
        x = F.relu(self.conv(x))
        x, idx = torch.max(x, 2)
        trans_feat = None
        if self.feature_transform:
            trans_feat = self.fstn(x)
        return F.log_softmax(self.fc(x), dim=1), trans, trans_feat


@program(lambda: inputs(torch.randn(2, 3, 6)))
def pointnet():
    return PointNet()


def index_points(points, idx):
    B = points.shape[0]
    view_shape = list(idx.shape)
    view_shape[1:] = [1] * (len(view_shape) - 1)
    repeat_shape = list(idx.shape)
    repeat_shape[0] = 1
    batch_indices = torch.arange(B, dtype=torch.long).view(view_shape).repeat(repeat_shape)
    return points[batch_indices, idx, :]


def farthest_point_sample(xyz, npoint):
    B, N, C = xyz.shape
    centroids = torch.zeros(B, npoint, dtype=torch.long)
    distance = torch.ones(B, N) * 1e10
    farthest = torch.zeros(B, dtype=torch.long)
    batch_indices = torch.arange(B, dtype=torch.long)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[batch_indices, farthest, :].view(B, 1, 3)
        dist = torch.sum((xyz - centroid) ** 2, -1)
        distance = torch.min(distance, dist)
        farthest = torch.max(distance, -1)[1]
    return centroids


class PointNetSetAbstraction(nn.Module):
    def __init__(self, npoint, nsample, in_channel, mlp):
        super().__init__()
        self.npoint, self.nsample = npoint, nsample
        self.mlp_convs, self.mlp_bns = nn.ModuleList(), nn.ModuleList()
        last_channel = in_channel
        for out_channel in mlp:
            self.mlp_convs.append(nn.Conv2d(last_channel, out_channel, 1))
            self.mlp_bns.append(nn.BatchNorm2d(out_channel))
            last_channel = out_channel

    def forward(self, xyz, points):
        new_xyz = index_points(xyz, farthest_point_sample(xyz, self.npoint))
        sqrdists = torch.cdist(new_xyz, xyz) ** 2
        idx = sqrdists.sort(dim=-1)[1][:, :, :self.nsample]
        grouped = torch.cat([index_points(xyz, idx) - new_xyz.unsqueeze(2), index_points(points, idx)], dim=-1).permute(0, 3, 2, 1)
        for i, conv in enumerate(self.mlp_convs):
            bn = self.mlp_bns[i]
            grouped = F.relu(bn(conv(grouped)))
        return new_xyz, torch.max(grouped, 2)[0]


@program(lambda: inputs(torch.randn(2, 8, 3), torch.randn(2, 8, 2)))
def pointnet_set_abstraction():
    return PointNetSetAbstraction(3, 4, 5, [6, 8])


class ChamferLoss(nn.Module):
    def batch_pairwise_dist(self, x, y):
        bs, num_points_x, points_dim = x.size()
        _, num_points_y, _ = y.size()
        xx = torch.bmm(x, x.transpose(2, 1))
        yy = torch.bmm(y, y.transpose(2, 1))
        zz = torch.bmm(x, y.transpose(2, 1))
        diag_ind_x = torch.arange(0, num_points_x).type(torch.LongTensor)
        diag_ind_y = torch.arange(0, num_points_y).type(torch.LongTensor)
        rx = xx[:, diag_ind_x, diag_ind_x].unsqueeze(1).expand_as(zz.transpose(2, 1))
        ry = yy[:, diag_ind_y, diag_ind_y].unsqueeze(1).expand_as(zz)
        return rx.transpose(2, 1) + ry - 2 * zz

    def forward(self, preds, gts):
        P = self.batch_pairwise_dist(gts, preds)
        mins, _ = torch.min(P, 1)
        loss_1 = torch.sum(mins)
        mins, _ = torch.min(P, 2)
        return loss_1 + torch.sum(mins)


@program(lambda: inputs(torch.rand(2, 4, 3), torch.rand(2, 5, 3)))
def chamfer_loss():
    return ChamferLoss()


class STGCNBlock(nn.Module):
    """Skeletons over time, with partitions of the adjacency and importance weights that are zipped in."""

    def __init__(self, in_channels, out_channels, A, residual=True):
        super().__init__()
        self.kernel_size = A.shape[0]
        self.conv = nn.Conv2d(in_channels, out_channels * self.kernel_size, 1)
        self.tcn = nn.Sequential(nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True), nn.Conv2d(out_channels, out_channels, (3, 1), 1, (1, 0)))
        if not residual:
            self.residual = lambda x: 0
        elif in_channels == out_channels:
            self.residual = lambda x: x
        else:
            self.residual = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x, A):
        assert A.size(0) == self.kernel_size
        res = self.residual(x)
        x = self.conv(x)
        n, kc, t, v = x.size()
        x = x.view(n, self.kernel_size, kc // self.kernel_size, t, v)
        x = torch.einsum('nkctv,kvw->nctw', (x, A)).contiguous()
        return F.relu(self.tcn(x) + res, inplace=True), A


class STGCN(nn.Module):
    def __init__(self, in_channels=3, num_class=4, edge_importance_weighting=True):
        super().__init__()
        A = torch.rand(2, 5, 5)
        self.register_buffer('A', A)
        self.data_bn = nn.BatchNorm1d(in_channels * A.size(1))
        self.st_gcn_networks = nn.ModuleList((STGCNBlock(in_channels, 4, A, residual=False), STGCNBlock(4, 4, A), STGCNBlock(4, 6, A)))
        if edge_importance_weighting:
            self.edge_importance = nn.ParameterList([nn.Parameter(torch.ones(self.A.size())) for i in self.st_gcn_networks])
        else:
            self.edge_importance = [1] * len(self.st_gcn_networks)
        self.fcn = nn.Conv2d(6, num_class, kernel_size=1)

    def forward(self, x):
        N, C, T, V, M = x.size()
        x = x.permute(0, 4, 3, 1, 2).contiguous()
        x = x.view(N * M, V * C, T)
        x = self.data_bn(x)
        x = x.view(N, M, V, C, T).permute(0, 1, 3, 4, 2).contiguous().view(N * M, C, T, V)
        for gcn, importance in zip(self.st_gcn_networks, self.edge_importance):
            x, _ = gcn(x, self.A * importance)
        x = F.avg_pool2d(x, x.size()[2:])
        x = x.view(N, M, -1, 1, 1).mean(dim=1)
        x = self.fcn(x)
        return x.view(x.size(0), -1)


@program(lambda: inputs(torch.randn(2, 3, 4, 5, 1)))
def skeleton_graph():
    return STGCN()


@dataclass
class Data:
    x: torch.Tensor
    edge_index: torch.Tensor
    edge_attr: Optional[torch.Tensor] = None
    batch: Optional[torch.Tensor] = None

    @property
    def num_nodes(self):
        return self.x.size(0)


class HeteroGNN(nn.Module):
    """Node types in a dict, edge types by triples, sums over what arrives."""

    def __init__(self, metadata, dim=4):
        super().__init__()
        nodes, edges = metadata
        self.encoders = nn.ModuleDict({t: nn.Linear(d, dim) for t, d in nodes.items()})
        self.convs = nn.ModuleDict({'__'.join(e): nn.Linear(dim, dim, bias=False) for e in edges})

    def forward(self, x_dict, edge_index_dict):
        h = {t: self.encoders[t](x).relu() for t, x in x_dict.items()}
        out = defaultdict(list)
        for (src, rel, dst), edge_index in edge_index_dict.items():
            message = self.convs['__'.join((src, rel, dst))](h[src])[edge_index[0]]
            out[dst].append(torch.zeros_like(h[dst]).index_add(0, edge_index[1], message))
        return {t: h[t] + sum(out[t]) if t in out else h[t] for t in h}


@program(lambda: inputs({'user': torch.randn(3, 2), 'item': torch.randn(4, 5)},
                        {('user', 'buys', 'item'): torch.tensor([[0, 1, 2], [3, 1, 0]]), ('item', 'of', 'user'): torch.tensor([[0, 3], [1, 1]])}))
def heterogeneous_graph():
    return HeteroGNN(({'user': 2, 'item': 5}, [('user', 'buys', 'item'), ('item', 'of', 'user')]))


class GraphPooling(nn.Module):
    """Top-k pooling of a `Data` object, whose fields are set."""

    def __init__(self, in_channels, ratio=0.5):
        super().__init__()
        self.ratio = ratio
        self.weight = nn.Parameter(torch.randn(1, in_channels))

    def forward(self, data):
        score = (data.x * self.weight).sum(dim=-1) / self.weight.norm(p=2, dim=-1)
        k = int(math.ceil(self.ratio * data.num_nodes))
        perm = score.topk(k)[1]
        data.x = data.x[perm] * torch.tanh(score[perm]).view(-1, 1)
        data.batch = torch.zeros(k, dtype=torch.long) if data.batch is None else data.batch[perm]
        return data, perm


@program(lambda: inputs(Data(torch.randn(6, 3), torch.tensor([[0, 1], [1, 2]]))))
def graph_pooling():
    return GraphPooling(3)
