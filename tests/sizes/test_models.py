"""Models of `transformers` with inputs of other sizes from call to call: two captures each, and eager mode's results."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from capture.interp.dispatch import speculation
from tests.helpers import Call, call, check

pytestmark = pytest.mark.usefixtures("open_sizes")
WIDTH = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
TEXT = {"vocab_size": 99, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = (2, 7), (3, 9), (5, 11), (4, 13), (3, 7)
Inputs = dict[str, Any]


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, 99, (batch, length))


def packed(batch: int, length: int) -> Inputs:
    """Without a cache, the model asks by the positions whether several sequences follow each other in a row."""
    return {"input_ids": tokens(batch, length), "labels": tokens(batch, length), "use_cache": False}


def padded(batch: int, length: int) -> Inputs:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -2:] = 0
    return {"input_ids": tokens(batch, length), "attention_mask": mask}


def translated(batch: int, length: int) -> Inputs:
    return {**padded(batch, length), "labels": tokens(batch, length - 2)}


def images(batch: int, length: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=99, n_positions=64, n_embd=32, n_layer=1, n_head=4))


def bart() -> Any:
    return transformers.BartForConditionalGeneration(transformers.BartConfig(
        **TEXT, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=32, decoder_ffn_dim=32))


def experts() -> Any:
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        **WIDTH, **TEXT, num_key_value_heads=2, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        num_experts_per_tok=2))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int, int], Inputs]]] = {
    "gpt2": (gpt2, packed), "bart": (bart, translated), "mixture of experts": (experts, padded),
    "falcon": (lambda: transformers.FalconForCausalLM(transformers.FalconConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)), padded),
    "gptj": (lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(
        vocab_size=99, n_positions=64, n_embd=32, n_layer=1, n_head=4, rotary_dim=4)), padded),
    "swin": (lambda: transformers.SwinModel(transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4)), images),
    "xlnet": (lambda: transformers.XLNetModel(transformers.XLNetConfig(
        vocab_size=99, d_model=32, n_layer=1, n_head=4, d_inner=32)), padded)}


@pytest.mark.parametrize("name", MODELS)
def test_two_captures_for_all_sizes(name: str) -> None:
    make, inputs = MODELS[name]
    steps = [Call(lambda _, size=size: ((), inputs(*size))) for size in SIZES]
    with torch.no_grad():
        check(lambda: make().eval(), *steps, captures=2, tolerance=1e-5, hits=len(SIZES) - 2)


def positions(x: torch.Tensor, limit: int) -> torch.Tensor:
    """As a library asks for what follows from sizes alone."""
    places = torch.arange(x.shape[0])
    if (places < limit).all():
        return x + places
    return x - places


@pytest.mark.parametrize("sizes", [(3, 4, 5, 6, 9, 7), (3, 9, 12, 5, 11, 4, 10), (8, 7, 9, 20, 8, 9)])
def test_a_library_decides_by_what_follows_from_sizes(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is assumed to decide alike for all sizes; where it does not, the call is eager mode's, and sizes decide from then on."""
    monkeypatch.setattr(speculation, "is_of_library", lambda file: file == __file__)
    stats = check(lambda: positions, *(call(torch.ones(size), 8) for size in sizes), captures=None, fullgraph=False)
    assert stats.captures <= 2 + sum(size > 8 for size in sizes), stats.misses


def test_a_program_decides_by_what_follows_from_sizes() -> None:
    check(lambda: positions, *(call(torch.ones(size), 8) for size in (3, 4, 5, 9, 12, 7, 3)), captures=None, fullgraph=False)
