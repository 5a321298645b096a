"""Small programs of our own, each in the style of a kind of model that is not in `transformers`."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UnrolledLSTM(nn.Module):
    """An LSTM cell unrolled over time by a Python loop, with the state collected in a list; (N, T, D) -> (N, T, H)."""

    def __init__(self, features: int = 6, hidden: int = 8) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(features, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None:
            zeros = x.new_zeros(x.size(0), self.cell.hidden_size)
            state = zeros, zeros.clone()
        outputs = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(self.dropout(state[0]))
        return torch.stack(outputs, dim=1), state


class UNet(nn.Module):
    """Down and up again with skip connections kept on a stack; (N, C, H, W) -> (N, C, H, W), H and W divisible by 4."""

    def __init__(self, channels: int = 3, widths: tuple[int, ...] = (4, 8)) -> None:
        super().__init__()
        self.stem = self._block(channels, widths[0])
        self.down = nn.ModuleList(self._block(a, b) for a, b in zip(widths, widths[1:] + widths[-1:]))
        self.up = nn.ModuleDict({f"level{i}": self._block(2 * b, a)
                                 for i, (a, b) in enumerate(zip(widths, widths[1:] + widths[-1:]))})
        self.head = nn.Conv2d(widths[0], channels, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.stem(x), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        for name in reversed(list(self.up)):
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = self.up[name](torch.cat([x, skips.pop()], dim=1))
        return self.head(x)


class DLRM(nn.Module):
    """A recommender: embedding bags, pairwise interactions, two towers; dense (N, D), sparse {name: (N, L)} -> (N,)."""

    def __init__(self, tables: dict[str, int], dense: int = 5, width: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.EmbeddingBag(size, width, mode="sum") for name, size in tables.items()})
        self.bottom = nn.Sequential(nn.Linear(dense, 8), nn.ReLU(), nn.Linear(8, width), nn.ReLU())
        count = len(tables) + 1
        self.register_buffer("pairs", torch.triu_indices(count, count, offset=1))
        self.top = nn.Sequential(nn.Linear(width + self.pairs.size(1), 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, dense: Tensor, sparse: dict[str, Tensor]) -> Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(self.tables[name](rows) for name, rows in sparse.items())], dim=1)
        interactions = features @ features.transpose(1, 2)
        flat = interactions[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([bottom, flat], dim=1))).squeeze(-1)


class GraphNetwork(nn.Module):
    """Message passing by index_add over an edge list; nodes (V, D), edges (2, E) -> (V, D) and a pooled (D,)."""

    def __init__(self, features: int = 6, rounds: int = 3) -> None:
        super().__init__()
        self.message = nn.Linear(2 * features, features)
        self.update = nn.GRUCell(features, features)
        self.dropout = nn.Dropout(0.1)
        self.rounds = rounds

    def forward(self, nodes: Tensor, edges: Tensor) -> dict[str, Tensor]:
        source, target = edges
        degree = torch.zeros(nodes.size(0), dtype=nodes.dtype).index_add_(0, target, torch.ones_like(target).to(nodes))
        for _ in range(self.rounds):
            messages = self.message(torch.cat([nodes[source], nodes[target]], dim=-1)).relu()
            gathered = torch.zeros_like(nodes).index_add(0, target, messages)
            nodes = self.update(self.dropout(gathered / degree.clamp(min=1).unsqueeze(-1)), nodes)
        return {"nodes": nodes, "pooled": nodes.mean(dim=0)}


class GAN(nn.Module):
    """One adversarial step; real (N, D) -> losses of generator and discriminator. Draws its own noise."""

    def __init__(self, features: int = 6, noise: int = 4) -> None:
        super().__init__()
        self.noise = noise
        self.generator = nn.Sequential(nn.Linear(noise, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, features))
        self.discriminator = nn.Sequential(nn.Linear(features, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, real: Tensor) -> tuple[Tensor, Tensor]:
        count = real.shape[0]
        fake = self.generator(torch.randn(count, self.noise, dtype=real.dtype))
        verdict = self.discriminator(torch.cat([real, fake.detach()]))
        truth = torch.cat([torch.ones(count, 1), torch.zeros(count, 1)]).to(real.dtype)
        discriminator_loss = F.binary_cross_entropy_with_logits(verdict, truth)
        generator_loss = F.softplus(-self.discriminator(fake)).mean()
        return generator_loss, discriminator_loss


class Diffusion(nn.Module):
    """A denoising loop (DDPM) around a small network with a time embedding; noise (N, D) -> sample (N, D)."""

    def __init__(self, features: int = 6, steps: int = 5) -> None:
        super().__init__()
        self.steps = steps
        self.time = nn.Linear(8, 8)
        self.inner = nn.Linear(features + 8, 16)
        self.norm = nn.LayerNorm(16)
        self.outer = nn.Linear(16, features)
        self.dropout = nn.Dropout(0.1)
        betas = torch.linspace(1e-3, 0.2, steps)
        self.register_buffer("betas", betas)
        self.register_buffer("alphas", torch.cumprod(1 - betas, dim=0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        for step in reversed(range(self.steps)):
            noise = self.predict(x, step)
            beta, alpha = self.betas[step], self.alphas[step]
            x = (x - beta / (1 - alpha).sqrt() * noise) / (1 - beta).sqrt()
            if step > 0:
                x = x + beta.sqrt() * torch.randn_like(x)
        return x

    def predict(self, x: Tensor, step: int) -> Tensor:
        """The noise in `x` at `step`, as the network sees it."""
        angles = step * torch.exp(torch.arange(4, dtype=x.dtype) * -0.5)
        time = F.silu(self.time(torch.cat([angles.sin(), angles.cos()]))).expand(x.size(0), -1)
        return self.outer(self.dropout(F.gelu(self.norm(self.inner(torch.cat([x, time], dim=-1))))))
