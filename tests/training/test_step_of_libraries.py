"""Scripts that train with a library: `python -m capture run` finds its step, and they do the same as under plain Python."""
from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests import forkserver
from tests.scripts import check_forked, files

IMPORTED = "torch", "torch._dynamo", "capture.api", "gc:freeze"      # what the libraries import themselves
TRAINER = """
import tempfile, torch
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
rows = [{"input_ids": torch.randint(1, 50, (12,), generator=generator), "labels": i % 2} for i in range(64)]
model = BertForSequenceClassification(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                                 intermediate_size=16, max_position_embeddings=16))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(model, TrainingArguments(folder, max_steps=14, per_device_train_batch_size=4, report_to=[], logging_steps=4,
                                               save_strategy="no", disable_tqdm=True, use_cpu=True), train_dataset=rows)
    trainer.remove_callback(PrinterCallback)        # which tells how long it took
    trainer.train()
    print([(round(log["loss"], 3), round(log["grad_norm"], 2)) for log in trainer.state.log_history if "loss" in log])
    print(trainer.state.global_step, round(trainer.state.total_flos), round(sum(p.sum().item() for p in model.parameters()), 2))
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
loader = torch.utils.data.DataLoader([(torch.randn(3), torch.randn(1)) for _ in range(48)], batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(round(loss.item(), 4), scheduler.get_last_lr(), accelerator.sync_gradients)
print(round(sum(p.sum().item() for p in model.parameters()), 4))
"""
LIGHTNING = """
import lightning, tempfile, torch
from torch import nn

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.seen = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        self.seen.append(round(outputs["loss"].item(), 4))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

torch.manual_seed(0)
model = Model()
loader = torch.utils.data.DataLoader([(torch.randn(3), torch.randn(1)) for _ in range(64)], batch_size=4)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(max_steps=14, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
    trainer.fit(model, loader)
print(model.seen, round(trainer.callback_metrics["loss"].item(), 4), round(sum(p.sum().item() for p in model.parameters()), 4))
"""


@pytest.mark.parametrize(("library", "script", "found"), [
    ("transformers", TRAINER, "the body of the loop at trainer.py:"),
    ("accelerate", ACCELERATE, "the body of the loop at train.py:14"),
    ("lightning", LIGHTNING, "lightning.pytorch.plugins.precision.precision:Precision.optimizer_step")])
def test_the_step_of_a_library_is_found(tmp_path: Path, library: str, script: str, found: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    report = tmp_path / "report.txt"
    plain = check_forked(files(tmp_path, train=script), ("--report", str(report)), forkserver.server(IMPORTED, ("-W", "ignore")),
                         CAPTURE_BACKEND="eager", CAPTURE_CAPTURING_SHARE="1000")
    assert plain.returncode == 0, plain.stderr
    (said,) = (line for line in report.read_text().splitlines() if line.startswith("training step: "))
    assert said.startswith(f"training step: {found}") and said.endswith("is compiled as a whole")
