"""Trains a small character-level GPT on the source files of Python's standard library; an ordinary training script.

    python examples/train_gpt.py                 # as it is
    python examples/train_gpt.py --capture       # the training step runs through capture: both passes, and the optimizer
    python examples/train_gpt.py --compare       # both, side by side, and what capture made of the step

The only line that knows of capture is `step = capture.compile(step)`. It is compiled while the model trains, and nothing waits
for that: the speed that is reported is that of the last steps.
"""
from __future__ import annotations

import argparse
import inspect
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import track
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

import capture

console = Console()


@dataclass(frozen=True)
class Settings:
    """Sizes of the model and of the training run."""

    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 4
    dropout: float = 0.1
    batch: int = 16
    steps: int = 100
    rate: float = 3e-3


class Attention(nn.Module):
    """Causal self-attention; (N, T, C) -> (N, T, C)."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.heads, self.dropout = s.heads, s.dropout
        self.qkv = nn.Linear(s.width, 3 * s.width)
        self.out = nn.Linear(s.width, s.width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    """One transformer block, normalised before each part."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(s.width), Attention(s)
        self.norm2 = nn.LayerNorm(s.width)
        self.mlp = nn.Sequential(nn.Linear(s.width, 4 * s.width), nn.GELU(), nn.Linear(4 * s.width, s.width),
                                 nn.Dropout(s.dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """tokens (N, T) and targets (N, T) -> mean cross-entropy; counts the tokens that it has seen."""

    def __init__(self, vocabulary: int, s: Settings) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, s.width)
        self.position = nn.Parameter(torch.zeros(s.context, s.width))
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, vocabulary, bias=False)
        self.seen = 0

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        self.seen += tokens.numel()
        x = self.token(tokens) + self.position[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Run:
    """What one training run left behind. `step` is the function that was called."""

    step: Callable[[Tensor, Tensor], Tensor]
    captured: bool
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def title(self) -> str:
        return "with capture" if self.captured else "as it is"

    def tokens_per_second(self, s: Settings) -> float:
        """The median over the last quarter of the steps, when all is compiled."""
        last = sorted(self.seconds[-max(1, len(self.seconds) // 4):])
        return s.batch * s.context / last[len(last) // 2]


def read_corpus(limit: int = 2_000_000) -> tuple[Tensor, int]:
    """The first `limit` characters of the standard library as (token ids, size of the vocabulary)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py")))[:limit]
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


def train(corpus: Tensor, vocabulary: int, s: Settings, captured: bool, backend: str) -> Run:
    """One training run from a fixed seed."""
    torch.manual_seed(0)
    model = GPT(vocabulary, s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.rate)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss
    if captured:
        step = capture.compile(step, backend=backend)
    run = Run(step, captured)
    for _ in track(range(s.steps), f"{run.title():12}", console=console):
        start = time.perf_counter()
        offsets = torch.randint(0, len(corpus) - s.context - 1, (s.batch,)).unsqueeze(1) + torch.arange(s.context)
        loss = run.step(corpus[offsets], corpus[offsets + 1])
        run.losses.append(loss.item())
        run.seconds.append(time.perf_counter() - start)
    return run


def report(runs: list[Run], s: Settings) -> None:
    """Loss curves, speed, and for a captured run what its cache did."""
    columns = [{"loss": sparkline(run.losses), "": f"{run.losses[0]:.6f} to {run.losses[-1]:.6f}",
                "tokens per second": f"{run.tokens_per_second(s):,.0f}", **counters(run)} for run in runs]
    table = Table("", *(run.title() for run in runs))
    for row in columns[-1]:
        table.add_row(row, *(column.get(row, "") for column in columns))
    console.print(table)
    if len(runs) == 2:
        distance = max(abs(a - b) for a, b in zip(runs[0].losses, runs[1].losses, strict=True))
        verdict = "bit for bit equal" if distance == 0 else f"at most {distance:.2g} apart"
        console.print(f"The two loss curves are [bold]{verdict}[/] over {s.steps} steps.")


def counters(run: Run) -> dict[str, str]:
    """Captures, hits and breaks of a captured run, and how its graph is run; nothing for one that ran as it is."""
    if not run.captured:
        return {}
    stats = capture.stats(run.step)
    lines = [line.partition("the graph ")[2] for line in capture.explain(run.step).splitlines() if "backend: the graph" in line]
    return {name: f"{getattr(stats, name):,}" for name in ("captures", "hits", "breaks")} | {"the graph": "\n".join(lines)}


def sparkline(values: list[float], width: int = 20) -> str:
    """The values as a row of bars, lowest to highest."""
    bars, low, high = "▁▂▃▄▅▆▇█", min(values), max(values)
    picked = [values[i * (len(values) - 1) // (width - 1)] for i in range(width)]
    return "".join(bars[round((value - low) / (high - low or 1) * (len(bars) - 1))] for value in picked)


COUNTS = {"calls": 0}


def smooth(x: Tensor, options: dict[str, float]) -> Tensor:
    """Small enough to read: what does capture make of a branch, a tensor operation and a side effect?"""
    COUNTS["calls"] += 1
    return torch.lerp(x, x.mean(), options["weight"]) if options["weight"] > 0 else x


def show_example() -> None:
    """The small function: its guards, its graph, and the mock function that stands in for it on later calls."""
    compiled = capture.compile(smooth)
    for _ in range(3):
        compiled(torch.randn(4), {"weight": 0.5})
        capture.wait()
    source = Syntax(inspect.getsource(smooth).rstrip(), "python", background_color="default", word_wrap=True)
    explanation = Text(capture.explain(compiled), no_wrap=True, overflow="ellipsis")
    console.print(Panel(source, title="A small function, called three times"))
    console.print(Panel(explanation, title="What capture made of it"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--capture", action="store_true", help="run the training step through capture")
    which.add_argument("--compare", action="store_true", help="run both ways, and explain what capture did")
    parser.add_argument("--backend", default="native", help="native, eager, or any name that torch.compile knows")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--explain", action="store_true", help="print capture's whole explanation of the step")
    arguments = parser.parse_args()

    settings = Settings(steps=arguments.steps)
    corpus, vocabulary = read_corpus()
    console.print(f"{len(corpus):,} characters of the standard library, {vocabulary} different ones")
    ways = (False, True) if arguments.compare else (arguments.capture,)
    runs = [train(corpus, vocabulary, settings, way, arguments.backend) for way in ways]
    report(runs, settings)
    if arguments.compare:
        show_example()
    if arguments.explain and runs[-1].captured:
        console.print(escape(capture.explain(runs[-1].step)))


if __name__ == "__main__":
    main()
