"""The switches for torch.compile that libraries have, given our name: `Trainer` of transformers, accelerate, Lightning."""
from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DynamoBackend
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import capture
import capture.accelerate
from capture.unit import units

COMPILE = torch.compile
import lightning  # noqa: E402  puts a function of its own in the place of torch.compile

COMPILE_OF_LIGHTNING, torch.compile = torch.compile, COMPILE

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    torch._dynamo.reset()
    AcceleratorState._reset_state(reset_partial_state=True)     # which all objects of accelerate share
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def graphs() -> int:
    """How many of Dynamo's graphs have been captured."""
    return sum(unit.captures for unit in units() if unit.name.startswith("torch.compile ["))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 100, (12,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": tokens, "labels": tokens}


def trained_by_transformers(folder: Path, wrap: Any = None, **switches: Any) -> list[float]:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=100, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(str(folder), per_device_train_batch_size=4, num_train_epochs=2, report_to=[], use_cpu=True,
                                  disable_tqdm=True, save_strategy="no", logging_steps=1, learning_rate=1e-2, **switches)
    model = GPT2LMHeadModel(config)
    if wrap is not None:
        model.forward = wrap(model.forward)
    trainer = Trainer(model, arguments, train_dataset=Tokens())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    before = graphs()
    found = trained_by_transformers(tmp_path, torch_compile=True, torch_compile_backend="capture")
    assert graphs() > before
    expected = trained_by_transformers(tmp_path)
    assert found == pytest.approx(expected, rel=1e-4) and len(found) == 8 and found[-1] < found[0]
    assert trained_by_transformers(tmp_path, capture.compile) == pytest.approx(expected, rel=1e-4)


def test_accelerate() -> None:
    def trained(wrap: Any = None, **switches: Any) -> tuple[torch.Tensor, nn.Module]:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(cpu=True, **switches)
        model = network()
        if wrap is not None:
            model.forward = wrap(model.forward)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(X, Y), batch_size=8))
        losses = []
        for inputs, expected in [*loader, *loader]:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), expected)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses), model
    before = graphs()
    found, model = trained(dynamo_backend="capture")
    assert graphs() > before and model is not None
    torch.testing.assert_close(found, trained()[0])
    torch.testing.assert_close(trained(capture.compile)[0], trained()[0])


def test_other_names_are_refused_as_before() -> None:
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR and DynamoBackend("CAPTURE") is DynamoBackend("CAPTURE")
    with pytest.raises(ValueError, match="CAPTURES"):
        DynamoBackend("CAPTURES")


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.losses: list[float] = []

    def training_step(self, batch: Any, place: int) -> torch.Tensor:
        inputs, expected = batch
        return nn.functional.mse_loss(self.network(inputs), expected)

    def on_train_batch_end(self, outputs: Any, batch: Any, place: int) -> None:
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="capture"), capture.compile],
                         ids=["torch.compile", "capture.compile"])
def test_lightning(wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", COMPILE_OF_LIGHTNING)

    def trained(wrap: Any) -> list[float]:
        model = Regression()
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(wrap(model), DataLoader(TensorDataset(X, Y), batch_size=8))
        return model.losses
    found = trained(wrap)
    assert found == pytest.approx(trained(lambda model: model), rel=1e-4) and len(found) == 8 and found[-1] < found[0]
