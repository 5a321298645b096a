"""A graph convolutional network on one graph, as torch_geometric's examples train it: train, then test, each epoch."""
import torch
from clock import STEPS, by_hand, tick
from torch import nn
from torch.nn import functional as F

NODES, EDGES, FEATURES, CLASSES = 1500, 6000, 200, 7


class GCNConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.lin, self.bias = nn.Linear(before, after, bias=False), nn.Parameter(torch.zeros(after))

    def forward(self, x, edge_index):
        loops = torch.arange(x.size(0)).expand(2, -1)
        row, col = torch.cat([edge_index, loops], dim=1)
        degree = torch.zeros(x.size(0)).scatter_add_(0, col, torch.ones(col.size(0)))
        scale = degree.pow(-0.5)
        scale[scale == float("inf")] = 0
        norm = scale[row] * scale[col]
        x = self.lin(x)
        return torch.zeros_like(x).index_add_(0, col, norm.unsqueeze(1) * x[row]) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(FEATURES, 16), GCNConv(16, CLASSES)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


torch.manual_seed(0)
x, y = torch.rand(NODES, FEATURES), torch.randint(CLASSES, (NODES,))
edge_index = torch.randint(NODES, (2, EDGES))
masks = [torch.rand(NODES) < share for share in (0.1, 0.3, 0.5)]
model = GCN()
optimizer = torch.optim.Adam([{"params": model.conv1.parameters(), "weight_decay": 5e-4},
                              {"params": model.conv2.parameters(), "weight_decay": 0}], lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.cross_entropy(out[masks[0]], y[masks[0]])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(x, edge_index).argmax(dim=-1)
    return [int((pred[mask] == y[mask]).sum()) / int(mask.sum()) for mask in masks]


train, test = by_hand(train), by_hand(test)
best = 0
for _epoch in range(STEPS):
    loss = train()
    train_acc, val_acc, tmp_test_acc = test()
    if val_acc > best:
        best, test_acc = val_acc, tmp_test_acc
    tick()
