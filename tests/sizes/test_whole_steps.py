"""Whole training steps of models of `transformers`, whose forward passes run under handlers, with batches of all sizes and padding
masks: one graph, though the update cannot be undone."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import capture

pytestmark = pytest.mark.usefixtures("open_sizes", "kernels_at_once")
WIDTH = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
TEXT = {"vocab_size": 99, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = (2, 7), (3, 9), (2, 12), (4, 5), (3, 6), (2, 7)
MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**WIDTH, **TEXT)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=99, n_positions=64, n_embd=32, n_layer=1, n_head=4)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**WIDTH, **TEXT)),
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(
        **TEXT, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=32, decoder_ffn_dim=32)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0)),
}


class Training:
    """Of a model, beside a parameter that is larger than what a hit copies to undo its changes."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.large = model, nn.Parameter(torch.ones(1100, 256))
        self.optimizer = torch.optim.SGD([*model.parameters(), self.large], lr=0.01)

    def step(self, ids: Tensor, mask: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(input_ids=ids, attention_mask=mask, labels=ids).loss + self.large.mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run(name: str, masks: Callable[[int, int, int], Tensor], captures: int, **options: Any) -> None:
    """Trains a model that is compiled beside one that is not."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()               # without dropout
    theirs, ours = Training(copy.deepcopy(model)), Training(model)
    compiled = capture.compile(ours.step, **options)
    for number, (batch, length) in enumerate(SIZES):
        ids, mask = torch.randint(3, 99, (batch, length)), masks(number, batch, length)
        torch.testing.assert_close(compiled(ids, mask), theirs.step(ids, mask), rtol=1e-4, atol=1e-5)
        for one, other in zip(ours.model.parameters(), theirs.model.parameters()):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert torch.equal(ours.large, theirs.large)
    stats = capture.stats(compiled)
    assert stats.captures <= captures and not stats.breaks and stats.hits > 1, (stats, capture.report(compiled))


@pytest.mark.parametrize("name", MODELS)
def test_two_captures(name: str) -> None:
    run(name, lambda number, batch, length: torch.ones(batch, length, dtype=torch.long), 2, backend="eager")


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_padding_decides(name: str) -> None:
    """Whether there is any: each way is captured."""
    def mask(number: int, batch: int, length: int) -> Tensor:
        made = torch.ones(batch, length, dtype=torch.long)
        if number % 2:
            made[0, -2:] = 0
        return made
    run(name, mask, 4, backend="eager")


def test_with_kernels() -> None:
    run("bert", lambda number, batch, length: torch.ones(batch, length, dtype=torch.long), 2, backend="native",
        options={"background": False})
