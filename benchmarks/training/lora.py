"""Low-rank adapters on a frozen Llama."""
import torch
from clock import STEPS, by_hand, tick
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LoraLinear(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base, self.scaling, self.dropout = base, alpha / rank, nn.Dropout(0.05)
        self.lora_A, self.lora_B = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling


torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                                     num_attention_heads=4, num_key_value_heads=2))
model.requires_grad_(False)
for layer in model.model.layers:
    layer.self_attn.q_proj, layer.self_attn.v_proj = LoraLinear(layer.self_attn.q_proj), LoraLinear(layer.self_attn.v_proj)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def train_step(batch):
    loss = model(input_ids=batch, labels=batch, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


train_step = by_hand(train_step)
total = 0.0
for _step in range(STEPS):
    loss = train_step(torch.randint(500, (8, 48)))
    scheduler.step()
    total += loss.item()
    tick()
