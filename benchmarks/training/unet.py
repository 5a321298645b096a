"""A diffusion model: a UNet with embedded times that predicts noise, and a moving average of its weights."""
import copy
import math

import torch
from clock import STEPS, by_hand, tick
from torch import nn
from torch.nn import functional as F


class ResBlock(nn.Module):
    def __init__(self, before, after, times=64):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, before), nn.Conv2d(before, after, 3, padding=1)
        self.time, self.norm2, self.conv2 = nn.Linear(times, after), nn.GroupNorm(8, after), nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.times = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.down = nn.ModuleList([ResBlock(width, width), ResBlock(width, 2 * width)])
        self.middle = ResBlock(2 * width, 2 * width)
        self.up = nn.ModuleList([ResBlock(4 * width, width), ResBlock(2 * width, width)])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, timesteps):
        rates = torch.exp(-math.log(10000) * torch.arange(16) / 16)
        angles = timesteps[:, None].float() * rates[None]
        t = self.times(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, skips = self.first(x), []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), skips.pop()], dim=1), t)
        return self.last(x)


torch.manual_seed(0)
model = UNet()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)


def train_step(images):
    noise = torch.randn_like(images)
    timesteps = torch.randint(0, 1000, (images.shape[0],))
    a = alphas[timesteps][:, None, None, None]
    loss = F.mse_loss(model(a.sqrt() * images + (1 - a).sqrt() * noise, timesteps), noise)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def update_average(decay=0.999):
    for ours, theirs in zip(average.parameters(), model.parameters()):
        ours.lerp_(theirs, 1 - decay)


train_step = by_hand(train_step)
for step in range(STEPS):
    loss = train_step(torch.randn(4, 3, 16, 16))
    update_average()
    if step % 20 == 0:
        print(step, loss.item())
    tick()
