"""A small GPT as nanoGPT trains it: two batches for each update, gradients clipped, a schedule of learning rates."""
import math

import torch
from clock import STEPS, by_hand, tick
from torch import nn
from torch.nn import functional as F

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH, ACCUMULATED = 65, 64, 128, 4, 4, 12, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (part.view(B, T, HEADS, C // HEADS).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), Attention(), nn.LayerNorm(WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=False))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def get_batch(data):
    ix = torch.randint(len(data) - LENGTH, (BATCH,))
    return torch.stack([data[i:i + LENGTH] for i in ix]), torch.stack([data[i + 1:i + 1 + LENGTH] for i in ix])


def get_lr(it):
    if it < 20:
        return 1e-3 * (it + 1) / 20
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (it - 20) / STEPS)) * 9e-4


torch.manual_seed(1337)
data = torch.randint(VOCABULARY, (20_000,))
model = GPT()
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                              lr=1e-3, betas=(0.9, 0.99))


def train_step(batches):
    for x, y in batches:
        _logits, loss = model(x, y)
        (loss / ACCUMULATED).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


train_step = by_hand(train_step)
for iteration in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iteration)
    loss = train_step([get_batch(data) for _ in range(ACCUMULATED)])
    if iteration % 10 == 0:
        print(f"iter {iteration}: loss {loss.item():.4f}")
    tick()
