"""A training script with five classic graph breaks. It knows nothing of capture; see what breaks, and why, with

    python -m capture explain examples/five_breaks.py
    python -m capture run --report five_breaks.html examples/five_breaks.py

`five_breaks.html` beside this file is that report; `five_breaks_mended.py` is the same script after following its remedies.
"""
from __future__ import annotations

import resource
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def noises(shape: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(shape, generator=generator)


class Model(nn.Module):
    """A small regression model with habits that are common in research code."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(16, 32)
        self.decode = nn.Linear(32, 1)
        self.noises = noises((24, 32))
        self.peak = 0

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.encode(self.normalised(x)))
        loss = self.decode(x).square().mean() + 0.1 * self.energy(x)
        self.peak = max(self.peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)     # 3: a C function that nobody knows
        x = x + 0.1 * next(self.noises)             # 4: an iterator that lives outside
        return loss + self.decode(x).square().mean() + 0.1 * self.volume(x.detach())

    def normalised(self, x: Tensor) -> Tensor:
        if x.abs().max() > 4:                       # 1: a branch depends on the value of a tensor
            x = x / 4
        return x

    def energy(self, x: Tensor) -> Tensor:
        kept = x[x > 0.5]
        return kept.square().mean() if len(kept) else kept.sum()    # 2: a shape that depends on values decides

    def volume(self, x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(x.T @ x).diagonal().log().mean()
        except RuntimeError:                        # 5: an exception of a tensor operation, caught
            return x.new_zeros(())


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        loss = model(torch.randn(24, 16))
        optimizer.zero_grad()
        loss.backward()                             # a break as well, as long as others lie between the two passes
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
