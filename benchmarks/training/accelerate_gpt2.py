"""A loop with accelerate: a small GPT-2, accumulated gradients, a schedule."""
import torch
from accelerate import Accelerator
from clock import STEPS, by_hand, tick
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=128, n_layer=3, n_head=4))
rows = torch.randint(500, (STEPS * 8, 48))
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, 10, STEPS)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
model.forward = by_hand(model.forward)
model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    tick()
