"""Lightning on a small convolutional network, with metrics of torchmetrics and logged values."""
import logging
import tempfile
import warnings

import lightning
import torch
import torchmetrics
from clock import STEPS, by_hand, tick
from torch import nn
from torch.nn import functional as F

warnings.simplefilter("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)
        self.net.forward = by_hand(self.net.forward)

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("loss", loss)
        self.log("accuracy", self.accuracy, on_step=True)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        tick()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


torch.manual_seed(0)
images = torch.utils.data.TensorDataset(torch.randn(640, 3, 24, 24), torch.randint(10, (640,)))
with tempfile.TemporaryDirectory() as folder:
    lightning.Trainer(
        max_steps=STEPS, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder).fit(
            Classifier(), torch.utils.data.DataLoader(images, batch_size=16, shuffle=True))
