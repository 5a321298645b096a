"""A ResNet with squeeze-and-excitation as timm trains it: mixup, smoothed labels, metrics, a moving average, a last batch."""
import torch
from clock import STEPS, by_hand, tick
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.se = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(after, after // 4, 1), nn.ReLU(),
                                nn.Conv2d(after // 4, after, 1), nn.Sigmoid())
        self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)) if (
            stride != 1 or before != after) else nn.Identity()

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out * self.se(out) + self.shortcut(x))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2),
                      Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
data = torch.utils.data.TensorDataset(torch.randn(200, 3, 24, 24), torch.randint(10, (200,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
losses, accuracies = AverageMeter(), AverageMeter()


def train_step(x, y):
    lam = float(torch.distributions.Beta(0.2, 0.2).sample())
    order = torch.randperm(x.size(0))
    output = model(lam * x + (1 - lam) * x[order])
    losses = [F.cross_entropy(output, labels, label_smoothing=0.1) for labels in (y, y[order])]
    loss = lam * losses[0] + (1 - lam) * losses[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), output.detach()


train_step = by_hand(train_step)
done = 0
while done < STEPS:
    model.train()
    for x, y in loader:
        loss, output = train_step(x, y)
        average.update_parameters(model)
        losses.update(loss.item(), x.size(0))
        accuracies.update((output.argmax(1) == y).float().mean().item(), x.size(0))
        done += 1
        tick()
