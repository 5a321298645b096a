"""The script of `five_breaks.py` after following the remedies of its report: one graph, no break.

    python -m capture explain examples/five_breaks_mended.py
"""
from __future__ import annotations

import resource

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """A small regression model; what it computes is what the model of `five_breaks.py` computes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 32)
        self.decode = nn.Linear(32, 1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        x = torch.relu(self.encode(self.normalised(x)))
        loss = self.decode(x).square().mean() + 0.1 * self.energy(x)
        x = x + 0.1 * noise
        return loss + self.decode(x).square().mean() + 0.1 * self.volume(x.detach())

    def normalised(self, x: Tensor) -> Tensor:
        return torch.where(x.abs().max() > 4, x / 4, x)         # 1: both ways, and a choice between tensors

    def energy(self, x: Tensor) -> Tensor:
        kept = x > 0.5
        return (x * kept).square().sum() / kept.sum().clamp(min=1)      # 2: a mask is multiplied; shapes stay

    def volume(self, x: Tensor) -> Tensor:
        factor, failed = torch.linalg.cholesky_ex(x.T @ x)      # 5: the condition is tested instead
        return torch.where(failed == 0, factor.diagonal().log().mean(), 0.0)


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        x = torch.randn(24, 16)
        loss = model(x, torch.randn(24, 32, generator=generator))       # 4: drawn outside
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss          # 3: called outside
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
