"""`transformers.Trainer` on a small BERT that classifies sentences of varying length."""
import tempfile

import torch
from clock import STEPS, by_hand, tick
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(8, 48, (2000,), generator=generator).tolist()
        self.rows = [torch.randint(1, 500, (length,), generator=generator) for length in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": int(self.rows[i].sum()) % 2}


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row["labels"] for row in rows])}


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        tick()


torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(
    vocab_size=500, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, max_position_embeddings=64))
model.forward = by_hand(model.forward)
with tempfile.TemporaryDirectory() as folder:
    Trainer(model, TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=16, report_to=[], save_strategy="no", logging_steps=50,
        disable_tqdm=True, use_cpu=True), train_dataset=Sentences(), data_collator=collate, callbacks=[Clock()]).train()
